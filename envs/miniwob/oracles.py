"""Policies that solve pages of MiniWoB by what they show, with the same actions as any agent.

A plan (`envs.miniwob.sight.Plan`) is a generator: it looks at what is seen, yields an action, and goes on with what that led
to. It knows the words of its page, not the answer.
"""

from collections.abc import Mapping

from envs.api import Action, Json, Obs, Policy
from envs.miniwob.oracles_apps import PLANS as APPS
from envs.miniwob.oracles_clicks import PLANS as CLICKS
from envs.miniwob.oracles_forms import PLANS as FORMS
from envs.miniwob.oracles_mouse import PLANS as MOUSE
from envs.miniwob.sight import Plans, Sight

PLANS: Plans = {**CLICKS, **FORMS, **MOUSE, **APPS}


def solved() -> frozenset[str]:
    """The pages that have a plan."""
    return frozenset(PLANS)


def policy(page: str, seed: int = 0) -> Policy | None:
    """A policy for one episode of a page; None for a page without a plan. It calls for help where its plan fails."""
    if page not in PLANS:
        return None
    sight = Sight()
    plan = PLANS[page](sight)

    def choose(state: Mapping[str, Json], obs: Obs) -> Action:
        sight.state, sight.obs = dict(state), obs
        try:
            return next(plan)
        except (StopIteration, LookupError, ValueError):  # the page went another way than the plan
            return Action("call_user")

    return choose

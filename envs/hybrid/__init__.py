"""The family hybrid: a browser and a shell in one session with one folder, and tasks that need both.

env = envs.make("hybrid/totals", level=2)
obs = env.reset(seed=7)                                   # the task, and a picture of the page
env.step(Action("click", {"point": (120, 180)}))          # a link: the file that it downloads is in /desk at once
env.step(Action("execute_bash", {"command": "head /desk/sales.csv"}))
env.step(Action("finished", {}))                          # checked now: the reward is in [0, 1]

An action in the page shows the page: its picture, its elements, and those in words. A tool shows what it printed. A page that
asks for a file opens a dialog, in which a path below /desk is typed or chosen.
"""

from typing import Any

from envs import browser, sandbox
from envs.api import Action, EnvSpec, Json, Obs, Policy
from envs.drawn import SPLITS
from envs.hybrid.desk import SCREEN_WH
from envs.hybrid.env import ACTIONS, TASKS, HybridEnv
from envs.hybrid.tasks import Plan, Sight
from envs.shell.tools import TIMEOUT
from jaxllm.errors import UserError

__all__ = ["describe", "make", "missing", "names", "oracle"]

MAX_STEPS = 60
BACKENDS = ("auto", "beginframe", "screenshot")
OPTIONS: dict[str, Any] = {"backend": "auto", "level": None, "screenshot": True, "split": SPLITS[0], "timeout": TIMEOUT}


def names() -> list[str]:
    """The kinds of tasks, and ``any``, which draws the kind from the seed."""
    return TASKS.names()


def describe(name: str, **options: Json) -> EnvSpec:
    """The spec. Options: see `make`."""
    chosen = _checked(name, options)
    return EnvSpec(
        name=f"hybrid/{name}",
        about=TASKS.about(name),
        actions=ACTIONS,
        screen_wh=SCREEN_WH,
        max_steps=MAX_STEPS,
        supports=frozenset({"save", "deterministic", "oracle"}),
        deadlines={"reset": 60.0, "step": chosen["timeout"] + 30.0, "restore": 180.0},
        weight="heavy",
    )


def make(name: str, **options: Json) -> HybridEnv:
    """The environment.

    Options:
      level: 1, 2 or 3: how much there is to look at; None (the default) takes 1 + seed mod 3.
      split: "train" (the default) or "test": instances of the same kinds that the other never draws.
      timeout: seconds that one command may take before its output so far is returned; 30 by default.
      screenshot: False leaves the pictures out.
      backend: of the browser: "auto" (the default), "beginframe" or "screenshot" (see `envs.browser`).

    Raises UserError for an unknown name or option.
    """
    return HybridEnv(describe(name, **options), name, _checked(name, options), options)


def oracle(name: str, seed: int = 0, **options: Json) -> Policy | None:
    """Solves an episode with real actions. It knows the task, by the state (so that any level and split will do), and takes
    figures and places from where they are shown."""
    _checked(name, options)
    sight = Sight()
    plans: list[Plan] = []

    def policy(state: Any, obs: Obs) -> Action:
        sight.look(obs)
        if not plans:
            plans.append(TASKS.of_id(state["task"]).plan(sight))
        return next(plans[0])

    return policy


def missing() -> str | None:
    """What this machine lacks: a browser, or a sandbox."""
    return browser.missing() or sandbox.missing()


def _checked(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """All options, those given in the place of the defaults."""
    chosen = {**OPTIONS, **options}
    TASKS.check(name, chosen["level"], chosen["split"], chosen["timeout"])
    if unknown := sorted(options.keys() - OPTIONS.keys()):
        raise UserError(f"hybrid/{name} knows the options {', '.join(OPTIONS)}, not {', '.join(unknown)}")
    if not isinstance(chosen["screenshot"], bool):
        raise UserError(f"screenshot is true or false, not {chosen['screenshot']!r}")
    if chosen["backend"] not in BACKENDS:
        raise UserError(f"backend is one of {', '.join(BACKENDS)}, not {chosen['backend']!r}")
    return {**chosen, "timeout": float(chosen["timeout"])}

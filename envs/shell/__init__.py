"""The family shell: tasks on files and text, in bash, a file editor and Python, in a sandbox without network.

env = envs.make("shell/rename", level=2)
obs = env.reset(seed=7)                                   # the task, and where the files are
env.step(Action("execute_bash", {"command": "ls"}))
env.step(Action("finished", {"content": "the answer, where one is asked for"}))     # checked now: the reward is in [0, 1]
"""

from typing import Any

from envs.api import Action, EnvSpec, Json, Obs, Policy
from envs.drawn import SPLITS
from envs.sandbox import missing
from envs.shell.env import ACTIONS, TASKS, ShellEnv
from envs.shell.tools import TIMEOUT
from jaxllm.errors import UserError

__all__ = ["describe", "make", "missing", "names", "oracle"]

MAX_STEPS = 50


def names() -> list[str]:
    """The kinds of tasks, and ``any``, which draws the kind from the seed."""
    return TASKS.names()


def describe(name: str, **options: Json) -> EnvSpec:
    """The spec. Options: see `make`."""
    _, _, timeout = _checked(name, **options)
    return EnvSpec(
        name=f"shell/{name}",
        about=TASKS.about(name),
        actions=ACTIONS,
        max_steps=MAX_STEPS,
        supports=frozenset({"save", "deterministic", "oracle"}),
        deadlines={"step": timeout + 30.0, "restore": 60.0},
        weight="heavy",
    )


def make(name: str, **options: Json) -> ShellEnv:
    """The environment.

    Options:
      level: 1, 2 or 3: how much there is to look at; None (the default) takes 1 + seed mod 3.
      split: "train" (the default) or "test": instances of the same kinds that the other never draws.
      timeout: seconds that one command may take before its output so far is returned; 30 by default.

    Raises UserError for an unknown name or option.
    """
    level, split, timeout = _checked(name, **options)
    return ShellEnv(describe(name, **options), name, level, split, timeout, options)


def oracle(name: str, seed: int = 0, **options: Json) -> Policy | None:
    """Solves an episode, by the tools alone; it takes the task from the state, so that any level and split will do."""
    _checked(name, **options)
    steps: list[Any] = []

    def policy(state: Any, obs: Obs) -> Action:
        if not steps:
            steps.extend(TASKS.of_id(state["task"]).solution)
        step = steps.pop(0)
        return step if isinstance(step, Action) else step(obs)

    return policy


def _checked(
    name: str, *, level: Any = None, split: Any = SPLITS[0], timeout: Any = TIMEOUT, **unknown: Any
) -> tuple[int | None, str, float]:
    TASKS.check(name, level, split, timeout)
    if unknown:
        raise UserError(f"shell/{name} knows the options level, split and timeout, not {', '.join(unknown)}")
    return level, split, float(timeout)

"""An environment for the gateway's tests, imported by its workers."""

import os
import threading
from typing import Any

import numpy as np

from envs import Action, ActionSpec, Argument, BaseEnv, Element, EnvSpec, Obs, StepResult, Task

SPEC = EnvSpec(
    "test/count",
    "counts to ten",
    (ActionSpec("add", (Argument("n", "int", low=0, high=9),)), ActionSpec("hang"), ActionSpec("die")),
    supports=frozenset({"clock", "deterministic"}),
)


class Count(BaseEnv):
    """Counts from the seed to 10, or to the task's goal."""

    def __init__(self) -> None:
        super().__init__(SPEC)

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self.value, self.goal = seed, task.data["goal"] if task else 10
        return self._look()

    def _look(self) -> Obs:
        button = Element(1, "button", "add", (0.0, 0.0, 9.5, 4.0), {"on": True})
        return Obs(
            str(self.value), b"\x89PNG" + bytes([self.value % 256]), (button,), {"value": np.array([self.value], np.int64)}
        )

    def _act(self, action: Action) -> StepResult:
        if action.name == "hang":
            threading.Event().wait(60)
        if action.name == "die":
            os._exit(3)
        self.value += action.arguments["n"]
        done = self.value >= self.goal
        return StepResult(self._look(), 1.0 if done else 0.25, done, False, {})

    def _state(self) -> dict[str, Any]:
        return {"value": self.value}

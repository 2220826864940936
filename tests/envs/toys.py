"""A family of small environments, as its module would be in the product: "toys/count", "toys/screen", "toys/arrays" ..."""

import io
import itertools
import random
from typing import Any

import numpy as np

from envs.actions import COMPUTER, with_names
from envs.api import Action, ActionSpec, Argument, Element, Env, EnvSpec, LostError, Obs, Policy, StepResult, Task
from envs.base import BaseEnv
from jaxllm.errors import UserError

ADD = ActionSpec("add", (Argument("n", "int", low=0, high=9),), "adds a number")
SAY = ActionSpec("say", (Argument("text", "text", "", False), Argument("how", "choice", "low", False, ("low", "loud"))))
DETERMINISTIC = frozenset({"save", "clock", "deterministic"})
BUTTON = (20.0, 30.0, 60.0, 50.0)

SPECS = {
    "arrays": EnvSpec("toys/arrays", "numbers in arrays", (ADD,), None, 5, DETERMINISTIC),
    "count": EnvSpec("toys/count", "count to ten", (ADD, SAY), None, 6, DETERMINISTIC | {"oracle"}),
    "drift": EnvSpec("toys/drift", "never the same twice", (ADD,), None, 3),
    "lost": EnvSpec("toys/lost", "dies at the first step", (ADD,), None, 3),
    "screen": EnvSpec(
        "toys/screen",
        "click it",
        with_names(COMPUTER, "click", "drag", "wait", "finished"),
        (96, 64),
        4,
        DETERMINISTIC | {"oracle"},
    ),
}
drifting = itertools.count()


class Toy(BaseEnv):
    """All of them. With ``start``, counting begins there."""

    def __init__(self, name: str = "count", start: int = 0):
        super().__init__(SPECS[name], {"start": start} if start else {})
        self.kind, self.start = name, start

    def _reset(self, task: Task | None, seed: int) -> Obs:
        if seed == 13 and self.kind == "lost":
            raise LostError("unlucky")
        self.value = self.start
        self.goal = 10 + random.Random(seed).randrange(5)
        self.clicked = False
        self.salt = next(drifting) if self.kind == "drift" else 0
        return self._look()

    def _look(self) -> Obs:
        if self.kind == "screen":
            from PIL import Image, ImageDraw

            picture = Image.new("RGB", self.spec.screen_wh or (1, 1), "white")
            ImageDraw.Draw(picture).rectangle(BUTTON, "green" if self.clicked else "blue")
            data = io.BytesIO()
            picture.save(data, "PNG")
            button = Element(1, "button", "it", BUTTON, {"focused": self.clicked})
            return Obs(screenshot=data.getvalue(), elements=(button,), t_virtual=0.15 * self._steps)
        if self.kind == "arrays":
            return Obs(arrays={"value": np.array([self.value, self.goal]), "grid": np.eye(3, dtype=np.float32) * self.value})
        return Obs(text=f"{self.value} of {self.goal}\n{self.salt}")

    def _act(self, action: Action) -> StepResult:
        if self.kind == "lost":
            raise LostError("its process is gone")
        if action.name == "click":
            x, y = action.arguments["point"]
            self.clicked = BUTTON[0] <= x <= BUTTON[2] and BUTTON[1] <= y <= BUTTON[3]
        if action.name == "add":
            self.value += action.arguments["n"]
        done = self.clicked or self.value == self.goal
        return StepResult(self._look(), float(done), done or self.value > self.goal, False, {})

    def _state(self) -> dict[str, Any]:
        told = f"count to {self.goal}" if self.kind == "count" else None
        return {"instruction": told, "value": self.value, "goal": self.goal, "clicked": self.clicked, "salt": self.salt}


# The family (see `envs.api.Family`).


def names() -> list[str]:
    return sorted(SPECS)


def describe(name: str, **options: Any) -> EnvSpec:
    if name not in SPECS:
        raise UserError(f"there is no toys/{name}; there are {', '.join(names())}")
    if not options.keys() <= {"start"}:
        raise UserError(f"toys/{name} has the option start, not {', '.join(options)}")
    return SPECS[name]


def make(name: str, **options: Any) -> Env:
    describe(name, **options)
    return Toy(name, **options)


def oracle(name: str, seed: int = 0) -> Policy | None:
    if "oracle" not in SPECS[name].supports:
        return None
    if name == "screen":
        return lambda state, obs: Action("click", {"point": [40, 40]})
    return lambda state, obs: Action("add", {"n": min(9, state["goal"] - state["value"])})


def missing() -> str | None:
    return None

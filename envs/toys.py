"""The family ``toy/*``: small tasks of several turns in plain text whose best score is known by computation.

They are for trainers: an agent learns them within minutes on a laptop, and `optimum` says how far it is from the best.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from envs.api import Action, ActionSpec, Argument, Env, EnvSpec, Obs, Policy, StepResult, Task
from envs.base import BaseEnv
from jaxllm.errors import UserError

DIRECTIONS = {"n": (0, -1), "e": (1, 0), "s": (0, 1), "w": (-1, 0)}
SUPPORTS = frozenset({"save", "clock", "deterministic", "oracle"})


def names() -> list[str]:
    """hilo, keys, maze."""
    return sorted(TOYS)


def describe(name: str, **options: Any) -> EnvSpec:
    """The spec. Raises UserError for an unknown name or option."""
    return make(name, **options).spec


def make(name: str, **options: Any) -> Env:
    """The environment.

    Args:
      name: ``hilo``: find a number by guesses that are answered by ">" (it is higher) or "<"; ``keys``: read the number in the
        box that the task names, then say it; ``maze``: find the way out of a small maze of which only the next walls are seen.
      options: hilo: ``numbers`` (10) from 0 on and ``guesses`` (4); keys: ``boxes`` (10); maze: ``side`` (3).

    Raises:
      UserError: an unknown name or option, or a size that makes no task.
    """
    if name not in TOYS:
        raise UserError(f"there is no toy {name!r}; there are {', '.join(names())}")
    try:
        return TOYS[name](options)
    except TypeError as error:
        raise UserError(f"toy/{name}: {error}") from None


def oracle(name: str, seed: int = 0) -> Policy | None:
    """A policy that reaches the optimum, from what the environment shows and the verifier's view of where it stands."""
    return ORACLES.get(name)


def optimum(name: str, **options: Any) -> float:
    """The best expected return of an episode over all tasks that seeds can draw."""
    return make(name, **options).optimum()  # type: ignore[attr-defined]


def missing() -> str | None:
    """None: they need nothing."""
    return None


class Toy(BaseEnv):
    """What the toys share: one action with one argument, rewards that sum to 1 at most, tasks drawn from seeds."""

    kind = ""
    about = ""
    action = ActionSpec("do")

    def __init__(self, options: Mapping[str, Any], max_steps: int):
        spec = EnvSpec(f"toy/{self.kind}", self.about, (self.action,), max_steps=max_steps, supports=SUPPORTS)
        super().__init__(spec, options)

    def optimum(self) -> float:
        """See `optimum`."""
        return 1.0

    def _said(self, text: str, reward: float = 0.0, *, over: bool = False) -> StepResult:
        return StepResult(Obs(text=text), reward, over, False, {})


class HiLo(Toy):
    """Guess a number; ">" says that it is higher than the guess. Found within the guesses pays 1."""

    kind = "hilo"
    about = "find a number by guesses that are answered by > (it is higher) or < (it is lower)"

    def __init__(self, options: Mapping[str, Any]):
        self.numbers, self.guesses = _sizes(options, numbers=10, guesses=4)
        self.action = ActionSpec("guess", (Argument("n", "int", low=0, high=self.numbers - 1),), "says a number")
        super().__init__(options, self.guesses)

    def optimum(self) -> float:
        """Halving: k guesses tell 2^k - 1 numbers apart."""
        return min(1.0, (2**self.guesses - 1) / self.numbers)

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self.secret = _given(task, "secret", self.numbers, random.Random(f"hilo {seed}"))
        self.range = [0, self.numbers - 1]
        self.tried = 0
        return Obs(text=f"0-{self.numbers - 1}")

    def _act(self, action: Action) -> StepResult:
        n = action.arguments["n"]
        self.tried += 1
        if n == self.secret:
            self.range = [n, n]
            return self._said("found", 1.0, over=True)
        higher = n < self.secret
        self.range = [max(self.range[0], n + 1), self.range[1]] if higher else [self.range[0], min(self.range[1], n - 1)]
        return self._said(">" if higher else "<", over=self.tried == self.guesses)

    def _state(self) -> dict[str, Any]:
        return {"secret": self.secret, "range": list(self.range), "tried": self.tried}


class Keys(Toy):
    """The task names a box, the box holds a number, the number opens the door: each right call pays a half."""

    kind = "keys"
    about = "read the number in the box that the task names, then say it"

    def __init__(self, options: Mapping[str, Any]):
        (self.boxes,) = _sizes(options, boxes=10)
        self.action = ActionSpec("call", (Argument("n", "int", low=0, high=self.boxes - 1),), "opens a box, or the door")
        super().__init__(options, 2)

    def _reset(self, task: Task | None, seed: int) -> Obs:
        rng = random.Random(f"keys {seed}")
        self.box, self.code = (_given(task, name, self.boxes, rng) for name in ("box", "code"))
        self.opened: list[int] = []
        return Obs(text=f"box {self.box}")

    def _act(self, action: Action) -> StepResult:
        n = action.arguments["n"]
        self.opened.append(n)
        if len(self.opened) == 2:
            opens = n == self.code and self.opened[0] == self.box
            return self._said("open" if opens else "shut", 0.5 * opens, over=True)
        return self._said(f"code {self.code}", 0.5) if n == self.box else self._said("empty")

    def _state(self) -> dict[str, Any]:
        return {"box": self.box, "code": self.code, "opened": list(self.opened)}


class Maze(Toy):
    """A maze without loops; only the openings around are seen. Getting out in time pays 1.

    A walk that keeps to one wall passes each of the side² - 1 openings twice at most, so that is the limit of moves.
    """

    kind = "maze"
    about = "find the way out of a small maze of which only the next walls are seen"
    action = ActionSpec("go", (Argument("direction", "choice", choices=tuple(DIRECTIONS)),), "takes a step")

    def __init__(self, options: Mapping[str, Any]):
        (self.side,) = _sizes(options, side=3)
        if self.side < 2:
            raise UserError("toy/maze: side must be at least 2")
        super().__init__(options, 2 * (self.side**2 - 1))

    def _reset(self, task: Task | None, seed: int) -> Obs:
        number = _given(task, "number", 2**31, random.Random(f"maze {seed}"))
        rng = random.Random(f"plan {number}")
        cells = [(x, y) for x in range(self.side) for y in range(self.side)]
        self.open: dict[tuple[int, int], str] = dict.fromkeys(cells, "")
        self.at, self.goal = rng.sample(cells, 2)
        trail, seen = [self.at], {self.at}
        while trail:  # a depth-first walk carves a tree
            x, y = trail[-1]
            ways = [(name, (x + dx, y + dy)) for name, (dx, dy) in DIRECTIONS.items()]
            fresh = [(name, cell) for name, cell in ways if cell in self.open and cell not in seen]
            if not fresh:
                trail.pop()
                continue
            name, cell = rng.choice(fresh)
            self.open[x, y] += name
            self.open[cell] += _back(name)
            seen.add(cell)
            trail.append(cell)
        return Obs(text=self._view())

    def _act(self, action: Action) -> StepResult:
        direction = action.arguments["direction"]
        if direction not in self.open[self.at]:
            return self._said("wall " + self._view())
        dx, dy = DIRECTIONS[direction]
        self.at = self.at[0] + dx, self.at[1] + dy
        return self._said("out", 1.0, over=True) if self.at == self.goal else self._said(self._view())

    def _view(self) -> str:
        return "".join(sorted(self.open[self.at]))

    def _state(self) -> dict[str, Any]:
        cells = {f"{x},{y}": "".join(sorted(ways)) for (x, y), ways in sorted(self.open.items())}
        return {"at": list(self.at), "goal": list(self.goal), "open": cells}


TOYS: dict[str, Callable[[Mapping[str, Any]], Toy]] = {"hilo": HiLo, "keys": Keys, "maze": Maze}


def _halve(state: Mapping[str, Any], obs: Obs) -> Action:
    low, high = state["range"]
    return Action("guess", {"n": (low + high) // 2})


def _unlock(state: Mapping[str, Any], obs: Obs) -> Action:
    return Action("call", {"n": state["code"] if state["opened"] else state["box"]})


def _way_out(state: Mapping[str, Any], obs: Obs) -> Action:
    begin, goal = tuple(state["at"]), tuple(state["goal"])
    queue, first = deque([begin]), {begin: ""}
    while queue:
        x, y = cell = queue.popleft()
        if cell == goal:
            break
        for name in state["open"][f"{x},{y}"]:
            dx, dy = DIRECTIONS[name]
            if (beyond := (x + dx, y + dy)) not in first:
                first[beyond] = first[cell] or name
                queue.append(beyond)
    return Action("go", {"direction": first[goal]})


ORACLES: dict[str, Policy] = {"hilo": _halve, "keys": _unlock, "maze": _way_out}


def _back(direction: str) -> str:
    return {"n": "s", "s": "n", "e": "w", "w": "e"}[direction]


def _sizes(options: Mapping[str, Any], **defaults: int) -> list[int]:
    if unknown := options.keys() - defaults.keys():
        raise UserError(f"unknown option {', '.join(sorted(unknown))}; there are {', '.join(defaults)}")
    sizes = [options.get(name, default) for name, default in defaults.items()]
    for name, size in zip(defaults, sizes, strict=True):
        if type(size) is not int or not 1 <= size <= 1000:
            raise UserError(f"{name} must be a whole number from 1 to 1000, not {size!r}")
    return sizes


def _given(task: Task | None, name: str, count: int, rng: random.Random) -> int:
    """What a task says, else a draw."""
    drawn = rng.randrange(count)
    if task is None or name not in task.data:
        return drawn
    value = task.data[name]
    if type(value) is not int or not 0 <= value < count:
        raise UserError(f"task {task.id}: {name} must be a whole number below {count}, not {value!r}")
    return value

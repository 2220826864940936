"""What the games share: the shape of a game's rules, random numbers that live in its state, and levels one after another."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from envs.api import Action, ActionSpec, Argument

BUDGET = 100  # steps of an episode
DIRECTIONS = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}  # -> rows, columns
MOVE = ActionSpec("move", (Argument("direction", "choice", choices=tuple(DIRECTIONS)),))
STREAM = 0x9E3779B97F4A7C15  # the step of SplitMix64
WORD = (1 << 64) - 1

State = Any  # a game's own frozen dataclass of ints, strings and tuples of them


class IllegalError(Exception):
    """A move that the rules don't allow. The message is for the player."""


@dataclasses.dataclass(frozen=True)
class Game:
    """The rules of a game, as pure functions over its state.

    The state is a frozen dataclass of ints, strings and tuples; whatever chance there is to come is a number in it.
    """

    name: str
    title: str
    goal: str  # one or two sentences for the player
    legend: str  # how to read the drawing, and how to name a move
    actions: tuple[ActionSpec, ...]
    success: float  # an episode's reward from which on it counts as solved
    state: type  # the dataclass
    start: Callable[[int, int], State]  # (seed, first level) -> the state; games without levels refuse a level above 0
    play: Callable[[State, Action], State]  # raises IllegalError
    legal: Callable[[State], list[Action]]  # every move that `play` allows, in a fixed order
    score: Callable[[State], float]
    over: Callable[[State], bool]  # no move counts any more
    draw: Callable[[State], str]  # plain text
    oracle: Callable[[State], Action]  # a good move
    levels: bool = True  # whether the score is levels solved, and a restart at another level makes sense


def encode(state: State) -> dict[str, Any]:
    """A state as JSON."""
    return {field.name: _listed(getattr(state, field.name)) for field in dataclasses.fields(state)}


def decode(kind: type, data: Mapping[str, Any]) -> State:
    """A state from its JSON; other keys in it are left alone."""
    return kind(**{field.name: _frozen(data[field.name]) for field in dataclasses.fields(kind)})


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def draw_below(rng: int, n: int) -> tuple[int, int]:
    """The next random state and a number in [0, n). SplitMix64 (Steele, Lea, Flood, 2014): the same on any machine."""
    rng = (rng + STREAM) & WORD
    mixed = ((rng ^ (rng >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return rng, ((mixed ^ (mixed >> 31)) * n) >> 64


def first_rng(*key: Any) -> int:
    """A random state that follows from a name, a seed, a level."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


class Chance:
    """Random numbers for a generator of levels."""

    def __init__(self, *key: Any):
        self._rng = first_rng(*key)

    def below(self, n: int) -> int:
        """A number in [0, n)."""
        self._rng, value = draw_below(self._rng, n)
        return value

    def choice(self, items: Any) -> Any:
        """One of a sequence."""
        return items[self.below(len(items))]

    def shuffled(self, items: Any) -> list[Any]:
        """A list of the items in random order."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


def table(rows: Any, labels: bool = True) -> str:
    """Rows of cells as aligned text, with numbers of rows and columns (from 1) around."""
    cells = [[str(cell) for cell in row] for row in rows]
    width = max(len(cell) for row in cells for cell in row)
    lines = [" ".join(cell.rjust(width) for cell in row) for row in cells]
    if not labels:
        return "\n".join(lines)
    head = "    " + " ".join(str(column + 1).rjust(width) for column in range(len(cells[0])))
    return "\n".join([head, *(f"{row + 1:2d}  {line}" for row, line in enumerate(lines))])

"""Tasks that a seed draws: of a kind, at a level, for training or for tests. Problems follow from these alone, on any host."""

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from envs.api import Task
from jaxllm.errors import UserError

ANY = "any"  # the name of the environment that draws the kind from the seed
LEVELS = (1, 2, 3)
SPLITS = ("train", "test")


class Told(Protocol):
    """What every problem has."""

    @property
    def instruction(self) -> str:
        """What the agent is asked for."""


Problem = TypeVar("Problem", bound=Told)


class Tasks(Generic[Problem]):
    """The tasks of a family of environments.

    Args:
      family: its name.
      kinds: what makes a problem of each kind from random numbers and a level.
      stream: before the name of each problem's random numbers.
    """

    def __init__(self, family: str, kinds: Mapping[str, Callable[[random.Random, int], Problem]], stream: str = ""):
        self.family, self.kinds, self._stream = family, kinds, stream
        self._made = functools.lru_cache(maxsize=8)(self._make)

    def names(self) -> list[str]:
        """Of the family's environments."""
        return sorted([*self.kinds, ANY])

    def about(self, name: str) -> str:
        """What an environment asks for."""
        return (self.kinds[name].__doc__ or "").split("\n")[0] if name != ANY else "a task of any kind, drawn from the seed"

    def check(self, name: str, level: Any, split: Any, timeout: Any) -> None:
        """Raises UserError for a name that is none, and for options of another form."""
        if name not in self.kinds and name != ANY:
            raise UserError(f"there is no {self.family}/{name}; there are {', '.join(self.names())}")
        if level is not None and (isinstance(level, bool) or level not in LEVELS):
            raise UserError(f"level is 1, 2, 3 or None, not {level!r}")
        if split not in SPLITS:
            raise UserError(f"split is {' or '.join(SPLITS)}, not {split!r}")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 600:
            raise UserError(f"timeout is a number of seconds up to 600, not {timeout!r}")

    def draw(self, kind: str, level: int | None, split: str, seed: int) -> Task:
        """The task of a seed. Train and test draw from different streams; the level is 1 + seed mod 3 where none is given."""
        chosen = random.Random(f"{ANY}/{split}/{seed}").choice(list(self.kinds)) if kind == ANY else kind
        data = {"kind": chosen, "level": level or LEVELS[seed % len(LEVELS)], "split": split, "seed": seed}
        task = Task(f"{chosen}/{split}/{data['level']}/{seed}", "", data)
        return Task(task.id, self.problem(task).instruction, data)

    def problem(self, task: Task) -> Problem:
        """The problem of a task of `draw`. Raises UserError for another task."""
        kind, level, split, seed = (task.data.get(key) for key in ("kind", "level", "split", "seed"))
        if kind not in self.kinds or level not in LEVELS or split not in SPLITS or not isinstance(seed, int):
            wanted = "kind, level, split and seed as data, as `reset` draws it"
            raise UserError(f"a task of {self.family} has {wanted}; not {dict(task.data)}")
        return self._made(kind, split, level, seed)

    def of_id(self, id: str) -> Problem:
        """The problem of a task of `draw` by its id."""
        kind, split, level, seed = id.split("/")
        return self._made(kind, split, int(level), int(seed))

    def _make(self, kind: str, split: str, level: int, seed: int) -> Problem:
        return self.kinds[kind](random.Random(f"{self._stream}{kind}/{split}/{level}/{seed}"), level)

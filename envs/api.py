"""What an environment is: a task and actions in, observations and rewards out.

Everything here is plain data (numbers, text, bytes, arrays), so that it crosses processes and hosts as it is. The words are
Gymnasium's (`terminated`, `truncated`, `info`), with one difference: nothing resets by itself. A step after the end of an
episode changes nothing and says ``episode_over``.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

Point = tuple[float, float]  # x, y in pixels of the screenshot, from its upper left corner
Box = tuple[float, float, float, float]  # x1, y1, x2, y2, likewise
Json = Any  # None, bool, int, float, str, and lists and dicts of them


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of an action."""

    name: str
    kind: str  # a name of `KINDS`
    default: Json = None  # used where the argument is left out
    required: bool = True
    choices: tuple[Json, ...] = ()  # the values allowed; () for any of the kind
    low: float | None = None  # bounds of a number, both included
    high: float | None = None
    shape: tuple[int, ...] = ()  # of an array of numbers as nested lists (kind "json"); () for anything else


# What an argument's value is in an `Action`.
KINDS = {
    "point": "(x, y) floats in pixels of the screenshot",
    "text": "str",
    "key": "str: up to three names of keys, lower case, with blanks between",
    "choice": "one of the argument's choices",
    "int": "int",
    "float": "finite float",
    "json": "anything that JSON has: lists of numbers for array actions, lists and objects of tools",
}


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """One action that an environment understands."""

    name: str
    arguments: tuple[Argument, ...] = ()
    about: str = ""  # one line: what it does


@dataclasses.dataclass(frozen=True)
class Action:
    """What the agent does: a name of the environment's actions and its arguments by name."""

    name: str
    arguments: Mapping[str, Json] = dataclasses.field(default_factory=dict)

    def __init__(self, name: str, arguments: Mapping[str, Json] | None = None):
        # What a frozen dataclass does by itself, in a third of the time: this, `Obs` and `StepResult` are made at each step.
        fields = self.__dict__
        fields["name"], fields["arguments"] = name, {} if arguments is None else arguments


@dataclasses.dataclass(frozen=True)
class Invalid:
    """What the agent wrote in place of an action. It takes a step and changes nothing but the count of failures."""

    error: str  # a code such as "no_action", "bad_point", "unknown_action"
    message: str = ""  # what was wrong, for the agent to read


@dataclasses.dataclass(frozen=True)
class Element:
    """Something on the screen that can be named: a control, a link, a tile."""

    id: int  # unique within its observation
    role: str  # "button", "link", "textbox", "text" ...
    text: str  # what it shows
    box: Box
    attributes: Mapping[str, Json] = dataclasses.field(default_factory=dict)  # value, checked, focused, classes ...


@dataclasses.dataclass(frozen=True, eq=False)
class Obs:
    """What the agent sees. A part that an environment does not have is None or empty."""

    text: str | None = None
    screenshot: bytes | None = None  # a PNG or JPEG file
    elements: tuple[Element, ...] = ()
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # of environments without screen or text
    t_virtual: float = 0.0  # seconds of the environment's own clock since the reset
    step: int = 0  # steps taken since the reset

    def __init__(
        self,
        text: str | None = None,
        screenshot: bytes | None = None,
        elements: tuple[Element, ...] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
        t_virtual: float = 0.0,
        step: int = 0,
    ):
        fields = self.__dict__  # as in `Action`
        fields["text"], fields["screenshot"], fields["elements"] = text, screenshot, elements
        fields["arrays"] = {} if arrays is None else arrays
        fields["t_virtual"], fields["step"] = t_virtual, step


@dataclasses.dataclass(frozen=True, eq=False)
class StepResult:
    """What a step led to.

    `info` holds plain JSON. Its common keys: ``error`` (a code) and ``message`` where the action was refused or went wrong;
    ``effect`` ("changed" or "unchanged"); ``success`` (bool) at the end; ``status`` where an episode was cut short.
    """

    obs: Obs
    reward: float  # finite
    terminated: bool  # the task is over: solved, failed, or declared finished
    truncated: bool  # cut short by a limit
    info: Mapping[str, Json]

    def __init__(self, obs: Obs, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Json]):
        fields = self.__dict__  # as in `Action`
        fields["obs"], fields["reward"], fields["info"] = obs, reward, info
        fields["terminated"], fields["truncated"] = terminated, truncated


@dataclasses.dataclass(frozen=True)
class Task:
    """One task: what the agent is told, and what the environment needs to set it up and to check it."""

    id: str
    instruction: str
    data: Mapping[str, Json] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment before it is made."""

    name: str  # as `envs.make` takes it
    about: str  # one line
    actions: tuple[ActionSpec, ...]
    screen_wh: tuple[int, int] | None = None  # of the screenshot, in pixels; None without one
    max_steps: int = 100  # after which an episode is truncated
    supports: frozenset[str] = frozenset()  # of "save" (save and restore), "clock" (time stands still between steps),
    # "deterministic" (the same seed and actions give the same digests anywhere), "oracle" (a policy that solves it)
    success: float = 1.0  # an episode's summed reward from which on it counts as solved
    deadlines: Mapping[str, float] = dataclasses.field(default_factory=dict)  # seconds by operation, where not the defaults
    weight: str = "light"  # "light": many sessions share a worker process, each stepped by one thread at a time, but not always
    # by the same one; "heavy": a session has a process and its main thread for itself (browsers, shells)

    def action(self, name: str) -> ActionSpec | None:
        """The action of this name."""
        return next((action for action in self.actions if action.name == name), None)


# Seconds that an operation may take, where an environment's spec does not say (`EnvSpec.deadlines`).
DEADLINES = {"create": 60.0, "reset": 30.0, "step": 30.0, "save": 30.0, "restore": 60.0, "state": 30.0, "close": 5.0}


class Env(Protocol):
    """A stateful environment, used from one thread. `envs.base.BaseEnv` does the bookkeeping that they have in common."""

    spec: EnvSpec

    def reset(self, task: Task | None = None, seed: int = 0) -> Obs:
        """Starts an episode. Without a task, one is drawn from the seed. The same task and seed give the same digest."""

    def step(self, action: Action | Invalid) -> StepResult:
        """Does one action. Deterministic given state and action where the spec says so. Never raises for a bad action."""

    def save(self) -> bytes:
        """The whole episode so far, for `restore` in this or another process. Raises UserError where it can't be saved."""

    def restore(self, blob: bytes) -> Obs:
        """Goes on from a save. Raises UserError for a blob of another version or environment; `LostError` if not redone."""

    def state(self) -> dict[str, Json]:
        """The verifier's view: all that matters of the state, as JSON. `envs.digest.digest` makes a key of it."""

    def close(self) -> None:
        """Frees everything. May be called twice."""


class LostError(Exception):
    """An episode can't go on from where it was: its process died, or a replay went another way."""


class VerifierError(Exception):
    """A verifier raised: nobody knows what the episode earned, which is not the same as nothing."""

    code = "verifier_error"  # in the info of a step server's reply, whose status is CRASHED


# Chooses the next action from the verifier's view of the state and the observation. Made anew for each episode.
Policy = Callable[[Mapping[str, Json], Obs], Action]


class Family(Protocol):
    """What a family's module offers to the registry. Names are without the family's prefix.

    A family that batches better than processes do also has ``make_vec(name, num_envs, batch_size, *, seed, options)``, which
    returns what works as a `envs.vector.Vector`.
    """

    def names(self) -> list[str]:
        """Every environment of the family, sorted; empty where the user names any (`page`, `gym`, `openenv`)."""

    def describe(self, name: str, **options: Json) -> EnvSpec:
        """The spec, without starting anything. Raises UserError for an unknown name."""

    def make(self, name: str, **options: Json) -> Env:
        """The environment. Raises UserError for an unknown name, a wrong option, or something that is not installed."""

    def oracle(self, name: str, seed: int = 0) -> Policy | None:
        """A policy that solves it, for one episode; None where there is none."""

    def missing(self) -> str | None:
        """What this machine lacks for the family, with the remedy; None if it works."""

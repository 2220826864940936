"""Any of our environments as a `gymnasium.Env`."""

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.api import Action, Argument, Env, Invalid, Obs, Task
from envs.base import decode
from envs.parse import parse
from jaxllm.errors import UserError

LONGEST = 1 << 24  # characters of a text
DRAWN = 40  # characters of one drawn at random
LETTERS = "".join(map(chr, range(32, 127)))


class AnyText(spaces.Text):
    """Any text. Drawn at random, it is short and has the characters of ASCII."""

    def __init__(self) -> None:
        super().__init__(max_length=LONGEST, min_length=0, charset=LETTERS)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A text of up to `DRAWN` characters."""
        length = int(self.np_random.integers(DRAWN + 1))
        return "".join(self.np_random.choice(list(LETTERS), length))

    def contains(self, x: Any) -> bool:
        """Whether it is a text at all."""
        return isinstance(x, str) and len(x) <= LONGEST


class GymEnv(gymnasium.Env[dict[str, Any], Any]):
    """One of our environments for those who expect Gymnasium's.

    An action is text in the agent's language (``Action: click(point='<point>10 20</point>')``, points in pixels); `step` also
    takes an `Action`, or an object with a name and arguments. Where the only action has one bounded whole number, the action
    space is `Discrete`. Observations are a dictionary of what the environment shows: ``text``, ``screenshot`` (uint8
    [H, W, 3]), and its arrays by name. Elements and the virtual time are in `info`.

    What is refused (see ``info["error"]``) takes a step. ``reset(options={"task": ...})`` takes a `Task`, or its fields.
    The environment is reset once, with seed 0, to see what it shows.
    """

    def __init__(self, env: Env):
        self.env = env
        self.last = env.reset(seed=0)  # the last observation, as ours has it
        self._ended = (False, False)
        self.metadata = {"render_modes": ["rgb_array" if self.last.screenshot else "ansi"]}
        self.render_mode = self.metadata["render_modes"][0]
        self._number = _only_number(env)
        self.action_space: Any = self._number[1] if self._number else AnyText()
        seen = self._shown(self.last)
        self.observation_space: Any = spaces.Dict({name: _space(part) for name, part in seen.items()})

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The first observation. Without a seed, one is drawn. Raises UserError for a task of another form."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(1 << 31)) if seed is None else seed
        self.last = self.env.reset(_task((options or {}).get("task")), chosen)
        self._ended = (False, False)
        return self._shown(self.last), self._told({})

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """One step. After the end of an episode nothing happens, and it is still over."""
        result = self.env.step(self._meant(action))
        self.last = result.obs
        if result.info.get("error") != "episode_over":
            self._ended = result.terminated, result.truncated
        return self._shown(result.obs), result.reward, *self._ended, self._told(result.info)

    def render(self) -> Any:
        """The last screenshot, uint8 [H, W, 3], or the text where there is none."""
        return self.last.text or "" if self.last.screenshot is None else _pixels(self.last.screenshot)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _meant(self, action: Any) -> Action | Invalid:
        if isinstance(action, Action | Invalid):
            return action
        if isinstance(action, str):
            parsed = parse(action, self.env.spec.actions, frame="orig", screen_wh=self.env.spec.screen_wh)
            return parsed.error or parsed.actions[0]
        if self._number and not isinstance(action, Mapping):
            return Action(self.env.spec.actions[0].name, {self._number[0].name: action})
        try:
            return decode(action)
        except UserError as error:
            return Invalid("bad_action", str(error))

    def _shown(self, obs: Obs) -> dict[str, Any]:
        shown: dict[str, Any] = {} if obs.text is None else {"text": obs.text}
        if obs.screenshot is not None:
            shown["screenshot"] = _pixels(obs.screenshot)
        arrays = {name: np.array(array) for name, array in obs.arrays.items()}
        return {**shown, **arrays}

    def _told(self, info: Mapping[str, Any]) -> dict[str, Any]:
        told = {key: value for key, value in info.items() if key != "latency"}
        elements = [dataclasses.asdict(element) for element in self.last.elements]
        return {**told, "elements": elements, "t_virtual": self.last.t_virtual}


def _task(task: Any) -> Task | None:
    if task is None or isinstance(task, Task):
        return task
    if not isinstance(task, Mapping) or not {"id", "instruction"} <= task.keys() <= {"id", "instruction", "data"}:
        raise UserError(f"a task has id, instruction and data: {task!r}"[:200])
    return Task(**task)


def _only_number(env: Env) -> tuple[Argument, spaces.Discrete] | None:
    """The argument of an environment that knows one action with one bounded whole number."""
    if len(env.spec.actions) != 1 or len(env.spec.actions[0].arguments) != 1:
        return None
    argument = env.spec.actions[0].arguments[0]
    if argument.kind != "int" or argument.low is None or argument.high is None:
        return None
    low, high = int(argument.low), int(argument.high)
    return argument, spaces.Discrete(high - low + 1, start=low)


def _space(part: Any) -> spaces.Space[Any]:
    if isinstance(part, str):
        return AnyText()
    if part.dtype == np.uint8:
        return spaces.Box(0, 255, part.shape, np.uint8)
    if part.dtype.kind == "b":
        return spaces.MultiBinary(part.shape)
    limits = np.iinfo(part.dtype) if part.dtype.kind in "iu" else np.finfo(part.dtype)
    low, high = (limits.min, limits.max) if part.dtype.kind in "iu" else (-np.inf, np.inf)
    return spaces.Box(low, high, part.shape, part.dtype.type)


def _pixels(screenshot: bytes) -> np.ndarray:
    """A picture's file as uint8 [H, W, 3]."""
    from PIL import Image

    with Image.open(io.BytesIO(screenshot)) as picture:
        return np.array(picture.convert("RGB"))

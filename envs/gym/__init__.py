"""The family ``gym/<id>``: any registered environment of Gymnasium, as one of ours.

The one action is ``act(value)``; what it sees comes as arrays by name, texts as text. Ids of a module of your own are written
``gym/module:Name-v0``, as Gymnasium has them. For the other way round see `to_gymnasium`.
"""

import hashlib
import importlib
import importlib.util
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.action_values import plain_json, shown
from envs.api import Action, Env, EnvSpec, Invalid, Obs, Policy, StepResult, Task
from envs.base import BaseEnv
from envs.gym.spaces import act, in_space, parts, require_known
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from envs.gym.wrapper import GymEnv

MAX_STEPS = 1000  # of ids that have no limit of their own
RENDER_MODES = ("rgb_array", "ansi")  # the better first
OURS = ("error", "message", "effect", "status", "latency", "stuck_steps")  # entries of `info` that Gymnasium's must not cover


def names() -> list[str]:
    """Empty: the user names any id."""
    return []


def describe(name: str, **options: Any) -> EnvSpec:
    """The spec; makes the environment for a moment, because only that knows its spaces. Raises UserError for an unknown id."""
    env = make(name, **options)
    env.close()
    return env.spec


def make(name: str, **options: Any) -> Env:
    """The environment of an id.

    Args:
      name: an id of Gymnasium, such as ``CartPole-v1``.
      options: those of `gymnasium.make`. With ``render_mode`` "rgb_array", each observation has a screenshot; with "ansi",
        what it renders is the text. Without one, "rgb_array" where it works here, else "ansi" where there is it.

    Raises:
      UserError: an unknown id or option, a render mode that it does not have, spaces that are neither numbers nor text.
    """
    return FromGym(name, options)


def oracle(name: str, seed: int = 0) -> Policy | None:
    """None: nobody knows how to solve any environment."""
    return None


def missing() -> str | None:
    """What to install, if Gymnasium is not."""
    return None if importlib.util.find_spec("gymnasium") else "gymnasium is not installed: pip install 'jaxllm[envs]'"


def to_gymnasium(env: Env) -> "GymEnv":
    """Any of our environments as a `gymnasium.Env`: see `envs.gym.wrapper.GymEnv`. Raises UserError without Gymnasium."""
    if lack := missing():
        raise UserError(lack)
    from envs.gym.wrapper import GymEnv

    return GymEnv(env)


class FromGym(BaseEnv):
    """An environment of Gymnasium as one of ours. It never resets by itself."""

    def __init__(self, name: str, options: Mapping[str, Any] | None = None):
        self._env = _made(name, dict(options or {}))
        try:
            action = act(self._env.action_space)
            require_known(self._env.observation_space)
        except UserError:
            self._env.close()
            raise
        known = self._env.spec
        limit = known.max_episode_steps or MAX_STEPS
        picture = self._picture()
        supports = {"clock"} if known.nondeterministic else {"clock", "save", "deterministic"}
        threshold = known.reward_threshold
        spec = EnvSpec(
            f"gym/{name}",
            f"{known.id} of Gymnasium",
            (action,),
            None if picture is None else (picture.shape[1], picture.shape[0]),
            limit,
            frozenset(supports),
            success=1.0 if threshold is None else float(threshold),
        )
        super().__init__(spec, options)

    def _reset(self, task: Task | None, seed: int) -> Obs:
        if task is not None and task.data:
            raise UserError(f"{self.spec.name} has no tasks to choose from; {task.id!r} has data. Vary the seed")
        found, _ = self._env.reset(seed=seed)
        return self._seen(found)

    def _check(self, action: Action) -> Action | Invalid:
        checked = super()._check(action)
        if isinstance(checked, Invalid):
            return checked
        value = checked.arguments["value"]
        if in_space(value, self._env.action_space) is None:
            return Invalid("bad_argument", f"act: value: {shown(value)} is not in {self._env.action_space}")
        return checked

    def _act(self, action: Action) -> StepResult:
        value = in_space(action.arguments["value"], self._env.action_space)
        assert value is not None  # `_check` has seen it
        found, reward, terminated, truncated, info = self._env.step(value[0])
        plain = {str(key): plain_json(part) for key, part in info.items() if key not in OURS}
        told = {key: part for key, part in plain.items() if part is not None}
        return StepResult(self._seen(found), float(reward), bool(terminated), bool(truncated), told)

    def _seen(self, found: Any) -> Obs:
        """Copies: an environment may use its arrays again."""
        found = dict(parts(found, self._env.observation_space))
        texts = {name: part for name, part in found.items() if isinstance(part, str)}
        arrays = {name or "obs": part for name, part in found.items() if not isinstance(part, str)}
        text = "\n".join(f"{name}: {part}" if name else part for name, part in texts.items())
        if self._env.render_mode == "ansi":
            text = "\n".join(filter(None, [text, str(self._env.render())]))
        picture = self._picture() if self.spec.screen_wh else None
        self._shows = {name: _hash(array) for name, array in arrays.items()} | ({"text": text} if text else {})
        return Obs(text=text or None, screenshot=None if picture is None else _png(picture), arrays=arrays)

    def _state(self) -> dict[str, Any]:
        return {"shows": self._shows}

    def _picture(self) -> np.ndarray | None:
        """What it renders, uint8 [H, W, 3]; None without pictures."""
        if self._env.render_mode != "rgb_array":
            return None
        return np.asarray(self._env.render(), np.uint8)

    def close(self) -> None:
        """Closes Gymnasium's environment."""
        self._env.close()


def _made(name: str, options: dict[str, Any]) -> Any:
    """Gymnasium's environment, with the best render mode that works here unless one is asked for."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    try:
        if ":" in name:
            importlib.import_module(name.partition(":")[0])
        known = gymnasium.spec(name.partition(":")[2] or name)
        creator = load_env_creator(known.entry_point) if isinstance(known.entry_point, str) else known.entry_point
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"gym/{name}: {error}") from error
    has = getattr(creator, "metadata", {}).get("render_modes", [])
    asked = options.pop("render_mode", None)
    if asked is not None and (asked not in has or asked not in RENDER_MODES):
        here = ", ".join(mode for mode in RENDER_MODES if mode in has) or "none"
        raise UserError(f"gym/{name}: there is no render_mode {asked!r}; there is {here}")
    for mode in [asked] if asked else [*(mode for mode in RENDER_MODES if mode in has), None]:
        given = {**options, "render_mode": mode} if mode else options
        try:
            env = gymnasium.make(known, disable_env_checker=True, **given)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise UserError(f"gym/{name} can't be made with {options}: {error}") from error
        if mode is None:
            return env
        try:
            env.reset(seed=0)
            env.render()
            return env
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:  # pictures need packages of their own
            env.close()
            if asked:
                raise UserError(f"gym/{name} can't render {mode}: {error}") from error
    raise AssertionError("no render mode is always possible")


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()


def _png(picture: np.ndarray) -> bytes:
    """A PNG file of uint8 [H, W, 3]."""
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()

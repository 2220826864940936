"""envpool/<id>: any environment of envpool, without its autoreset, with seeds that count and actions that are checked.

One environment is a pool of one, made anew at each reset since envpool fixes seeds at construction. `make_vec` keeps envpool's
own batches (`envs.envpool.vector`).
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from envs.api import Action, Env, EnvSpec, Invalid, Obs, Policy, StepResult, Task
from envs.base import BaseEnv
from envs.envpool.layout import BROKEN, env_spec, layout, library, no_tasks, pool, told
from jaxllm.errors import UserError

LISTED = 256  # numbers of an array up to which a state lists them; a longer one is given by its hash


class EnvPool(BaseEnv):
    """One environment of envpool."""

    def __init__(self, name: str, options: Mapping[str, Any] | None = None):
        self.layout = layout(name, options or {})
        self._pool: Any = None
        self._now = Obs()
        self._info: dict[str, Any] = {}
        super().__init__(env_spec(self.layout, name), options)

    def _check(self, action: Action) -> Action | Invalid:
        """As everybody's, and each number of an array has bounds of its own."""
        checked = super()._check(action)
        if isinstance(checked, Action) and isinstance(wrong := self.layout.action(checked.arguments["value"]), Invalid):
            return wrong
        return checked

    def close(self) -> None:
        """See `Env.close`: ends the pool's thread."""
        self._pool = None

    def _reset(self, task: Task | None, seed: int) -> Obs:
        no_tasks(self.spec.name, task)
        self.close()
        self._pool = pool(self.layout, [seed], 1, self.options)
        self._info = {}
        return self._read(*self._pool.reset())

    def _act(self, action: Action) -> StepResult:
        turn = self._now.arrays.get("info.current_player", np.zeros((), np.int64))
        value = self.layout.action(action.arguments["value"])
        self.layout.send(self._pool, np.asarray(value)[None], np.zeros(1, np.int32))
        obs, reward, terminated, truncated, info = self._pool.recv()
        self._info = told(info, 0, bool(terminated[0] or truncated[0]))
        if self.layout.players > 1:
            self._info["rewards"] = np.asarray(reward).tolist()
        earned = float(self.layout.rewards(reward, turn.reshape(1))[0])
        return StepResult(self._read(obs, info), earned, bool(terminated[0]), bool(truncated[0]), dict(self._info))

    def _read(self, obs: Any, info: dict[str, Any]) -> Obs:
        arrays = {name: np.asarray(array[0]).copy() for name, array in self.layout.arrays(obs, info).items()}
        self._now = Obs(text=self.layout.view.write(arrays) if self.layout.view else None, arrays=arrays)
        return self._now

    def _state(self) -> dict[str, Any]:
        return {"arrays": {name: _plain(array) for name, array in self._now.arrays.items()}, "info": self._info}


def _plain(array: np.ndarray) -> Any:
    """An array as JSON: its numbers, or a hash of its bytes where they are many or not all finite."""
    if array.size <= LISTED and (array.dtype.kind != "f" or np.isfinite(array).all()):
        return array.tolist()
    data = np.ascontiguousarray(array)
    return hashlib.sha256(f"{data.dtype.str}{data.shape}".encode() + data.tobytes()).hexdigest()


def names() -> list[str]:
    """Every id of envpool, but those of groups that can't be made here (see `groups`) and those that need a user's file."""
    if missing():
        return []
    closed = {group for group, reason in groups().items() if reason}
    specs = library().registration.registry.specs
    return sorted(name for name, spec in specs.items() if name not in BROKEN and _group(name, spec[0]) not in closed)


@lru_cache(maxsize=1)
def groups() -> dict[str, str | None]:
    """The groups of ids ("atari", "jumanji", "mujoco.gym" ...), each with the reason why it can't be made here, or None.

    Only what is known to be missing somewhere is tried: Procgen's Qt library and Sudoku's data.
    """
    from pathlib import Path

    specs = library().registration.registry.specs
    found: dict[str, str | None] = {_group(name, spec[0]): None for name, spec in specs.items()}
    try:
        library().make_spec("BigfishEasy-v0")
    except ImportError as error:
        found["procgen"] = str(error)
    base = next(spec[2]["base_path"] for name, spec in specs.items() if name == "Sudoku-v0")
    data = Path(base) / "jumanji" / "assets" / "sudoku"
    if not data.is_dir():
        found["sudoku"] = f"this release of envpool lacks its data ({data})"
    return found


def _group(name: str, module: str) -> str:
    return "sudoku" if "Sudoku" in name else module.removeprefix("envpool.")


def missing() -> str | None:
    """What this machine lacks, with the remedy."""
    import importlib.util

    if importlib.util.find_spec("envpool") is None:
        return "envpool is not installed: pip install 'jaxllm[envs]'"
    return None


def describe(name: str, **options: Any) -> EnvSpec:
    """See `Family.describe`. Options are those of envpool's id, such as ``max_episode_steps`` or ``size``."""
    _check(name)
    return env_spec(layout(name, options), name)


def make(name: str, **options: Any) -> Env:
    """See `Family.make`."""
    _check(name)
    return EnvPool(name, options)


def make_vec(
    name: str, num_envs: int, batch_size: int | None = None, *, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Any:
    """Many of one id in envpool's own batches: `envs.envpool.vector.EnvPoolVector`. `envs.make_vec` comes here by itself."""
    from envs.envpool.vector import EnvPoolVector

    _check(name)
    return EnvPoolVector(name, num_envs, batch_size, seed=seed, options=options)


def _check(name: str) -> None:
    if reason := missing():
        raise UserError(f"envpool/{name} can't be made here: {reason}")
    if "Sudoku" in name and (reason := groups()["sudoku"]):
        raise UserError(f"envpool/{name} can't be made here: {reason}")


def oracle(name: str, seed: int = 0) -> Policy | None:
    """None: envpool has no solvers."""
    return None

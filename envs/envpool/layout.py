"""What an environment of envpool takes and gives: its action's shape and bounds, its arrays' names, without JAX.

envpool imports JAX for its XLA interface when it can. Nothing here uses that, so it is kept out of processes that have not
imported JAX themselves: worker processes stay small, and ``pool.xla()`` says there that XLA is unavailable.
"""

import dataclasses
import functools
import os
import shutil
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envs import temporary
from envs.action_values import plain_json, shown
from envs.api import ActionSpec, Argument, EnvSpec, Invalid, Task
from envs.envpool.text import View, view
from jaxllm.errors import UserError

NO_LIMIT = 2**31 - 1  # envpool's word for episodes without a limit of steps
SEEDS = (-(2**31), 2**31 - 1)  # what envpool takes

# Ids that end the process, need a file that the user writes, or show in `info` what the players must not see.
BROKEN = {
    "Cig-v1": "it crashes the process without other players",
    "MultiDuel-v1": "it crashes the process without other players",
    "VizdoomCustom-v1": "it needs a scenario of yours: options cfg_path and wad_path",
}
HIDDEN = frozenset({"cards", "hands", "wall", "n_red_in_hands", "shuffled_players"})
SUCCESS = ("success", "is_success", "solved")  # entries of `info` that say whether the task is solved


def library() -> Any:
    """The package envpool. Raises UserError where it is not installed."""
    if "envpool" not in sys.modules and "jax" not in sys.modules:
        modules: dict[str, Any] = sys.modules  # type: ignore[assignment]  # None there means: not to be found
        modules.setdefault("envpool.python.lax", None)
    try:
        import envpool
    except ImportError as error:
        raise UserError(f"envpool is not installed ({error}): pip install 'jaxllm[envs]'") from error
    return envpool


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """What is known of an id before it is made."""

    name: str  # envpool's id
    module: str  # of envpool
    players: int  # that share an environment; more than one: arrays have a row for each
    together: bool  # whether they move at once, with a row each in an action, or in turn
    dtype: np.dtype  # of an action
    shape: tuple[int, ...]  # of an action, () for one number
    low: np.ndarray  # bounds of an action, both included, of `shape`
    high: np.ndarray
    max_steps: int  # after which envpool truncates; `NO_LIMIT` without a limit
    threshold: float | None  # summed reward that counts as solved, where envpool has one
    view: View | None

    @property
    def actions(self) -> tuple[ActionSpec, ...]:
        """The one action ``act``."""
        kind = "json" if self.shape else "int" if self.dtype.kind in "iu" else "float"
        low, high = (float(bound) if np.isfinite(bound) else None for bound in (self.low.min(), self.high.max()))
        if self.dtype.kind in "iu":
            low, high = (None if bound is None else int(bound) for bound in (low, high))
        about = self.view.actions if self.view else f"{kind if not self.shape else f'{self.dtype} of shape {self.shape}'}"
        return (ActionSpec("act", (Argument("value", kind, low=low, high=high, shape=self.shape),), about),)

    def action(self, value: Any) -> np.ndarray | Invalid:
        """An action of `shape` and `dtype`, or why the value is none: wrong shape, type or bounds."""
        value = plain_json(value)
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            array = np.empty(0, object)
        wants = f"act: value: {'whole numbers' if self.dtype.kind in 'iu' else 'numbers'}"
        if array.dtype.kind not in ("iu" if self.dtype.kind in "iu" else "iuf") or array.shape != self.shape:
            return Invalid("bad_argument", f"{wants} of shape {list(self.shape)}, not {shown(value)}")
        if (array < self.low).any() or (array > self.high).any():
            return Invalid("bad_argument", f"{wants} from {self.low.tolist()} to {self.high.tolist()}, not {shown(value)}")
        return array.astype(self.dtype)

    def arrays(self, obs: Any, info: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of a batch of observations, and those of `info`, by name, one row an environment.

        A dictionary's parts are named ``board``, ``agent_position.row``; one array alone ``obs``; those of info ``info.board``.
        Players of an environment have a row each: [k, players, ...].
        """
        count = len(info["env_id"])
        arrays = dict(_flat(obs, "") if isinstance(obs, dict) else [("obs", np.asarray(obs))])
        if self.players > 1:
            arrays = {
                name: array.reshape(count, self.players, *array.shape[1:]) if len(array) == count * self.players else array
                for name, array in arrays.items()
            }
        for name, array in info.items():
            if isinstance(array, np.ndarray) and name not in HIDDEN and array.ndim > 1:
                arrays[f"info.{name}"] = array
        if self.players > 1 and not self.together:
            arrays["info.current_player"] = np.asarray(info["current_player"])
        return arrays

    def rewards(self, reward: np.ndarray, movers: np.ndarray) -> np.ndarray:
        """The reward of each environment, float64 [k]: that of the player who moved, or the sum where all move at once."""
        if self.players == 1:
            return reward.astype(np.float64)
        table = reward.reshape(-1, self.players).astype(np.float64)
        return table.sum(1) if self.together else table[np.arange(len(table)), movers]

    def send(self, pool: Any, actions: np.ndarray, rows: np.ndarray) -> None:
        """Starts a step of some environments of a pool: actions [k, *shape] of `dtype`, rows int32 [k]."""
        if not self.together:
            pool.send(actions, rows)
        else:
            (key,) = (key for key in pool.spec.action_array_spec if key not in ("env_id", "players.env_id"))
            each = actions.reshape(-1, *self.shape[1:])
            pool.send({key: each, "env_id": rows, "players": {"env_id": np.repeat(rows, self.players)}})


def told(info: Mapping[str, Any], row: int, over: bool) -> dict[str, Any]:
    """The numbers of envpool's info about one environment, as JSON; `success` only at the end of an episode."""
    count = len(info["env_id"])
    found = {
        name: array[row].item()
        for name, array in info.items()
        if isinstance(array, np.ndarray) and array.shape == (count,) and name not in HIDDEN | {"env_id", "elapsed_step"}
    }
    found = {name: number for name, number in found.items() if np.isfinite(number)}
    solved = next((found[name] for name in SUCCESS if name in found), None)
    found.pop("success", None)
    return {**found, "success": bool(solved)} if over and solved is not None else found


def no_tasks(name: str, task: Task | None) -> None:
    """Raises UserError for a task with data: an id of envpool is one task, and the seed is all that varies."""
    if task is not None and task.data:
        raise UserError(f"{name} has no tasks to choose from; {task.id!r} has data ({', '.join(task.data)}). Vary the seed")


def _flat(part: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, np.asarray(value)


def layout(name: str, options: Mapping[str, Any]) -> Layout:
    """The layout of an id with options. Raises UserError for an unknown id or option, or one that can't be made here."""
    specs = library().registration.registry.specs
    if name not in specs:
        raise UserError(f"envpool has no environment {name!r}; see `jaxllm envs list 'envpool/*'`")
    if name in BROKEN and not options:
        raise UserError(f"envpool/{name} can't be made: {BROKEN[name]}")
    module = specs[name][0]
    for option in ("num_envs", "batch_size", "seed", "env_seed", "num_threads"):
        if option in options:
            raise UserError(f"envpool/{name}: {option} is no option: an environment is one, and its seed is that of a reset")
    try:
        spec = library().make_spec(name, **options)
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(f"envpool/{name} can't be made here: {error}") from error
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"envpool/{name}: the options {dict(options)} are not understood: {error}") from error
    actions = {key: part for key, part in spec.action_array_spec.items() if key not in ("env_id", "players.env_id")}
    if len(actions) != 1:
        raise UserError(f"envpool/{name} takes {len(actions)} actions at once ({', '.join(actions)}), which is not supported")
    (action,) = actions.values()
    dtype = np.dtype(action.dtype)
    shape = tuple(size for size in action.shape if size != -1)
    low, high = (np.broadcast_to(np.asarray(bound), shape).astype(np.float64) for bound in (action.minimum, action.maximum))
    if dtype.kind == "f":  # envpool's word for no bound: the smallest and the largest positive number
        limits = np.finfo(dtype)
        low = np.where(low == limits.tiny, -np.inf, low)
        high = np.where(high >= limits.max, np.inf, high)
    config = spec.config
    limit = getattr(config, "max_episode_steps", NO_LIMIT)
    players = config.max_num_players
    together = players > 1 and "info:current_player" not in spec.state_array_spec
    if together:
        shape = (players, *shape)
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    shows = "info:board" in spec.state_array_spec if module == "envpool.pgx" else True
    return Layout(
        name=name,
        module=module,
        players=players,
        together=together,
        dtype=dtype,
        shape=shape,
        low=low,
        high=high,
        max_steps=limit if 0 < limit < NO_LIMIT else NO_LIMIT,
        threshold=getattr(config, "reward_threshold", None),
        view=view(name, module) if shows else None,
    )


def env_spec(found: Layout, name: str) -> EnvSpec:
    """The spec of an environment of this layout."""
    about = found.view.about if found.view else f"{found.name} of envpool"
    success = found.threshold if found.threshold is not None else 1e-6 if found.name.startswith(("MiniGrid", "BabyAI")) else 1.0
    return EnvSpec(
        name=f"envpool/{name}",
        about=about,
        actions=found.actions,
        max_steps=found.max_steps,
        supports=frozenset({"save", "clock", "deterministic"}),
        success=success,
        weight="heavy" if found.module == "envpool.vizdoom" else "light",
    )


_folder_lock = threading.Lock()


def pool(found: Layout, seeds: list[int], threads: int, options: Mapping[str, Any]) -> Any:
    """A pool with an environment for each seed, which answers when all that were asked have. Raises UserError."""
    for seed in seeds:
        if not SEEDS[0] <= seed <= SEEDS[1]:
            raise UserError(f"envpool/{found.name}: a seed of {seed}; it takes {SEEDS[0]} to {SEEDS[1]}")
    make = functools.partial(
        library().make_gymnasium, found.name, num_envs=len(seeds), env_seed=seeds, num_threads=threads, **options
    )
    try:
        made = _in_own_folder(make) if found.module == "envpool.vizdoom" else make()
    except (RuntimeError, OSError, ImportError) as error:
        raise UserError(f"envpool/{found.name} can't be made here: {error}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # float32 bounds; the space is kept from here on
        _ = made.observation_space
    return made


def _in_own_folder(make: Callable[[], Any]) -> Any:
    """A pool of VizDoom's processes, which write their settings where they are started: a folder that goes with the pool."""
    for left in temporary.left("vizdoom"):
        shutil.rmtree(left, ignore_errors=True)
    folder = temporary.make("vizdoom")
    with _folder_lock:
        before = Path.cwd()
        os.chdir(folder)
        try:
            made = make()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.chdir(before)
    weakref.finalize(made, shutil.rmtree, folder, True)
    return made

"""What a vector of envpool's environments returns: arrays with a row for each, and lists that are made when looked at."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from envs.api import Obs
from envs.envpool.layout import Layout, told


class PoolBatch:
    """What k environments led to: see `envs.vector.Batch`. Rows of arrays belong to this batch alone."""

    def __init__(
        self,
        found: Layout,
        ids: np.ndarray,
        steps: np.ndarray,
        obs: Any,
        info: Mapping[str, Any],
        step: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    ):
        """Makes it; `step` holds reward, terminated and truncated, and is None after a reset."""
        self.ids = ids  # int64 [k]
        k = len(ids)
        reward, terminated, truncated = step or (np.zeros(k), np.zeros(k, bool), np.zeros(k, bool))
        self.reward = reward  # float64 [k]
        self.terminated = terminated  # [k]
        self.truncated = truncated  # [k]
        self._layout, self._steps, self._obs, self._info = found, steps, obs, info
        self._arrays: dict[str, np.ndarray] | None = None
        self.restarted: np.ndarray | None = None  # bool [k], where a step could start an episode: see `EnvPoolVector.step`
        self.rewards: np.ndarray | None = None  # of each player, [k, players], where there are several

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The observations' arrays by name, [k, ...] each."""
        if self._arrays is None:  # a `cached_property` of Python 3.11 takes a lock, and as long as all of this
            self._arrays = self._layout.arrays(self._obs, self._info)
        return self._arrays

    @cached_property
    def obs(self) -> list[Obs]:
        """The observations."""
        return [self.observation(row) for row in range(len(self.ids))]

    @cached_property
    def info(self) -> list[dict[str, Any]]:
        """What else is known of each step: envpool's numbers."""
        over = self.terminated | self.truncated
        found = [told(self._info, row, bool(over[row])) for row in range(len(self.ids))]
        if self.rewards is not None:
            for row, rewards in zip(found, self.rewards, strict=True):
                row["rewards"] = rewards.tolist()
        return found

    @cached_property
    def status(self) -> list[str]:
        """OK for each."""
        return ["OK"] * len(self.ids)

    def observation(self, row: int) -> Obs:
        """The observation of one row."""
        arrays = {name: np.asarray(array[row]) for name, array in self.arrays.items()}
        view = self._layout.view
        return Obs(text=view.write(arrays) if view else None, arrays=arrays, step=int(self._steps[row]))


class MixedBatch:
    """Rows of several batches, and of steps that were refused, in the order of `ids`."""

    def __init__(self, ids: np.ndarray, parts: Sequence["PoolBatch | MixedBatch"], refused: Mapping[int, "Refusal"]):
        where: dict[int, tuple[PoolBatch | MixedBatch, int]] = {
            int(id): (part, row) for part in parts for row, id in enumerate(part.ids)
        }
        self.ids: np.ndarray = ids
        self.restarted: np.ndarray | None = None  # see `PoolBatch`
        self.reward = np.zeros(len(ids))
        self.terminated = np.zeros(len(ids), bool)
        self.truncated = np.zeros(len(ids), bool)
        self._rows = [refused.get(int(id)) or where[int(id)] for id in ids]
        for place, row in enumerate(self._rows):
            if isinstance(row, Refusal):
                self.truncated[place] = row.truncated
            else:
                part, index = row
                self.reward[place] = part.reward[index]
                self.terminated[place], self.truncated[place] = part.terminated[index], part.truncated[index]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def obs(self) -> list[Obs]:
        """The observations; that of a refused step is the last one."""
        return [self.observation(place) for place in range(len(self.ids))]

    def observation(self, place: int) -> Obs:
        """The observation of one row."""
        row = self._rows[place]
        return row.obs if isinstance(row, Refusal) else row[0].observation(row[1])

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The observations' arrays by name, [k, ...] each."""
        obs = self.obs
        return {name: np.stack([one.arrays[name] for one in obs]) for name in obs[0].arrays}

    @cached_property
    def info(self) -> list[dict[str, Any]]:
        """What else is known of each step."""
        return [row.info if isinstance(row, Refusal) else row[0].info[row[1]] for row in self._rows]

    @cached_property
    def status(self) -> list[str]:
        """OK, PARSE_ERROR or EPISODE_OVER."""
        return [row.status if isinstance(row, Refusal) else "OK" for row in self._rows]


class Refusal:
    """A step that was not done."""

    def __init__(self, status: str, obs: Obs, error: str, message: str, truncated: bool = False):
        self.status, self.obs, self.truncated = status, obs, truncated
        self.info: dict[str, Any] = {"error": error, "message": message}
        if truncated:
            self.info |= {"status": "FAILED_TASK", "success": False}

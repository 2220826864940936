"""The peer of `noop.Noop` for gymnasium's AsyncVectorEnv, whose observations lie in shared memory."""

import functools
import multiprocessing
from typing import Any

import gymnasium
import numpy as np


class GymNoop(gymnasium.Env):
    """Does what `noop.Noop` does. Text is an array of bytes: gymnasium's own text is slower still."""

    action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, shape: tuple[int, ...]):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._obs = np.full(shape, ord("x"), np.uint8)
        self._frame = len(shape) > 1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._step = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._frame:
            self._obs.fill(self._step % 251)
        return self._obs, 1.0, False, False, {}


def make(N: int, shape: tuple[int, ...], *, copy: bool) -> gymnasium.vector.AsyncVectorEnv:
    """N of them in a process each, started without forking this one; observations are copied at each step, or overwritten."""
    multiprocessing.set_forkserver_preload(["gymnasium.vector"])
    makers = [functools.partial(GymNoop, shape)] * N
    return gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True, copy=copy, context="forkserver")

"""The peer of `noop.Noop` for gymnasium's AsyncVectorEnv.

Its observations lie in shared memory, as arrays; gymnasium 1.4 can't read text from there, so text goes through pipes.
"""

import functools
import multiprocessing
from typing import Any

import gymnasium
import numpy as np

from . import noop


class GymNoop(gymnasium.Env):
    """Does what `noop.Noop` does: 2 KB of text as text, the same as an array of bytes, or frames."""

    action_space = gymnasium.spaces.Discrete(1)

    observation_space: Any
    _obs: Any

    def __init__(self, kind: str):
        shape = noop.FRAME if kind == "frames" else (noop.TEXT,)  # bytes of a text, by default
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._obs = np.full(shape, ord("x"), np.uint8)
        if kind == "text":
            self.observation_space, self._obs = gymnasium.spaces.Text(noop.TEXT), "x" * noop.TEXT
        self._frame = kind == "frames"
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._frame:
            self._obs.fill(self._step % 251)
        return self._obs, 1.0, False, False, {}


def make(N: int, kind: str, *, copy: bool) -> gymnasium.vector.AsyncVectorEnv:
    """N of them in a process each, started without forking this one; observations are copied at each step, or overwritten."""
    multiprocessing.set_forkserver_preload(["gymnasium.vector"])
    makers = [functools.partial(GymNoop, kind)] * N
    return gymnasium.vector.AsyncVectorEnv(makers, shared_memory=kind != "text", copy=copy, context="forkserver")

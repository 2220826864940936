"""Environments that do nothing, or wait, written straight against `envs.api.Env`. Imported by the workers."""

import time

import numpy as np

from envs.api import Action, ActionSpec, EnvSpec, Invalid, Obs, StepResult, Task

TEXT = 2048  # bytes
FRAME = (224, 224, 3)
GO = ActionSpec("go", about="the one thing to do")


class Noop:
    """The same text at each step, or a frame whose pixels hold the number of the step (modulo 251)."""

    def __init__(self, frame: bool = False):
        self.spec = EnvSpec("noop", "nothing happens", (GO,))
        self._text = None if frame else "x" * TEXT
        self._frame = np.zeros(FRAME, np.uint8) if frame else None
        self._step = 0

    def _obs(self) -> Obs:
        if self._frame is None:
            return Obs(text=self._text, step=self._step)
        self._frame.fill(self._step % 251)
        return Obs(arrays={"frame": self._frame}, step=self._step)

    def reset(self, task: Task | None = None, seed: int = 0) -> Obs:
        self._step = 0
        return self._obs()

    def step(self, action: Action | Invalid) -> StepResult:
        self._step += 1
        return StepResult(self._obs(), 1.0, False, False, {})

    def state(self) -> dict[str, int]:
        return {"step": self._step}

    def save(self) -> bytes:
        return b""

    def restore(self, blob: bytes) -> Obs:
        return self._obs()

    def close(self) -> None:
        pass


class Waiting(Noop):
    """A step waits: log-normal(0, 1) times `scale` seconds, drawn from the seed of the episode. `info` says how long."""

    def __init__(self, scale: float = 0.02):
        super().__init__()
        self._scale, self._times = scale, np.random.default_rng(0)

    def reset(self, task: Task | None = None, seed: int = 0) -> Obs:
        self._times = np.random.default_rng(seed)
        return super().reset()

    def step(self, action: Action | Invalid) -> StepResult:
        begun = time.perf_counter()
        time.sleep(self._scale * float(self._times.lognormal()))
        result = super().step(action)
        return StepResult(result.obs, 1.0, False, False, {"waited": time.perf_counter() - begun})

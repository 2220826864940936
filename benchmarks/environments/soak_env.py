"""An environment that writes down outside what it did, so that nobody has to believe the replies. Imported by the workers."""

import os
import random
import time
from pathlib import Path

from envs.api import Action, ActionSpec, Argument, EnvSpec, Invalid, Obs, StepResult, Task

from .noop import Noop


class Logged(Noop):
    """Appends the token of each step to a file of its process in `folder`, then waits `pause` seconds on average."""

    def __init__(self, folder: str, pause: float = 0.003):
        super().__init__()
        self.spec = EnvSpec("logged", "writes down what it did", (ActionSpec("mark", (Argument("token", "text"),)),))
        self._folder, self._pause = folder, pause
        self._random = random.Random(0)
        self._end = 1

    def reset(self, task: Task | None = None, seed: int = 0) -> Obs:
        self._random = random.Random(seed)
        self._end = self._random.randint(5, 200)
        return super().reset()

    def step(self, action: Action | Invalid) -> StepResult:
        assert isinstance(action, Action)
        note(Path(self._folder) / f"done-{os.getpid()}", action.arguments["token"])
        time.sleep(self._random.expovariate(1 / self._pause))
        result = super().step(action)
        return StepResult(result.obs, 1.0, result.obs.step >= self._end, False, {})


def note(path: Path, line: str) -> None:
    """Appends a line in one piece, which stays if this process is killed right after."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)

"""Environments that misbehave as they are told, for the tests of the step server. Imported by its workers."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from envs.api import Action, ActionSpec, Argument, EnvSpec, Invalid, Obs, StepResult, Task
from envs.base import BaseEnv
from envs.digest import digest

ACTIONS = (
    ActionSpec("say", (Argument("text", "text", "", False),)),
    ActionSpec("move", (Argument("by", "int", low=0, high=9),)),
    ActionSpec("do", (Argument("what", "text"),)),
)


class Walk(BaseEnv):
    """A walk that depends on seed and actions alone; ``do`` makes trouble."""

    def __init__(self, weight: str = "light", length: int = 5, gate: str = "", deadlines=None, max_steps: int = 50):
        spec = EnvSpec(
            "walk", "a walk", ACTIONS, max_steps=max_steps, supports=frozenset({"save"}), weight=weight,
            deadlines=deadlines or {},
        )  # fmt: skip
        super().__init__(spec, {"weight": weight, "length": length})
        self._length, self._gate = length, gate

    def _reset(self, task: Task | None, seed: int) -> Obs:
        if task is not None and task.id == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if task is not None and task.id == "raise":
            raise RuntimeError("no reset today")
        if task is not None and task.id == "fail sometimes" and random.random() < 0.3:
            raise RuntimeError("not this time")
        if self._gate:  # a file that lets resets through
            wait(self._gate)
        self._random = random.Random(seed)
        self._at = 0
        return self._look()

    def _look(self) -> Obs:
        return Obs(text=f"at {self._at}, pid {os.getpid()}")

    def _act(self, action: Action) -> StepResult:
        if action.name == "do":
            trouble(action.arguments["what"])
        elif action.name == "move":
            self._at += action.arguments["by"] * self._random.randint(1, 6)
        done = self._at >= 10 * self._length
        return StepResult(self._look(), 1.0 if done else 0.0, done, False, {})

    def _state(self):
        return {"at": self._at}


def wait(path: str) -> None:
    """Until there is a file: as long as the test wants."""
    while not Path(path).exists():
        time.sleep(0.01)


def trouble(what: str) -> None:
    """Whatever can go wrong."""
    name, _, rest = what.partition(" ")
    if name == "sleep":
        time.sleep(float(rest))
    elif name == "wait":
        wait(rest)
    elif name == "hang":
        while True:
            time.sleep(3600)
    elif name == "loop":
        while True:
            pass
    elif name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "exit":
        os._exit(3)
    elif name == "thread":
        raise RuntimeError(threading.current_thread().name)
    elif name == "leave":
        sys.exit(4)
    elif name == "raise":
        raise RuntimeError(rest)
    elif name == "append":  # a trace of what was done, outside
        with Path(rest).open("a") as file:
            file.write("x")
    elif name == "child":  # a process that the environment leaves behind
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(rest).write_text(str(child.pid))
    elif name == "clock":  # for a host whose wall clock runs backwards
        assert time.time() > time.time()
    elif name == "print":
        print(rest, flush=True)


class Plain:
    """Without bookkeeping: returns what its options say."""

    def __init__(
        self,
        size: int = 2048,
        frame=None,
        steps: int = 1_000_000,
        bad: str = "",
        weight: str = "light",
        reuse=False,
        grow=False,
    ):
        self.spec = EnvSpec("plain", "nothing", ACTIONS, weight=weight)
        self._text = "x" * size
        self._buffer = None if frame is None else np.zeros(frame, np.uint8)
        self._steps, self._bad, self._reuse, self._grow = steps, bad, reuse, grow
        self._step = 0

    def _obs(self) -> Obs:
        arrays = {}
        if self._buffer is not None:
            if not self._reuse:
                self._buffer = np.empty_like(self._buffer)
            self._buffer[...] = self._step % 251
            arrays["frame"] = self._buffer
        if self._step and self._bad == "nan":
            arrays["x"] = np.array([1.0, np.nan])
        elif self._bad:
            arrays["x"] = np.zeros(3 if self._step and self._bad == "shape" else 2)
        text = self._text * (self._step + 1) if self._grow else self._text
        return Obs(text=text, arrays=arrays, step=self._step)

    def reset(self, task=None, seed: int = 0) -> Obs:
        self._step = 0
        return self._obs()

    def step(self, action: Action | Invalid) -> StepResult:
        self._step += 1
        reward = float("nan") if self._bad == "reward" else 1.0
        info = {"set": {1}} if self._bad == "info" else {}
        return StepResult(self._obs(), reward, self._step >= self._steps, False, info)

    def state(self):
        return {"step": self._step}

    def save(self) -> bytes:
        raise OSError(28, "No space left on device")

    def restore(self, blob: bytes) -> Obs:
        self._step = json.loads(blob)["step"]
        return self._obs()

    def close(self) -> None:
        pass


class Sleeper(Plain):
    """Steps take log-normal times, by a seed of its own."""

    def __init__(self, scale: float = 0.08, seed: int = 0):
        super().__init__(size=16)
        self._times = np.random.default_rng(seed)
        self._scale = scale

    def step(self, action: Action | Invalid) -> StepResult:
        begun = time.perf_counter()
        time.sleep(self._scale * float(self._times.lognormal()))
        result = super().step(action)
        return StepResult(result.obs, result.reward, False, False, {"slept": time.perf_counter() - begun})


def broken_judge(view) -> float:
    """A verifier of pages that fails as soon as something was done."""
    if view["step"]:
        raise KeyError("price")
    return 0.0


def key(env) -> str:
    """Digest of a state."""
    return digest(env.state())

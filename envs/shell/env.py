"""An episode of work on files: a task in a session's folder, tools to do it with, a check at the end.

The session's clock is virtual as far as observations go (`STEP` seconds an action, more for wait); what `date` prints inside is
the host's time, and changes of files carry it. Neither is part of the state. Files of the set-up have fixed times.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs import temporary
from envs.actions import BASH, CALL_USER, EDITOR, FINISHED, PYTHON, WAIT
from envs.api import Action, EnvSpec, Obs, StepResult, Task
from envs.base import BaseEnv, decode, judging
from envs.drawn import Tasks
from envs.sandbox import HOME, Limits, Root, Sandbox
from envs.sandbox.tree import Item, lay, remove
from envs.shell.edit import KINDS as EDIT
from envs.shell.scripts import KINDS as SCRIPTS
from envs.shell.search import KINDS as SEARCH
from envs.shell.tables import KINDS as TABLES
from envs.shell.tasks import Problem, View
from envs.shell.tools import Session
from jaxllm.errors import UserError

KINDS = dict(sorted({**SEARCH, **EDIT, **SCRIPTS, **TABLES}.items()))
ACTIONS = (BASH, EDITOR, PYTHON, WAIT, FINISHED, CALL_USER)
TASKS: Tasks[Problem] = Tasks("shell", KINDS)
STEP = 0.1  # seconds of virtual time that an action takes
WAITED = 5.0  # and the action wait
BEGIN = 1_767_225_600  # 2026-01-01 00:00 UTC: the first file's time; each next one is a minute younger
TRIAL = Limits(file_size=1 << 20, disk=16 << 20, cpu=10, processes=32, memory=256 << 20)  # of a script under test
TRIAL_TIMEOUT = 20.0  # seconds for all of its runs


class ShellEnv(BaseEnv):
    """See `envs.shell`."""

    _problem: Problem

    def __init__(self, spec: EnvSpec, kind: str, level: int | None, split: str, timeout: float, options: Mapping[str, Any]):
        super().__init__(spec, options)
        self._kind, self._level, self._split, self._timeout = kind, level, split, timeout
        self._session: Session | None = None
        self._folder: Path | None = None
        self._answer = ""
        self._time = 0.0

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self._set_up(task, seed)
        files = enumerate(self._problem.files.items())
        self._open(items=[Item(path, file.mode, (BEGIN + 60 * i) * 10**9, file.data) for i, (path, file) in files])
        return Obs(text=f"{self._problem.instruction}\n\nThe working folder is {HOME}.")

    def _set_up(self, task: Task | None, seed: int) -> None:
        self.close()
        self.drawn = task or TASKS.draw(self._kind, self._level, self._split, seed)
        self._problem = TASKS.problem(self.drawn)
        self._answer, self._time = "", 0.0

    def _open(self, saved: Mapping[str, Any] | None = None, items: Sequence[Item] = ()) -> None:
        for folder in temporary.left("shell"):
            remove(folder)
        self._folder = temporary.make("shell")
        try:
            lay(self._folder, items)
            self._session = Session(self._folder, seed=self._seed, timeout=self._timeout, saved=saved)
        except BaseException:
            self.close()
            raise

    def _act(self, action: Action) -> StepResult:
        assert self._session is not None
        reply = self._session.act(action)
        self._time += WAITED if action.name == "wait" else STEP
        return StepResult(Obs(text=reply.text, t_virtual=self._time), 0.0, False, reply.over, reply.info)

    def _finish(self, action: Action) -> StepResult:
        assert self._session is not None
        self._time += STEP
        reward = 0.0
        if action.name == "finished":
            self._answer = str(action.arguments["content"])
            with judging(self.spec.name):
                reward = self._problem.check(View(self._session.root, self._answer, trial))
        text = "The task is solved." if reward >= 1 else "The task is not solved."
        return StepResult(Obs(text=text, t_virtual=self._time), reward, True, False, {})

    def _state(self) -> dict[str, Any]:
        assert self._session is not None
        state = self._session.state()
        return {"task": self.drawn.id, "instruction": self._problem.instruction, "answer": self._answer, **state}

    def save(self) -> bytes:
        """The files, the shell's state and the counters. Raises UserError while anything runs in the session."""
        if self._session is None:
            raise UserError(f"{self.spec.name}: there is nothing to save before the first reset")
        counters = {name: getattr(self, name) for name in COUNTERS}
        last = {"text": self._last.text, "t_virtual": self._last.t_virtual, "step": self._last.step}
        copy = {"session": self._session.save(), "counters": counters, "last": last, "before": self._digest}
        return json.dumps({**json.loads(super().save()), "copy": copy}, sort_keys=True).encode()

    def _resume(self, saved: Mapping[str, Any]) -> None:
        task = saved["task"] and Task(**saved["task"])
        try:
            copy = saved["copy"]
            self._begin(task, saved["seed"])
            self._set_up(task, saved["seed"])
            self._open(saved=copy["session"])
            self._log = [decode(action) for action in saved["actions"]]
            for name, kind in COUNTERS.items():
                if not isinstance(copy["counters"][name], kind):
                    raise TypeError(f"{name} is no {kind}")
                setattr(self, name, copy["counters"][name])
            self._last = Obs(**copy["last"])
            self._digest = str(copy["before"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no save of {self.spec.name} ({type(error).__name__}: {error})") from error

    def close(self) -> None:
        """Ends all processes and removes the folder."""
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._folder is not None:
            remove(self._folder)
            self._folder = None


# What a save keeps of an episode's books, and their types.
COUNTERS: dict[str, Any] = {
    "_steps": int,
    "_failures": int,
    "_stuck": int,
    "_return": float,
    "_over": bool,
    "_answer": str,
    "_time": float,
}


def trial(script: bytes, inputs: Sequence[bytes]) -> list[str] | None:
    """Runs a script on files in a sandbox of its own; what it prints for each, or None if it does not end or fails."""
    folder = temporary.make("shell")
    try:
        items = [Item(f"{i}.txt", 0o644, 0, data) for i, data in enumerate(inputs)]
        lay(folder, [*items, Item("script.sh", 0o644, 0, script)])
        with Sandbox(folder, TRIAL) as sandbox:
            numbers = " ".join(str(i) for i in range(len(inputs)))
            child = sandbox.popen(["bash", "-c", f"for i in {numbers}; do bash script.sh $i.txt > $i.out; done"])
            child.wait(TRIAL_TIMEOUT)
        return [Root(folder).read(f"{i}.out", 1 << 20).decode(errors="replace") for i in range(len(inputs))]
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        remove(folder)

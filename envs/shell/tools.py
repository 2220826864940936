"""The tools of a code agent over one session: a shell, a file editor, an interpreter, in one sandbox with one folder."""

import base64
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from envs.api import Action, Json
from envs.sandbox import RUNNING, Editor, Interpreter, Limits, Output, Root, Sandbox, Saved, Shell
from envs.sandbox.tree import Tree, copy, lay_copy
from jaxllm.errors import UserError

TIMEOUT = 30.0  # seconds of one command
WAIT = 5.0  # seconds that the action wait waits for a running command
# Exported variables that are no part of the state: the shell's own bookkeeping.
BOOKKEEPING = re.compile(r'^declare -x (OLDPWD|PWD|SHLVL|_)(=".*")?\n', re.MULTILINE)
STATUS = {"disk": "DISK_LIMIT", "files": "DISK_LIMIT", "host": "DISK_FULL", "output": "OUTPUT_LIMIT", "closed": "CLOSED"}


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a tool answers: text for the agent, and what goes into a step's ``info``."""

    text: str
    info: dict[str, Json]
    over: bool = False  # the session was ended by a limit: nothing more can be done in it


class Session:
    """A sandbox over a folder, with the three tools."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        seed: int = 0,
        timeout: float = TIMEOUT,
        limits: Limits | None = None,
        saved: Mapping[str, Any] | None = None,
    ):
        """Starts the shell.

        Args:
          folder: exists; seen inside as /desk.
          seed: of the shell's $RANDOM.
          timeout: seconds that a command or a cell may take.
          saved: from `save`; the folder is empty then.

        Raises UserError where there is no sandbox, and for a save that is none.
        """
        self.timeout = timeout
        self.root = Root(folder)
        self.editor = Editor(self.root)
        shell = None
        if saved is not None:
            shell = self._restored(saved)
        self.sandbox = Sandbox(folder, limits)
        try:
            self.shell = Shell(self.sandbox, seed=seed, saved=shell)
        except BaseException:
            self.sandbox.close()
            raise
        self.interpreter = Interpreter(self.sandbox)
        self._tree = Tree(self.root)

    def act(self, action: Action) -> Reply:
        """Does execute_bash, str_replace_editor, JupyterCI or wait; the action has been checked against its spec."""
        given = dict(action.arguments)
        if action.name == "str_replace_editor":
            edit = self.editor.run(given.pop("command"), given.pop("path"), **given)
            return Reply(edit.text, {} if edit.ok else {"error": edit.error, "message": edit.text})
        try:
            if action.name == "JupyterCI":
                output = self.interpreter.run(given["code"], min(given.get("timeout") or self.timeout, self.timeout))
            elif action.name == "execute_bash":
                output = self.shell.run(given["command"], self.timeout)
            elif action.name == "wait":
                output = self.shell.run("", WAIT) if self.shell.running else Output("", 0)
            else:
                raise ValueError(f"{action.name} is no tool of a session")
        except UserError as error:
            return Reply(str(error), {"error": "bad_command", "message": str(error)})
        return self._reply(output)

    def _reply(self, output: Output) -> Reply:
        lines = [output.text.removesuffix("\n")] if output.text else []
        lines += [f"[{output.note}]"] if output.note else []
        lines += ["[still running]" if output.exit_code == RUNNING and not output.note else ""]
        lines += [f"[exit code {output.exit_code}]"]
        info: dict[str, Json] = {"exit_code": output.exit_code}
        info |= {"omitted": output.omitted} if output.omitted else {}
        info |= {"status": STATUS[self.sandbox.ended]} if self.sandbox.ended else {}
        return Reply("\n".join(line for line in lines if line), info, self.sandbox.ended is not None)

    def state(self) -> dict[str, Json]:
        """Files, working folder, exported variables, and whether something runs; no times, nothing of /tmp."""
        return {
            "files": self._tree.summary(),
            "cwd": self.shell.cwd,
            "environment": BOOKKEEPING.sub("", self.shell.exported),
            "running": self.shell.running,
            "interpreter": self.interpreter.live(),
        }

    def save(self) -> dict[str, Json]:
        """Files, working folder, variables, functions and options of the shell, and the editor's undo, as JSON.

        Raises UserError while anything runs: a command, something in the background, the interpreter.
        """
        if self.interpreter.live():
            raise UserError("a session can't be saved while its interpreter runs: its names would be lost")
        shell = self.shell.save()
        undo = {
            name: [None if old is None else base64.b64encode(old).decode() for old in versions]
            for name, versions in self.editor.versions.items()
        }
        return {"cwd": shell.cwd, "script": shell.script, "files": copy(self.root), "undo": undo}

    def _restored(self, saved: Mapping[str, Any]) -> Saved:
        try:
            lay_copy(self.root.folder, list(saved["files"]))
            for name, versions in dict(saved["undo"]).items():
                self.editor.versions[name] = [None if old is None else base64.b64decode(old) for old in versions]
            return Saved(str(saved["cwd"]), str(saved["script"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no save of a session ({type(error).__name__}: {error})") from error

    def close(self) -> None:
        """Ends everything that runs. The folder stays. May be called twice."""
        self.interpreter.close()
        self.shell.close()
        self.sandbox.close()

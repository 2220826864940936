"""A sandbox for programs that nobody trusts.

with Sandbox(folder) as sandbox:
    print(Shell(sandbox).run("ls").text)
"""

from envs.sandbox.bubblewrap import HOME, Bind, Sandbox, capabilities, missing
from envs.sandbox.channel import RUNNING, Output
from envs.sandbox.editor import Edit, Editor
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.limits import Limits
from envs.sandbox.paths import OutsideError, Root
from envs.sandbox.shell import Saved, Shell

__all__ = [
    "HOME",
    "RUNNING",
    "Bind",
    "Edit",
    "Editor",
    "Interpreter",
    "Limits",
    "Output",
    "OutsideError",
    "Root",
    "Sandbox",
    "Saved",
    "Shell",
    "capabilities",
    "missing",
]

"""A sandbox for programs that nobody trusts.

with Sandbox(folder) as sandbox:
    print(Shell(sandbox).run("ls").text)
"""

from envs.sandbox.bubblewrap import HOME, Bind, Sandbox, capabilities, missing
from envs.sandbox.limits import Limits

__all__ = ["HOME", "Bind", "Limits", "Sandbox", "capabilities", "missing"]

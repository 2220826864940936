"""The processes below one of ours, as the host numbers them."""

import os
import signal
from pathlib import Path


def descendants(pid: int) -> dict[int, int]:
    """Every living process below ``pid``, and its parent's number. Zombies are left out."""
    found: dict[int, int] = {}
    pending = [pid]
    while pending:
        parent = pending.pop()
        for child in _children(parent):
            if child not in found:
                found[child] = parent
                pending.append(child)
    return {child: parent for child, parent in found.items() if state(child) not in ("Z", "X", "")}


def state(pid: int) -> str:
    """The state's letter as in ps; "" for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def inner_pid(pid: int) -> int:
    """A process's number within its own namespace; 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def end(pid: int) -> None:
    """Sends SIGKILL; a process that is gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    found = []
    for task in tasks:
        try:
            found += [int(child) for child in Path(task / "children").read_text().split()]
        except FileNotFoundError:
            if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
                return _children_by_scan(pid)
        except OSError:  # it ended meanwhile
            continue
    return found


def _children_by_scan(pid: int) -> list[int]:
    """For kernels without lists of children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found

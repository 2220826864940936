"""Folders of running browsers: made at start, deleted at the end, swept if their owner died."""

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

_PREFIX = "jaxllm-browser-"
_GROUP = "group"  # a file in the folder: the browser's process group and its start time


def make() -> Path:
    """A new folder, whose name holds this process's id and start time."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{started(os.getpid())}-"))


def remember_group(folder: Path, pid: int) -> None:
    """Notes the browser's process group, so that a later sweep can end it."""
    (folder / _GROUP).write_text(f"{pid} {started(pid)}", encoding="ascii")


def remove(folder: Path) -> None:
    """Deletes a folder, whose browser has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Deletes the folders of owners that died, after ending a browser that is left over; returns them."""
    swept = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        pid, _, rest = folder.name.removeprefix(_PREFIX).partition("-")
        start = rest.partition("-")[0]
        if not (pid.isascii() and pid.isdigit()) or started(int(pid)) == start:
            continue
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            _end_group(folder)
            remove(folder)
            swept.append(folder)
    return swept


def started(pid: int) -> str:
    """When a process was started, in clock ticks since boot, which tells it from a later one of the same id; "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat[stat.rindex(")") :].split()[20]


def _end_group(folder: Path) -> None:
    """Kills the browser of a dead owner, if it is the one that was noted."""
    try:
        pid, start = (folder / _GROUP).read_text(encoding="ascii").split()
        if started(int(pid)) == start:
            os.killpg(int(pid), signal.SIGKILL)
    except (OSError, ValueError):
        return

"""Folders of running browsers: made at start, deleted at the end, swept if their owner died."""

import os
import shutil
import signal
from pathlib import Path

from envs import temporary

_KIND = "browser"
_GROUP = "group"  # a file in the folder: the browser's process group and its start time


def make() -> Path:
    """A new folder, whose name holds this process's id and start time."""
    return temporary.make(_KIND)


def remember_group(folder: Path, pid: int) -> None:
    """Notes the browser's process group, so that a later sweep can end it."""
    (folder / _GROUP).write_text(f"{pid} {temporary.started(pid)}", encoding="ascii")


def remove(folder: Path) -> None:
    """Deletes a folder, whose browser has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Deletes the folders of owners that died, after ending a browser that is left over; returns them."""
    swept = []
    for folder in temporary.left(_KIND):
        _end_group(folder)
        remove(folder)
        swept.append(folder)
    return swept


def _end_group(folder: Path) -> None:
    """Kills the browser of a dead owner, if it is the one that was noted."""
    try:
        pid, start = (folder / _GROUP).read_text(encoding="ascii").split()
        if temporary.started(int(pid)) == start:
            os.killpg(int(pid), signal.SIGKILL)
    except (OSError, ValueError):
        return

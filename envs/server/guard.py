"""Outlives a step server by a moment: when it is gone, ends its workers and removes what it left.

Run as a file, without any import of ours: ``guard.py FOLDER SEGMENT_PREFIX CONTROL_GROUPS...``. Reads lines from its input:
``+PID`` a process group was started, ``-PID`` it has ended, ``~NAME`` a folder in FOLDER is no longer needed. The end of input
is the server's end, however it came. CONTROL_GROUPS are folders with the workers' groups, named ``jaxllm-PID-NUMBER``.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE = 1.0  # seconds from SIGTERM to SIGKILL
LAST = 5.0  # seconds that what the workers started may take to die, and to let go of its files
SEGMENTS = Path("/dev/shm")


def main(folder: str, prefix: str, *parents: str) -> None:
    """Waits for the end of input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    ended: set[int] = set()
    for line in sys.stdin:
        if line[0] == "~":
            _remove(Path(folder) / line[1:].strip())
        elif line[0] == "+":
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
            ended.add(int(line[1:]))
            _free(ended, parents)
    ended |= groups
    if groups:
        groups = {group for group in groups if _signal(group, signal.SIGTERM)}
        deadline = time.monotonic() + GRACE
        while groups and time.monotonic() < deadline:
            time.sleep(0.02)
            groups = {group for group in groups if _signal(group, 0)}
        for group in groups:
            _signal(group, signal.SIGKILL)
    for path in SEGMENTS.glob(prefix + "*"):
        path.unlink(missing_ok=True)
    deadline = time.monotonic() + LAST
    while not (_remove(Path(folder)) & _free(ended, parents)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _free(owners: set[int], parents: tuple[str, ...]) -> bool:
    """Removes control groups of workers that have ended; whether none is left. The last members may still be dying."""
    found = [path for parent in parents for path in Path(parent).glob("jaxllm-*-*") if _owner(path) in owners]
    for path in found:
        with contextlib.suppress(OSError):
            path.rmdir()
    return not any(path.exists() for path in found)


def _owner(group: Path) -> int:
    number = group.name.split("-")[1]
    return int(number) if number.isascii() and number.isdigit() else 0


def _remove(folder: Path) -> bool:
    """Deletes a folder, also what a session has closed to its owner; whether it is gone."""
    if os.geteuid():
        for where, names, _ in os.walk(folder):
            for path in (Path(where) / name for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Outlives a step server by a moment: when it is gone, ends its workers and removes what it left.

Run as a file, without any import of ours: ``guard.py FOLDER SEGMENT_PREFIX``. Reads lines from standard input: ``+PID`` a
process group was started, ``-PID`` it has ended, ``~NAME`` a folder in FOLDER is no longer needed. The end of input is the
server's end, however it came.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE = 1.0  # seconds from SIGTERM to SIGKILL
SEGMENTS = Path("/dev/shm")


def main(folder: str, prefix: str) -> None:
    """Waits for the end of input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line[0] == "~":
            _remove(Path(folder) / line[1:].strip())
        else:
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
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
    _remove(Path(folder))


def _remove(folder: Path) -> None:
    """Deletes a folder, also what a session has closed to its owner."""
    if os.geteuid():
        for where, names, _ in os.walk(folder):
            for path in (Path(where) / name for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])

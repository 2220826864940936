"""What a session's folder takes on the disk, and a watch that acts when it is too much.

A size-limited file system of its own would bind harder, but needs privileges, outlives a killed server as a mount, and can't be
seen by a second sandbox (a browser's). So the folder stays a plain one: no file grows beyond its limit, and a thread looks at
the whole every `INTERVAL` seconds. A session that writes as fast as it can overshoots by what the disk takes in that time.
"""

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

INTERVAL = 0.1  # seconds between two looks; ten times the look itself where that is more
KEEP_FREE = 256 << 20  # bytes that stay free on the disk, whatever the sessions' own limits are


class Usage(NamedTuple):
    """What a folder takes."""

    bytes: int  # blocks on the disk, files with several names once, deleted files that are still open included
    files: int  # entries below the folder


def usage(folder: Path, pids: Iterable[int] = (), max_files: int | None = None) -> Usage:
    """Measures a folder that may change meanwhile, and the deleted files that these processes hold open.

    Stops soon after ``max_files`` entries. A path too long to be opened counts as ``max_files`` + 1 entries. A folder that an
    ordinary user's session has closed to itself hides what is in it: `KEEP_FREE` bounds that.
    """
    device = folder.stat().st_dev
    seen: set[int] = set()
    total = count = 0
    pending = [str(folder)]
    while pending and (max_files is None or count <= max_files):
        path = pending.pop()
        try:
            with os.scandir(path) as found:
                entries = list(found)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except OSError:
            count += 0 if max_files is None else max_files + 1
            continue
        for entry in entries:
            count += 1
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                count += 0 if max_files is None else max_files + 1
                continue
            if info.st_ino not in seen:
                seen.add(info.st_ino)
                total += info.st_blocks * 512
            if stat.S_ISDIR(info.st_mode):
                pending.append(entry.path)
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    info = descriptor.stat()
                    if info.st_nlink == 0 and info.st_dev == device and info.st_ino not in seen:
                        seen.add(info.st_ino)
                        total += info.st_blocks * 512
    return Usage(total, count)


def free(folder: Path) -> int:
    """Bytes that an ordinary user can still write on the folder's disk."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class Watch:
    """Looks at a folder in a thread until it is closed, and calls ``act`` with the reason when a limit is exceeded."""

    def __init__(
        self,
        folder: Path,
        disk: int | None,
        files: int | None,
        pids: Callable[[], Iterable[int]],
        act: Callable[[str], None],
    ):
        self._folder, self._disk, self._files, self._pids, self._act = folder, disk, files, pids, act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-quota", daemon=True)
        self._thread.start()

    def look(self) -> str | None:
        """What is exceeded: "disk" (the session's bytes), "files" (their number), "host" (the disk is full), or None."""
        found = usage(self._folder, self._pids() if self._disk is not None else (), self._files)
        if self._files is not None and found.files > self._files:
            return "files"
        if self._disk is not None and found.bytes > self._disk:
            return "disk"
        return "host" if free(self._folder) < KEEP_FREE else None

    def _run(self) -> None:
        pause = INTERVAL
        while not self._stop.wait(pause):
            begun = time.monotonic()
            try:
                reason = self.look()
            except FileNotFoundError:  # the folder is gone, and the session with it
                return
            if reason and not self._stop.is_set():
                self._act(reason)
                return
            pause = max(INTERVAL, 10 * (time.monotonic() - begun))

    def close(self) -> None:
        """Ends the thread, unless it is the caller."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

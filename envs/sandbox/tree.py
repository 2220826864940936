"""The files of a session's folder as plain data: a summary for digests, a full copy for saves."""

import base64
import contextlib
import errno
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envs.sandbox.paths import MAX_READ, Entry, Root
from jaxllm.errors import UserError

MAX_COPIED = 48 << 20  # bytes of all files of a save
LARGE = "large"  # stands for the hash of a file above `MAX_READ` bytes


class Tree:
    """Summaries of one folder's files, with the hashes of files that have not changed since the last time kept."""

    def __init__(self, root: Root):
        self.root = root
        self._known: dict[tuple[int, int, int, int], str] = {}

    def summary(self) -> dict[str, list[Any]]:
        """Path -> ["file", mode in octal, SHA-256], ["folder", mode], ["link", target] or ["other"]. Times are left out."""
        found: dict[str, list[Any]] = {}
        known: dict[tuple[int, int, int, int], str] = {}
        for entry in self.root.walk():
            mode = f"{stat.S_IMODE(entry.info.st_mode):o}"
            name = entry.path.encode(errors="surrogateescape").decode(errors="backslashreplace")
            if stat.S_ISREG(entry.info.st_mode):
                key = (entry.info.st_ino, entry.info.st_size, entry.info.st_mtime_ns, entry.info.st_ctime_ns)
                known[key] = self._known.get(key) or self._hash(entry)
                found[name] = ["file", mode, known[key]]
            elif stat.S_ISDIR(entry.info.st_mode):
                found[name] = ["folder", mode]
            elif stat.S_ISLNK(entry.info.st_mode):
                found[name] = ["link", entry.target.encode(errors="surrogateescape").decode(errors="backslashreplace")]
            else:
                found[name] = ["other"]
        self._known = known
        return found

    def _hash(self, entry: Entry) -> str:
        try:
            return hashlib.sha256(self.root.read_entry(entry)).hexdigest()
        except OSError as error:
            return LARGE if error.errno == errno.EFBIG else ""


def copy(root: Root) -> list[dict[str, Any]]:
    """Everything in the folder as JSON, a folder before what is in it; times in nanoseconds, bytes in base 64.

    Two names of one file become two files. Raises UserError above `MAX_COPIED` bytes, and for pipes and sockets.
    """
    entries: list[dict[str, Any]] = []
    total = 0
    for entry in root.walk():
        kept: dict[str, Any] = {"path": entry.path, "mode": stat.S_IMODE(entry.info.st_mode), "time": entry.info.st_mtime_ns}
        if stat.S_ISREG(entry.info.st_mode):
            total += entry.info.st_size
            if total > MAX_COPIED or entry.info.st_size > MAX_READ:
                raise UserError(f"a session with more than {MAX_COPIED >> 20} MiB of files can't be saved; delete some")
            kept["data"] = base64.b64encode(root.read_entry(entry)).decode()
        elif stat.S_ISLNK(entry.info.st_mode):
            kept["target"] = entry.target
        elif not stat.S_ISDIR(entry.info.st_mode):
            raise UserError(f"a session with a pipe or a socket ({entry.path}) can't be saved; delete it")
        entries.append(kept)
    return entries


class Item(NamedTuple):
    """One thing to lay down in a folder."""

    path: str  # from the folder on, without ".." and links
    mode: int
    time: int  # of its last change, in nanoseconds since 1970
    data: bytes | None = None  # of a file
    target: str | None = None  # of a link; without both it is a folder


def lay(folder: Path, items: Sequence[Item]) -> None:
    """Makes files in an empty folder in which nothing runs yet; folders that are not listed get mode 755 and the first time.

    Raises ValueError for a path that could lead out, OSError for what the disk refuses.
    """
    for item in items:
        if any(part in ("", ".", "..") or "\0" in part for part in item.path.split("/")):
            raise ValueError(f"{item.path!r} is no path within a session")
    made = {"": (0o700, items[0].time if items else 0)}
    for item in items:
        plain = item.data is None and item.target is None
        parts = item.path.split("/")
        for count in range(1, len(parts) + plain):
            place = "/".join(parts[:count])
            if place not in made:
                (folder / place).mkdir(mode=0o700)
                made[place] = (0o755, made[""][1])
        if plain:
            made[item.path] = (item.mode & 0o7777, item.time)
        elif item.data is not None:
            with (folder / item.path).open("xb") as file:
                file.write(item.data)
                os.fchmod(file.fileno(), item.mode & 0o7777)
            os.utime(folder / item.path, ns=(item.time, item.time))
    for item in items:  # links last, so that nothing is written through them
        if item.target is not None:
            (folder / item.path).symlink_to(item.target)
    for place, (mode, time) in sorted(made.items(), reverse=True):  # inner folders first: outer ones may be closed
        if place:
            (folder / place).chmod(mode)
            os.utime(folder / place, ns=(time, time))


def lay_copy(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Makes the files of a `copy` in an empty folder in which nothing runs. Raises UserError for what is no such copy."""
    try:
        items = [
            Item(
                str(kept["path"]),
                int(kept["mode"]),
                int(kept["time"]),
                base64.b64decode(kept["data"], validate=True) if "data" in kept else None,
                str(kept["target"]) if "target" in kept else None,
            )
            for kept in entries
        ]
        lay(folder, items)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"this is no copy of a session's files ({type(error).__name__}: {error})") from error


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a session's folder, whatever is in it: closed folders, and paths too long to be named, too."""

    with contextlib.suppress(RecursionError, OSError):
        shutil.rmtree(path)
    if os.path.lexists(path):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, timeout=60)
        subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, timeout=60)

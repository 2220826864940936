"""The files of a session's folder as plain data: a summary for digests, a full copy for saves."""

import base64
import contextlib
import errno
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from typing import Any

from envs.sandbox.paths import MAX_READ, Root
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
                known[key] = self._known.get(key) or self._hash(entry.path)
                found[name] = ["file", mode, known[key]]
            elif stat.S_ISDIR(entry.info.st_mode):
                found[name] = ["folder", mode]
            elif stat.S_ISLNK(entry.info.st_mode):
                found[name] = ["link", entry.target.encode(errors="surrogateescape").decode(errors="backslashreplace")]
            else:
                found[name] = ["other"]
        self._known = known
        return found

    def _hash(self, path: str) -> str:
        try:
            return hashlib.sha256(self.root.read(path)).hexdigest()
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
            kept["data"] = base64.b64encode(root.read(entry.path)).decode()
        elif stat.S_ISLNK(entry.info.st_mode):
            kept["target"] = entry.target
        elif not stat.S_ISDIR(entry.info.st_mode):
            raise UserError(f"a session with a pipe or a socket ({entry.path}) can't be saved; delete it")
        entries.append(kept)
    return entries


def write(root: Root, entries: list[Mapping[str, Any]]) -> None:
    """Makes the files of a `copy` in an empty folder. Raises UserError for anything that is no such copy."""
    try:
        for kept in entries:
            path = str(kept["path"])
            if "target" in kept:
                root.link(path, str(kept["target"]))
            elif "data" in kept:
                root.write(path, base64.b64decode(kept["data"], validate=True), new=True)
            else:
                root.mkdir(path)
        for kept in reversed(entries):  # what is in a folder first: it may be closed, and its time changes until then
            if "target" not in kept:
                root.chmod(str(kept["path"]), int(kept["mode"]) & 0o7777)
                root.set_time(str(kept["path"]), int(kept["time"]))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"this is no copy of a session's files ({type(error).__name__}: {error})") from error


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a session's folder, whatever is in it: closed folders, and paths too long to be named, too."""

    with contextlib.suppress(RecursionError, OSError):
        shutil.rmtree(path)
    if os.path.lexists(path):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, timeout=60)
        subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, timeout=60)

"""Files of a session's folder, opened from outside without ever leaving it.

What runs inside may plant links and swap folders for links at any moment. So every path is walked one name at a time, by
descriptors, and links are followed by hand, as they would lead inside: /desk is the folder, and anything else is refused.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from envs.sandbox.bubblewrap import HOME

MAX_LINKS = 40  # as in Linux
MAX_READ = 16 << 20  # bytes of one file that are read


class OutsideError(Exception):
    """A path leads out of the session's folder."""


class Entry(NamedTuple):
    """One file, folder or link below a session's folder."""

    path: str  # from the folder on, "/" between names
    info: os.stat_result
    target: str  # of a link; "" for all else
    parent: int  # a descriptor of the folder that it is in, until the next entry is asked for


class Root:
    """A session's folder. Paths are as inside: "/desk/a/b", or relative to it. Errors are OSError, and `OutsideError`."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """A regular file's bytes. Raises OSError for anything else (EINVAL), and above ``limit`` bytes (EFBIG)."""
        return _read(self.open(path, os.O_RDONLY | os.O_NONBLOCK), path, limit)

    def read_entry(self, entry: Entry, limit: int = MAX_READ) -> bytes:
        """The bytes of what `walk` has just found, as `read`."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        return _read(os.open(entry.path.rpartition("/")[2], flags, dir_fd=entry.parent), entry.path, limit)

    def write(self, path: str, data: bytes, *, new: bool = False, mode: int = 0o644) -> None:
        """Writes a file; folders that it needs are made. With ``new``, raises FileExistsError for a path that exists."""
        if new and self.exists(path):
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.mkdir(str(PurePosixPath(path).parent))
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_EXCL if new else 0)
        descriptor = self.open(path, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            file.truncate(0)
            file.write(data)

    def mkdir(self, path: str) -> None:
        """Makes a folder and those above it, with mode 755; one that exists is fine."""
        done = ""
        for name in self._names(path):
            done = f"{done}/{name}" if done else name
            try:
                parent = self._walk(self._names(done)[:-1], os.O_PATH | os.O_DIRECTORY, 0)
                try:
                    os.mkdir(name, 0o755, dir_fd=parent)
                finally:
                    os.close(parent)
            except FileExistsError:
                continue

    def remove(self, path: str) -> None:
        """Removes a file, or the link itself."""
        names = self._names(path)
        parent = self._walk(names[:-1], os.O_PATH | os.O_DIRECTORY, 0)
        try:
            os.unlink(names[-1], dir_fd=parent)
        finally:
            os.close(parent)

    def exists(self, path: str) -> bool:
        """Whether there is anything at the path, links followed; raises OutsideError for a link that leads out."""
        try:
            os.close(self.open(path, os.O_PATH))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_dir(self, path: str) -> bool:
        """Whether the path is a folder, links followed."""
        try:
            os.close(self.open(path, os.O_PATH | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def chmod(self, path: str, mode: int) -> None:
        """Changes a file's or folder's mode, links followed."""
        descriptor = self.open(path, os.O_PATH)
        try:
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)
        finally:
            os.close(descriptor)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """A descriptor for the path, links followed within the folder."""
        return self._walk(self._names(path), flags, mode)

    def walk(self, path: str = "", depth: int | None = None, max_entries: int = 1 << 20) -> Iterator[Entry]:
        """Everything below a folder, sorted by name, a folder before what is in it. Links are shown, not followed."""
        descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        left = [max_entries]
        yield from _below(descriptor, "/".join(self._names(path)), depth, left)

    def _names(self, path: str) -> list[str]:
        if "\0" in path:
            raise OSError(errno.EINVAL, "a path has no NUL")
        if path.startswith("/"):
            names = [name for name in path.split("/") if name not in ("", ".")]
            if names[:1] != [HOME.strip("/")]:
                raise OutsideError(f"{path} is outside {HOME}")
            return names[1:]
        return [name for name in path.split("/") if name not in ("", ".")]

    def _walk(self, names: list[str], flags: int, mode: int) -> int:
        flags |= os.O_CLOEXEC
        pending = names[::-1]
        stack = [os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]  # from the root to where we are
        links = 0
        try:
            while pending:
                name = pending.pop()
                if name == "..":
                    if len(stack) == 1:
                        raise OutsideError(f"{'/'.join(names)} leads out of {HOME}")
                    os.close(stack.pop())
                    continue
                try:
                    if pending:
                        inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=stack[-1])
                        stack.append(inner)
                        continue
                    if not flags & os.O_PATH or _link(name, stack[-1]) is None:
                        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=stack[-1])
                    target = _link(name, stack[-1])
                except OSError as error:
                    target = _link(name, stack[-1]) if error.errno in (errno.ELOOP, errno.ENOTDIR) else None
                    if target is None:
                        raise
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, "too many links", "/".join(names))
                target = target or ""
                if target.startswith("/"):
                    target = "/".join(self._names(target))
                    while len(stack) > 1:
                        os.close(stack.pop())
                pending += [part for part in target.split("/") if part not in ("", ".")][::-1]
            return os.open(f"/proc/self/fd/{stack[-1]}", flags & ~os.O_CREAT)
        finally:
            for descriptor in stack:
                os.close(descriptor)


def _read(descriptor: int, path: str, limit: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder", path)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    return data


def _link(name: str, parent: int) -> str | None:
    """A link's target; None for anything else, or nothing."""
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _below(descriptor: int, prefix: str, depth: int | None, left: list[int]) -> Iterator[Entry]:
    try:
        with os.scandir(descriptor) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            if left[0] <= 0:
                return
            left[0] -= 1
            path = f"{prefix}/{name}" if prefix else name
            try:
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                target = os.readlink(name, dir_fd=descriptor) if stat.S_ISLNK(info.st_mode) else ""
            except OSError:  # it went meanwhile
                continue
            yield Entry(path, info, target, descriptor)
            if stat.S_ISDIR(info.st_mode) and (depth is None or depth > 1):
                try:
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
                except OSError:
                    continue
                yield from _below(inner, path, None if depth is None else depth - 1, left)
    finally:
        os.close(descriptor)

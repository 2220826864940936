"""Files that appear whole or not at all, and folders that one process at a time writes to."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxllm.errors import UserError

TEMPORARY = ".{name}.{process}.tmp"  # a file while it is written


@contextlib.contextmanager
def held(folder: Path, role: str, busy: str) -> Iterator[None]:
    """Keeps a folder, made if absent, for one process; the operating system frees that of one that dies.

    A folder that was made here and in which nothing was written goes again.

    Args:
      role: what the folder is to be, such as "the folder of a map".
      busy: what another process does there, such as "another run is writing this map".
    Raises:
      UserError: another process keeps it, or it can't be a folder.
    """
    there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{folder}: cannot be {role}: {error.strerror}; choose another --out") from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: {busy}; let it end, or choose another --out") from None
        try:
            yield
        finally:
            if not there:
                with contextlib.suppress(OSError):  # it holds something
                    folder.rmdir()


def write_atomically(path: Path, data: Any) -> None:
    """Writes bytes so that ``path`` holds either its old content or all of the new, also after a power cut.

    Raises UserError where that can't be.
    """
    temporary = path.with_name(TEMPORARY.format(name=path.name, process=os.getpid()))
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)

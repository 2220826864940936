"""Files that appear whole or not at all, and folders with one writer at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from jaxllm.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Writes bytes so that ``path`` holds either its old content or all of the new. Raises UserError where it can't be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keeps a folder, made if absent, for one process; the system frees it when the process dies.

    Raises UserError when another run writes there, or when ``path`` cannot be a folder.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{path}: cannot be a folder to write to: {error.strerror}; choose another one") from None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path}: another run is writing there; let it end, or choose another folder") from None
        for stale in path.rglob(".*.tmp"):
            stale.unlink(missing_ok=True)
        yield
    finally:
        os.close(folder)

"""Folders that one process at a time writes to."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from jaxllm.errors import UserError


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

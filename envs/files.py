"""Files that appear whole or not at all, and folders with one writer at a time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from jaxllm.errors import UserError
from jaxllm.files import held


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
    with held(path, "a folder to write to", "another run is writing there"):
        for stale in path.rglob(".*.tmp"):
            stale.unlink(missing_ok=True)
        yield

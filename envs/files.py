"""Folders with one writer at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jaxllm.files import TEMPORARY, held


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keeps a folder, made if absent, for one process; the system frees it when the process dies.

    Raises UserError when another run writes there, or when ``path`` cannot be a folder.
    """
    with held(path, "a folder to write to", "another run is writing there"):
        for stale in path.rglob(TEMPORARY.format(name="*", process="*")):
            stale.unlink(missing_ok=True)
        yield

"""The files of a map: each appears whole or not at all, is checked by its hash when read, and has one writer at a time."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxllm.errors import UserError
from jaxllm.files import TEMPORARY, held

MAX_FILE_BYTES = 4 << 30
MAP_FILES = ("meta.json", "tokens.parquet", "layers/*.parquet", "control/*.parquet")


@contextlib.contextmanager
def only_writer(path: str | Path) -> Iterator[None]:
    """Keeps the folder of a map, made if absent, for one process, and removes what a killed one left half-written.

    The operating system frees the folder of a process that dies. Raises UserError when another run writes there, or when
    ``path`` cannot be a folder.
    """
    path = Path(path)
    with held(path, "the folder of a map", "another run is writing this map"):
        for name in MAP_FILES if (path / "meta.json").is_file() else MAP_FILES[:1]:
            folder_name, _, file = name.rpartition("/")
            for stale in (path / folder_name).glob(TEMPORARY.format(name=file, process="*")):
                stale.unlink(missing_ok=True)
        yield


def read_checked(path: Path, digest: str) -> bytes:
    """The content of a file. Raises UserError when it is missing, too large or its sha256 is not ``digest``."""
    remedy = "run `jaxllm map` again with the same settings: only what is damaged is made anew"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path}: {path.stat().st_size} bytes is too large for a file of a map")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    if sha256(data) != digest:
        raise UserError(f"{path} is damaged: its sha256 is not the one in meta.json; {remedy}")
    return data


def sha256(data: Any) -> str:
    """Hexadecimal sha256 of bytes or of a contiguous buffer."""
    return hashlib.sha256(data).hexdigest()

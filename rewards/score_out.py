"""Where rewarded rows go: a JSON Lines or a Parquet file that appears whole or not at all."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from jaxllm.errors import UserError


class JsonLines:
    """Rows as JSON Lines; what JSON cannot hold, such as the logarithm of 0, is null."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, rows: list[dict[str, Any]]) -> None:
        self._file.write("".join(_line(row) for row in rows).encode(errors="surrogatepass"))

    def close(self) -> None:
        """Nothing is left to write."""


def _line(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(finite(row), allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The same value with null for each number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Parquet:
    """Rows as a Parquet file; a column whose values are of several types is written as JSON text."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rows: list[dict[str, Any]] = []

    def add(self, rows: list[dict[str, Any]]) -> None:
        self._rows += rows

    def close(self) -> None:
        names = dict.fromkeys(name for row in self._rows for name in row)
        pq.write_table(pa.table({name: _column([row.get(name) for row in self._rows]) for name in names}), self._file)


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError):
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


@contextlib.contextmanager
def sink(path: Path) -> Iterator[JsonLines | Parquet]:
    """Takes rows; the file appears under its name once all are written.

    Raises:
      UserError: a name that ends otherwise than ``.jsonl`` or ``.parquet``, a folder that cannot be written.
    """
    kinds: dict[str, Any] = {".jsonl": JsonLines, ".parquet": Parquet}
    if path.suffix not in kinds:
        raise UserError(f"{path}: the name must end in .jsonl or .parquet")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        file = temporary.open("wb")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with file:
            rows = kinds[path.suffix](file)
            yield rows
            rows.close()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

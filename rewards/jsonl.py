"""JSON Lines as data: one object a line, bounded; a line that cannot be read is told by its number and costs no other line."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jaxllm.errors import UserError

MAX_LINE = 16 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class Row:
    """One line that is an object."""

    line: int  # from 1
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Problem:
    """One line that is of no use, and why."""

    line: int
    why: str


class RowError(Exception):
    """Why a row is of no use: caught by whoever reads the rows, and told as a `Problem`."""


def read(path: str | Path) -> Iterator[Row | Problem]:
    """The rows of a file in order; blank lines are passed over. Raises UserError when the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            yield from _rows(file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _rows(file: BinaryIO) -> Iterator[Row | Problem]:
    line = 0
    while data := file.readline(MAX_LINE):
        line += 1
        if len(data) == MAX_LINE and not data.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield Problem(line, f"longer than {MAX_LINE >> 20} MB")
            continue
        if line == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if not data.strip():
            continue
        try:
            values = json.loads(data)
        except (ValueError, RecursionError) as error:
            yield Problem(line, f"no JSON: {error}")
            continue
        yield Row(line, values) if isinstance(values, dict) else Problem(line, "no JSON object")


def numbers(values: dict[str, Any], key: str, count: int) -> list[float]:
    """A list of ``count`` finite numbers. Raises RowError when there is none under ``key``."""
    found = values.get(key)
    if not isinstance(found, list) or len(found) != count or not all(_is_number(x) for x in found):
        raise RowError(f"{key} must be a list of {count} finite numbers" + ("" if key in values else "; it is not there"))
    return [float(x) for x in found]


def size(values: dict[str, Any], key: str) -> list[float] | None:
    """Width and height under ``key``; None when they are not there. Raises RowError when they are no size."""
    if values.get(key) is None:
        return None
    found = numbers(values, key, 2)
    if min(found) < 1 or any(x != round(x) for x in found):
        raise RowError(f"{key} must be width and height in whole pixels, not {found}")
    return found


def _is_number(x: Any) -> bool:
    try:
        return type(x) in (int, float) and math.isfinite(x)
    except OverflowError:  # an integer beyond float
        return False

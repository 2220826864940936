"""Reads points and boxes out of what a model wrote: texts in, columns out.

Text is data: nothing is evaluated, nothing raises, and the time is linear in the text whatever it holds. Whole answers in a
dialect's usual form are read by RE2 over a column at once; every other text goes through `rewards.parse_region`, which finds
the answer in it, and the forms of its dialect.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import heapq
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jaxllm.errors import UserError
from rewards import parse_region
from rewards.geometry import BOX, NOTHING, POINT
from rewards.parse_dialects import DIALECTS, Common, Dialect, dialect_named
from rewards.parse_forms import Candidate, Form

__all__ = ["BOX", "DIALECTS", "NOTHING", "POINT", "POLICIES", "Parsed", "parse", "parse_one"]

ASKED = {"box": (4,), "point": (2,), "either": (2, 4)}  # how many numbers a well-formed answer has
POLICIES = ("first", "last", "only")
BLOCK = 1 << 14, 1 << 16  # rows read at a time: the least that are worth a thread of their own, the most
FEW = 64  # rows for which it is not worth while to compile a pattern for columns


@dataclasses.dataclass(frozen=True, eq=False)
class Parsed:
    """What N texts say. The numbers are in the units of ``frame``, unrounded."""

    kind: np.ndarray  # int8 [N]: NOTHING, POINT or BOX
    box: np.ndarray  # float32 [N, 4] x1, y1, x2, y2; a point twice where only a point was given; NaN where nothing was
    point: np.ndarray  # float32 [N, 2] the point, or the centre of the box; NaN where nothing was given
    format_ok: np.ndarray  # bool [N]: the whole answer is what the dialect's prompt asks for, and nothing else
    frame: str  # see `jaxllm.frames`
    span: np.ndarray | None = None  # int32 [N, 2] the characters of the text that were read; -1, -1 where nothing was

    def __len__(self) -> int:
        return len(self.kind)


def parse(
    texts: Sequence[str | None] | pa.Array | pa.ChunkedArray,
    dialect: str = "bracket",
    *,
    policy: str = "first",
    asked: str | None = None,
    strip: bool = True,
    spans: bool = False,
) -> Parsed:
    """Reads one point or box from each text.

    Args:
      texts: [N] model outputs, as a sequence of str or a column of Arrow; None and null say nothing.
      dialect: a name of `DIALECTS`.
      policy: which of several candidates counts: the first, the last, or none ("only": more than one is a miss).
      asked: "box", "point" or "either", where it is not what the dialect's prompts ask for; the other kind is read as well,
        but is not well formed.
      strip: whether blanks and an end-of-turn marker around the answer are allowed to a well-formed one.
      spans: also say where each was read; texts are then read one by one, at a tenth of the speed.

    Raises:
      UserError: an unknown dialect, policy or ``asked``; texts that are no sequence of str.
    """
    known = dialect_named(dialect)
    if policy not in POLICIES:
        raise UserError(f"policy {policy!r} is unknown; there are {', '.join(POLICIES)}")
    if asked is not None and asked not in ASKED:
        raise UserError(f"asked must be one of {', '.join(ASKED)}, not {asked!r}")
    settings = _Settings(known, policy, ASKED[asked or known.asks], strip, known.common if strip and not spans else ())
    blocks = [block for chunk in _chunks(texts) for block in _blocks(chunk)]
    read = functools.partial(_block, settings=settings)
    if len(blocks) > 1 and settings.common and pa.cpu_count() > 1:  # RE2 and the casts run without the interpreter's lock
        with concurrent.futures.ThreadPoolExecutor(min(pa.cpu_count(), len(blocks))) as pool:
            parts = list(pool.map(read, blocks))
    else:
        parts = [read(block) for block in blocks]
    numbers, kind, format_ok, span = (np.concatenate(column) for column in zip(*parts, strict=True))
    with np.errstate(invalid="ignore"):
        point = (numbers[:, :2] + numbers[:, 2:]) * np.float32(0.5)
    return Parsed(kind, numbers, point, format_ok, known.frame, span if spans else None)


def parse_one(text: str, dialect: str = "bracket", **options: Any) -> tuple[str, tuple[float, ...], bool]:
    """One text, for a person at a prompt: ("nothing", "point" or "box"; its numbers; whether the format is right)."""
    parsed = parse([text], dialect, **options)
    numbers = {NOTHING: (), POINT: parsed.point[0], BOX: parsed.box[0]}[int(parsed.kind[0])]
    return ("nothing", "point", "box")[int(parsed.kind[0])], tuple(map(float, numbers)), bool(parsed.format_ok[0])


@dataclasses.dataclass(frozen=True)
class _Settings:
    dialect: Dialect
    policy: str
    asked: tuple[int, ...]  # how many numbers a well-formed answer has
    strip: bool
    common: tuple[Common, ...]


def _chunks(texts: Any) -> list[pa.Array]:
    if isinstance(texts, str | bytes):
        raise UserError("parse wants a list of texts, not one text")
    if not isinstance(texts, pa.Array | pa.ChunkedArray):
        try:
            texts = pa.array(texts, pa.string())
        except UnicodeEncodeError:  # a lone surrogate; the answer, if any, is ASCII
            texts = pa.array([None if text is None else text.encode(errors="replace").decode() for text in texts], pa.string())
        except (TypeError, pa.ArrowException) as error:
            raise UserError(f"texts must be a sequence of str: {error}") from None
    if pa.types.is_dictionary(texts.type) or pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.large_string())
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise UserError(f"texts must be a column of strings, not of {texts.type}")
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    return chunks or [pa.array([], pa.string())]


def _blocks(chunk: pa.Array) -> Iterator[pa.Array]:
    """Pieces of a column, at least one for each thread if they are not too small."""
    least, most = BLOCK
    rows = min(most, max(least, -(-len(chunk) // pa.cpu_count())))
    for begin in range(0, max(len(chunk), 1), rows):
        yield chunk.slice(begin, rows)


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # numbers [N, 4], kind [N], format_ok [N], span [N, 2]


def _block(column: pa.Array, settings: _Settings) -> _Columns:
    N = len(column)
    out = np.full((N, 4), np.nan, np.float32), np.zeros(N, np.int8), np.zeros(N, bool), np.full((N, 2), -1, np.int32)
    rows = np.arange(N)  # those that are still to be read
    for common in settings.common:
        if len(rows) <= FEW:
            break
        done = _common(column, common, settings, rows, out)
        if done.any():
            rows = rows[~done]
            column = column.filter(pa.array(~done)) if len(rows) else column.slice(0, 0)
    _each(column.to_pylist(), settings, rows, out)
    return out


def _common(column: pa.Array, common: Common, settings: _Settings, rows: np.ndarray, out: _Columns) -> np.ndarray:
    """Reads the rows of a column that have the common form; which they are, bool."""
    fields = pc.extract_regex(column, common.pattern)
    done = np.asarray(fields.is_valid()) if fields.null_count else np.ones(len(column), bool)
    if common.prose and done.any():
        done = done & ~np.asarray(pc.match_substring(column, "assistant").fill_null(True))
    if done.any():
        numbers, kind, format_ok, _ = out
        columns = [np.asarray(pc.cast(field, pa.float32())) for field in fields.flatten()]
        read = np.stack(columns if len(columns) == 4 else 2 * columns, axis=1)
        if not done.all():
            rows, read = rows[done], read[done]
        numbers[rows] = read
        kind[rows] = BOX if len(columns) == 4 else POINT
        format_ok[rows] = common.format_ok and len(columns) in settings.asked
    return done


def _each(texts: Iterable[str | None], settings: _Settings, rows: np.ndarray, out: _Columns) -> None:
    """Reads texts one by one."""
    numbers, kind, format_ok, span = out
    written: list[str] = []
    found: list[int] = []
    for row, text in zip(rows.tolist(), texts, strict=True):
        read = None if text is None else _read(text, settings)
        if read is None:
            continue
        candidate, ok = read
        found.append(row)
        kind[row] = BOX if len(candidate.numbers) == 4 else POINT
        format_ok[row] = ok
        span[row] = candidate.start, candidate.end
        written += candidate.numbers if len(candidate.numbers) == 4 else 2 * candidate.numbers
    if found:
        if settings.dialect.raw:
            written = [repr(float(number)) for number in written]
        numbers[found] = np.asarray(pa.array(written, pa.string()).cast(pa.float32())).reshape(-1, 4)


def _read(text: str, settings: _Settings) -> tuple[Candidate, bool] | None:
    """What one text says, and whether it is well formed."""
    dialect = settings.dialect
    if not any(form.may_be_in(text, 0, len(text)) for group in dialect.forms for form in group):
        return None
    if dialect.raw:
        region: parse_region.Region | None = parse_region.Region(0, len(text), True)
    else:
        region = parse_region.find(text, tool_calls=dialect.tool_calls, strip=settings.strip)
    if region is None:
        return None
    for group in dialect.forms:
        found = _in_order(group, text, region)
        chosen = next(found, None)
        if chosen is None:
            continue
        if settings.policy == "only" and next(found, None) is not None:
            return None
        if settings.policy == "last":
            chosen = collections.deque(itertools.chain([chosen], found), 1).pop()
        form, match = chosen
        candidate = form.candidate(match)
        ok = region.bare and not candidate.cut and len(candidate.numbers) in settings.asked
        return candidate, ok and dialect.well_formed(text, region.start, region.end, candidate)
    return None


def _in_order(group: tuple[Form, ...], text: str, region: parse_region.Region) -> Iterator[tuple[Form, re.Match[str]]]:
    """The matches of several forms from left to right; what begins within an earlier one is the same place."""
    streams = [
        zip(itertools.repeat(form), form.matches(text, region.start, region.end))
        for form in group
        if form.may_be_in(text, region.start, region.end)
    ]
    if len(streams) < 2:
        yield from itertools.chain(*streams)
        return
    end = -1
    for form, match in heapq.merge(*streams, key=lambda one: one[1].start()):
        if match.start() >= end:
            yield form, match
            end = match.end()

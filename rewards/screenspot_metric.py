"""The metric of the ScreenSpot benchmarks: the share of clicks inside the target, per cell of the published tables and overall.

A click is the given point, or the centre of a given box; it counts when it lies in the box, borders included, in floats. An
answer that says nothing and a sample without an answer are wrong, and both are reported.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxllm.errors import UserError
from jaxllm.frames import Resize, convert
from jaxllm.intervals import Rate, rate
from rewards import jsonl
from rewards.jsonl import Problem, RowError
from rewards.parse import NOTHING, parse
from rewards.parse_dialects import dialect_named
from rewards.score import missing
from rewards.screenspot import KINDS, NO_SIZE, SETS, Annotations


@dataclasses.dataclass(frozen=True)
class Reader:
    """How predictions are read."""

    dialect: str = "bracket"  # of `rewards.parse.DIALECTS`, for predictions that are text
    policy: str = "first"  # which of several answers in a text counts
    frame: str | None = None  # of the numbers; None: the dialect's for text, the annotations' for points and boxes
    resize: Resize | None = None  # how pictures were resized for the model, where the frame is "resized"


@dataclasses.dataclass(frozen=True, eq=False)
class Clicks:
    """One click for each of N samples."""

    points: np.ndarray  # float64 [N, 2] in the frame of the annotations; NaN where there is none
    parsed: np.ndarray  # bool [N]: the answer gives a click
    answered: np.ndarray  # bool [N]: there is an answer
    problems: tuple[Problem, ...] = ()  # lines of the file that are of no use


@dataclasses.dataclass(frozen=True)
class Cell:
    """A part of the samples."""

    correct: Rate  # with its Wilson interval
    unparsed: int = 0  # answers that say nothing: "wrong_format"
    unanswered: int = 0  # samples without an answer


@dataclasses.dataclass(frozen=True)
class Table:
    """The result on one set."""

    cells: dict[tuple[str, str], Cell]  # (platform or group, "text" or "icon"), without empty ones
    rows: dict[str, Cell]  # both kinds of a platform or group
    kinds: dict[str, Cell]  # all platforms or groups of a kind
    micro: Cell  # all samples alike: what papers print as the average
    macro: float  # mean of the cells' shares


def read_predictions(path: str | Path, annotations: Annotations, reader: Reader) -> Clicks:
    """Reads predictions: JSON Lines with ``id`` and one of ``text``, ``point`` [x, y] and ``box`` [x1, y1, x2, y2], or null.

    ``image_wh`` and ``resized_wh`` in a row stand in for sizes that are not known otherwise. A line with an unknown id, or with
    the id of an earlier line, is a problem.

    Raises:
      UserError: the file cannot be read, or no line is of use.
    """
    index = {name: i for i, name in enumerate(annotations.ids)}
    N = len(index)
    texts: list[str | None] = [None] * N
    numbers: list[list[float] | None] = [None] * N
    sources = [annotations.frame] * N
    size = np.where(annotations.size_wh == NO_SIZE, np.nan, annotations.size_wh)
    resized = np.full((N, 2), np.nan)
    answered, problems = np.zeros(N, bool), []
    for row in jsonl.read(path):
        if isinstance(row, Problem):
            problems.append(row)
            continue
        try:
            values, i = row.values, _sample(row.values, index, answered)
            given_as = [key for key in ("text", "point", "box") if key in values]
            if len(given_as) != 1:
                raise RowError(f"one of text, point and box must be there, not {' and '.join(given_as) or 'none of them'}")
            own = jsonl.size(values, "image_wh"), jsonl.size(values, "resized_wh")
            (key,) = given_as
            said = values[key]
            if key == "text" and not isinstance(said, str | None):
                raise RowError("text must be a string")
            if key != "text" and said is not None:
                numbers[i] = jsonl.numbers(values, key, 4 if key == "box" else 2)
        except RowError as error:
            problems.append(Problem(row.line, str(error)))
            continue
        texts[i] = said if key == "text" else None
        sources[i] = reader.frame or (dialect_named(reader.dialect).frame if key == "text" else annotations.frame)
        for known, one in ((size, own[0]), (resized, own[1])):
            if one is not None and np.isnan(known[i, 0]):
                known[i] = one
        answered[i] = True
    if not answered.any():
        why = f"; line {problems[0].line}: {problems[0].why}" if problems else ""
        raise UserError(f"{path}: no prediction is of use{why}")
    read = parse(texts, reader.dialect, policy=reader.policy)
    points, parsed = read.point.astype(np.float64), read.kind != NOTHING
    for i, own_numbers in enumerate(numbers):
        if own_numbers is not None:
            points[i], parsed[i] = np.reshape(own_numbers, (-1, 2)).mean(axis=0), True
    points[~parsed] = np.nan
    points = _in_frame(points, np.array(sources), annotations, size, resized, reader, parsed)
    return Clicks(points, parsed, answered, tuple(problems))


def _sample(values: dict[str, object], index: Mapping[str, int], answered: np.ndarray) -> int:
    name = values.get("id")
    if not isinstance(name, str):
        raise RowError("id must be a string" if "id" in values else "id is missing")
    if name not in index:
        raise RowError(f"no sample has the id {name[:100]!r}")
    if answered[index[name]]:
        raise RowError(f"a second prediction for {name!r}")
    return index[name]


def _in_frame(
    points: np.ndarray,
    sources: np.ndarray,
    annotations: Annotations,
    size: np.ndarray,
    resized: np.ndarray,
    reader: Reader,
    parsed: np.ndarray,
) -> np.ndarray:
    """Clicks in the frame of the annotations. Raises UserError naming a sample whose picture's size is missing."""
    target = annotations.frame
    if reader.resize is not None:
        rows = ~np.isnan(size[:, 0]) & np.isnan(resized[:, 0])
        resized[rows] = reader.resize.sizes_wh(size[rows])
    for source in set(sources[parsed].tolist()) - {target}:
        rows = np.flatnonzero(parsed & (sources == source))
        for frame, known in (("orig", size), ("resized", resized)):
            lacking = rows[np.isnan(known[rows, 0])] if frame in (source, target) else []
            if len(lacking):
                sized = not np.isnan(size[lacking[0], 0])
                raise UserError(f"{annotations.ids[lacking[0]]}: {missing(source, target, frame, sized=sized)}")
        sizes = {"size_wh": size[rows], "resized_wh": resized[rows]}
        points[rows] = convert(points[rows], source, target, **sizes)
    return points


def inside(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Which points [N, 2] lie in their boxes [N, 4], borders included: bool [N]; NaN lies nowhere."""
    return np.all((points >= boxes[:, :2]) & (points <= boxes[:, 2:]), axis=1)


def evaluate(annotations: Annotations, clicks: Clicks) -> Table:
    """The result of N clicks on the N samples of a set."""
    correct = inside(clicks.points, annotations.boxes)
    rows, kinds = np.array(annotations.rows), np.array(annotations.kinds)
    first = [row for row in SETS[annotations.which].rows if row in annotations.rows]
    names = [*first, *sorted(set(annotations.rows) - set(first))]

    def cell(which: np.ndarray) -> Cell:
        unparsed = which & clicks.answered & ~clicks.parsed
        unanswered = which & ~clicks.answered
        return Cell(rate(int((correct & which).sum()), int(which.sum())), int(unparsed.sum()), int(unanswered.sum()))

    return table({(row, kind): cell((rows == row) & (kinds == kind)) for row in names for kind in KINDS})


def table(cells: Mapping[tuple[str, str], Cell]) -> Table:
    """Sums and averages of cells; empty ones are left out."""
    cells = {name: cell for name, cell in cells.items() if cell.correct.total}
    shares = [cell.correct.share for cell in cells.values()]
    return Table(
        cells=dict(cells),
        rows={name: _sum(cell for (row, _), cell in cells.items() if row == name) for name, _ in cells},
        kinds={name: _sum(cell for (_, kind), cell in cells.items() if kind == name) for _, name in cells},
        micro=_sum(cells.values()),
        macro=sum(shares) / len(shares) if shares else math.nan,
    )


def _sum(cells: Iterable[Cell]) -> Cell:
    cells = list(cells)
    correct = rate(sum(cell.correct.count for cell in cells), sum(cell.correct.total for cell in cells))
    return Cell(correct, sum(cell.unparsed for cell in cells), sum(cell.unanswered for cell in cells))


def facts(table: Table) -> dict[str, object]:
    """The table as plain values for JSON."""
    return {
        "micro": dataclasses.asdict(table.micro),
        "macro": table.macro,
        "rows": {name: dataclasses.asdict(cell) for name, cell in table.rows.items()},
        "kinds": {name: dataclasses.asdict(cell) for name, cell in table.kinds.items()},
        "cells": {f"{row}, {kind}": dataclasses.asdict(cell) for (row, kind), cell in table.cells.items()},
    }

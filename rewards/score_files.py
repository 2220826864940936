"""Rewards the rows of a JSON Lines file, writes them back with every part of the reward, and sums up.

A row gives the model's answer as ``text``, or as ``box`` [x1, y1, x2, y2] or ``point`` [x, y] (null: it gave none); ``target``
is the box that was asked for; ``image_wh`` [width, height] of the picture's file (or ``width``, ``height``) and ``resized_wh``
are needed where the frames of answer and target differ. All else in a row is kept as it is.
"""

import contextlib
import dataclasses
import heapq
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import UserError
from jaxllm.intervals import Rate, rate
from rewards import jsonl
from rewards.jsonl import Problem, Row, RowError
from rewards.parse import NOTHING
from rewards.score import Scored, Scorer, given, missing, moved
from rewards.score_out import finite, sink

BLOCK = 1 << 15  # rows rewarded at a time
BINS = 10
WORST = 10
KINDS = ("nothing", "point", "box")


@dataclasses.dataclass(frozen=True)
class Worst:
    """One of the rows with the least reward."""

    line: int
    reward: float
    answer: str  # its text, or its numbers
    target: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a file's rows earned."""

    rows: int  # rewarded
    problems: tuple[Problem, ...]  # lines that were not, in order
    means: dict[str, float]  # of each part but the logarithms
    unparsed: Rate  # answers that say nothing
    formatted: Rate  # of the answers that came as text, those that are well formed
    zero: Rate  # rewards of exactly 0
    nonfinite: int  # rewards that are NaN or infinite: only the published code's behaviour has such
    edges: tuple[float, ...]  # of the histogram's bins, BINS + 1
    counts: tuple[int, ...]  # finite rewards in each bin
    worst: tuple[Worst, ...]  # least reward first, at most WORST


def facts(summary: Summary) -> dict[str, Any]:
    """A summary as plain values for JSON."""
    return finite(dataclasses.asdict(summary))


@dataclasses.dataclass(frozen=True)
class _Answer:
    row: Row
    text: str | None
    numbers: list[float] | None  # when there is no text
    target: list[float]
    size_wh: list[float] | None
    resized_wh: list[float] | None


def score_file(
    path: str | Path, scorer: Scorer, *, out: str | Path | None = None, text: str = "text", target: str = "target"
) -> Summary:
    """Rewards every row of a JSON Lines file.

    Args:
      out: where the rows go with their rewards: a ``.jsonl`` or ``.parquet`` file, which appears whole or not at all.
      text: name of the column that holds the model's output.
      target: name of the column that holds the target box.

    Raises:
      UserError: the file cannot be read or written, no row is of use, or the frames need what is not given.
    """
    totals = _Totals(scorer.reward.name)
    with contextlib.ExitStack() as stack:
        written = stack.enter_context(sink(Path(out))) if out is not None else None
        rows = jsonl.read(path)
        while block := list(itertools.islice(rows, BLOCK)):
            answers = []
            for row in block:
                try:
                    answers.append(_answer(row, scorer, text, target) if isinstance(row, Row) else row)
                except RowError as error:
                    answers.append(Problem(row.line, str(error)))
            totals.problems += [answer for answer in answers if isinstance(answer, Problem)]
            good = [answer for answer in answers if isinstance(answer, _Answer)]
            if not good:
                continue
            scored = _score(good, scorer)
            totals.add(good, scored)
            if written is not None:
                written.add(_with_rewards(good, scored, scorer.reward.name))
        if not totals.rows:
            first = f"; line {totals.problems[0].line}: {totals.problems[0].why}" if totals.problems else ""
            raise UserError(f"{path}: no row can be rewarded{first}")
    return totals.summary()


def _answer(row: Row, scorer: Scorer, text: str, target: str) -> _Answer:
    values = row.values
    given_as = [key for key in (text, "box", "point") if key in values]
    if len(given_as) != 1:
        raise RowError(f"one of {text}, box and point must be there, not {' and '.join(given_as) or 'none of them'}")
    (key,) = given_as
    answer, said = None, values[key]
    if key == text:
        said = "" if said is None else said
        if not isinstance(said, str):
            raise RowError(f"{key} must be a string")
    elif said is not None:
        answer = jsonl.numbers(values, key, 4 if key == "box" else 2)
    size = jsonl.size(values, "image_wh")
    if size is None and "width" in values and "height" in values:
        size = jsonl.size({"width, height": [values["width"], values["height"]]}, "width, height")
    resized = jsonl.size(values, "resized_wh")
    source = scorer.answer_frame if key == text else scorer.frame or scorer.target_frame
    for frame, known in (("orig", size), ("resized", resized or (scorer.resize and size))):
        if source != scorer.target_frame and frame in (source, scorer.target_frame) and known is None:
            raise RowError(missing(source, scorer.target_frame, frame, sized=size is not None))
    return _Answer(row, said if key == text else None, answer, jsonl.numbers(values, target, 4), size, resized)


def _score(answers: Sequence[_Answer], scorer: Scorer) -> Scored:
    """Text and numbers may be in different frames: each is brought into the target's before all are rewarded at once."""
    size = np.array([answer.size_wh or (np.nan, np.nan) for answer in answers])
    resized = np.array([answer.resized_wh or (np.nan, np.nan) for answer in answers])
    known = ~np.isnan(size[:, 0])
    if scorer.resize is not None:
        rows = known & np.isnan(resized[:, 0])
        resized[rows] = scorer.resize.sizes_wh(size[rows])
    written = np.array([answer.text is not None for answer in answers])
    read = []
    if written.any():
        read.append(scorer.read([answer.text for answer in answers]))
    if not written.all():
        read.append(given([answer.numbers for answer in answers], scorer.frame or scorer.target_frame))
    read = [moved(one, scorer.target_frame, size_wh=size, resized_wh=resized) for one in read]
    parsed = read[0]
    if len(read) == 2:
        columns = ("kind", "box", "point", "format_ok")
        pairs = ((getattr(read[0], name), getattr(read[1], name)) for name in columns)
        merged = (np.where(written if a.ndim == 1 else written[:, None], a, b) for a, b in pairs)
        parsed = dataclasses.replace(parsed, **dict(zip(columns, merged, strict=True)))
    sizes = {"size_wh": size if known.all() else None, "resized_wh": None if np.isnan(resized).any() else resized}
    return scorer.of(parsed, [answer.target for answer in answers], **sizes)


class _Totals:
    """Sums over the blocks of a file."""

    def __init__(self, name: str) -> None:
        self.name, self.rows = name, 0
        self.problems: list[Problem] = []
        self._sums: dict[str, float] = {}
        self._rewards: list[np.ndarray] = []
        self._nothing = self._formatted = self._written = 0
        self._worst: list[tuple[float, float, int, Worst]] = []

    def add(self, answers: Sequence[_Answer], scored: Scored) -> None:
        reward = np.asarray(scored.parts.reward, np.float64)
        self.rows += len(reward)
        self._rewards.append(reward)
        for part, values in zip(scored.parts._fields, scored.parts, strict=True):
            if not part.startswith("log_"):
                self._sums[part] = self._sums.get(part, 0.0) + float(np.asarray(values, np.float64).sum())
        self._nothing += int((scored.parsed.kind == NOTHING).sum())
        self._formatted += int(scored.parsed.format_ok.sum())
        self._written += sum(answer.text is not None for answer in answers)
        log = np.asarray(getattr(scored.parts, "log_reward", reward), np.float64)
        for row in np.lexsort((log, reward))[:WORST].tolist():
            answer = answers[row]
            said = answer.text if answer.text is not None else json.dumps(answer.numbers)
            worst = Worst(answer.row.line, float(reward[row]), said[:200], tuple(answer.target))
            self._worst.append((float(reward[row]), float(log[row]), answer.row.line, worst))
        self._worst = heapq.nsmallest(WORST, self._worst, key=lambda entry: entry[:3])

    def summary(self) -> Summary:
        rewards = np.concatenate(self._rewards)
        finite_ones = rewards[np.isfinite(rewards)]
        low, high = min(0.0, finite_ones.min(initial=0)), max(1.0, math.ceil(finite_ones.max(initial=0)))
        counts, edges = np.histogram(finite_ones, BINS, (low, high))
        return Summary(
            rows=self.rows,
            problems=tuple(self.problems),
            means={part: total / self.rows for part, total in self._sums.items()},
            unparsed=rate(self._nothing, self.rows),
            formatted=rate(self._formatted, self._written),
            zero=rate(int((rewards == 0).sum()), self.rows),
            nonfinite=len(rewards) - len(finite_ones),
            edges=tuple(edges.tolist()),
            counts=tuple(counts.tolist()),
            worst=tuple(worst for *_, worst in self._worst),
        )


def _with_rewards(answers: Sequence[_Answer], scored: Scored, name: str) -> list[dict[str, Any]]:
    """The rows with what was parsed, in the target's frame, and every part of the reward."""
    columns = {
        f"{name}.{part}": np.asarray(values).tolist() for part, values in zip(scored.parts._fields, scored.parts, strict=True)
    }
    kinds, boxes, formatted = scored.parsed.kind.tolist(), scored.parsed.box.tolist(), scored.parsed.format_ok.tolist()
    rows = []
    for i, answer in enumerate(answers):
        box = boxes[i] if KINDS[kinds[i]] == "box" else boxes[i][:2] if kinds[i] != NOTHING else None
        read = {"parsed.kind": KINDS[kinds[i]], "parsed.numbers": box, "parsed.format_ok": formatted[i]}
        rows.append({**answer.row.values, **read, **{column: values[i] for column, values in columns.items()}})
    return rows

"""The commands on rewards without a model: score a file of answers, evaluate a benchmark."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from jaxllm.frames import Resize
    from rewards.jsonl import Problem
    from rewards.score_files import Summary
    from rewards.screenspot_metric import Cell, Table

BAR = 40  # characters of the longest bar
SHOWN_PROBLEMS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How the answers of a model are read."""

    dialect: str = "bracket"
    """how the model writes: bracket, qwen25, qwen2_box, qwen3, uitars1, uitars15, paren, stepgui, norm01, gui_g2_release"""
    policy: Literal["first", "last", "only"] = "first"
    """which of several answers in a text counts; only: more than one is a miss"""
    frame: Literal["orig", "resized", "rel1000", "rel999", "norm01"] | None = None
    """what the numbers count: orig, pixels of the file; resized, pixels of what the model saw; rel1000, thousandths; norm01,
    shares (default: the dialect's)"""
    preset: str | None = None
    """how pictures were resized: qwen25, qwen25_image, ui_tars, se_gui or screenspot_pro"""
    min_pixels: int | None = None
    """smallest area of a resized picture (default: the preset's, else 3136)"""
    max_pixels: int | None = None
    """largest area of a resized picture (default: the preset's)"""
    factor: int | None = None
    """both sides of a resized picture are multiples of it (default: the preset's, else 28)"""

    def resize(self) -> "Resize | None":
        """How pictures were resized; None when nothing says so. Raises UserError for an unknown preset."""
        from jaxllm.errors import UserError
        from jaxllm.frames import PRESETS

        if self.preset is not None and self.preset not in PRESETS:
            raise UserError(f"--preset {self.preset} is unknown; there are {', '.join(PRESETS)}")
        if self.preset is None and self.max_pixels is None:
            if self.min_pixels is not None or self.factor is not None:
                raise UserError("--min-pixels and --factor need --max-pixels or --preset")
            return None
        base = PRESETS[self.preset or "qwen25"]
        return dataclasses.replace(
            base,
            min_pixels=base.min_pixels if self.min_pixels is None else self.min_pixels,
            max_pixels=base.max_pixels if self.max_pixels is None else self.max_pixels,
            factor=base.factor if self.factor is None else self.factor,
        )


@dataclasses.dataclass(frozen=True)
class Score(Reading):
    """Reward every row of a file of answers, and sum up.

    A row of the JSON Lines file gives the answer as "text", or as "box" or "point", and the box that was asked for as "target";
    "image_wh" is the width and height of the picture, where the numbers of answer and target count different things.
    """

    file: tyro.conf.Positional[Path]
    """JSON Lines, one answer a row"""
    reward: str = "gui_g2"
    """name of the reward; an unknown one lists them all"""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """setting of the reward, such as alpha=0.3; repeat it for several"""
    target_frame: Literal["orig", "resized", "rel1000", "rel999", "norm01"] = "orig"
    """what the numbers of the targets count"""
    text_column: str = "text"
    """column of the model's output"""
    target_column: str = "target"
    """column of the target box, x1 y1 x2 y2"""
    out: Path | None = None
    """file for the rows with every part of their reward, .jsonl or .parquet"""
    json: bool = False
    """print the summary as JSON"""

    def run(self) -> None:
        import json

        import rewards
        from jaxllm.cli import console
        from rewards import score_files
        from rewards.score import Scorer

        reward = rewards.get(self.reward, **_options(self.option))
        _check(reward)
        scorer = Scorer(
            reward, self.dialect, self.policy, frame=self.frame, target_frame=self.target_frame, resize=self.resize()
        )
        summary = score_files.score_file(self.file, scorer, out=self.out, text=self.text_column, target=self.target_column)
        if self.json:
            console.write(json.dumps(score_files.facts(summary), indent=1, allow_nan=False))
        else:
            _print_summary(summary, self.reward)
        _tell(summary.problems, self.file)
        if self.out is not None:
            (console.stderr().print if self.json else console.write)(f"Written: {self.out}")


@dataclasses.dataclass(frozen=True)
class Eval(Reading):
    """Evaluate predictions on one of the ScreenSpot benchmarks: the papers' table.

    Predictions are JSON Lines with "id" and one of "text", "point" and "box". The id is the annotations' own; without one it is
    "<platform>/<place>", such as mobile/0 for the first sample of the mobile file.
    """

    benchmark: tyro.conf.Positional[Literal["screenspot", "screenspot-v2", "screenspot-v2-variants", "screenspot-pro"]]
    """which set"""
    annotations: Path
    """folder of the annotation files, or one of them"""
    predictions: Path
    """JSON Lines, one prediction a row"""
    pictures: Path | None = None
    """folder of the pictures: their sizes, where the annotations have none and a frame needs them"""
    box_format: Literal["xywh", "xyxy", "xyxy01"] | None = None
    """how the files give boxes (default: as published for this set)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from jaxllm.cli import console
        from rewards import screenspot, screenspot_metric

        reader = screenspot_metric.Reader(self.dialect, self.policy, self.frame, self.resize())
        box_format = self.box_format or screenspot.SETS[self.benchmark].box_format
        annotations = screenspot.read_annotations(
            self.annotations, self.benchmark, box_format=box_format, pictures=self.pictures
        )
        clicks = screenspot_metric.read_predictions(self.predictions, annotations, reader)
        table = screenspot_metric.evaluate(annotations, clicks)
        if self.json:
            console.write(json.dumps(screenspot_metric.facts(table), indent=1, allow_nan=False))
        else:
            _print_table(table, self.benchmark)
        expected = screenspot.SETS[self.benchmark].count
        if expected is not None and len(annotations) != expected:
            console.stderr().print(f"The whole set has {expected:,} samples; these are {len(annotations):,}.")
        if annotations.frame == "orig" and (annotations.size_wh == screenspot.NO_SIZE).any():
            console.stderr().print(
                f"The pictures' sizes are not known, so that boxes could not be checked to be {box_format}; give --pictures"
            )
        _tell(clicks.problems, self.predictions)


COMMANDS: dict[str, type[Any]] = {"score": Score, "eval": Eval}


def _options(given: tuple[str, ...]) -> dict[str, Any]:
    """Settings as typed by a person: numbers, true and false, else text."""
    from jaxllm.errors import UserError

    out: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UserError(f"--option {one}: give it as name=value, such as alpha=0.3")
        try:
            out[name] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
            out[name] = float(value) if isinstance(out[name], str) else out[name]
        except ValueError:
            pass
    return out


def _check(reward: Any) -> None:
    from jaxllm.errors import UserError

    if reward.grouped:
        raise UserError(f"{reward.name} rewards a group of answers together; a file is rewarded row by row")
    if reward.required:
        raise UserError(f"{reward.name} needs {', '.join(reward.required)}, which rows of a file do not give")


def _print_summary(summary: "Summary", name: str) -> None:
    from jaxllm.cli import console

    out = console.stdout()
    table = console.table(f"{name}: {summary.rows:,} rows", "", "value", "95 %")
    for part, value in summary.means.items():
        table.add_row(f"mean {part}", f"{value:.4f}", "")
    for label, share in (
        ("nothing parsed", summary.unparsed),
        ("well formed, of the texts", summary.formatted),
        ("reward of 0", summary.zero),
    ):
        if share.total:
            table.add_row(label, f"{share.share:.2%}", f"{share.low:.2%} to {share.high:.2%}")
    if summary.nonfinite:
        table.add_row("reward not finite", f"{summary.nonfinite:,}", "")
    out.print(table)
    bars = console.table("Rewards", "from", "to", "rows", "")
    most = max(1, *summary.counts)
    for i, count in enumerate(summary.counts):
        bar = "█" * max(round(BAR * count / most), count > 0)
        bars.add_row(f"{summary.edges[i]:.2f}", f"{summary.edges[i + 1]:.2f}", f"{count:,}", bar)
    out.print(bars)
    worst = console.table("The least rewarded", "line", "reward", "answer", "target")
    for row in summary.worst:
        worst.add_row(str(row.line), f"{row.reward:.4f}", _visible(row.answer), " ".join(f"{x:g}" for x in row.target))
    out.print(worst)


def _visible(text: str) -> str:
    """A model's output on one line, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else {"\n": "⏎", "\t": "⇥"}.get(c, "�") for c in text)


def _print_table(table: "Table", name: str) -> None:
    from jaxllm.cli import console
    from rewards.screenspot import KINDS

    rows = console.table(f"{name}: clicks inside the target", "", *KINDS, "all", "95 %", "unparsed", "unanswered")

    def share(cell: "Cell | None") -> str:
        return "" if cell is None else f"{cell.correct.share:.2%} ({cell.correct.count}/{cell.correct.total})"

    for label, row, kinds in [
        *((row, cell, {kind: table.cells.get((row, kind)) for kind in KINDS}) for row, cell in table.rows.items()),
        ("all, micro", table.micro, {kind: table.kinds.get(kind) for kind in KINDS}),
    ]:
        interval = f"{row.correct.low:.2%} to {row.correct.high:.2%}"
        cells = [share(kinds[kind]) for kind in KINDS]
        rows.add_row(label, *cells, share(row), interval, str(row.unparsed), str(row.unanswered))
    rows.add_row(f"mean of the {len(table.cells)} cells, macro", "", "", f"{table.macro:.2%}", "", "", "")
    console.stdout().print(rows)


def _tell(problems: "tuple[Problem, ...]", path: Path) -> None:
    from jaxllm.cli import console

    for problem in problems[:SHOWN_PROBLEMS]:
        console.stderr().print(f"{path}, line {problem.line}: {problem.why}")
    if len(problems) > SHOWN_PROBLEMS:
        lines = " ".join(str(problem.line) for problem in problems[SHOWN_PROBLEMS:])
        console.stderr().print(f"{path}: {len(problems) - SHOWN_PROBLEMS:,} more lines could not be read: {lines}")

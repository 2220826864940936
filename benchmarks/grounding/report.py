"""Tables and pictures of finished trainings. Rows are what the benchmark appends to its file, a dict for each training."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# 97.5th percentiles of Student's t by degrees of freedom.
T95 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
SHOWN = (  # heading, size class, measure
    ("greedy", "all", "greedy"),
    ("small", "small", "greedy"),
    ("mid", "mid", "greedy"),
    ("large", "large", "greedy"),
    ("sampled", "all", "sampled"),
    ("small, sampled", "small", "sampled"),
    ("IoU", "all", "iou"),
)
BASELINE = "binary point"
# ScreenSpot-v2 accuracy in percent, 7B (arXiv 2507.15846v1): Tables 1, 2 and 4, Figure 6, section 4. "start" is the base model;
# SE-GUI is another group's model, trained otherwise.
PAPER = {
    "start": "88.8",
    "point + coverage": "93.3",
    "point": "92.1",
    "coverage": "90.2",
    "inside Gaussian": "88.4",
    "binary point": "87.4",
    "binary IoU": "85.8",
    "both binaries": "86.5",
    "SE-GUI": "90.3",
    "alpha 2": "92.9",
    "alpha 3": "92.2",
}
STYLES = {
    "point + coverage": ("#0072B2", "o-"),
    "point": ("#56B4E9", "s--"),
    "coverage": ("#009E73", "^--"),
    "binary point": ("#D55E00", "D-"),
    "binary IoU": ("#E69F00", "v-"),
    "random": ("#777777", "x:"),
}


def values(rows: Sequence[dict[str, Any]], start: str, reward: str, size: str, measure: str) -> dict[int, float]:
    """A measure of the end, in percent, by seed."""
    chosen = [row for row in rows if row["start"] == start and row["reward"] == reward]
    return {row["seed"]: 100 * row["end"][size][measure] for row in chosen}


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences with the 95 % interval of Student's t; NaN bounds for a single one."""
    d = np.asarray(differences, np.float64)
    if len(d) < 2:
        return float(d.mean()) if len(d) else math.nan, math.nan, math.nan
    t = T95[len(d) - 1] if len(d) <= len(T95) else 1.96
    half = t * float(d.std(ddof=1)) / math.sqrt(len(d))
    return float(d.mean()), float(d.mean()) - half, float(d.mean()) + half


def against(rows: Sequence[dict[str, Any]], start: str, a: str, b: str, size: str, measure: str) -> tuple[float, float, float]:
    """`interval` of a minus b in points over the seeds that both have."""
    left, right = values(rows, start, a, size, measure), values(rows, start, b, size, measure)
    return interval([left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())])


def table(rows: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]], start: str, order: Sequence[str]) -> str:
    """Markdown: the start, then every reward: mean over seeds with range, and the paired difference to binary point."""
    done = [name for name in order if values(rows, start, name, "all", "greedy")]
    headings = [heading for heading, _, _ in SHOWN]
    lines = [
        "| reward | "
        + " | ".join(headings)
        + f" | groups with signal | small minus {BASELINE} | IoU minus {BASELINE} | paper |",
        "| --- |" + " --- |" * (len(SHOWN) + 4),
    ]
    begin = [row["end"] for row in starts if row["start"] == start]
    if begin:
        cells = [_mean_range([100 * end[size][measure] for end in begin]) for _, size, measure in SHOWN]
        lines.append("| *start* | " + " | ".join(cells) + f" | | | | {PAPER['start']} |")
    for name in done:
        cells = [_mean_range(list(values(rows, start, name, size, measure).values())) for _, size, measure in SHOWN]
        signal = [row["curve"][-1]["signal"] for row in rows if row["start"] == start and row["reward"] == name]
        compared = [
            "" if name == BASELINE else _signed(against(rows, start, name, BASELINE, "small", "greedy")),
            "" if name == BASELINE else _signed(against(rows, start, name, BASELINE, "all", "iou")),
        ]
        lines.append(f"| {name} | {' | '.join([*cells, f'{np.mean(signal):.2f}', *compared, PAPER.get(name, '')])} |")
    return "\n".join(lines)


def picture(rows: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]], names: Sequence[str]) -> bytes:
    """Learning curves on held-out scenes, a row of panels for each start; bands are the range over seeds."""
    figure = Figure(figsize=(12.5, 0.9 + 3.3 * len(names)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(names), 3, squeeze=False)
    panels = (
        ("small", "greedy", "hits on small targets"),
        ("all", "greedy", "hits on all targets"),
        ("all", "iou", "mean IoU"),
    )
    for line, start in zip(axes, names, strict=True):
        for axis, (size, measure, title) in zip(line, panels, strict=True):
            for name, (color, style) in STYLES.items():
                _curve(axis, rows, starts, start, name, size, measure, color, style)
            axis.set_title(f"{title}, from the {start} start", fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.set_xlabel("steps", fontsize=9)
        line[0].set_ylabel("percent of held-out scenes (greedy)", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(STYLES), frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _curve(
    axis: Any,
    rows: Sequence[dict[str, Any]],
    starts: Sequence[dict[str, Any]],
    start: str,
    name: str,
    size: str,
    measure: str,
    color: str,
    style: str,
) -> None:
    chosen = [row for row in rows if row["start"] == start and row["reward"] == name]
    if not chosen:
        return
    begin = {row["base"]: row["curve"] for row in starts if row["start"] == start}
    curves = [[begin[row["base"]], *row["curve"]] for row in chosen if row["base"] in begin]
    steps = [0] + [point["step"] for point in chosen[0]["curve"]]
    heights = np.array([[100 * point[size][measure] for point in curve] for curve in curves])
    axis.plot(steps, heights.mean(0), style, color=color, markersize=4, linewidth=1.6, label=name)
    if len(heights) > 1:
        axis.fill_between(steps, heights.min(0), heights.max(0), color=color, alpha=0.12, linewidth=0)


def _mean_range(found: Sequence[float]) -> str:
    if len(found) == 1:
        return f"{found[0]:.1f}"
    return f"{np.mean(found):.1f} ({min(found):.1f}–{max(found):.1f})"


def _signed(found: tuple[float, float, float]) -> str:
    mean, low, high = found
    if math.isnan(mean):
        return ""
    return f"{mean:+.1f}" if math.isnan(low) else f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"

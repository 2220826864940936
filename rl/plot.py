"""The curves of runs as one picture."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from envs import toys
from jaxllm.config import read_json
from jaxllm.errors import UserError
from rl import metrics
from rl.saved import FILE

# Of Okabe and Ito, which colour-blind readers can tell apart; every run has a dash of its own as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
GREY = "#666666"
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----")
SMOOTHED = 40  # updates from which a moving mean is drawn over the curve
MAX_RUNS = len(COLORS) * len(DASHES)

PANELS = (
    ("Reward", "reward/outcome", "mean outcome of an episode"),
    ("Success", "success_rate", "share of episodes"),
    ("Explained variance", "critic/explained_variance", "of the returns, by the critic"),
    ("Turns", "turns", "of an episode"),
    ("Tokens", "policy_tokens_per_turn", "of a turn, sampled"),
    ("Entropy", "entropy", "nats a token"),
    ("KL of an update", "ppo/kl_k3", "nats a token (k3)"),
    ("Sampler and trainer apart", "off/abs_dlogp_mean", "mean |Δ log p|, nats"),
)
IMITATION = (
    ("Loss", "sft/loss", "nats a token that is imitated"),
    ("Learning rate", "sft/lr", "of a step"),
    ("Gradient", "sft/grad_norm", "norm before it is clipped"),
)
WORDS = (("Words kept", "drift/match", "share of neurons"),)
EVALUATED = {"success_rate": "eval/success_rate", "sft/loss": "eval/loss"}


def curves(folders: Sequence[Path]) -> bytes:
    """The picture of `draw` as a PNG."""
    buffer = io.BytesIO()
    draw(folders).savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def draw(folders: Sequence[Path]) -> Figure:
    """Reward, success, critic, lengths, entropy, KL, mismatch and time, a panel each; runs are drawn over each other.

    The reward and success of a toy have its optimum as a line. Thin lines are single updates, thick ones a moving mean; rings
    are evaluations. Runs that imitate have loss, learning rate and gradient in place of that, or beside it where other runs are
    drawn too; what became of the neurons' words has a panel where a run tells it.

    Args:
      folders: of runs.

    Raises:
      UserError: no or too many folders, one without a run, or a run without a finished update.
    """
    if not 1 <= len(folders) <= MAX_RUNS:
        raise UserError(f"between 1 and {MAX_RUNS} runs can be drawn, found {len(folders)}")
    runs = [_read(folder) for folder in folders]
    names = _names(folders)
    panels = _panels(runs)
    columns = 2 if len(panels) < 4 else 3
    height = -(-(len(panels) + 1) // columns)
    figure = Figure(figsize=(13, 3.2 * height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    *axes, time = list(figure.subplots(height, columns).flat)[: len(panels) + 1]
    for axis in figure.axes[len(panels) + 1 :]:
        axis.remove()
    rings = set()
    for axis, (title, name, unit) in zip(axes, panels, strict=True):
        there = []
        for rows, style, label in zip(runs, _styles(), names, strict=False):
            there.append(_line(axis, rows, name, *style, label))
            if name in EVALUATED:
                rings.add(f"{label}, evaluated")
                _evaluations(axis, rows, EVALUATED[name], style[0], f"{label}, evaluated")
        axis.set(title=title, xlabel="step" if name.startswith("sft/") else "update", ylabel=unit)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not any(there):
            axis.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=axis.transAxes, color=GREY)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        if name in ("reward/outcome", "success_rate"):
            for score in sorted({round(one, 9) for folder in folders if (one := optimum(folder)) is not None}):
                axis.axhline(score, color="black", linewidth=1, linestyle=(0, (1, 2)), label=f"optimum {score:.3g}")
        if name in ("success_rate", "drift/match"):
            axis.yaxis.set_major_formatter(PercentFormatter(1))
        if name == "success_rate":
            axis.set_ylim(-0.03, 1.03)
        if name == "off/abs_dlogp_mean" and any((column(rows, name)[1] > 0).any() for rows in runs):
            axis.set_yscale("log")  # from rounding to a sampler that has fallen behind
    _seconds(time, runs, names)
    shown: dict[str, Any] = {}
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
        if axis is not time:
            shown |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    shown = {label: handle for label, handle in shown.items() if len(runs) <= 4 or label not in rings}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def optimum(folder: Path) -> float | None:
    """The best expected return of the run's environment where it is a toy; None for others, and where no configuration is."""
    file = folder / FILE
    if not file.is_file():
        return None
    saved = read_json(file)
    rollout = saved.get("rollout") if isinstance(saved, dict) else None
    return optimum_of(rollout.get("env")) if isinstance(rollout, dict) else None


def optimum_of(env: Any) -> float | None:
    """The best expected return of an episode of the environment of this name, where that is known by computation."""
    family, _, name = env.partition("/") if isinstance(env, str) else ("", "", "")
    return toys.optimum(name) if family == "toy" and name in toys.names() else None


def _read(folder: Path) -> list[dict[str, Any]]:
    rows = list(metrics.read(folder))
    if not rows:
        raise UserError(f"{folder}: no update of this run is finished yet: there is nothing to draw")
    return rows


def _panels(runs: Sequence[list[dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """Title, figure and unit of what these runs are drawn by."""
    imitate = [any("sft/loss" in row for row in rows) for rows in runs]
    looked = any("drift/match" in row for rows in runs for row in rows)
    return [*(() if all(imitate) else PANELS), *(IMITATION if any(imitate) else ()), *(WORDS if looked else ())]


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as it takes to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{i}: {folder.name}" for i, folder in enumerate(folders, 1)]


def _styles() -> list[tuple[str, str]]:
    """A pair of colour and dash for each run; neighbours differ in both, and no pair comes twice."""
    return [(COLORS[i % len(COLORS)], DASHES[(i + i // len(COLORS)) % len(DASHES)]) for i in range(MAX_RUNS)]


def column(rows: Sequence[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Finished updates [N] and a figure's values [N], where it was recorded as a number."""
    found = [(row["update"] + 1, row[name]) for row in rows if type(row.get(name)) in (int, float)]
    at, values = zip(*found, strict=True) if found else ((), ())
    return np.array(at, int), np.array(values, float)


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of each value [N] and of those before it, ``width`` in all where there are so many."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - width, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def _line(axis: Any, rows: list[dict[str, Any]], name: str, color: str, dash: str, label: str) -> bool:
    at, values = column(rows, name)
    if not len(at):
        return False
    mark = "o" if len(at) == 1 else None
    if len(at) < SMOOTHED:
        axis.plot(at, values, dash, color=color, linewidth=1.6, marker=mark, label=label)
        return True
    axis.plot(at, values, "-", color=color, linewidth=0.7, alpha=0.35)
    axis.plot(at, moving_mean(values, math.ceil(len(at) / 20)), dash, color=color, linewidth=2, label=label)
    return True


def _evaluations(axis: Any, rows: list[dict[str, Any]], name: str, color: str, label: str) -> None:
    at, values = column(rows, name)
    if len(at):
        axis.plot(at, values, "o", color=color, markersize=5, markerfacecolor="white", label=label, zorder=3)


def _seconds(axis: Any, runs: list[list[dict[str, Any]]], names: list[str]) -> None:
    """How the mean update's seconds were spent, a bar for each run."""
    kinds = list(dict.fromkeys(name for rows in runs for row in rows for name in row if name.startswith("seconds/")))
    left = np.zeros(len(runs))
    for i, kind in enumerate(kinds):
        width = np.array([column(rows, kind)[1].sum() / len(rows) for rows in runs])
        label, color, hatch = kind.removeprefix("seconds/"), COLORS[i % len(COLORS)], HATCHES[i % len(HATCHES)]
        axis.barh(np.arange(len(runs)), width, left=left, color=color, hatch=hatch, edgecolor="white", linewidth=0, label=label)
        left += width
    axis.set_yticks(np.arange(len(runs)), names, fontsize=8)
    axis.set_ylim(max(len(runs), 2) - 0.4, -0.6)
    axis.set(title="Time of an update", xlabel="seconds, mean")
    if kinds:
        axis.legend(frameon=False, fontsize=8, ncols=len(kinds), loc="lower center", bbox_to_anchor=(0.5, -0.42))
    else:
        axis.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=axis.transAxes, color=GREY)

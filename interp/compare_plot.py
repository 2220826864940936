"""A comparison as one picture. Colours are those of Okabe and Ito, which colour-blind readers can tell apart."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interp.compare import Comparison
from jaxllm.intervals import Mean, Rate

BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"


def png(comparison: Comparison) -> bytes:
    """The picture: agreement by layer, by margin, of the whole lists, and what moved the labels."""
    figure = Figure(figsize=(11, 7.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    overall = comparison.overall.match
    names = " and ".join(name.rstrip("/").rpartition("/")[2] for name in comparison.names)
    figure.suptitle(
        f"{names}: {overall.share:.1%} of {overall.total:,} neurons keep their top token "
        f"({overall.low:.1%} to {overall.high:.1%})",
        parse_math=False,
    )
    _by_layer(axes[0, 0], comparison)
    _by_margin(axes[0, 1], comparison)
    _lists(axes[1, 0], comparison)
    (_parts if comparison.weights else _measures)(axes[1, 1], comparison)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _by_layer(axis: Any, comparison: Comparison) -> None:
    _band(axis, comparison.layers, [a.match for a in comparison.by_layer], BLUE, "same top token", "o-")
    _band(axis, comparison.layers, [a.match_group for a in comparison.by_layer], GREEN, "same but for spelling", "s--")
    axis.plot(comparison.layers, [a.chance for a in comparison.by_layer], ":", color=GREY, label="by chance")
    if comparison.paper is not None:
        label = f"paper: {comparison.paper:.1%} over all layers"
        axis.axhline(comparison.paper, color=VERMILION, linewidth=1, linestyle="-.", label=label)
    axis.set(title="Neurons that keep their top token", xlabel="layer", ylabel="share (band: Wilson 95 %)", ylim=(0, 1.02))
    axis.legend(frameon=False, fontsize=8)


def _by_margin(axis: Any, comparison: Comparison) -> None:
    parts = comparison.deciles
    at, match = np.arange(1, len(parts) + 1), [part.match for part in parts]
    axis.errorbar(at, [m.share for m in match], yerr=_errors(match), fmt="o-", color=BLUE, capsize=3)
    axis.set_xticks(at, [f"{part.low:.2g}–{part.high:.2g}" for part in parts], rotation=40, ha="right", fontsize=8)
    axis.set(title="By the first map's margin, in tenths", xlabel="logits above the second token", ylim=(0, 1.02))


def _lists(axis: Any, comparison: Comparison) -> None:
    shared = f"shared among the top {comparison.k}"
    _band(axis, comparison.layers, [a.overlap for a in comparison.by_layer], ORANGE, shared, "o-")
    _band(axis, comparison.layers, [a.rbo for a in comparison.by_layer], PURPLE, "rank-biased overlap", "s--")
    if comparison.weights:
        _band(axis, comparison.layers, comparison.weights.row_cos_by_layer, GREY, "cosine of the rows", "^:")
    axis.set(title="Whole lists", xlabel="layer", ylabel="mean (band: 95 %)", ylim=(0, 1.02))
    axis.legend(frameon=False, fontsize=8)


def _parts(axis: Any, comparison: Comparison) -> None:
    assert comparison.weights is not None
    parts = comparison.weights.parts
    at = np.arange(len(parts))
    for shift, color, label, rates in (
        (-0.2, BLUE, "this part alone is the second model's", [part.alone for part in parts]),
        (0.2, ORANGE, "all parts but this one are", [part.without for part in parts]),
    ):
        axis.bar(at + shift, [r.share for r in rates], 0.38, yerr=_errors(rates), color=color, label=label, capsize=3)
    axis.set_xticks(at, [f"{part.part}\n{part.shapley:.0%} of all changes" for part in parts])
    highest = max(rate.high for part in parts for rate in (part.alone, part.without))
    axis.set(title="What changes the top token", ylabel="share of neurons changed (95 %)", ylim=(0, 1.3 * highest))
    axis.legend(frameon=False, fontsize=8)


def _measures(axis: Any, comparison: Comparison) -> None:
    overall = comparison.overall
    rates = {"same": overall.match, "but for\nspelling": overall.match_group, "- pole": comparison.minus}
    rates["shuffled"] = overall.shuffled
    axis.bar(range(len(rates)), [r.share for r in rates.values()], yerr=_errors(list(rates.values())), color=BLUE, capsize=3)
    axis.set_xticks(range(len(rates)), list(rates))
    axis.set(title="All layers", ylabel="share of neurons (95 %)", ylim=(0, 1.02))


def _band(axis: Any, layers: Sequence[int], values: Sequence[Rate | Mean], color: str, label: str, style: str) -> None:
    middle = [value.share if isinstance(value, Rate) else value.value for value in values]
    axis.plot(layers, middle, style, color=color, label=label, markersize=3.5, linewidth=1.3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.fill_between(layers, [v.low for v in values], [v.high for v in values], color=color, alpha=0.2, linewidth=0)


def _errors(rates: Sequence[Rate]) -> np.ndarray:
    return np.abs([[r.share - r.low for r in rates], [r.high - r.share for r in rates]])

"""A sweep as one picture: the concept above, the fluency of what is written below, against the clamp's value."""

import io
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from interp.sweep import Sweep, mean_fluency, share

# Of Okabe and Ito, which colour-blind readers can tell apart; every line has a mark or a dash of its own as well.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#777777"


def png(sweep: Sweep, title: str) -> bytes:
    """The picture, a column for each site."""
    sites = list(sweep.doses)
    texts = bool(sweep.plain.greedy)
    figure = Figure(figsize=(2.3 + 5.2 * len(sites), 6.8 if texts else 4.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    ratios = {"height_ratios": [3, 2]} if texts else {}
    axes = figure.subplots(2 if texts else 1, len(sites), squeeze=False, sharex="col", sharey="row", gridspec_kw=ratios)
    figure.suptitle(title, parse_math=False, fontsize=11)
    for column, site in zip(axes.T, sites, strict=True):
        _concept(column[0], sweep, site)
        if texts:
            _fluency(column[1], sweep, site)
        column[-1].set_xlabel(f"value set at {site}")
        for axis in column:
            axis.axvline(sweep.natural[site], color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            axis.set_axisbelow(True)
    axes[0, 0].set_ylabel("concept: probability as next token,\nshare of continuations")
    axes[0, 0].yaxis.set_major_formatter(PercentFormatter(1))
    if texts:
        axes[1, 0].set_ylabel("fluency (nats per token,\nplain model)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _concept(axis: Any, sweep: Sweep, site: str) -> None:
    x = [dose.value for dose in sweep.doses[site]]
    axis.set_title(f"site {site}", fontsize=10)
    random = sweep.curve(site, "random")
    for i, curve in enumerate(random):
        label = f"{len(random)} random neurons of the layer" if i == 0 else None
        axis.plot(x, curve.p.mean(1), "-", color=GREY, linewidth=0.9, alpha=0.8, label=label)
    for kind, color, style in (("second best", PURPLE, "^--"), ("other pole", ORANGE, "v:")):
        for curve in sweep.curve(site, kind):
            name = f"L{curve.layer}/N{curve.neuron}, second best" if kind == "second best" else "other pole (opposite value)"
            axis.plot(x, curve.p.mean(1), style, color=color, markersize=4, linewidth=1.1, label=name)
    (own,) = sweep.curve(site)
    if own.greedy:
        axis.plot(
            x, [share(row) for row in own.greedy], "s--", color=GREEN, markersize=4, label="share of greedy continuations"
        )
    if own.sampled:
        label = "share of sampled continuations"
        axis.plot(x, [share(row) for row in own.sampled], "D:", color=VERMILION, markersize=4, label=label)
    name = f"L{own.layer}/N{own.neuron}"
    axis.plot(x, own.p.mean(1), "o-", color=BLUE, markersize=5, linewidth=2, label=f"{name}, probability", zorder=3)
    axis.axhline(float(sweep.plain.p.mean()), color="black", linewidth=0.9, label="without a clamp, probability")
    top = 1.02 if _highest(sweep) > 0.25 else max(0.001, 1.25 * _highest(sweep))
    axis.set_ylim(-0.02 * top, top)


def _fluency(axis: Any, sweep: Sweep, site: str) -> None:
    x = [dose.value for dose in sweep.doses[site]]
    (own,) = sweep.curve(site)
    axis.plot(x, [mean_fluency(row) for row in own.greedy], "o-", color=BLUE, markersize=4)
    plain = mean_fluency(sweep.plain.greedy[0])
    axis.axhline(plain, color="black", linewidth=0.9)
    axis.annotate(
        "natural value",
        (sweep.natural[site], 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        fontsize=8,
        color=GREY,
    )


def _highest(sweep: Sweep) -> float:
    shares = [share(row) for curve in sweep.curves for row in (*curve.greedy, *curve.sampled)]
    return max(float(np.max([curve.p.mean(1).max() for curve in sweep.curves])), *shares, 0.0)

"""The picture of all neurons: one small code per neuron, of a statistic or of a search."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from interp.atlas import DEGENERATE, NONFINITE, STATISTICS, Atlas
from interp.ranking import RANKINGS, Ranking
from jaxllm.errors import UserError

STEPS = 254
NO_VALUE = 0  # code of a neuron without a label, or that a search does not find
LOGARITHMIC = ("p1", "group_mass")
TWO_SIDED = ("entropy", "read_write", "mean", "skew")  # low values matter as well
FLOOR = 1e-6  # probabilities below are shown as this
CHOICES = {**RANKINGS, **{name: text for name, text in STATISTICS.items() if name != "lse"}}  # name -> what it is


@dataclasses.dataclass(frozen=True)
class Picture:
    """Codes of L·F neurons: 0 for none, 1 for the least value, ``STEPS + 1`` for the greatest."""

    codes: np.ndarray  # [L, F] uint8
    low: float  # value of code 1, or its natural logarithm
    high: float
    log: bool


def of_statistic(atlas: Atlas, rankings: Mapping[str, Ranking], name: str) -> Picture:
    """One of `CHOICES`, of each neuron's better pole. Raises UserError for another name."""
    if name not in CHOICES:
        raise UserError(f"no statistic {name!r}; choose one of {', '.join(CHOICES)}")
    if name in RANKINGS:
        values = rankings[name].score.max(-1)
    else:
        pole = rankings["specialisation"].pole
        values = np.take_along_axis(atlas.column(name), pole[..., None], -1)[..., 0]
    unlabelled = ((atlas.column("flags") & (DEGENERATE | NONFINITE)) != 0).all(-1)
    return encode(np.where(unlabelled, np.nan, values), log=name in LOGARITHMIC)


def of_search(atlas: Atlas, probability: np.ndarray) -> Picture:
    """Of a search: ``probability`` [L·F] of the wanted tokens, 0 where there is none."""
    found = probability.reshape(len(atlas.layers), atlas.num_neurons)
    return encode(np.where(found > 0, found, np.nan), log=True)


def encode(values: np.ndarray, *, log: bool) -> Picture:
    """Equal steps between the least and the greatest finite value, or between their logarithms."""
    reals = np.asarray(values, np.float64)
    known = np.isfinite(reals)
    if log:
        reals = np.log(np.maximum(np.where(known, reals, 1), FLOOR))
    low, high = (float(reals[known].min()), float(reals[known].max())) if known.any() else (0.0, 1.0)
    codes = np.full(reals.shape, NO_VALUE, np.uint8)
    codes[known] = np.rint((reals[known] - low) / max(high - low, 1e-30) * STEPS).astype(np.uint8) + 1
    return Picture(codes, low, high, log)

"""How far two rankings of tokens agree, row by row, and how far they would by chance. Arrays of ids only.

Ids are [N] for top tokens and [N, k] for the k best, best first; `NO_TOKEN` stands for none and equals nothing.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from interp.atlas import NO_TOKEN
from jaxllm.intervals import Rate, rate_of

RBO_PERSISTENCE = 0.9  # the chance that a reader of the two lists goes on to the next place
DECILES = 10


@dataclasses.dataclass(frozen=True)
class Decile:
    """A tenth of the rows, by the margin of the first map."""

    low: float  # least margin, in logits
    high: float  # greatest
    match: Rate  # equal top tokens


@dataclasses.dataclass(frozen=True)
class Count:
    """A token, or the spellings of one, and how many more neurons it labels in the second map."""

    id: int  # the spelling that labels most of them
    before: int  # neurons that it labelled
    after: int


def shared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[N, k] int64: how many of the first d + 1 ids of ``a`` [N, k] are among the first d + 1 of ``b`` [N, k]."""
    N, k = a.shape
    span = max(int(a.max(initial=0)), int(b.max(initial=0))) + 2
    row = np.arange(N, dtype=np.int64)[:, None] * span
    order = np.argsort(b, axis=1, kind="stable")
    keys = (row + np.take_along_axis(b, order, 1) + 1).ravel()  # ascending: rows are apart by more than any id
    wanted = (row + a + 1).ravel()
    at = np.minimum(np.searchsorted(keys, wanted), max(keys.size - 1, 0))
    found = (keys[at] == wanted if keys.size else np.zeros(0, bool)).reshape(N, k) & (a != NO_TOKEN)
    place_b = order.ravel()[at].reshape(N, k) if keys.size else np.zeros((N, k), np.int64)
    depth = np.where(found, np.maximum(np.arange(k), place_b), k)  # from which depth on both lists hold the id
    counts = np.bincount((np.arange(N)[:, None] * (k + 1) + depth).ravel(), minlength=N * (k + 1)).reshape(N, k + 1)
    return np.cumsum(counts[:, :k], axis=1)


def overlap(common: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """[N]: share of the first ``depth`` [N] ids of each row that both lists hold, in any order; ``common`` is of `shared`."""
    return common[np.arange(len(common)), depth - 1] / depth


def rank_biased_overlap(common: np.ndarray, depth: np.ndarray, p: float = RBO_PERSISTENCE) -> np.ndarray:
    """[N] in [0, 1]: agreement of two rankings of which the first ``depth`` [N] places are known, the top weighing most.

    The extrapolated form RBO_ext of Webber, Moffat and Zobel (2010), equation 32: what lies below is taken to agree as the
    last known depth does. Equal lists give 1, disjoint ones 0.
    """
    places = np.arange(1, common.shape[1] + 1)
    agreement = common / places
    terms = np.where(places <= depth[:, None], agreement * p**places, 0)
    last = agreement[np.arange(len(common)), depth - 1]
    return last * p**depth + (1 - p) / p * terms.sum(1)


def chance(a: np.ndarray, b: np.ndarray) -> float:
    """Share of equal top tokens to expect of neurons paired at random: the sum over tokens of the product of frequencies."""
    if not a.size:
        return float("nan")
    size = max(int(a.max()), int(b.max())) + 1
    return float(np.bincount(a, minlength=size) @ np.bincount(b, minlength=size).astype(np.float64)) / (a.size * b.size)


def shuffled(a: np.ndarray, b: np.ndarray, seed: int | Sequence[int] = 0) -> Rate:
    """The share of equal top tokens after one random pairing of the neurons: `chance`, measured."""
    return rate_of(a == np.random.default_rng(seed).permutation(b))


def deciles(match: np.ndarray, margin: np.ndarray, parts: int = DECILES) -> list[Decile]:
    """``match`` [N] bool by equal parts of the rows in order of ``margin`` [N], least first; NaN margins are left out."""
    known = np.flatnonzero(~np.isnan(margin))
    order = known[np.argsort(margin[known], kind="stable")]
    return [
        Decile(float(margin[part[0]]), float(margin[part[-1]]), rate_of(match[part]))
        for part in np.array_split(order, parts)
        if part.size
    ]


def label_counts(a: np.ndarray, b: np.ndarray, groups: np.ndarray) -> list[Count]:
    """What the labels ``a`` [N] and ``b`` [N] name how often, spellings joined by ``groups`` [V]; the greatest gain first."""
    V = len(groups)
    before, after = np.bincount(a, minlength=V), np.bincount(b, minlength=V)
    used = np.flatnonzero(before + after)
    used = used[np.lexsort((used, -(before + after)[used]))]
    named, first, index = np.unique(groups[used], return_index=True, return_inverse=True)
    totals = [np.bincount(index, weights=counts[used], minlength=len(named)).astype(np.int64) for counts in (before, after)]
    order = np.argsort(totals[0] - totals[1], kind="stable")
    return [Count(int(used[first[i]]), int(totals[0][i]), int(totals[1][i])) for i in order.tolist()]

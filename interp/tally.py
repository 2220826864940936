"""What is kept of a stream of values, in memory that does not grow with it: statistics, counts by value, the best places.

All three are exact however the stream is cut. `Moments` and `Counts` merge; `best` and `merge_best` keep the top k.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

SAME = 8  # tokens that make two contexts the same: the marked one and those before it
KEYS = 1 << 16  # bins of `Counts`: the upper half of a float32 tells a value to a part in 128


@dataclasses.dataclass(frozen=True)
class Moments:
    """Statistics of the finite values of m streams; all arrays are ``[m]``. Of no values, mean is 0 and min above max."""

    count: np.ndarray  # int64, finite values
    nonfinite: np.ndarray  # int64, NaN and infinities, which nothing else counts
    mean: np.ndarray  # float64
    squares: np.ndarray  # float64, sum of the squared differences from the mean
    min: np.ndarray  # float32
    max: np.ndarray  # float32

    @property
    def std(self) -> np.ndarray:
        """Standard deviation over the values seen, ``[m]`` float64."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))


def moments(values: np.ndarray) -> Moments:
    """Of ``values [n, m]`` float32; n may be 0."""
    finite = np.isfinite(values)
    count = finite.sum(0)
    wide = np.where(finite, values, 0).astype(np.float64)
    mean = wide.sum(0) / np.maximum(count, 1)
    squares = np.where(finite, (wide - mean) ** 2, 0).sum(0)
    smallest = np.where(finite, values, np.inf).min(0, initial=np.inf).astype(np.float32)
    largest = np.where(finite, values, -np.inf).max(0, initial=-np.inf).astype(np.float32)
    return Moments(count, len(values) - count, mean, squares, smallest, largest)


def merge(a: Moments, b: Moments) -> Moments:
    """Of both streams together (Chan, Golub and LeVeque 1983)."""
    count = a.count + b.count
    share = b.count / np.maximum(count, 1)
    apart = b.mean - a.mean
    return Moments(
        count,
        a.nonfinite + b.nonfinite,
        a.mean + apart * share,
        a.squares + b.squares + apart**2 * a.count * share,
        np.minimum(a.min, b.min),
        np.maximum(a.max, b.max),
    )


def key(values: np.typing.ArrayLike) -> np.ndarray:
    """The bin of each finite float32, int64 from 0 to KEYS - 1, rising with the value; both zeros share one."""
    bits = (np.asarray(values, np.float32) + np.float32(0)).view(np.uint32)
    return (np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)) >> 16).astype(np.int64)


def floor(keys: np.ndarray) -> np.ndarray:
    """The smallest float32 in each bin: the values of bin ``key`` and above are exactly those at least this."""
    order = np.asarray(keys, np.uint32) << 16
    return np.where(order >> 31, order ^ np.uint32(1 << 31), ~order).astype(np.uint32).view(np.float32)


def count(values: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """``kept [m, KEYS]`` int64 plus the counts by bin of ``values [n, m]``; values that are not finite are left out."""
    n, j = np.nonzero(np.isfinite(values))
    out = kept.copy()
    np.add.at(out, (j, key(values[n, j])), 1)
    return out


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of values in bins; bin i holds ``edges[i] <= value < edges[i + 1]``, the last one its upper edge as well."""

    edges: np.ndarray  # [bins + 1] float32, from the smallest value to the largest
    counts: np.ndarray  # [bins] int64


def histogram(counts: np.ndarray, low: float, high: float, bins: int) -> Histogram:
    """At most ``bins`` bins of about equal width from the counts ``[KEYS]`` of values between ``low`` and ``high``.

    An edge is moved by less than a part in 128 to where a bin of `key` begins, so the counts are exact for the edges given.
    """
    if low > high:
        return Histogram(np.zeros(1, np.float32), np.zeros(0, np.int64))
    ends = key(np.linspace(low, high, bins + 1)[1:-1])
    inner = np.unique(ends[(ends > key(low)) & (ends <= key(high))])
    starts = np.concatenate([key([low]), inner])
    edges = np.concatenate([[low], floor(inner), [high]]).astype(np.float32)
    return Histogram(edges, np.add.reduceat(counts[: int(key(high)) + 1], starts))


def quantile(counts: np.ndarray, q: float) -> float:
    """The value below which a share ``q`` of the values lies, to a part in 128; 0 of no values."""
    total = counts.sum()
    if not total:
        return 0.0
    at = min(int(np.searchsorted(np.cumsum(counts), q * total, side="right")), int(np.flatnonzero(counts)[-1]))
    low, high = floor(np.array([at, min(at + 1, KEYS - 1)]))
    return float(low / 2 + high / 2)


@dataclasses.dataclass(frozen=True)
class Place:
    """A token of a text at which a value occurred, with what stands around it in its window."""

    value: float
    index: int  # which token of the text, from 0
    line: int  # of the text, from 1
    ids: tuple[int, ...]  # tokens around, without begin-of-text
    marked: int  # which of ``ids`` it is

    @property
    def same(self) -> tuple[int, ...]:
        """Two places with the same last tokens are one context."""
        return self.ids[max(0, self.marked + 1 - SAME) : self.marked + 1]


def best(values: np.ndarray, contexts: np.ndarray, k: int, at_least: float = -np.inf) -> np.ndarray:
    """Positions of the k largest of ``values [n]`` with different ``contexts [n, SAME]`` int32, best first, ties by position.

    Of equal contexts the one with the largest value stands. Values below ``at_least`` and NaN are left out.
    """
    candidates = np.flatnonzero((values >= at_least) & np.isfinite(values))
    order = candidates[np.argsort(-values[candidates], kind="stable")]
    for part in (order[: 4 * k], order):  # the whole is rarely needed, and telling contexts apart is slow
        _, first = np.unique(contexts[part], axis=0, return_index=True)
        if len(first) >= k:
            break
    return part[np.sort(first)[:k]]


def merge_best(kept: Sequence[Place], found: Sequence[Place], k: int, sign: int) -> tuple[Place, ...]:
    """The k best places of both, one per context: largest first, or smallest with ``sign`` -1; ties by index."""
    chosen: dict[tuple[int, ...], Place] = {}
    for place in sorted([*kept, *found], key=lambda place: (-sign * place.value, place.index)):
        chosen.setdefault(place.same, place)
    return tuple(chosen.values())[:k]

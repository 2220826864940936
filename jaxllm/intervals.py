"""Shares and means with the interval in which the true value lies, 95 times of 100."""

import dataclasses
import math

import numpy as np

Z95 = 1.959963984540054  # the 97.5th percentile of the normal distribution


@dataclasses.dataclass(frozen=True)
class Rate:
    """A share of independent yes-or-no outcomes."""

    count: int  # how often yes
    total: int
    share: float  # count / total; NaN when total is 0
    low: float  # Wilson 95 % interval, 0 to 1
    high: float


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean of independent values."""

    count: int  # of values
    value: float  # NaN when there are none
    low: float  # 95 % interval by the normal approximation; NaN for fewer than two values
    high: float


def rate(count: int, total: int) -> Rate:
    """The share ``count / total`` with its Wilson score interval (E. B. Wilson 1927), which stays within [0, 1]."""
    count, total = int(count), int(total)
    if not 0 <= count <= total:
        raise ValueError(f"{count} of {total} is no share")
    if not total:
        return Rate(0, 0, math.nan, 0.0, 1.0)
    share, z2 = count / total, Z95**2 / total
    middle = (share + z2 / 2) / (1 + z2)
    half = Z95 / (1 + z2) * math.sqrt(share * (1 - share) / total + z2 / (4 * total))
    low, high = middle - half, middle + half
    return Rate(count, total, share, 0.0 if not count else max(0.0, low), 1.0 if count == total else min(1.0, high))


def rate_of(outcomes: np.ndarray) -> Rate:
    """`rate` of an array of bool."""
    return rate(int(np.count_nonzero(outcomes)), outcomes.size)


def mean(values: np.ndarray) -> Mean:
    """The mean of an array of any shape; NaN values are left out."""
    values = np.asarray(values, np.float64).ravel()
    values = values[~np.isnan(values)]
    if not values.size:
        return Mean(0, math.nan, math.nan, math.nan)
    middle = float(values.mean())
    half = Z95 * float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return Mean(values.size, middle, middle - half, middle + half)

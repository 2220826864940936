"""The Gaussian rewards of one sample, once: numpy and jax.numpy run it on arrays, a compiled loop on numbers.

The target is a Gaussian with its box's centre and a standard deviation of ``alpha`` sides per axis (GUI-G², arXiv 2507.15846,
equations 2 to 6). Everything is computed per axis and as logarithms: the determinants of the paper's form overflow and need a
stabiliser that is wrong in small units.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Numbers(NamedTuple):
    """Every number in the formula, in the working type: no bare literal may widen a compiled loop."""

    zero: Any
    quarter: Any
    half: Any
    one: Any
    inf: Any
    least: Any  # a side below it counts as 0: its square would leave the type
    most: Any  # ratios and offsets are cut here, far outside any screen, so that no product overflows
    side: Any  # the shortest side that a box may have: `least`, or 0 when `floor` stands in for it
    flip: Any  # -1 when the corners may be in any order, else 1
    alpha: Any  # standard deviation per side
    fixed_x: Any  # added to it, in pixels
    fixed_y: Any
    floor: Any  # smallest standard deviation, in pixels
    reach: Any  # how far outside the target the centre may lie for a reward: 0, or infinity
    nu: Any  # weights of point, coverage and format, and their logarithms
    gamma: Any
    phi: Any
    log_nu: Any
    log_gamma: Any
    log_phi: Any


def limits(dtype: Any) -> tuple[float, float]:
    """`Numbers.least` and `Numbers.most` of a float type."""
    return (1e-150, 1e150) if np.dtype(dtype) == np.float64 else (1e-18, 1e18)


class Formula(NamedTuple):
    """The two halves of the reward."""

    terms: Callable[..., Any]
    """x1, y1, x2, y2 of prediction and target, `Numbers` -> point, coverage, their logarithms, valid"""
    total: Callable[..., Any]
    """what `terms` gives, whether the format is right, `Numbers` -> reward, log_reward"""


def define(xp: Any, wrap: Callable[[Any], Any] = lambda function: function) -> Formula:
    """The formula in terms of ``xp``'s abs, exp, log1p, maximum, minimum and where; ``wrap`` goes around each function.

    Where a row is invalid, harmless numbers go through the formula and the result is masked, so that gradients are free of NaN.
    """

    @wrap
    def side(low: Any, high: Any, n: Numbers) -> Any:
        length = high - low
        return xp.maximum(length, n.flip * length)

    @wrap
    def axis(p: Any, g: Any, d: Any, fixed: Any, n: Numbers) -> Any:
        # From both sides and twice the distance of the centres: the squared distance in sigmas of the target, the same in the
        # root of the sum of both variances, and (r - 1)² / 2r of the ratio r of both sigmas. Each quotient is used once: XLA
        # writes one that is used twice to memory.
        sigma_p = xp.maximum(n.alpha * p + fixed, n.floor)
        sigma_g = xp.maximum(n.alpha * g + fixed, n.floor)
        high, low = xp.maximum(sigma_p, sigma_g), xp.minimum(sigma_p, sigma_g)
        offset = xp.minimum(n.half * d / sigma_g, n.most)
        shift = xp.minimum(n.half * d / high, n.most)
        ratio = low / high
        difference = high - low
        shape = n.half * (difference / high) * xp.minimum(difference / low, n.most)
        return offset * offset, shift * shift / (n.one + ratio * ratio), shape

    @wrap
    def terms(
        px1: Any, py1: Any, px2: Any, py2: Any, gx1: Any, gy1: Any, gx2: Any, gy2: Any, n: Numbers
    ) -> tuple[Any, Any, Any, Any, Any]:
        pw, ph, gw, gh = side(px1, px2, n), side(py1, py2, n), side(gx1, gx2, n), side(gy1, gy2, n)
        # Corner differences first: halving the sum of large coordinates would cost digits.
        dx, dy = xp.abs((px1 - gx1) + (px2 - gx2)), xp.abs((py1 - gy1) + (py2 - gy2))
        # NaN fails every comparison, and an infinite corner makes a side or the distance infinite or NaN.
        finite = pw + ph + gw + gh + dx + dy < n.inf
        valid = finite & (xp.minimum(gw, gh) >= n.side) & (xp.minimum(pw, ph) >= n.zero)
        covered = valid & (xp.minimum(pw, ph) >= n.side)
        near = (dx <= gw + n.reach) & (dy <= gh + n.reach)
        pw, ph = xp.where(covered, pw, n.one), xp.where(covered, ph, n.one)
        gw, gh = xp.where(valid, gw, n.one), xp.where(valid, gh, n.one)
        dx, dy = xp.where(valid, dx, n.zero), xp.where(valid, dy, n.zero)
        point_x, shift_x, shape_x = axis(pw, gw, dx, n.fixed_x, n)
        point_y, shift_y, shape_y = axis(ph, gh, dy, n.fixed_y, n)
        # Bhattacharyya distance; (1 + a)(1 + b) - 1 keeps small differences of size exact.
        shape = shape_x + shape_y + shape_x * shape_y
        distance = n.quarter * (shift_x + shift_y) + n.half * xp.log1p(shape)
        log_point = xp.where(valid & near, -(n.half * (point_x + point_y)), -n.inf)
        log_coverage = xp.where(covered & near, -distance, -n.inf)
        return xp.exp(log_point), xp.exp(log_coverage), log_point, log_coverage, valid

    @wrap
    def log_add(a: Any, b: Any, n: Numbers) -> Any:
        high, low = xp.maximum(a, b), xp.minimum(a, b)
        some = low > -n.inf
        return xp.where(some, high + xp.log1p(xp.exp(xp.where(some, low - high, n.zero))), high)

    @wrap
    def total(
        point: Any, coverage: Any, log_point: Any, log_coverage: Any, valid: Any, formatted: Any, n: Numbers
    ) -> tuple[Any, Any]:
        formatted = valid & formatted
        reward = n.nu * point + n.gamma * coverage + xp.where(formatted, n.phi, n.zero)
        log_form = xp.where(formatted, n.log_phi, -n.inf)
        return reward, log_add(log_add(n.log_nu + log_point, n.log_gamma + log_coverage, n), log_form, n)

    return Formula(terms, total)


def logarithm(xp: Any, weight: Any) -> Any:
    """log of a weight, -inf for 0; of a plain number without the array library."""
    if isinstance(weight, int | float):
        return math.log(weight) if weight > 0 else -math.inf
    return xp.log(weight)

"""The six functions that `rewards.formula` needs, on single float32 numbers, so that a compiled loop becomes vectors.

LLVM turns a loop into vectors only when nothing in it is a call; the C library's exp and log1p are calls. Both here are good
to two units in the last place over the range that the formula gives them: exp up to 0, log1p from 0. Polynomials: Cephes.
"""

from typing import Any

import numpy as np

from jaxllm.simd import bits_of, float_of, inline

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LOWEST = np.float32(-87.33654)  # below, the result is no normal float32: it becomes 0, as on most vector units
_LOG2_E, _ROUND = np.float32(1.44269504), np.float32(12582912)  # 1.5 * 2^23: adding it rounds to a whole number
_LN2, _LN2_HIGH, _LN2_LOW = np.float32(0.69314718), np.float32(0.693359375), np.float32(-2.12194440e-4)
_BIAS, _MANTISSA, _ROOT_HALF = np.int32(127), np.int32(23), np.int32(0x3F3504F3)
_EXP = np.array([1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1], "f4")
_LOG = (  # from the highest power down
    np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1), np.float32(-1.2420140846e-1),
    np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1), np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1),
    np.float32(3.3333331174e-1),
)  # fmt: skip


@inline
def abs(x: Any) -> Any:
    """|x|."""
    return x if x >= _ZERO else -x


@inline
def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where the condition holds, else ``b``."""
    return a if condition else b


@inline
def minimum(a: Any, b: Any) -> Any:
    """The smaller one, NaN if either is."""
    return a if (a < b) | (a != a) else b


@inline
def maximum(a: Any, b: Any) -> Any:
    """The larger one, NaN if either is."""
    return a if (a > b) | (a != a) else b


@inline
def exp(x: Any) -> Any:
    """e to the power of ``x`` for x <= 0: 2 to a whole power times a polynomial of the rest."""
    inside = x if x > _LOWEST else _LOWEST
    power = (inside * _LOG2_E + _ROUND) - _ROUND
    rest = (inside - power * _LN2_HIGH) - power * _LN2_LOW
    value = _EXP[0]
    for i in range(1, 6):
        value = value * rest + _EXP[i]
    value = value * rest * rest + rest + _ONE
    value = value * float_of((np.int32(power) + _BIAS) << _MANTISSA)
    return value if x >= _LOWEST else _ZERO


@inline
def log1p(x: Any) -> Any:
    """log(1 + x) for x >= 0: the exponent's share, a polynomial of the rest, and what rounding 1 + x lost."""
    whole = x + _ONE
    bits = bits_of(whole)
    power = (bits - _ROOT_HALF) >> _MANTISSA
    rest = float_of(bits - (power << _MANTISSA)) - _ONE
    lost = (x - (whole - _ONE)) / whole
    value = _LOG[0]
    for i in range(1, 9):
        value = value * rest + _LOG[i]
    value = value * rest * rest * rest - _HALF * rest * rest + rest
    return value + np.float32(power) * _LN2 + lost

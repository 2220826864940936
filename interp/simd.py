"""Pieces for compiled CPU loops that Numba's Python does not reach: masks of 64 lanes, exact rounding, a fast exp.

LLVM turns the loops into whatever vectors the CPU has. `loop` compiles them without the GIL and lets sums be reordered, which
vectors need; no operand may be NaN. Masks and `rint` are LLVM instructions of their own, so reordering cannot touch them.
"""

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from jaxllm.simd import bits_of, float_of, inline, intrinsic, loops

LANES = 64  # bits of a mask

loop = loops(sys.modules[__name__], fastmath={"reassoc", "contract", "nsz", "nnan", "arcp"})

_F32, _I32 = ir.FloatType(), ir.IntType(32)


def _unary(name: str) -> Any:
    @intrinsic
    def call(typing: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_F32, [_F32]), name)
            return builder.call(function, args)

        return types.float32(types.float32), generate

    return call


def _binary(name: str) -> Any:
    @intrinsic
    def call(typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_F32, [_F32, _F32]), name)
            return builder.call(function, args, fastmath=("fast",))

        return types.float32(types.float32, types.float32), generate

    return call


maximum = _binary("llvm.maxnum.f32")
rint = _unary("llvm.rint.f32")


@intrinsic
def above(typing: Any, row: Any, at: Any, sign: Any, limit: Any) -> Any:
    """The uint64 whose bit i says whether ``sign * row[at + i] > limit``; reads `LANES` values, real or not."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_F32, LANES)
        nothing = ir.Constant(vector, ir.Undefined)

        def everywhere(value: Any) -> Any:
            first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
            return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))

        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        values = builder.load(builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer()))
        values.align = 4
        signed = builder.fmul(values, everywhere(args[2]))
        return builder.bitcast(builder.fcmp_ordered(">", signed, everywhere(args[3])), ir.IntType(LANES))

    return types.uint64(row, types.intp, types.float32, types.float32), generate


@intrinsic
def trailing_zeros(typing: Any, x: Any) -> Any:
    """The number of the lowest bit that is set in a uint64 other than 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.intp(types.uint64), generate


@intrinsic
def widen(typing: Any, x: Any) -> Any:
    """float32 of a float32, or of the 16 bits of a bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if signature.args[0] == types.float32:
            return args[0]
        return builder.bitcast(builder.shl(builder.zext(args[0], _I32), ir.Constant(_I32, 16)), _F32)

    return types.float32(x), generate


_F = np.float32
_LOG2_E, _LEAST = _F(1.4426950408889634), _F(-126)
# 2^r for r in [-1/2, 1/2]: least relative error among polynomials of degree 5, 8e-8.
_C0, _C1, _C2 = _F(1.00000012), _F(0.693146944), _F(0.240221202)
_C3, _C4, _C5 = _F(0.0555071309), _F(0.00967554096), _F(0.00132764713)


@inline
def exp(x: Any) -> Any:
    """e^x for float32 ``x <= 0``, relative error under 1e-6 + 6e-8 |x|; at least 2^-126."""
    u = maximum(x * _LOG2_E, _LEAST)
    n = rint(u)
    r = u - n
    p = _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    p = p * r + _C1
    p = p * r + _C0
    return float_of(bits_of(p) + (np.int32(n) << np.int32(23)))

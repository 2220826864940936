"""The kernel for accelerators and meshes: one XLA program, a block of rows at a time.

The logits of a block of R rows, ``[R, W]``, are made by one matmul, read a few times and dropped. The top-k is exact: a block
of 64 ids can hold one of the k best only if its maximum is among the k best block maxima. Some barriers are there for XLA's
CPU backend, on which meshes are simulated.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from interp.prepared import IDS_PER_BLOCK, ROW_AXES, VOCABULARY_AXIS, Sums, Vocabulary

GROUP_COLUMNS = 16  # in the recursion of top-k


def sums(rows: jax.Array, vocabulary: Vocabulary, mean: jax.Array | None, *, R: int, k: int, coherence_k: int) -> Sums:
    """Everything that the statistics of ``rows [N, D]`` need, N a multiple of R times the devices that share rows.

    Args:
      mean: ``[N]`` float32, each row's mean logit; None for one pole, with nothing but ``values``, ``positions`` and ``exp``.
    """
    local = functools.partial(_shard_sums, R=R, k=k, coherence_k=coherence_k, padded=vocabulary.padded)
    arrays = (
        vocabulary.rows,
        vocabulary.ids,
        vocabulary.center,
        vocabulary.inverse_length,
        vocabulary.group,
        vocabulary.members,
    )
    if vocabulary.mesh is None:
        return local(rows, mean, *arrays, axis=None)
    run = jax.shard_map(
        functools.partial(local, axis=VOCABULARY_AXIS),
        mesh=vocabulary.mesh,
        in_specs=(P(ROW_AXES), P(ROW_AXES), P(VOCABULARY_AXIS), *(P(),) * 5),
        out_specs=P(ROW_AXES),
        check_vma=False,
    )
    return run(rows, mean, *arrays)


def _shard_sums(
    rows: jax.Array,  # [N, D]
    mean: jax.Array | None,  # [N]
    head: jax.Array,  # [W, D], this device's part of the vocabulary
    ids: jax.Array,
    center: jax.Array,
    inverse_length: jax.Array,
    group: jax.Array,
    members: jax.Array,
    *,
    R: int,
    k: int,
    coherence_k: int,
    padded: bool,
    axis: str | None,
) -> Sums:
    N, D = rows.shape
    W = head.shape[0]
    first = lax.axis_index(axis) * W if axis else 0  # position of this part's first row
    real = None
    if padded:
        real = lax.dynamic_slice(ids, (first + W - IDS_PER_BLOCK,), (IDS_PER_BLOCK,)) >= 0  # of the last block
    precision = lax.Precision.HIGHEST if head.dtype == jnp.float32 else lax.Precision.DEFAULT
    everything = mean is not None
    zero = jnp.zeros(R, jnp.float32)

    def block(rows_and_mean: Any) -> Sums:
        w, middle = rows_and_mean
        z = lax.dot_general(w, head, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32)
        z = lax.optimization_barrier(z).reshape(R, W // IDS_PER_BLOCK, IDS_PER_BLOCK)

        def total(f: Any) -> jax.Array:
            """Sum of f(z) over all ids, by blocks of ids first."""
            out = jnp.sum(_reduce_blocks(jnp.sum, z, f, real), axis=1)
            return lax.psum(out, axis) if axis else out

        poles = []
        for sign in (1, -1) if everything else (1,):
            best = _reduce_blocks(jnp.max if sign == 1 else jnp.min, z, lambda x: x, real, -sign * jnp.inf)
            values, positions = _top_k(z, best, k, sign, real, first, axis)
            peak = sign * values[:, :1, None]

            def exp(x: jax.Array, sign: int = sign, peak: jax.Array = peak) -> jax.Array:
                return jnp.exp(sign * (x - peak))

            def exp_z(x: jax.Array, sign: int = sign, peak: jax.Array = peak) -> jax.Array:
                return jnp.exp(sign * (x - peak)) * (sign * (x - peak))

            pole = {"values": values, "positions": positions, "exp": total(exp)}
            pole |= dict.fromkeys(("exp_z", "group", "coherence"), zero)
            if everything:
                pole["exp_z"] = total(exp_z)
                pole["group"] = _group_sum(z, sign, values[:, :1], members[group[positions[:, 0]]] - first, axis)
                pole["coherence"] = _coherence(positions[:, :coherence_k], head, center, inverse_length, first, axis)
            poles.append(pole)
        powers = [zero] * 3
        if everything:
            middle = middle[:, None, None]
            powers = [total(lambda x, n=n: (x - middle) ** n) for n in (2, 3, 4)]
        stacked = {name: jnp.stack([pole[name] for pole in poles], 1) for name in poles[0]}
        return Sums(**stacked, powers=jnp.stack(powers, 1))

    means = jnp.zeros(N, jnp.float32) if mean is None else mean
    out = lax.map(block, (rows.reshape(N // R, R, D), means.reshape(N // R, R)))
    return jax.tree.map(lambda x: x.reshape(N, *x.shape[2:]), out)


def _reduce_blocks(reduce: Any, z: jax.Array, f: Any, real: jax.Array | None, empty: float = 0.0) -> jax.Array:
    """``reduce`` of ``f(z)`` over each block of ids, ``[R, W / 64]``; padding in the last block counts as ``empty``."""
    out = reduce(f(z), axis=2)
    if real is None:
        return out
    last = reduce(jnp.where(real, f(z[:, -1:]), empty), axis=2)
    return lax.dynamic_update_slice_in_dim(out, last, out.shape[1] - 1, axis=1)


def _top_k(
    z: jax.Array, best: jax.Array, k: int, sign: int, real: jax.Array | None, first: Any, axis: str | None
) -> tuple[jax.Array, jax.Array]:
    """The k largest of ``sign * z`` over all devices, with positions; of equal values the lower position comes first.

    Ties stay right because the chosen blocks are put in ascending order, and top_k prefers the earlier of equal values.
    """
    R, blocks, _ = z.shape
    chosen = jnp.sort(_top_columns(_positive_zero(sign * best), min(k, blocks))[1], axis=1)
    candidates = _positive_zero(sign * jnp.take_along_axis(z, chosen[:, :, None], axis=1))
    if real is not None:
        candidates = jnp.where((chosen == blocks - 1)[:, :, None] & ~real, -jnp.inf, candidates)
    candidates = candidates.reshape(R, -1)
    values, at = _top_columns(candidates, min(k, candidates.shape[1]))
    positions = first + jnp.take_along_axis(chosen, at // IDS_PER_BLOCK, 1) * IDS_PER_BLOCK + at % IDS_PER_BLOCK
    if axis is None:
        return values, positions
    values = lax.all_gather(values, axis, axis=1, tiled=True)
    positions = lax.all_gather(positions, axis, axis=1, tiled=True)
    values, at = _whole_top_k(values, k)
    return values, jnp.take_along_axis(positions, at, 1)


def _top_columns(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`lax.top_k` of ``x [R, n]``, with the same order of ties, by groups of columns where that is less work."""
    R, n = x.shape
    if n <= GROUP_COLUMNS * k:
        return _whole_top_k(x, k)
    groups = jnp.pad(x, ((0, 0), (0, -n % GROUP_COLUMNS)), constant_values=-jnp.inf).reshape(R, -1, GROUP_COLUMNS)
    chosen = jnp.sort(_top_columns(lax.optimization_barrier(jnp.max(groups, axis=2)), k)[1], axis=1)
    values, at = _whole_top_k(jnp.take_along_axis(groups, chosen[:, :, None], axis=1).reshape(R, -1), k)
    return values, jnp.take_along_axis(chosen, at // GROUP_COLUMNS, 1) * GROUP_COLUMNS + at % GROUP_COLUMNS


def _whole_top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`lax.top_k`, kept whole: when its result is sliced further, XLA turns it into a full sort, 30 times slower on CPUs."""
    values, at = lax.top_k(x, k)
    return lax.optimization_barrier(values), lax.optimization_barrier(at)  # one each: XLA cannot compile a barrier of both


def _positive_zero(x: jax.Array) -> jax.Array:
    """-0.0 becomes +0.0, which sorting would keep apart."""
    return jnp.where(x == 0, 0, x)


def _group_sum(z: jax.Array, sign: int, peak: jax.Array, at: jax.Array, axis: str | None) -> jax.Array:
    """Sum of exp(sign * z - peak) over the positions ``at [R, G]``, relative to this device's part; others are skipped."""
    W = z.shape[1] * z.shape[2]
    here = (at >= 0) & (at < W)
    values = jnp.take_along_axis(z.reshape(len(z), W), jnp.where(here, at, 0), axis=1)
    total = jnp.sum(jnp.where(here, jnp.exp(sign * values - peak), 0), axis=1)
    return lax.psum(total, axis) if axis else total


def _coherence(
    positions: jax.Array, head: jax.Array, center: jax.Array, inverse_length: jax.Array, first: Any, axis: str | None
) -> jax.Array:
    """Mean cosine over pairs of centred head rows, from the length of the sum of the n unit rows: (|sum|^2 - n) / (n^2 - n)."""
    R, n = positions.shape
    if n < 2:
        return jnp.zeros(R, jnp.float32)
    scale = inverse_length[positions]  # [R, n]
    at = positions - first
    here = (at >= 0) & (at < len(head))
    # Gathered as integers: XLA's CPU backend would make a float32 copy of a whole bfloat16 head.
    bits = lax.bitcast_convert_type(head, jnp.uint16 if head.dtype == jnp.bfloat16 else jnp.uint32)
    at, scale_here = jnp.where(here, at, 0), jnp.where(here, scale, 0)
    total = jnp.zeros((R, head.shape[1]), jnp.float32)
    for i in range(n):
        total += lax.bitcast_convert_type(bits[at[:, i]], head.dtype).astype(jnp.float32) * scale_here[:, i : i + 1]
    if axis:
        total = lax.psum(total, axis)
    total = total - jnp.sum(scale, axis=1, keepdims=True) * center
    return (jnp.sum(jnp.square(total), axis=1) - jnp.sum(scale > 0, axis=1)) / (n * (n - 1))

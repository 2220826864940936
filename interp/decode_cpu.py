"""The kernel on a CPU: XLA multiplies tile by tile, compiled loops read each tile of logits while it is in the cache.

XLA's CPU backend makes a pass over the logits for every statistic, which costs more than the matmul. Here a row of a tile is
read once: its best ids are merged into the row's running top-k, and all sums added to, relative to the running maximum. A tile
has many rows, because XLA packs the head's part anew for every product, and few columns, because its logits must stay near.
"""

import ctypes
import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from interp.prepared import Sums, Vocabulary
from interp.simd import LANES, above, exp, loop, maximum, trailing_zeros, widen
from jaxllm.simd import cores, threads

ROWS, COLUMNS = 768, 4096  # of a tile, at most; measured: see benchmarks/README.md
HEAD_BYTES, FEWEST_COLUMNS = 16 << 20, 1024  # of a tile's part of the head; wide heads gain from narrow tiles
FEWEST_ROWS = 128  # below which a product is a matter of reading the head
HELD_SHAPES = 4  # of logits whose memory a thread keeps: full and last tiles of full and last blocks
NOTHING = np.float32(-np.inf)
ONE = np.uint64(1)
F32 = np.float32

_held = threading.local()


def sums(rows: np.ndarray, vocabulary: Vocabulary, mean: np.ndarray | None, *, k: int, coherence_k: int) -> Sums:
    """Everything that the statistics of ``rows [N, D]`` need.

    Each core takes blocks of rows through all tiles, so that one reads logits while another's are multiplied.

    Args:
      rows: of the head's dtype.
      vocabulary: with its arrays as NumPy's; the head's memory is aligned to 64 bytes.
      mean: ``[N]`` float32, each row's mean logit; None for one pole, with nothing but ``values``, ``positions`` and ``exp``.
    """
    N, P, head = len(rows), 1 if mean is None else 2, vocabulary.rows
    out = Sums(
        values=np.full((N, P, k), NOTHING),
        positions=np.zeros((N, P, k), np.int32),
        exp=np.zeros((N, P), np.float32),
        exp_z=np.zeros((N, P), np.float32),
        powers=np.zeros((N, 3), np.float32),
        group=np.zeros((N, P), np.float32),
        coherence=np.zeros((N, P), np.float32),
    )
    plain_rows, plain_head = (x if x.dtype == np.float32 else x.view(np.uint16) for x in (rows, head))
    columns = min(COLUMNS, max(FEWEST_COLUMNS, HEAD_BYTES // head[0].nbytes // LANES * LANES))
    tiles = [jax.device_put(head[at : at + columns]) for at in range(0, len(head), columns)]  # aligned: no copy

    def add_block(part: slice) -> None:
        block, into = jax.device_put(rows[part]), Sums(*(x[part] for x in out))
        for number, tile in enumerate(tiles):
            z = _logits(block, tile)
            at = number * columns
            real = min(vocabulary.count - at, len(tile))
            if mean is None:
                _add_one(z, at, real, into.values, into.positions, into.exp)
            else:
                _add_both(z, at, real, mean[part], into.values, into.positions, into.exp, into.exp_z, into.powers)
        if mean is not None:
            groups = vocabulary.group, vocabulary.members
            _add_groups(plain_rows[part], plain_head, into.values, into.positions, *groups, into.group)
            lengths = vocabulary.center, vocabulary.inverse_length
            _add_coherence(plain_head, into.positions[:, :, :coherence_k], *lengths, into.coherence)

    blocks = -(-N // min(ROWS, max(FEWEST_ROWS, -(-N // cores()))))
    bounds = [N * i // blocks for i in range(blocks + 1)]
    list(threads().map(add_block, map(slice, bounds[:-1], bounds[1:])))
    return out


def _logits(rows: jax.Array, tile: jax.Array) -> np.ndarray:
    """``[R, columns]`` float32, in memory that this thread's next product of the same shape overwrites."""
    held, shape = _held.__dict__.setdefault("logits", {}), (len(rows), len(tile))
    if shape not in held:
        if len(held) == HELD_SHAPES:
            held.clear()
        held[shape] = jnp.zeros(shape)
    held[shape] = _multiply(rows, tile, held[shape]).block_until_ready()
    address = ctypes.cast(held[shape].unsafe_buffer_pointer(), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(address, shape)


@functools.partial(jax.jit, donate_argnames="spare", keep_unused=True)
def _multiply(rows: jax.Array, tile: jax.Array, spare: jax.Array) -> jax.Array:
    """Logits in the memory of ``spare``: fresh memory made some products much slower."""
    precision = lax.Precision.HIGHEST if rows.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(rows, tile, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32)


@loop
def _add_one(z: Any, at: int, real: int, values: Any, positions: Any, exps: Any) -> None:
    for r in range(len(z)):
        row, best, where = z[r], values[r, 0], positions[r, 0]
        before = best[0]
        limit = best[-1]
        if limit == NOTHING:
            limit = _floor(row, real, F32(1), len(best))
        _merge(row, real, F32(1), limit, at, best, where)
        total = _exp_sum(row[:real], best[0])
        if at > 0:
            total += exps[r, 0] * np.exp(before - best[0])
        exps[r, 0] = total


@loop
def _add_both(
    z: Any,
    at: int,
    real: int,
    mean: Any,
    values: Any,
    positions: Any,
    exps: Any,
    exps_z: Any,
    powers: Any,
) -> None:
    for r in range(len(z)):
        row = z[r]
        top, bottom = values[r, 0], values[r, 1]  # the bottom's signs are turned
        before = top[0], bottom[0]
        upper, lower = top[-1], bottom[-1]
        if upper == NOTHING:
            upper, lower = _floor(row, real, F32(1), len(top)), _floor(row, real, F32(-1), len(top))
        _merge(row, real, F32(1), upper, at, top, positions[r, 0])
        _merge(row, real, F32(-1), lower, at, bottom, positions[r, 1])
        a, a_z, b, b_z, p2, p3, p4 = _row_sums(row[:real], top[0], -bottom[0], mean[r])
        if at > 0:
            fall = before[0] - top[0]
            scale = np.exp(fall)
            a += scale * exps[r, 0]
            a_z += scale * (exps_z[r, 0] + fall * exps[r, 0])
            fall = before[1] - bottom[0]
            scale = np.exp(fall)
            b += scale * exps[r, 1]
            b_z += scale * (exps_z[r, 1] + fall * exps[r, 1])
        exps[r, 0], exps[r, 1], exps_z[r, 0], exps_z[r, 1] = a, b, a_z, b_z
        powers[r, 0] += p2
        powers[r, 1] += p3
        powers[r, 2] += p4


@loop
def _exp_sum(row: Any, highest: Any) -> Any:
    total = F32(0)
    for i in range(len(row)):
        total += exp(row[i] - highest)
    return total


@loop
def _row_sums(row: Any, highest: Any, lowest: Any, mean: Any) -> Any:
    a = a_z = b = b_z = p2 = p3 = p4 = F32(0)
    for i in range(len(row)):
        z = row[i]
        x = z - highest
        e = exp(x)
        a += e
        a_z += e * x
        x = lowest - z
        e = exp(x)
        b += e
        b_z += e * x
        x = z - mean
        square = x * x
        p2 += square
        p3 += square * x
        p4 += square * square
    return a, a_z, b, b_z, p2, p3, p4


@loop
def _merge(row: Any, real: int, sign: Any, limit: Any, at: int, best: Any, where: Any) -> None:
    """Puts what of ``sign * row`` is above ``limit`` and the last of ``best`` into ``best [k]``, descending.

    Of equal values the earlier stays first. ``where [k]`` follows; it counts from ``at``.
    """
    for first in range(0, real, LANES):
        mask = above(row, first, sign, limit)
        if real - first < LANES:
            mask &= (ONE << np.uint64(real - first)) - ONE
        while mask:
            i = first + trailing_zeros(mask)
            mask &= mask - ONE
            value = sign * row[i]
            if value > best[-1]:
                _insert(best, where, value, at + i)
                limit = maximum(limit, best[-1])


@loop
def _insert(best: Any, where: Any, value: Any, position: int) -> None:
    i = len(best) - 1
    while i > 0 and best[i - 1] < value:
        best[i] = best[i - 1]
        where[i] = where[i - 1]
        i -= 1
    best[i] = value + F32(0)  # -0.0 becomes 0.0
    where[i] = position


@loop
def _floor(row: Any, real: int, sign: Any, k: int) -> Any:
    """A value below the k best of ``sign * row``: the maxima of k blocks are above it. Spares `_merge` most of a first tile."""
    best, where = np.full(k, NOTHING), np.empty(k, np.int32)
    for first in range(0, real - LANES + 1, LANES):
        highest = NOTHING
        for i in range(first, first + LANES):
            highest = maximum(highest, sign * row[i])
        if highest > best[-1]:
            _insert(best, where, highest, 0)
    return best[-1] - abs(best[-1]) * F32(1e-6) - F32(1e-30)


@loop
def _dot(x: Any, y: Any) -> Any:
    total = F32(0)
    for d in range(len(x)):
        total += widen(x[d]) * widen(y[d])
    return total


@loop
def _add_groups(rows: Any, head: Any, values: Any, positions: Any, group: Any, members: Any, out: Any) -> None:
    for r in range(len(rows)):
        for pole in range(2):
            best, sign = values[r, pole, 0], F32(1 - 2 * pole)
            for member in members[group[positions[r, pole, 0]]]:
                if member == positions[r, pole, 0]:
                    out[r, pole] += F32(1)
                elif member >= 0:
                    out[r, pole] += np.exp(sign * _dot(rows[r], head[member]) - best)


@loop
def _add_scaled(total: Any, row: Any, scale: Any) -> None:
    for d in range(len(row)):
        total[d] += widen(row[d]) * scale


@loop
def _add_coherence(head: Any, positions: Any, center: Any, inverse_length: Any, out: Any) -> None:
    """Mean cosine over pairs of centred head rows, from the length of the sum of the n unit rows: (|sum|^2 - n) / (n^2 - n)."""
    n = positions.shape[2]
    if n < 2:
        return
    total = np.empty(head.shape[1], np.float32)
    for r in range(len(positions)):
        for pole in range(2):
            total[:] = F32(0)
            scales, real = F32(0), 0
            for position in positions[r, pole]:
                scale = inverse_length[position]
                _add_scaled(total, head[position], scale)
                scales += scale
                real += scale > 0
            _add_scaled(total, center, -scales)
            out[r, pole] = (_dot(total, total) - real) / F32(n * (n - 1))

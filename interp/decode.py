"""Directions through the LM head to their top tokens and the statistics of all their logits.

Source: H. J. Davies, arXiv 2501.02688 (a neuron is read as the tokens that its weight row scores highest). Nothing of size
N x V is ever held: logits are made by a matmul, read and dropped, block by block. There are two kernels of that shape:
`interp.decode_cpu`, and `interp.decode_xla` for accelerators and meshes. The statistics are made here of what either sums up.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from interp import decode_xla
from interp.prepared import ROW_AXES, VOCABULARY_AXIS, Vocabulary, prepare_head

__all__ = ["COHERENCE_K", "Decoded", "Top", "Vocabulary", "decode", "prepare_head", "rows_per_block", "top"]

COHERENCE_K = 10  # `coherence` compares the top ten


class Decoded(NamedTuple):
    """What N directions stand for. Poles P = 2: index 0 decodes ``+w``, index 1 ``-w``. All arrays float32 but ``ids``."""

    ids: Any  # [N, P, k] int32, by (logit descending, id ascending)
    logits: Any  # [N, P, k]
    lse: Any  # [N, P] natural log of the sum of exp over allowed ids
    entropy: Any  # [N, P] of the token distribution over log(number of allowed ids): 1 is flat
    group_mass: Any  # [N, P] probability of all ids in the top id's group
    coherence: Any  # [N, P] mean cosine over pairs of the centred head rows of the top ten
    mean: Any  # [N] of the logits of +w over allowed ids
    std: Any  # [N]
    skew: Any  # [N] of +w; -w has the opposite
    kurtosis: Any  # [N] excess


class Top(NamedTuple):
    """The top tokens of N directions, with what makes their probabilities true."""

    ids: Any  # [N, k] int32
    logits: Any  # [N, k] float32
    lse: Any  # [N] float32


def decode(rows: Any, vocabulary: Vocabulary, *, k: int) -> Decoded:
    """Decodes ``rows [N, D]``, directions already normed, at both poles with every statistic.

    Rows must be finite. ``k`` is at most the number of allowed ids. Only the shape of ``rows`` decides whether anything is
    compiled anew.
    """
    return _run(rows, vocabulary, k, everything=True)


def top(rows: Any, vocabulary: Vocabulary, *, k: int) -> Top:
    """The top tokens and logsumexp of ``rows [N, D]`` alone: one pole, no statistics."""
    return _run(rows, vocabulary, k, everything=False)


def _run(rows: Any, vocabulary: Vocabulary, k: int, *, everything: bool) -> Any:
    if not 1 <= k <= vocabulary.count:
        raise ValueError(f"k must be between 1 and the number of allowed ids, {vocabulary.count}; found {k}")
    N, D = rows.shape
    if vocabulary.rows.shape[1] != D:
        raise ValueError(f"rows are {D} wide, the head {vocabulary.rows.shape[1]}")
    mesh = vocabulary.mesh
    if mesh is None and jax.default_backend() == "cpu" and not isinstance(rows, jax.core.Tracer):
        return _run_on_cpu(np.asarray(rows), vocabulary, k, everything)
    row_shards = 1 if mesh is None else int(np.prod([mesh.shape[axis] for axis in ROW_AXES]))
    W = vocabulary.rows.shape[0] // (1 if mesh is None else mesh.shape[VOCABULARY_AXIS])
    R = rows_per_block(N, row_shards, W)
    padding = -N % (R * row_shards)
    rows = jnp.pad(jnp.asarray(rows, vocabulary.rows.dtype), ((0, padding), (0, 0)))
    if mesh is not None:
        rows = jax.device_put(rows, NamedSharding(mesh, P(ROW_AXES, None)))
    result = _run_compiled(rows, vocabulary, R, k, everything)
    return jax.tree.map(lambda leaf: leaf[:N], result) if padding else result


def rows_per_block(N: int, row_shards: int, W: int) -> int:
    """How many rows share one matmul of an accelerator: enough to keep it busy, few enough for ``[R, W]`` logits to fit."""
    most = max(128, min(4096, (1 << 30) // (4 * W) // 128 * 128))
    return min(most, max(8, -(-N // row_shards)))


@functools.partial(jax.jit, static_argnames=("R", "k", "everything"))
def _run_compiled(rows: jax.Array, vocabulary: Vocabulary, R: int, k: int, everything: bool) -> Any:
    mean = jnp.matmul(rows.astype(jnp.float32), vocabulary.center, precision=lax.Precision.HIGHEST) if everything else None
    coherence_k = COHERENCE_K if everything else 0
    return _statistics(decode_xla.sums(rows, vocabulary, mean, R=R, k=k, coherence_k=coherence_k), vocabulary, mean, jnp)


def _run_on_cpu(rows: np.ndarray, vocabulary: Vocabulary, k: int, everything: bool) -> Any:
    from interp import decode_cpu  # Numba takes a moment to import

    held = jax.tree.map(np.asarray, vocabulary)  # no copies: host memory
    rows = np.ascontiguousarray(rows, held.rows.dtype)
    mean = None
    if everything:  # not by `@`: the threads of NumPy's BLAS would spin for a while and slow down what follows
        mean = np.einsum("nd,d->n", rows.astype(np.float32), held.center)
    return _statistics(decode_cpu.sums(rows, held, mean, k=k, coherence_k=COHERENCE_K if everything else 0), held, mean, np)


def _statistics(sums: Any, vocabulary: Vocabulary, mean: Any, xp: Any) -> Any:
    """`Decoded`, or `Top` if no mean logits are given, in the array namespace ``xp``."""
    peak = sums.values[..., 0]
    lse = peak + xp.log(sums.exp)
    ids = vocabulary.ids[sums.positions]
    if mean is None:
        return Top(ids[:, 0], sums.values[:, 0], lse[:, 0])
    count = vocabulary.count
    variance, third, fourth = xp.moveaxis(sums.powers, 1, 0) / xp.float32(count)
    spread = variance > 0
    safe = xp.where(spread, variance, 1)
    return Decoded(
        ids=ids,
        logits=sums.values,
        lse=lse,
        entropy=(lse - peak - sums.exp_z / sums.exp) / xp.float32(max(np.log(count), 1e-30)),
        group_mass=sums.group / sums.exp,
        coherence=sums.coherence,
        mean=mean,
        std=xp.sqrt(variance),
        skew=xp.where(spread, third / safe**1.5, 0),
        kurtosis=xp.where(spread, fourth / safe**2 - 3, 0),
    )

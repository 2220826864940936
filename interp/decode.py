"""The kernel: directions through the LM head to their top tokens and the statistics of all their logits.

Source: H. J. Davies, arXiv 2501.02688 (a neuron is read as the tokens that its weight row scores highest). The logits of a
block of R rows, ``[R, V]``, are made by one matmul, read a few times and dropped; nothing of size N x V exists. The top-k is
exact: a block of 64 ids can hold one of the k best only if its maximum is among the k best block maxima.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

IDS_PER_BLOCK = 64
CPU_ROWS = 128  # measured: see benchmarks/README.md
GROUP_COLUMNS = 16  # in the recursion of top-k
SAFE_EXPONENT = 70.0  # e^70 times 70 times any vocabulary is a float32
COHERENCE_K = 10  # `coherence` compares the top ten
ROW_AXES = ("data", "fsdp")  # mesh axes over which rows are split; the vocabulary is split over "tensor"
VOCABULARY_AXIS = "tensor"


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


@struct.dataclass
class Vocabulary:
    """A head made ready by `prepare_head`.

    It holds the allowed ids alone, in ascending order, in n equal shards (n = 1 without a mesh) of ``W`` rows each; the last
    fewer than ``IDS_PER_BLOCK + 1`` rows of a shard may be padding. A *position* is an index into these ``n * W`` rows.
    """

    rows: jax.Array  # [n * W, D] in the compute dtype, padding zero, split over the vocabulary axis
    ids: jax.Array  # [n * W] int32 token id of a position, -1 for padding
    center: jax.Array  # [D] float32 mean of the allowed rows
    inverse_length: jax.Array  # [n * W] float32, 1 / |row - center|, 0 where that is no number
    group: jax.Array  # [n * W] int32 number of the position's group
    members: jax.Array  # [number of groups, largest group] int32 positions, -1 padded
    count: int = struct.field(pytree_node=False)  # allowed ids
    padded: bool = struct.field(pytree_node=False)  # whether any position is padding
    mesh: Mesh | None = struct.field(pytree_node=False)


def prepare_head(
    head: Any, *, allowed: Any = None, groups: Any = None, dtype: Any = jnp.float32, mesh: Mesh | None = None
) -> Vocabulary:
    """Makes ``head [V, D]`` ready: masked ids dropped, padded to whole blocks, cast, split over the mesh.

    Args:
      head: one row per id, any float dtype, on the host.
      allowed: ``[V]`` bool, which ids may appear and count; all by default.
      groups: ``[V]`` int, ids with equal numbers are one group; each id its own by default.
      dtype: of the matmul's operands; sums are float32.
      mesh: splits rows over ``data`` and ``fsdp`` and the vocabulary over ``tensor``; None is the default device.
    """
    head = np.asarray(head)
    V, D = head.shape
    ids = np.arange(V) if allowed is None else np.flatnonzero(np.asarray(allowed))
    if not len(ids):
        raise ValueError("no id is allowed")
    shards = mesh.shape[VOCABULARY_AXIS] if mesh is not None else 1
    parts = np.array_split(ids, shards)
    W = -(-max(map(len, parts)) // IDS_PER_BLOCK) * IDS_PER_BLOCK
    padded_ids = np.full((shards, W), -1, np.int32)
    for shard, part in enumerate(parts):
        padded_ids[shard, : len(part)] = part
    padded_ids = padded_ids.reshape(-1)
    dtype = np.dtype(dtype)

    center = np.zeros(D, np.float64)
    inverse_length = np.zeros(shards * W, np.float32)
    step = max(1, (32 << 20) // (4 * D))
    for start in range(0, len(ids), step):
        center += head[ids[start : start + step]].sum(0, dtype=np.float64)
    center = (center / len(ids)).astype(np.float32)
    for start in range(0, shards * W, step):
        block = padded_ids[start : start + step]
        length = np.linalg.norm(head[np.maximum(block, 0)].astype(np.float32) - center, axis=1)
        inverse_length[start : start + step] = np.divide(
            1, length, out=np.zeros_like(length), where=(length > 0) & (block >= 0)
        )

    def rows(index: tuple[slice, ...] | None) -> np.ndarray:
        wanted = padded_ids[index[0] if index else slice(None)]
        if head.dtype == dtype and np.array_equal(wanted, np.arange(V)):
            return head
        out = _aligned((len(wanted), D), dtype)
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            out[start : start + step] = np.where((part >= 0)[:, None], head[np.maximum(part, 0)], 0)
        return out

    everywhere, split = _shardings(mesh)
    group, members = _group_table(padded_ids, np.arange(V) if groups is None else np.asarray(groups))
    return Vocabulary(
        rows=jax.make_array_from_callback((shards * W, D), split, rows, dtype=dtype),
        ids=jax.device_put(padded_ids, everywhere),
        center=jax.device_put(center, everywhere),
        inverse_length=jax.device_put(inverse_length, everywhere),
        group=jax.device_put(group, everywhere),
        members=jax.device_put(members, everywhere),
        count=len(ids),
        padded=bool((padded_ids < 0).any()),
        mesh=mesh,
    )


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
    row_shards = 1 if mesh is None else int(np.prod([mesh.shape[axis] for axis in ROW_AXES]))
    W = vocabulary.rows.shape[0] // (1 if mesh is None else mesh.shape[VOCABULARY_AXIS])
    R = rows_per_block(N, row_shards, W)
    padding = -N % (R * row_shards)
    rows = jnp.pad(jnp.asarray(rows, vocabulary.rows.dtype), ((0, padding), (0, 0)))
    if mesh is not None:
        rows = jax.device_put(rows, NamedSharding(mesh, P(ROW_AXES, None)))
    result = _decode(rows, vocabulary, R=R, k=k, everything=everything)
    return jax.tree.map(lambda leaf: leaf[:N], result) if padding else result


def rows_per_block(N: int, row_shards: int, W: int) -> int:
    """How many rows share one matmul: enough to keep it busy, few enough for its logits ``[R, W]`` to stay near."""
    most = CPU_ROWS if jax.default_backend() == "cpu" else max(128, min(4096, (1 << 30) // (4 * W) // 128 * 128))
    return min(most, max(8, -(-N // row_shards)))


@functools.partial(jax.jit, static_argnames=("R", "k", "everything"))
def _decode(rows: jax.Array, vocabulary: Vocabulary, *, R: int, k: int, everything: bool) -> Any:
    local = functools.partial(_decode_shard, R=R, k=k, everything=everything, padded=vocabulary.padded, count=vocabulary.count)
    arrays = (
        vocabulary.rows,
        vocabulary.ids,
        vocabulary.center,
        vocabulary.inverse_length,
        vocabulary.group,
        vocabulary.members,
    )
    if vocabulary.mesh is None:
        return local(rows, *arrays, axis=None)
    specs = (P(ROW_AXES), P(VOCABULARY_AXIS), *(P(),) * 5)
    run = jax.shard_map(
        functools.partial(local, axis=VOCABULARY_AXIS),
        mesh=vocabulary.mesh,
        in_specs=specs,
        out_specs=P(ROW_AXES),
        check_vma=False,
    )
    return run(rows, *arrays)


def _decode_shard(
    rows: jax.Array,  # [N, D]
    head: jax.Array,  # [W, D], this device's part of the vocabulary
    ids: jax.Array,
    center: jax.Array,
    inverse_length: jax.Array,
    group: jax.Array,
    members: jax.Array,
    *,
    R: int,
    k: int,
    everything: bool,
    padded: bool,
    count: int,
    axis: str | None,
) -> Any:
    N, D = rows.shape
    W = head.shape[0]
    first = lax.axis_index(axis) * W if axis else 0  # position of this part's first row
    real = None
    if padded:
        real = lax.dynamic_slice(ids, (first + W - IDS_PER_BLOCK,), (IDS_PER_BLOCK,)) >= 0  # of the last block
    precision = lax.Precision.HIGHEST if head.dtype == jnp.float32 else lax.Precision.DEFAULT
    poles = (1, -1) if everything else (1,)

    def block(w: jax.Array) -> Any:
        """Everything about R rows that needs their logits; sums over V are left as sums over blocks of ids."""
        z = lax.dot_general(w, head, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32)
        z = lax.optimization_barrier(z).reshape(R, W // IDS_PER_BLOCK, IDS_PER_BLOCK)
        per_pole = []
        for sign in poles:
            best = _reduce_blocks(jnp.max if sign == 1 else jnp.min, z, lambda x: x, real, -sign * jnp.inf)
            values, positions = _top_k(z, best, k, sign, real, first, axis)
            part = {"values": values, "positions": positions}
            if everything:
                part["group_sum"] = _group_sum(z, sign, values[:, :1], members[group[positions[:, 0]]] - first, axis)
                part["coherence"] = _coherence(positions[:, :COHERENCE_K], head, center, inverse_length, first, axis)
            per_pole.append(part)
        peaks = [part["values"][:, 0] for part in per_pole]
        mean = jnp.matmul(w.astype(jnp.float32), center, precision=lax.Precision.HIGHEST)
        near = None  # whether no logit of these rows is too large for a plain exp
        if jax.default_backend() == "cpu":
            near = jnp.all(jnp.abs(jnp.stack([*peaks, mean])) < SAFE_EXPONENT)
        sums = _sums(z, peaks, mean, near, real, everything=everything)
        shifts, shift = jax.tree.map(lambda x: x if near is None else jnp.where(near, 0, x), (peaks, mean))
        return per_pole, shifts, shift, mean, sums

    per_pole, shifts, shift, mean, sums = lax.map(block, rows.reshape(N // R, R, D))
    total = functools.partial(_total, axis=axis)

    def flat(x: jax.Array) -> jax.Array:
        return x.reshape(N, *x.shape[2:])

    def stack(field: str) -> jax.Array:
        return jnp.stack([flat(part[field]) for part in per_pole], 1)

    values = stack("values")
    exp_sums = jnp.stack([total(flat(x)) for x in sums["exp"]], 1)
    shifts = jnp.stack([flat(x) for x in shifts], 1)
    lse = shifts + jnp.log(exp_sums)
    top_ids = ids[stack("positions")]
    if not everything:
        return Top(top_ids[:, 0], values[:, 0], lse[:, 0])
    expected = jnp.stack([total(flat(x)) for x in sums["exp_z"]], 1) / exp_sums  # logit under the token distribution
    mean, shift = flat(mean), flat(shift)
    m1, (m2, m3, m4) = mean - shift, (total(flat(x)) / count for x in sums["powers"])
    variance = jnp.maximum(m2 - m1**2, 0)
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    spread = variance > 0
    safe = jnp.where(spread, variance, 1)
    return Decoded(
        ids=top_ids,
        logits=values,
        lse=lse,
        entropy=(lse - shifts - expected) / max(np.log(count), 1e-30),
        group_mass=stack("group_sum") * jnp.exp(values[..., 0] - lse),
        coherence=stack("coherence"),
        mean=mean,
        std=jnp.sqrt(variance),
        skew=jnp.where(spread, third / safe**1.5, 0),
        kurtosis=jnp.where(spread, fourth / safe**2 - 3, 0),
    )


def _sums(
    z: jax.Array, peaks: Any, mean: jax.Array, near: jax.Array | None, real: jax.Array | None, *, everything: bool
) -> dict[str, Any]:
    """The sums over ids that the statistics need, as sums over blocks ``[R, W / 64]``.

    Exponents are taken relative to ``peaks``, powers to ``mean``; relative to 0 where ``near`` holds. XLA's CPU backend fuses a
    sum with its operand only if that depends on the logits alone, and shares what two sums have in common by writing it out.
    Hence the plain form, and a conditional around each sum.
    """

    def sum_of(f: Any, shift: jax.Array) -> jax.Array:
        def plain(z: jax.Array, _: Any) -> jax.Array:
            return _reduce_blocks(jnp.sum, z, f, real)

        def shifted(z: jax.Array, shift: jax.Array) -> jax.Array:
            return _reduce_blocks(jnp.sum, z, lambda x: f(x - shift[:, None, None]), real)

        return shifted(z, shift) if near is None else lax.cond(near, plain, shifted, z, shift)

    out = {"exp": [sum_of(jnp.exp, peaks[0])]}
    if everything:
        out["exp"].append(sum_of(lambda x: jnp.exp(-x), -peaks[1]))
        out["exp_z"] = [sum_of(lambda x: jnp.exp(x) * x, peaks[0]), sum_of(lambda x: jnp.exp(-x) * -x, -peaks[1])]
        out["powers"] = [
            sum_of(jnp.square, mean),
            sum_of(lambda x: jnp.square(x) * x, mean),
            sum_of(lambda x: jnp.square(jnp.square(x)), mean),
        ]
    return out


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


def _total(x: jax.Array, axis: str | None) -> jax.Array:
    """Sum over blocks of ids, the last axis, and over devices."""
    total = jnp.sum(x, axis=-1)
    return lax.psum(total, axis) if axis else total


def _group_table(ids: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group number per position, and the positions of each group, -1 padded. Padding positions get group 0."""
    positions = np.flatnonzero(ids >= 0)
    _, numbers = np.unique(groups[ids[positions]], return_inverse=True)
    sizes = np.bincount(numbers)
    members = np.full((len(sizes), sizes.max()), -1, np.int32)
    order = np.argsort(numbers, kind="stable")
    column = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    members[numbers[order], column] = positions[order]
    group = np.zeros(len(ids), np.int32)
    group[positions] = numbers
    return group, members


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised memory at a multiple of 64 bytes, which a CPU device uses as it is instead of copying it."""
    spare = np.empty(int(np.prod(shape)) * dtype.itemsize + 64, np.uint8)
    shift = -spare.ctypes.data % 64
    return spare[shift : shift + len(spare) - 64].view(dtype).reshape(shape)


def _shardings(mesh: Mesh | None) -> tuple[Any, Any]:
    """Placement of what every device holds, and of the head's rows."""
    if mesh is None:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return device, device
    return NamedSharding(mesh, P()), NamedSharding(mesh, P(VOCABULARY_AXIS, None))

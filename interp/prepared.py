"""What the kernels take and give: a head made ready, and sums over its ids."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

IDS_PER_BLOCK = 64
ROW_AXES = ("data", "fsdp")  # mesh axes over which rows are split; the vocabulary is split over "tensor"
VOCABULARY_AXIS = "tensor"


class Sums(NamedTuple):
    """Of N rows over all allowed ids, for the poles P: logits ``z``, then ``-z`` if it is wanted. float32 but ``positions``.

    ``best`` is ``values[..., 0]``. Without statistics the last four fields are zero.
    """

    values: Any  # [N, P, k] the highest, descending
    positions: Any  # [N, P, k] int32, of equal values the lower first
    exp: Any  # [N, P] sum of exp(z - best)
    exp_z: Any  # [N, P] sum of exp(z - best) * (z - best)
    powers: Any  # [N, 3] sums of the 2nd, 3rd and 4th powers of z - mean
    group: Any  # [N, P] sum of exp(z - best) over the group of the best id
    coherence: Any  # [N, P] see `interp.decode.Decoded`


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

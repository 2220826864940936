"""Where arrays live on a mesh: one table from logical axes to mesh axes, for parameters and activations alike.

Arrays are placed by `jax.sharding.NamedSharding` on meshes whose axes are all ``Auto``; the compiler inserts the communication.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxllm import params
from jaxllm.config import Config
from jaxllm.errors import UserError

log = logging.getLogger(__name__)

AXES = ("data", "fsdp", "tensor")

RULES: dict[str | None, str | tuple[str, ...] | None] = {
    # parameters
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "norm": None,
    "layers": None,
    # activations
    "batch": ("data", "fsdp"),
    "length": None,
    "width": None,  # D of the residual stream
    None: None,
}
"""Logical axis -> mesh axis. Batch and weights share ``fsdp``: each device gathers a weight when it is needed."""


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh: ``data`` copies the model, ``fsdp`` splits weights and batch, ``tensor`` splits heads, MLP and vocabulary.

    Args:
      devices: the first ``data * fsdp * tensor`` of these are used; by default, of all devices.
    Raises:
      UserError: a size below 1, or too few devices.
    """
    sizes = (data, fsdp, tensor)
    need = data * fsdp * tensor
    devices = jax.devices() if devices is None else devices
    if min(sizes) < 1 or need > len(devices):
        raise UserError(f"a mesh of data={data}, fsdp={fsdp}, tensor={tensor} needs {need} devices; there are {len(devices)}")
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:need])


def read_mesh(text: str) -> Mesh:
    """The mesh of ``data=2,fsdp=2,tensor=2``, over all devices there are; an axis that is not named has size 1.

    Raises UserError for another form, an axis named twice, or as `make_mesh`.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.strip().partition("=")
        if axis not in AXES or axis in sizes or not (size.isascii() and size.isdigit()):
            raise UserError(f"{text!r} is no mesh: write sizes of {', '.join(AXES)}, each at most once, as in data=2,tensor=4")
        sizes[axis] = int(size)
    data, fsdp, tensor = (sizes.get(axis, 1) for axis in AXES)
    return make_mesh(data, fsdp, tensor)


def spec_for(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh, cfg: Config | None = None
) -> PartitionSpec:
    """How an array with these logical axes is split.

    An axis that its mesh axis does not divide is left whole. For ``heads`` and ``kv_heads`` of parameters, whose sizes are
    H * C and K * C, the number of heads has to divide: half a head is of no use.

    Args:
      axes: a name of `RULES`, or None, per axis of the array.
      cfg: gives the numbers of heads; without it, the axes of ``shape`` count heads.
    """
    return PartitionSpec(*(_mesh_axis(axis, size, mesh, cfg) for axis, size in zip(axes, shape, strict=True)))


def shardings(cfg: Config, mesh: Mesh | None, *, stacked: bool = False) -> params.Params:
    """The parameter tree with the placement of each leaf; without a mesh, the default device.

    Sizes that do not divide leave the tensor whole along that axis; one log line names them.
    """
    if mesh is None:
        return params.build(cfg, lambda *_: SingleDeviceSharding(jax.devices()[0]), stacked=stacked)
    whole = {
        f"{axis} ({_units(axis, size, cfg)}) over {RULES[axis]} ({_mesh_size(RULES[axis], mesh)})"
        for spec in params.table(cfg, stacked=stacked).values()
        for axis, size in zip(spec.axes, spec.shape, strict=True)
        if RULES[axis] and not _mesh_axis(axis, size, mesh, cfg)
    }
    if whole:
        log.warning("replicated, since sizes do not divide: %s", ", ".join(sorted(whole)))
    return params.build(cfg, lambda _, spec: NamedSharding(mesh, spec_for(spec.axes, spec.shape, mesh, cfg)), stacked=stacked)


def bytes_per_device(cfg: Config, devices: int, itemsize: int, cached_tokens: int) -> tuple[int, int]:
    """Memory that the rules put on each device when ``tensor`` has so many: (weights, keys and values of the cached tokens)."""
    mesh = AbstractMesh((1, 1, devices), AXES)

    def shard(axes: Sequence[str | None], shape: Sequence[int]) -> int:
        spec = spec_for(axes, shape, mesh, cfg)
        return math.prod(shape) // math.prod(_mesh_size(axis, mesh) for axis in spec)

    weights = sum(shard(spec.axes, spec.shape) for spec in params.table(cfg, stacked=True).values())
    width = cfg.num_key_value_heads * cfg.head_dim
    cache = 2 * shard(("layers", "length", "kv_heads"), (cfg.num_hidden_layers, cached_tokens, width))
    return weights * itemsize, cache * itemsize


def shard_size(axis: str, size: int, mesh: Mesh | None) -> int:
    """How much of an activation's axis of this size each device has."""
    return size if mesh is None else size // _mesh_size(_mesh_axis(axis, size, mesh, None), mesh)


def constrain(x: jax.Array, *axes: str | None, mesh: Mesh | None) -> jax.Array:
    """Tells the compiler how an activation is split, by the same rules; without a mesh, ``x`` as it is."""
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec_for(axes, x.shape, mesh)))


def _mesh_axis(axis: str | None, size: int, mesh: Mesh | AbstractMesh, cfg: Config | None) -> Any:
    rule = RULES[axis]
    return rule if rule and _units(axis, size, cfg) % _mesh_size(rule, mesh) == 0 else None


def _units(axis: str | None, size: int, cfg: Config | None) -> int:
    if cfg is None:
        return size
    return {"heads": cfg.num_attention_heads, "kv_heads": cfg.num_key_value_heads}.get(axis or "", size)


def _mesh_size(rule: str | tuple[str, ...] | None, mesh: Mesh | AbstractMesh) -> int:
    size = 1
    for name in (rule,) if isinstance(rule, str) else rule or ():
        size *= mesh.shape[name]
    return size

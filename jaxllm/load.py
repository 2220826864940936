"""From a checkpoint on disk to parameters on devices, one tensor at a time."""

import functools
import logging
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm import params as params_lib
from jaxllm import sharding
from jaxllm.checkpoint import OrbaxCheckpoint, is_orbax
from jaxllm.errors import UserError
from jaxllm.folder import FolderCheckpoint
from jaxllm.gguf import GgufCheckpoint
from jaxllm.params import Params
from jaxllm.save import convert, save_params
from jaxllm.tensors import Checkpoint, TensorInfo

log = logging.getLogger(__name__)

Index = tuple[slice, ...]

__all__ = ["Checkpoint", "TensorInfo", "convert", "load_params", "open_checkpoint", "save_params"]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a folder of safetensors, a ``.gguf`` file or an Orbax folder by reading its headers only.

    Raises:
      UserError: no such model, or it is damaged or not a Llama; all faults of a folder are in one message.
    """
    path = Path(path)
    checkpoint: Checkpoint
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path}: not a model's folder: it has no config.json")
        checkpoint = OrbaxCheckpoint(path) if is_orbax(path) else FolderCheckpoint(path)
    elif path.is_file() and path.suffix == ".gguf":
        checkpoint = GgufCheckpoint(path)
    else:
        raise UserError(f"{path}: not a folder of safetensors nor a .gguf file")
    cfg = checkpoint.config
    log.info("%s: %d layers, width %d, vocabulary %d", path, cfg.num_hidden_layers, cfg.hidden_size, cfg.vocab_size)
    return checkpoint


def load_params(
    checkpoint: Checkpoint,
    *,
    mesh: jax.sharding.Mesh | None = None,
    dtype: Any = None,
    stacked: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Params:
    """Reads all parameters straight into (sharded) arrays. The host never holds more than one shard of one leaf.

    Args:
      mesh: places each leaf by the rules of `jaxllm.sharding`; None puts everything on the default device.
      dtype: element type of all leaves; by default each keeps its own (quantised ones are float32).
      stacked: one leaf for all layers, with a leading axis L.
      progress: called with (leaves done, leaves in all).
    Raises:
      UserError: an untied model without a head tensor, or the file ended early.
    """
    begun = time.perf_counter()
    checkpoint.require_head()
    cfg = checkpoint.config
    if isinstance(checkpoint, OrbaxCheckpoint):
        return checkpoint.restore(mesh=mesh, dtype=dtype, stacked=stacked)
    places = sharding.shardings(cfg, mesh, stacked=stacked)
    total = len(params_lib.table(cfg, stacked=stacked))
    done = 0

    def leaf(path: params_lib.Path, spec: params_lib.Spec) -> jax.Array:
        nonlocal done
        if stacked and path[0] == "layers":
            names = [params_lib.hf_name(("layers", layer, *path[1:])) for layer in range(cfg.num_hidden_layers)]
            read = _read_layers(checkpoint, names, dtype)
        else:
            read = _read_tensor(checkpoint, params_lib.hf_name(path), dtype)
        place: Any = functools.reduce(operator.getitem, path, places)
        array = _place(spec.shape, place, read)
        done += 1
        if progress is not None:
            progress(done, total)
        return array

    tree = params_lib.build(cfg, leaf, stacked=stacked)
    log.info("%s: %d parameters loaded in %.1f s", checkpoint.path, params_lib.count(cfg), time.perf_counter() - begun)
    return tree


def _read_tensor(checkpoint: Checkpoint, name: str, dtype: Any) -> Callable[[Index], np.ndarray]:
    return lambda index: checkpoint.read(name, index, dtype=dtype)


def _read_layers(checkpoint: Checkpoint, names: list[str], dtype: Any) -> Callable[[Index], np.ndarray]:
    """Reads a leaf with a leading axis L: only the layers, rows and columns asked for."""
    kind = np.dtype(dtype or jnp.result_type(*(checkpoint.tensors[name].dtype for name in names)))

    def read(index: Index) -> np.ndarray:
        layers, rest = names[index[0]], index[1:]
        first = checkpoint.read(layers[0], rest, dtype=kind)
        out = np.empty((len(layers), *first.shape), kind)
        out[0] = first
        for i, name in enumerate(layers[1:], 1):
            out[i] = checkpoint.read(name, rest, dtype=kind)
        return out

    return read


def _place(shape: tuple[int, ...], place: jax.sharding.Sharding, read: Callable[[Index], np.ndarray]) -> jax.Array:
    """An array whose shards are read one after the other, each once for all devices that hold it.

    `jax.make_array_from_callback` would hold all shards of the leaf on the host before it places the first.
    """
    devices: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in place.addressable_devices_indices_map(shape).items():
        assert index is not None
        span = tuple(part.indices(n)[:2] for part, n in zip(index, shape, strict=True))
        devices.setdefault(span, []).append(device)
    shards = []
    for span, holders in devices.items():
        block = read(tuple(slice(*ends) for ends in span))
        shards += jax.block_until_ready([jax.device_put(block, device) for device in holders])
    return jax.make_array_from_single_device_arrays(shape, place, shards)

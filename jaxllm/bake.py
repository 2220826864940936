"""Clamps as part of the weights: a copy of a checkpoint that behaves, in any program, as the clamped model does.

Holding neuron j at c wherever it occurs is a linear map: a zero row j of the up-projection, and a bias c there. The copy's
config says ``mlp_bias: true``, which Hugging Face's Llama reads as biases of all three projections of the MLP; the others are
zero.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm import params as params_lib
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.errors import UserError
from jaxllm.save import MAX_SHARD_BYTES, Source, write_folder
from jaxllm.tensors import Checkpoint


def bake(
    checkpoint: Checkpoint,
    clamps: Sequence[NeuronClamp],
    folder: Path,
    *,
    dtype: Any = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a checkpoint with clamps in its weights as a Hugging Face folder, without going through a device.

    Args:
      clamps: each a ``set`` at ``up`` for all positions.
      folder: must not exist, or be empty; it appears whole or not at all.
      dtype: element type of all tensors; by default each keeps its own, and quantised ones become float32.
    Raises:
      UserError: a clamp that weights cannot express, as `jaxllm.clamp.make_clamp`, or as `jaxllm.save.save_params`.
    """
    if not clamps:
        raise UserError("no clamp to bake: give at least one")
    make_clamp(checkpoint.config, clamps)
    held: dict[int, dict[int, float]] = {}  # layer -> neuron -> value
    for clamp in clamps:
        _check(clamp)
        held.setdefault(clamp.layer, {})[clamp.neuron] = clamp.value
    checkpoint.require_head()
    cfg = dataclasses.replace(checkpoint.config, mlp_bias=True)
    sources = [_source(checkpoint, path, spec.shape, held, dtype) for path, spec in params_lib.table(cfg).items()]
    write_folder(folder, cfg, sources, checkpoint, max_shard_bytes)


def _check(clamp: NeuronClamp) -> None:
    reason = None
    if clamp.site == "gate_pre":
        reason = "site gate_pre is another projection than the one that gets a value"
    elif clamp.site != "up":
        reason = f"site {clamp.site} is computed from two projections, and no weight holds its value"
    elif clamp.mode != "set":
        reason = f"mode {clamp.mode} depends on what the neuron would have been, and a bias is a constant"
    elif clamp.positions != "all":
        reason = f"positions {clamp.positions!r} are some of a text's, and weights act on every token"
    elif clamp.exclude_special:
        reason = "exclude_special spares some tokens, and weights act on every one"
    if reason:
        raise UserError(f"{clamp}: cannot be baked: {reason}; bake takes a set at up for all positions, or clamp at run time")


def _source(
    checkpoint: Checkpoint, path: params_lib.Path, shape: tuple[int, ...], held: dict[int, dict[int, float]], dtype: Any
) -> Source:
    """One tensor of the baked model."""
    name = params_lib.hf_name(path)
    weight = params_lib.hf_name((*path[:-1], "weight"))
    kind = np.dtype(dtype or checkpoint.tensors[weight].dtype)
    is_up = path[0] == "layers" and path[3] == "up_proj"
    values = held.get(int(path[1]), {}) if is_up else {}

    def rows(start: int, stop: int) -> np.ndarray:
        if name in checkpoint.tensors:
            block = checkpoint.read(name, (slice(start, stop),), dtype=kind)
        else:
            block = np.zeros((stop - start, *shape[1:]), kind)
        for neuron, value in values.items():
            if start <= neuron < stop:
                block[neuron - start] = value if path[-1] == "bias" else 0
        return block

    with np.errstate(over="ignore"):
        if beyond := [neuron for neuron, value in values.items() if not np.isfinite(np.array(value).astype(kind))]:
            raise UserError(f"L{path[1]}/N{beyond[0]}: {values[beyond[0]]} is beyond {kind.name}; choose another dtype")
    return Source(name, shape, kind, rows)

"""Low-rank adapters (LoRA, arXiv 2106.09685): W x + (alpha / rank) B A x, with A and B alone trained.

An adapter's leaves lie beside the weight that they adapt, so `jaxllm.model` runs the tree as it is, and the gradient of a full
weight never exists. Files are those of Hugging Face's PEFT.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from safetensors.numpy import save_file

from jaxllm import params as tree
from jaxllm import sharding
from jaxllm.config import Config, read_json
from jaxllm.errors import UserError
from jaxllm.folder import read_header
from jaxllm.params import Params, Spec
from jaxllm.save import new_folder

# Linear layer -> the part of the block that holds it.
PARTS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which layers have an adapter, and how large it is."""

    rank: int = 16
    alpha: float = 32.0  # the adapter's product is scaled by alpha / rank
    targets: tuple[str, ...] = tuple(PARTS)

    def __post_init__(self) -> None:
        unknown = [name for name in self.targets if name not in PARTS]
        if unknown or not self.targets:
            raise UserError(f"no layer can be adapted by the name {unknown or self.targets}; there are {', '.join(PARTS)}")
        if self.rank < 1 or not (math.isfinite(self.alpha) and self.alpha > 0):
            raise UserError(f"rank must be at least 1 and alpha positive, found {self.rank} and {self.alpha}")

    @property
    def scale(self) -> float:
        """What multiplies B A."""
        return self.alpha / self.rank


def table(cfg: Config, lora: Lora, *, stacked: bool = False) -> dict[tree.Path, Spec]:
    """Shape, logical axes and initialiser of every leaf: A normal, B zero, so that an adapter begins without effect."""
    specs = {}
    for path, spec in tree.table(cfg, stacked=stacked).items():
        if path[-1] == "weight" and path[-2] in lora.targets:
            (*lead, O, I), (*axes, out, into) = spec.shape, spec.axes  # noqa: E741
            specs[*path[:-1], "lora_a"] = Spec((*lead, lora.rank, I), (*axes, None, into), "normal")
            specs[*path[:-1], "lora_b"] = Spec((*lead, O, lora.rank), (*axes, out, None), "zeros")
    return specs


def init(key: jax.Array, cfg: Config, lora: Lora, *, stacked: bool = False, mesh: Mesh | None = None) -> Params:
    """New adapters in float32: A normal with variance 1 / in, B zero. On a mesh they are split as the weights are."""
    leaves = {}
    for i, (path, spec) in enumerate(table(cfg, lora, stacked=stacked).items()):
        leaf = jnp.zeros(spec.shape)
        if spec.init == "normal":
            leaf = jax.random.normal(jax.random.fold_in(key, i), spec.shape) / math.sqrt(spec.shape[-1])
        leaves[path] = leaf
    return jax.device_put(_nested(leaves), shardings(cfg, lora, mesh, stacked=stacked))


def shardings(cfg: Config, lora: Lora, mesh: Mesh | None, *, stacked: bool = False) -> Params:
    """The tree of adapters with the placement of each leaf; without a mesh, the default device."""

    def place(spec: Spec) -> Any:
        if mesh is None:
            return SingleDeviceSharding(jax.devices()[0])
        return NamedSharding(mesh, sharding.spec_for(spec.axes, spec.shape, mesh, cfg))

    return _nested({path: place(spec) for path, spec in table(cfg, lora, stacked=stacked).items()})


def attach(params: Params, adapters: Params, lora: Lora) -> Params:
    """The model with its adapters beside the weights, in their dtype; differentiable in ``adapters`` alone, for `rl.policy`."""
    return beside(jax.tree.map(jax.lax.stop_gradient, params), adapters, lora)


def beside(params: Params, adapters: Params, lora: Lora) -> Params:
    """The same for a sampler; the weights are the very arrays of ``params``."""
    return _joined(params, _map(adapters, lambda name, leaf: leaf * lora.scale if name == "lora_b" else leaf))


def merge(params: Params, adapters: Params, lora: Lora) -> Params:
    """W + (alpha / rank) B A in every adapted layer, added in float32 and cast to the dtype of W; no adapter is left."""

    def walk(node: Any, beside: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "lora_a" in beside:
            product = jnp.matmul(beside["lora_b"], beside["lora_a"], preferred_element_type=jnp.float32) * lora.scale
            return {**node, "weight": (node["weight"].astype(jnp.float32) + product).astype(node["weight"].dtype)}
        return {key: walk(child, beside[key]) if key in beside else child for key, child in node.items()}

    return walk(params, adapters)


def save_peft(adapters: Params, lora: Lora, folder: Path, *, base: str = "") -> None:
    """Writes adapters (stacked or not) as PEFT does: adapter_config.json and adapter_model.safetensors, in float32.

    Raises UserError if the folder is in use.
    """
    layers = adapters["layers"] if 0 in adapters["layers"] else tree.unstack(adapters)["layers"]
    tensors = {}
    for number, block in layers.items():
        for part, linears in block.items():
            for linear, leaves in linears.items():
                for name, leaf in leaves.items():
                    key = f"base_model.model.model.layers.{number}.{part}.{linear}.lora_{name[-1].upper()}.weight"
                    tensors[key] = np.ascontiguousarray(leaf, np.float32)
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": list(lora.targets),
        "task_type": "CAUSAL_LM",
    }
    with new_folder(folder, sum(tensor.nbytes for tensor in tensors.values())) as partial:
        save_file(tensors, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_peft(folder: Path, cfg: Config) -> tuple[Params, Lora]:
    """Adapters in the unstacked form, float32, and their sizes.

    Raises:
      UserError: no such files, another kind of adapter, or tensors that do not belong to a model of ``cfg``.
    """
    config = read_json(folder / CONFIG_FILE)
    wanted = {"peft_type": "LORA", "bias": "none", "fan_in_fan_out": False, "use_dora": False, "use_rslora": False}
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise UserError(f"{folder / CONFIG_FILE}: {key} {config[key]!r} is not supported, only {value!r}")
    try:
        lora = Lora(int(config["r"]), float(config["lora_alpha"]), tuple(config["target_modules"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / CONFIG_FILE}: r, lora_alpha or target_modules is missing or wrong ({error})") from error
    found = read_header(folder / WEIGHTS_FILE)
    leaves = {}
    for path, spec in table(cfg, lora).items():
        _, number, part, linear, name = path
        key = f"base_model.model.model.layers.{number}.{part}.{linear}.lora_{str(name)[-1].upper()}.weight"
        if key not in found or found[key].shape != spec.shape:
            shape = found[key].shape if key in found else "absent"
            raise UserError(f"{folder / WEIGHTS_FILE}: {key} is {shape}; the model needs {spec.shape}")
        info = found.pop(key)
        flat = np.fromfile(info.file, info.dtype, count=math.prod(spec.shape), offset=info.offset)
        leaves[path] = jnp.asarray(flat.reshape(spec.shape).astype(np.float32))
    if found:
        raise UserError(f"{folder / WEIGHTS_FILE}: unknown tensors {', '.join(sorted(found)[:3])}")
    return _nested(leaves), lora


def _nested(leaves: dict[tree.Path, Any]) -> Params:
    root: Params = {}
    for path, leaf in leaves.items():
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return root


def _map(node: Any, function: Any, name: Any = None) -> Any:
    return {key: _map(child, function, key) for key, child in node.items()} if isinstance(node, dict) else function(name, node)


def _joined(node: Params, beside: Params) -> Params:
    joined = dict(node)
    for key, child in beside.items():
        joined[key] = _joined(node[key], child) if isinstance(child, dict) else child.astype(node["weight"].dtype)
    return joined

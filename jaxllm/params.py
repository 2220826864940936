"""One table of parameters, from which abstract shapes, shardings, random init and loading all follow.

A parameter tree is a plain nested dict. A path in it is the tensor's Hugging Face name split at the dots, without the leading
``model``: ``("layers", 3, "mlp", "up_proj", "weight")``. Layer numbers are ints. In the *stacked* form (for ``lax.scan``) the
layer number is absent and each leaf has a leading axis L. Matrices keep the orientation on disk, ``(out, in)``.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxllm.config import Config

Path = tuple[str | int, ...]
Params = dict[Any, Any]
Adapters = tuple[tuple[str, str, int], ...]  # (part of the block, linear layer, rank) of each low-rank adapter

INIT_STD = 0.02


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is known of one tensor before it is read."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # logical name of each axis; `jaxllm.sharding` maps names to mesh axes
    init: Literal["normal", "ones", "zeros"]


def table(cfg: Config, *, stacked: bool = False) -> dict[Path, Spec]:
    """All parameters of a model, in file order. A tied model has no ``lm_head``."""
    D, F, V = cfg.hidden_size, cfg.intermediate_size, cfg.vocab_size
    heads, kv_heads = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    block = {
        ("input_layernorm", "weight"): Spec((D,), ("norm",), "ones"),
        ("self_attn", "q_proj", "weight"): Spec((heads, D), ("heads", "embed"), "normal"),
        ("self_attn", "k_proj", "weight"): Spec((kv_heads, D), ("kv_heads", "embed"), "normal"),
        ("self_attn", "v_proj", "weight"): Spec((kv_heads, D), ("kv_heads", "embed"), "normal"),
        ("self_attn", "o_proj", "weight"): Spec((D, heads), ("embed", "heads"), "normal"),
        ("post_attention_layernorm", "weight"): Spec((D,), ("norm",), "ones"),
        ("mlp", "gate_proj", "weight"): Spec((F, D), ("mlp", "embed"), "normal"),
        ("mlp", "up_proj", "weight"): Spec((F, D), ("mlp", "embed"), "normal"),
        ("mlp", "down_proj", "weight"): Spec((D, F), ("embed", "mlp"), "normal"),
    }
    if cfg.mlp_bias:
        block["mlp", "gate_proj", "bias"] = Spec((F,), ("mlp",), "zeros")
        block["mlp", "up_proj", "bias"] = Spec((F,), ("mlp",), "zeros")
        block["mlp", "down_proj", "bias"] = Spec((D,), ("norm",), "zeros")
    specs: dict[Path, Spec] = {("embed_tokens", "weight"): Spec((V, D), ("vocab", "embed"), "normal")}
    if stacked:
        for path, s in block.items():
            specs["layers", *path] = Spec((cfg.num_hidden_layers, *s.shape), ("layers", *s.axes), s.init)
    else:
        for layer in range(cfg.num_hidden_layers):
            specs.update({("layers", layer, *path): s for path, s in block.items()})
    specs["norm", "weight"] = Spec((D,), ("norm",), "ones")
    if not cfg.tie_word_embeddings:
        specs["lm_head", "weight"] = Spec((V, D), ("vocab", "embed"), "normal")
    return specs


def hf_name(path: Path) -> str:
    """The tensor's name in a Hugging Face checkpoint, for a path of the unstacked form."""
    return ".".join(map(str, path if path[0] == "lm_head" else ("model", *path)))


def build(cfg: Config, leaf: Callable[[Path, Spec], Any], *, stacked: bool = False) -> Params:
    """The parameter tree whose leaf at each path of `table` is ``leaf(path, spec)``."""
    tree: Params = {}
    for path, spec in table(cfg, stacked=stacked).items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf(path, spec)
    return tree


def count(cfg: Config) -> int:
    """Number of parameters; a tied head is counted once."""
    return sum(math.prod(spec.shape) for spec in table(cfg, stacked=True).values())


def abstract(cfg: Config, dtype: Any = jnp.float32, *, stacked: bool = False) -> Params:
    """The tree of ``jax.ShapeDtypeStruct``, without any memory."""
    return build(cfg, lambda _, spec: jax.ShapeDtypeStruct(spec.shape, dtype), stacked=stacked)


def init(
    key: jax.Array, cfg: Config, dtype: Any = jnp.float32, *, stacked: bool = False, std: float | None = INIT_STD
) -> Params:
    """Random parameters: normal for matrices, ones for norm gains, zeros for biases.

    The standard deviation is ``std``, or with None one over the root of a matrix's input width (LeCun et al., 1998): narrow
    models, whose signals 0.02 would all but switch off, learn several times faster from it.

    Each leaf's key is folded with its position in the table, so one leaf can be made without the others. Stacked and unstacked
    trees of one key differ.
    """
    order = {path: i for i, path in enumerate(table(cfg, stacked=stacked))}

    def leaf(path: Path, spec: Spec) -> jax.Array:
        if spec.init != "normal":
            return jnp.full(spec.shape, spec.init == "ones", dtype)
        noise = jax.random.normal(jax.random.fold_in(key, order[path]), spec.shape, jnp.float32)
        return ((spec.shape[-1] ** -0.5 if std is None else std) * noise).astype(dtype)

    return build(cfg, leaf, stacked=stacked)


def stack(params: Params) -> Params:
    """Unstacked to stacked form: each per-layer leaf gains a leading axis L."""
    layers = params["layers"]
    return {**params, "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[i] for i in range(len(layers))))}


def unstack(params: Params) -> Params:
    """Stacked to unstacked form: ``layers`` becomes a dict from layer number to the block's tree."""
    layers = params["layers"]
    num_layers = jax.tree.leaves(layers)[0].shape[0]
    return {**params, "layers": {i: jax.tree.map(lambda leaf, i=i: leaf[i], layers) for i in range(num_layers)}}


def adapters(params: Params) -> Adapters:
    """The low-rank adapters in a tree, as ``lora_a`` (rank, in) and ``lora_b`` (out, rank) beside a weight."""
    layers = params["layers"]
    block = layers.get(0, layers)
    return tuple(
        (part, linear, leaves["lora_a"].shape[-2])
        for part in ("self_attn", "mlp")
        for linear, leaves in sorted(block[part].items())
        if "lora_a" in leaves
    )


def head(params: Params) -> jax.Array:
    """The LM head, ``[V, D]``: its own tensor, or the embedding of a tied model."""
    return params["lm_head"]["weight"] if "lm_head" in params else params["embed_tokens"]["weight"]

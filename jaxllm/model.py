"""The Llama as `flax.nnx` modules, and the pure functions that compiled code calls.

Attribute paths of the modules equal the paths of `jaxllm.params`. The modules are made abstractly, once per shape; a compiled
function takes the parameters as a plain nested dict and merges them with this static definition while it is traced, so that a
call costs the host no more than flattening a dict.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm import cache as kv
from jaxllm import params as tree
from jaxllm import rope
from jaxllm.config import Config
from jaxllm.params import Params

Rotation = tuple[jax.Array, jax.Array]  # cosines and sines, each [B, T, C/2] float32
KeysValues = tuple[jax.Array, jax.Array]  # one layer of the cache, each [B, S, K, C]


class Linear(nnx.Module):
    """``y = W x`` without bias; W is ``(out, in)``, as on disk."""

    def __init__(self, out_features: int, in_features: int):
        self.weight = nnx.Param(jnp.zeros((out_features, in_features)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.einsum("...i,oi->...o", x, self.weight[...])


class RMSNorm(nnx.Module):
    """``x / rms(x)`` in float32, cast to the compute dtype, then times the gain."""

    def __init__(self, features: int, eps: float):
        self.weight = nnx.Param(jnp.ones((features,)))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype) * self.weight[...]


class Attention(nnx.Module):
    """Causal attention in which query head i reads key/value head ``i // (H / K)``."""

    def __init__(self, cfg: Config):
        D, C, H, K = cfg.hidden_size, cfg.head_dim, cfg.num_attention_heads, cfg.num_key_value_heads
        self.cfg = cfg
        self.q_proj = Linear(H * C, D)
        self.k_proj = Linear(K * C, D)
        self.v_proj = Linear(K * C, D)
        self.o_proj = Linear(D, H * C)

    def __call__(
        self, x: jax.Array, rotation: Rotation, mask: jax.Array, held: KeysValues | None, at: jax.Array | None
    ) -> tuple[jax.Array, KeysValues | None]:
        B, T, _ = x.shape
        C = self.cfg.head_dim
        with jax.named_scope("qkv"):
            q = rope.rotate(self.q_proj(x).reshape(B, T, -1, C), *rotation)
            k = rope.rotate(self.k_proj(x).reshape(B, T, -1, C), *rotation)
            v = self.v_proj(x).reshape(B, T, -1, C)
        if held is not None:
            with jax.named_scope("cache"):
                held = k, v = kv.write(held[0], k, at), kv.write(held[1], v, at)
        with jax.named_scope("attend"):
            out = _attend_one(q, k, v, mask) if T == 1 else _attend(q, k, v, mask)
        with jax.named_scope("o_proj"):
            return self.o_proj(out.reshape(B, T, -1)), held


class MLP(nnx.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, cfg: Config):
        D, F = cfg.hidden_size, cfg.intermediate_size
        self.gate_proj = Linear(F, D)
        self.up_proj = Linear(F, D)
        self.down_proj = Linear(D, F)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nnx.Module):
    """One pre-norm residual layer."""

    def __init__(self, cfg: Config):
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg)

    def __call__(
        self,
        x: jax.Array,
        rotation: Rotation,
        mask: jax.Array,
        held: KeysValues | None = None,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, KeysValues | None]:
        """Residual stream [B, T, D] in and out; ``held`` is this layer's part of the cache and ``at`` the slots to write."""
        with jax.named_scope("self_attn"):
            attended, held = self.self_attn(self.input_layernorm(x), rotation, mask, held, at)
            x = x + attended
        with jax.named_scope("mlp"):
            return x + self.mlp(self.post_attention_layernorm(x)), held


class Embedding(nnx.Module):
    """Row v is the vector of token v."""

    def __init__(self, vocab_size: int, features: int):
        self.weight = nnx.Param(jnp.zeros((vocab_size, features)))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.weight[...], tokens, axis=0, mode="clip")


class Llama(nnx.Module):
    """The whole model up to the final norm; a head of its own is held for untied models.

    In the stacked form ``layers`` is a single `Block` whose every leaf has a leading axis L, run by ``lax.scan``.
    """

    def __init__(self, cfg: Config, *, stacked: bool = False):
        self.cfg = cfg
        self.stacked = stacked
        self.embed_tokens = Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = Block(cfg) if stacked else nnx.List([Block(cfg) for _ in range(cfg.num_hidden_layers)])
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        if not cfg.tie_word_embeddings:
            self.lm_head = Linear(cfg.vocab_size, cfg.hidden_size)

    def __call__(
        self, tokens: jax.Array, *, lengths: jax.Array | None, cache: kv.KVCache | None, remat: bool
    ) -> tuple[jax.Array, kv.KVCache | None]:
        """See `forward`."""
        T = tokens.shape[1]
        steps = jnp.arange(T, dtype=jnp.int32)[None]
        if cache is None:
            positions, at = steps, None
            mask = kv.mask(positions, T)
        else:
            positions = cache.lengths[:, None] + steps
            count = jnp.full_like(cache.lengths, T) if lengths is None else lengths
            at = kv.slots(cache, positions, steps < count[:, None])
            mask = kv.mask(positions, cache.size)
        rotation = rope.angles(self.cfg, positions)
        with jax.named_scope("embed_tokens"):
            x = self.embed_tokens(tokens)
        if self.stacked:
            x = _scan(self.layers, x, rotation, mask, remat)
        else:
            keys, values = [], []
            for i, block in enumerate(self.layers):
                with jax.named_scope(f"layers.{i}"):
                    if cache is None:
                        x, _ = _maybe_remat(block, remat)(x, rotation, mask)
                    else:
                        x, held = block(x, rotation, mask, (cache.k[i], cache.v[i]), at)
                        keys.append(held[0])
                        values.append(held[1])
            if cache is not None:
                cache = kv.KVCache(k=tuple(keys), v=tuple(values), lengths=cache.lengths + count)
        with jax.named_scope("norm"):
            return self.norm(x), cache


def _scan(layers: Block, x: jax.Array, rotation: Rotation, mask: jax.Array, remat: bool) -> jax.Array:
    definition, state = nnx.split(layers)

    def body(x: jax.Array, leaves: Params) -> tuple[jax.Array, None]:
        return nnx.merge(definition, leaves)(x, rotation, mask)[0], None

    return jax.lax.scan(_maybe_remat(body, remat), x, nnx.to_pure_dict(state))[0]


def _maybe_remat(function, remat: bool):
    return jax.checkpoint(function, policy=jax.checkpoint_policies.nothing_saveable) if remat else function


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Queries [B, T, H, C] on keys and values [B, S, K, C]; mask [B, 1, T, S]; returns [B, T, H, C]."""
    return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation="xla")


def _attend_one(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """`_attend` for T = 1, where the time goes into reading the cache once."""
    B, _, H, C = q.shape
    K = k.shape[2]
    grouped = q.reshape(B, K, H // K, C)
    scores = jnp.einsum("bkgc,bskc->bkgs", grouped, k, preferred_element_type=jnp.float32) / math.sqrt(C)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgs,bskc->bkgc", weights, v).reshape(B, 1, H, C)


@functools.lru_cache
def definition(cfg: Config, *, stacked: bool = False) -> nnx.GraphDef[Llama]:
    """The model's static part: ``nnx.merge(definition(cfg), params)`` is a `Llama`."""
    return nnx.split(nnx.eval_shape(lambda: Llama(cfg, stacked=stacked)))[0]


def forward(
    params: Params,
    cfg: Config,
    tokens: jax.Array,
    *,
    lengths: jax.Array | None = None,
    cache: kv.KVCache | None = None,
    remat: bool = False,
):
    """Hidden states after the final norm, ``[B, T, D]`` in the dtype of the parameters; the head is `logits`.

    Without a cache each row is a text from its first token; what is to the right of a token never matters to it, so rows
    padded on the right need no lengths. With a cache each row continues where it stands: the result is ``(hidden, cache)``.

    Args:
      params: parameters as of `jaxllm.params.table`, stacked (scanned) or not (unrolled); both give the same values.
      tokens: ids ``[B, T]`` int32.
      lengths: with a cache only, ``[B]`` int32: how many of the T tokens of each row are real. The others, on the right, are
        not written, and a row with 0 keeps its cache. Default: all T.
      cache: keys and values of the tokens before; needs unstacked parameters.
      remat: recompute each layer in the backward pass instead of keeping its activations.
    """
    stacked = 0 not in params["layers"]
    if cache is not None and stacked:
        raise ValueError("a cache needs unstacked parameters: use jaxllm.params.unstack")
    model = nnx.merge(definition(cfg, stacked=stacked), params)
    hidden, cache = model(tokens, lengths=lengths, cache=cache, remat=remat)
    return hidden if cache is None else (hidden, cache)


def logits(params: Params, hidden: jax.Array) -> jax.Array:
    """Next-token logits ``[..., V]`` float32 of hidden states ``[..., D]``, accumulated in float32."""
    with jax.named_scope("lm_head"):
        return jnp.einsum("...d,vd->...v", hidden, tree.head(params), preferred_element_type=jnp.float32)

"""The Llama as `flax.nnx` modules, and the pure functions that compiled code calls.

Attribute paths of the modules equal the paths of `jaxllm.params`. The modules are made abstractly, once per shape; a compiled
function takes the parameters as a plain nested dict and merges them with this static definition while it is traced, so that a
call costs the host no more than flattening a dict.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from jaxllm import cache as kv
from jaxllm import clamp as clamps
from jaxllm import params as tree
from jaxllm import record as records
from jaxllm import rope
from jaxllm.clamp import Clamp
from jaxllm.config import Config
from jaxllm.params import Params
from jaxllm.record import Neurons, Recorded
from jaxllm.sharding import constrain

KeysValues = tuple[jax.Array, jax.Array]  # one layer of the cache, each [B, K, S, C]

FEW_ROWS = 16  # up to here a product on CPU is a matter of reading the weights
QUERIES, PIECES = 128, 8  # without a cache queries attend in up to so many pieces of at least so many
ATTENDED = "attended"


@dataclasses.dataclass(frozen=True)
class Context:
    """What all layers share in one call."""

    positions: jax.Array  # [B, T] int32, of each token in its row's text (B may be 1)
    rotation: tuple[jax.Array, jax.Array]  # cosines and sines, each [B, T, C/2] float32 (B may be 1)
    mask: jax.Array | None  # [B, 1, T, S] bool, the keys in a cache that each query may read; None without one
    at: jax.Array | None  # [B, T] int32, the slots of the cache to write; None without a cache
    mesh: Mesh | None  # splits the activations; None on one device
    segments: jax.Array | None = None  # [B, T] int32, the text of each token; None where a row is one text
    clamp: clamps.Acting | None = None  # what to change in the MLPs; None for nothing
    record: Neurons | None = None  # what to read in the MLPs; None for nothing


def project(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x`` [..., I] times the transpose of ``weight`` [O, I], ``[..., O]``, accumulated in and returned as float32.

    XLA on CPU is slow at small products with the weights on the right and, in bfloat16, at a single row: there the weights go
    on the left, and a single row is doubled. Of many rows it transposes the gradient slowly unless they are one axis.
    """
    if jax.default_backend() != "cpu":
        return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=jnp.float32)
    rows = math.prod(x.shape[:-1])
    flat = x.reshape(rows, -1)
    if rows > FEW_ROWS or (rows == 1 and weight.dtype == jnp.float32):
        return jnp.einsum("ni,oi->no", flat, weight, preferred_element_type=jnp.float32).reshape(*x.shape[:-1], -1)
    if rows == 1:
        flat = jnp.concatenate([flat, flat])
    columns = jnp.einsum("oi,bi->ob", weight, flat, preferred_element_type=jnp.float32)
    # Without the barrier the compiler turns the product around again.
    return jax.lax.optimization_barrier(columns).T[:rows].reshape(*x.shape[:-1], -1)


class Linear(nnx.Module):
    """``y = W x``, or ``y = W x + b``; W is ``(out, in)``, as on disk. An adapter adds ``B A x`` of low rank (LoRA)."""

    def __init__(self, out_features: int, in_features: int, *, bias: bool = False):
        self.weight = nnx.Param(jnp.zeros((out_features, in_features)))
        if bias:
            self.bias = nnx.Param(jnp.zeros((out_features,)))

    def adapt(self, rank: int) -> None:
        """Makes room for an adapter; its parameters are ``lora_a`` (rank, in) and ``lora_b`` (out, rank)."""
        out_features, in_features = self.weight[...].shape
        self.lora_a = nnx.Param(jnp.zeros((rank, in_features)))
        self.lora_b = nnx.Param(jnp.zeros((out_features, rank)))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = project(x, self.weight[...])
        if hasattr(self, "lora_a"):
            y = y + project(project(x, self.lora_a[...]).astype(x.dtype), self.lora_b[...])
        return (y + self.bias[...] if hasattr(self, "bias") else y).astype(x.dtype)


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

    def __call__(self, x: jax.Array, ctx: Context, held: KeysValues | None) -> tuple[jax.Array, KeysValues | None]:
        B, T, _ = x.shape
        C = self.cfg.head_dim
        split = functools.partial(constrain, mesh=ctx.mesh)
        with jax.named_scope("qkv"):
            q = split(self.q_proj(x).reshape(B, T, -1, C), "batch", "length", "heads", None)
            k = split(self.k_proj(x).reshape(B, T, -1, C), "batch", "length", "kv_heads", None)
            v = split(self.v_proj(x).reshape(B, T, -1, C), "batch", "length", "kv_heads", None)
            q, k = rope.rotate(q, *ctx.rotation), rope.rotate(k, *ctx.rotation)
        if held is not None and ctx.at is not None:
            with jax.named_scope("cache"):
                k = split(kv.write(held[0], k, ctx.at), "batch", "kv_heads", "length", None)
                v = split(kv.write(held[1], v, ctx.at), "batch", "kv_heads", "length", None)
                held = k, v
        else:
            k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        with jax.named_scope("attend"):
            out = _causal(q, k, v, ctx.segments) if ctx.mask is None else _attend(q, k, v, ctx.mask)
            out = checkpoint_name(split(out, "batch", "length", "heads", None), ATTENDED)
        with jax.named_scope("o_proj"):
            return self.o_proj(out.reshape(B, T, -1)), held


class MLP(nnx.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, cfg: Config):
        D, F = cfg.hidden_size, cfg.intermediate_size
        self.gate_proj = Linear(F, D, bias=cfg.mlp_bias)
        self.up_proj = Linear(F, D, bias=cfg.mlp_bias)
        self.down_proj = Linear(D, F, bias=cfg.mlp_bias)

    def __call__(
        self, x: jax.Array, ctx: Context, layer: jax.typing.ArrayLike, recorded: Recorded | None
    ) -> tuple[jax.Array, Recorded | None]:
        gate, up = self.gate_proj(x), self.up_proj(x)
        gate, up, hidden = clamps.in_layer(ctx.clamp, layer, _activate, gate, up)
        if ctx.record is not None and recorded is not None:
            recorded = records.fill(recorded, ctx.record, layer, gate, up, hidden)
        return self.down_proj(constrain(hidden, "batch", "length", "mlp", mesh=ctx.mesh)), recorded


def _activate(clamped: Callable[[str, jax.Array], jax.Array], gate: jax.Array, up: jax.Array) -> tuple[jax.Array, ...]:
    """The gate's projection, up's, and what the down-projection reads, ``[B, T, F]`` each, each passed through ``clamped``."""
    gate, up = clamped("gate_pre", gate), clamped("up", up)
    return gate, up, clamped("product", clamped("gate_act", jax.nn.silu(gate)) * up)


class Block(nnx.Module):
    """One pre-norm residual layer."""

    def __init__(self, cfg: Config, adapters: tree.Adapters = ()):
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg)
        for part, linear, rank in adapters:
            getattr(getattr(self, part), linear).adapt(rank)

    def __call__(
        self,
        x: jax.Array,
        ctx: Context,
        held: KeysValues | None = None,
        layer: jax.typing.ArrayLike = 0,
        recorded: Recorded | None = None,
    ) -> tuple[jax.Array, KeysValues | None, Recorded | None]:
        """Residual stream [B, T, D] in and out; ``held`` is this layer's part of the cache, ``layer`` its number.

        ``recorded`` is what `Context.record` asks for, as far as the layers have come.
        """
        with jax.named_scope("self_attn"):
            attended, held = self.self_attn(self.input_layernorm(x), ctx, held)
            x = x + attended
        with jax.named_scope("mlp"):
            added, recorded = self.mlp(self.post_attention_layernorm(x), ctx, layer, recorded)
            x = x + added
        return constrain(x, "batch", "length", "width", mesh=ctx.mesh), held, recorded


class Embedding(nnx.Module):
    """Row v is the vector of token v."""

    def __init__(self, vocab_size: int, features: int):
        self.weight = nnx.Param(jnp.zeros((vocab_size, features)))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        weight = self.weight[...]
        if jax.default_backend() == "cpu":
            # XLA looks up bfloat16 by way of float32; without the barrier it keeps a whole float32 table around a loop.
            weight, tokens = jax.lax.optimization_barrier((weight, tokens))
        return jnp.take(weight, tokens, axis=0, mode="clip")


class Llama(nnx.Module):
    """The whole model up to the final norm; a head of its own is held for untied models.

    In the stacked form ``layers`` is a single `Block` whose every leaf has a leading axis L, run by ``lax.scan``.
    """

    def __init__(self, cfg: Config, *, stacked: bool = False, adapters: tree.Adapters = ()):
        self.cfg = cfg
        self.stacked = stacked
        self.embed_tokens = Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers: Any = (
            Block(cfg, adapters) if stacked else nnx.List([Block(cfg, adapters) for _ in range(cfg.num_hidden_layers)])
        )
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        if not cfg.tie_word_embeddings:
            self.lm_head = Linear(cfg.vocab_size, cfg.hidden_size)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        lengths: jax.Array | None = None,
        cache: kv.KVCache | None = None,
        remat: bool = False,
        mesh: Mesh | None = None,
        clamp: Clamp | None = None,
        prompt_lengths: jax.Array | None = None,
        record: Neurons | None = None,
        last_layer: int | None = None,
        segments: jax.Array | None = None,
    ) -> tuple[jax.Array, kv.KVCache | None, Recorded | None]:
        """See `forward`."""
        T = tokens.shape[1]
        ctx = self.context(T, lengths, cache, mesh) if segments is None else self.packed_context(segments, mesh)
        if prompt_lengths is None:
            prompt_lengths = jnp.full((1,), T) if lengths is None else lengths
        ctx = dataclasses.replace(ctx, clamp=clamps.acting(clamp, tokens, ctx.positions, prompt_lengths), record=record)
        recorded = None if record is None else records.blank(record, *tokens.shape)
        x = self.embed(tokens, mesh)
        count = self.cfg.num_hidden_layers if last_layer is None else last_layer + 1
        if self.stacked:
            x, recorded = _scan(self.layers, x, recorded, ctx, remat, count)
        elif cache is None:
            for i, block in enumerate(self.layers[:count]):
                with jax.named_scope(f"layers.{i}"):
                    run = functools.partial(_run, block, ctx, i)
                    x, recorded = _rematerialised(run, remat)(x, recorded)
        else:
            keys, values = [], []
            for i, (block, *held) in enumerate(zip(self.layers, cache.k, cache.v, strict=True)):
                with jax.named_scope(f"layers.{i}"):
                    x, (k, v), recorded = block(x, ctx, tuple(held), i, recorded)
                keys.append(k)
                values.append(v)
            cache = kv.KVCache(k=tuple(keys), v=tuple(values), lengths=cache.lengths + (T if lengths is None else lengths))
        with jax.named_scope("norm"):
            return self.norm(x), cache, recorded

    def embed(self, tokens: jax.Array, mesh: Mesh | None = None) -> jax.Array:
        """The residual stream before the first layer, ``[B, T, D]``."""
        with jax.named_scope("embed_tokens"):
            return constrain(self.embed_tokens(tokens), "batch", "length", "width", mesh=mesh)

    def context(
        self, T: int, lengths: jax.Array | None = None, cache: kv.KVCache | None = None, mesh: Mesh | None = None
    ) -> Context:
        """Angles, mask and slots for T more tokens of each row."""
        steps = jnp.arange(T, dtype=jnp.int32)[None]
        if cache is None:
            return Context(steps, rope.angles(self.cfg, steps), None, None, mesh)
        positions = cache.lengths[:, None] + steps
        real = jnp.full_like(positions, True, bool) if lengths is None else steps < lengths[:, None]
        at = kv.slots(cache, positions, real)
        return Context(positions, rope.angles(self.cfg, positions), kv.mask(positions, cache.size), at, mesh)

    def packed_context(self, segments: jax.Array, mesh: Mesh | None = None) -> Context:
        """Angles for rows of several texts, ``segments`` [B, T]: each begins at position 0 and reads itself alone."""
        steps = jnp.arange(segments.shape[1], dtype=jnp.int32)[None]
        begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
        positions = steps - jax.lax.cummax(jnp.where(begins, steps, 0), axis=1)
        return Context(positions, rope.angles(self.cfg, positions), None, None, mesh, segments)


def _run(
    block: Block, ctx: Context, layer: jax.typing.ArrayLike, x: jax.Array, recorded: Recorded | None
) -> tuple[jax.Array, Recorded | None]:
    """One layer without a cache."""
    x, _, recorded = block(x, ctx, None, layer, recorded)
    return x, recorded


def _scan(
    layers: Block, x: jax.Array, recorded: Recorded | None, ctx: Context, remat: bool, count: int
) -> tuple[jax.Array, Recorded | None]:
    definition, state = nnx.split(layers)
    leaves = jax.tree.map(lambda leaf: leaf[:count], nnx.to_pure_dict(state))

    def body(carry: tuple[jax.Array, Recorded | None], scanned: tuple[Params, jax.Array]) -> Any:
        leaves, layer = scanned
        return _run(nnx.merge(definition, leaves), ctx, layer, *carry), None

    # On a CPU XLA's loops copy each layer's weights, and into zeroed stacks what the backward pass keeps of it. Without a loop
    # a step is quicker. With `remat`, where memory counts more, a loop it is.
    unroll = count if jax.default_backend() == "cpu" and not remat else 1
    return jax.lax.scan(_rematerialised(body, remat), (x, recorded), (leaves, jnp.arange(count)), unroll=unroll)[0]


def _rematerialised(function: Callable, remat: bool) -> Callable:
    """A layer that keeps for its backward pass nothing but its input, or else what matrix products with weights made of it.

    All that lies between the products is cheaper to compute again than to write to memory and read back.
    """
    policies = jax.checkpoint_policies
    products = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(ATTENDED)
    )
    return jax.checkpoint(function, policy=policies.nothing_saveable if remat else products)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Queries [B, T, H, C] on keys and values [B, K, S, C]; mask [B, 1, T, S]; returns [B, T, H, C]."""
    B, T, H, C = q.shape
    K = k.shape[1]
    grouped = q.reshape(B, T, K, H // K, C)
    scores = jnp.einsum("btkgc,bksc->bkgts", grouped, k, preferred_element_type=jnp.float32) / math.sqrt(C)
    weights = jax.nn.softmax(jnp.where(mask[:, :, None], scores, -1e30), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bksc->bkgtc", weights, v).transpose(0, 3, 1, 2, 4).reshape(B, T, H, C)


def _causal(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> jax.Array:
    """Queries [B, T, H, C] on their own and earlier keys and values [B, K, T, C] of the same text; returns [B, T, H, C].

    Queries go piece by piece, each on the keys up to its end, and in the backward pass again: probabilities exist for one piece
    at a time, and nearly half of them never.
    """
    T = q.shape[1]
    step = max(QUERIES, -(-T // PIECES))

    def piece(q: jax.Array, k: jax.Array, v: jax.Array, at: jax.Array | None, of: jax.Array | None) -> jax.Array:
        S = k.shape[2]
        mask = kv.mask(jnp.arange(S - q.shape[1], S)[None], S)
        if at is not None and of is not None:
            mask = mask & (at[:, None, :, None] == of[:, None, None, :])
        return _attend(q, k, v, mask)

    pieces = []
    for begin in range(0, T, step):
        end = min(begin + step, T)
        texts = (None, None) if segments is None else (segments[:, begin:end], segments[:, :end])
        pieces.append(jax.checkpoint(piece)(q[:, begin:end], k[:, :, :end], v[:, :, :end], *texts))
    return jnp.concatenate(pieces, axis=1)


@functools.lru_cache
def definition(cfg: Config, *, stacked: bool = False, adapters: tree.Adapters = ()) -> nnx.GraphDef[Llama]:
    """The model's static part: ``nnx.merge(definition(cfg), params)`` is a `Llama`."""
    return nnx.split(nnx.eval_shape(lambda: Llama(cfg, stacked=stacked, adapters=adapters)))[0]


def forward(
    params: Params,
    cfg: Config,
    tokens: jax.Array,
    *,
    lengths: jax.Array | None = None,
    cache: kv.KVCache | None = None,
    remat: bool = False,
    mesh: Mesh | None = None,
    clamp: Clamp | None = None,
    prompt_lengths: jax.Array | None = None,
    record: Neurons | None = None,
    last_layer: int | None = None,
    segments: jax.Array | None = None,
) -> Any:
    """Hidden states after the final norm, ``[B, T, D]`` in the dtype of the parameters; the head is `logits`.

    Without a cache each row is a text from its first token; what is to the right of a token never matters to it, so rows
    padded on the right need no lengths. With a cache each row continues where it stands: the result is ``(hidden, cache)``.
    With ``record`` what was read comes last: ``(hidden, recorded)`` or ``(hidden, cache, recorded)``.

    Args:
      params: parameters as of `jaxllm.params.table`, stacked (scanned) or not (unrolled); both give the same values. Low-rank
        adapters of any linear layer may stand beside its weight, in the same way in every layer.
      tokens: ids ``[B, T]`` int32.
      lengths: ``[B]`` int32: how many of the T tokens of each row are real. With a cache the others, on the right, are not
        written, and a row with 0 keeps its cache. Default: all T.
      cache: keys and values of the tokens before; needs unstacked parameters.
      remat: recompute each layer in the backward pass instead of keeping its activations.
      mesh: where the parameters live, if on a mesh of `jaxllm.sharding`; the activations are then split to match.
      clamp: what to hold or change in the MLPs, as of `jaxllm.clamp.make_clamp`; its arrays are traced.
      prompt_lengths: ``[B]`` int32, how many tokens of each row's whole text are its prompt, which the positions of a clamp are
        about. Without a cache the default is ``lengths``: all real tokens are prompt. With a cache a clamp needs it.
      record: which neurons to read, traced.
      last_layer: run the layers up to this one only, and the final norm on what they leave. Not with a cache.
      segments: ``[B, T]`` int32, where rows hold several texts side by side: a number for each text, the same at all of its
        tokens and another in the texts beside it. No text reads another. Not with a cache nor a clamp.
    Raises:
      ValueError: a cache with stacked parameters, with ``last_layer`` or ``segments``, or with a clamp and no
        ``prompt_lengths``; a clamp with ``segments``; a layer that does not exist.
      UserError: a clamp whose rows are neither 1 nor B.
    """
    stacked = 0 not in params["layers"]
    if cache is not None and stacked:
        raise ValueError("a cache needs unstacked parameters: use jaxllm.params.unstack")
    if cache is not None and clamp is not None and prompt_lengths is None:
        raise ValueError("a clamp with a cache needs prompt_lengths")
    if last_layer is not None and (cache is not None or not 0 <= last_layer < cfg.num_hidden_layers):
        raise ValueError(f"last_layer must be from 0 to {cfg.num_hidden_layers - 1}, without a cache; found {last_layer}")
    if segments is not None and (cache is not None or clamp is not None):
        raise ValueError("rows of several texts have neither a cache nor a clamp")
    model = nnx.merge(definition(cfg, stacked=stacked, adapters=tree.adapters(params)), params)
    hidden, cache, recorded = model(
        tokens,
        lengths=lengths,
        cache=cache,
        remat=remat,
        mesh=mesh,
        clamp=clamp,
        prompt_lengths=prompt_lengths,
        record=record,
        last_layer=last_layer,
        segments=segments,
    )
    results = tuple(part for part in (hidden, cache, recorded) if part is not None)
    return results if len(results) > 1 else hidden


def logits(params: Params, hidden: jax.Array, *, mesh: Mesh | None = None) -> jax.Array:
    """Next-token logits ``[..., V]`` float32 of hidden states ``[..., D]``, accumulated in float32."""
    with jax.named_scope("lm_head"):
        out = project(hidden, tree.head(params))
        return constrain(out, "batch", *[None] * (out.ndim - 2), "vocab", mesh=mesh)

"""What clamps do to the next token: all prompts, neurons and values in one batch, cut only for memory.

Below the first clamped layer a row is the plain model's, so each prompt goes through those layers once, and only what comes
after is computed for every row.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm import clamp as clamps
from jaxllm import model
from jaxllm.clamp import Clamp, NeuronClamp, make_clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params

BUCKET = 8  # prompts are padded to a multiple of this many tokens
LOGITS_BYTES = 64 << 20  # float32 logits of the rows that run together
NO_TOKEN = -1


@dataclasses.dataclass(frozen=True)
class Effects:
    """The next token of R rows, each a prompt under some clamps. A concept's probability is the sum over its tokens."""

    prompt: np.ndarray  # [R] int32, which prompt
    p: np.ndarray  # [R] float32, the concept's probability
    logit: np.ndarray  # [R] log of the summed exp of its tokens' logits
    rank: np.ndarray  # [R] int32, place of its best token among all, 1 for the most likely
    kl: np.ndarray  # [R] KL(plain || clamped) of the next-token distribution, in nats
    top: np.ndarray  # [R] int32, the most likely token


@dataclasses.dataclass(frozen=True)
class Effect:
    """The next token of one prompt, before and after."""

    p: tuple[float, float]  # of the concept: plain, clamped
    logit: tuple[float, float]
    rank: tuple[int, int]
    kl: float  # KL(plain || clamped), in nats


Row = tuple[int, Sequence[NeuronClamp]]  # index of a prompt, and the clamps that it runs under; none for the plain model


def effects(
    params: Params,
    cfg: Config,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Row],
    concept: Sequence[int],
    *,
    special_ids: Collection[int] = (),
    progress: Callable[[int], None] = lambda rows: None,
) -> Effects:
    """Runs every row up to its next token.

    Args:
      params: unstacked parameters.
      prompts: token ids of P prompts.
      rows: R rows; those of one prompt share what lies below their first clamped layer.
      concept: token ids.
      special_ids: for clamps that leave special tokens alone.
      progress: called with the number of rows that have just been done.
    Raises:
      UserError: an empty or too long prompt, or a wrong clamp, before anything is computed.
    """
    tokens, lengths = pad(prompts, cfg)
    clamp = make_clamp(cfg, [list(clamps_of_row) for _, clamps_of_row in rows] or [[]], special_ids=special_ids)
    which = np.array([prompt for prompt, _ in rows], np.int32)
    clamps.check_batch(clamp, lengths[which])
    first = min((c.layer for _, row in rows for c in row), default=cfg.num_hidden_layers - 1)
    ids = jnp.asarray(_pad_ids(concept))
    entering, plain = _enter(params, cfg, tokens, lengths, first)
    R = len(rows)
    size = min(_bucket(R), _rows_together(cfg, tokens.shape[1]))
    parts = []
    for start in range(0, R, size):
        at = np.minimum(np.arange(start, start + size), R - 1)  # the last block is filled up with its last row
        some = jax.tree.map(lambda leaf: leaf if leaf.shape[0] == 1 else leaf[at], clamp)  # noqa: B023
        found = _leave(params, cfg, entering, plain, tokens, lengths, which[at], some, ids, layer=first)
        parts.append(jax.tree.map(lambda leaf: np.asarray(leaf)[: min(size, R - start)], found))  # noqa: B023
        progress(min(size, R - start))
    p, logit, rank, kl, top = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Effects(which, p, logit, rank, kl, top)


def compare(plain: np.ndarray, clamped: np.ndarray, concept: Sequence[int]) -> Effect:
    """The effect from both rows of next-token logits ``[V]``, in float64."""
    ids = list(concept)
    z = np.stack([plain, clamped]).astype(np.float64)
    total = _logsumexp(z)
    logp = z - total[:, None]
    chosen = _logsumexp(z[:, ids])
    p = np.exp(chosen - total)
    rank = 1 + (z > z[:, ids].max(1, keepdims=True)).sum(1)
    kl = float(max(np.sum(np.exp(logp[0]) * (logp[0] - logp[1])), 0.0))
    return Effect((float(p[0]), float(p[1])), (float(chosen[0]), float(chosen[1])), (int(rank[0]), int(rank[1])), kl)


def _logsumexp(z: np.ndarray) -> np.ndarray:
    peak = z.max(-1)
    return peak + np.log(np.exp(z - peak[:, None]).sum(-1))


@functools.partial(jax.jit, static_argnames=("cfg",))
def both_logits(
    params: Params, cfg: Config, tokens: jax.Array, lengths: jax.Array, clamp: Clamp, record: model.Neurons
) -> tuple[jax.Array, Any, Any]:
    """Next-token logits of one prompt without and with a clamp ``[2, V]``, and what the neurons hold in both, ``[1, T, m]``.

    Args:
      tokens: ``[1, T]``, padded on the right; ``lengths`` [1] are real.
    """
    last = lengths[0] - 1
    options: dict[str, Any] = {"lengths": lengths, "record": record}
    plain, before = model.forward(params, cfg, tokens, **options)
    clamped, after = model.forward(params, cfg, tokens, clamp=clamp, **options)
    return model.logits(params, jnp.stack([plain[0, last], clamped[0, last]])), before, after


def record_last(
    params: Params, cfg: Config, prompts: Sequence[Sequence[int]], neurons: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What m neurons hold where the next token is predicted: silu(gate), up and product, each ``[P, m]`` float32."""
    tokens, lengths = pad(prompts, cfg)
    m = len(neurons)
    padded = [*neurons, *[neurons[0]] * (_bucket(m) - m)]
    record = neurons_of(padded)
    found = _record(params, cfg, tokens, record, last=max(layer for layer, _ in neurons))
    rows = np.arange(len(prompts))
    gate, up, product = (np.asarray(x)[rows, lengths - 1][:, :m] for x in (found.gate_pre, found.up, found.product))
    return gate / (1 + np.exp(-gate)), up, product


def neurons_of(neurons: Sequence[tuple[int, int]]) -> model.Neurons:
    """(layer, neuron) pairs as `jaxllm.model.Neurons`."""
    layers, numbers = zip(*neurons, strict=True)
    return model.Neurons(jnp.array(layers, jnp.int32), jnp.array(numbers, jnp.int32))


def pad(prompts: Sequence[Sequence[int]], cfg: Config) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as ``[P, T]`` int32 with zeros on the right, and their lengths ``[P]``. Raises UserError for a wrong prompt."""
    if not prompts or not all(prompts):
        raise UserError("a prompt needs at least one token")
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    if lengths.max() > cfg.max_position_embeddings:
        raise UserError(f"a prompt of {lengths.max()} tokens exceeds the model's {cfg.max_position_embeddings} positions")
    tokens = np.zeros((len(prompts), -(-int(lengths.max()) // BUCKET) * BUCKET), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    if tokens.min() < 0 or tokens.max() >= cfg.vocab_size:
        raise UserError(f"a prompt holds a token id outside 0..{cfg.vocab_size - 1}")
    return tokens, lengths


@functools.partial(jax.jit, static_argnames=("cfg", "last"))
def _record(params: Params, cfg: Config, tokens: jax.Array, record: model.Neurons, *, last: int) -> Any:
    return model.forward(params, cfg, jnp.asarray(tokens), record=record, last_layer=last)[1]


@functools.partial(jax.jit, static_argnames=("cfg",))
def _enter(params: Params, cfg: Config, tokens: Any, lengths: Any, layer: Any) -> tuple[jax.Array, jax.Array]:
    """The plain model: the residual stream [P, T, D] that enters ``layer``, and the next-token logits [P, V]."""
    tokens = jnp.asarray(tokens)
    llama = nnx.merge(model.definition(cfg), params)
    ctx = llama.context(tokens.shape[1])
    x = llama.embed(tokens)
    entering = x
    for i, block in enumerate(llama.layers):
        entering = jnp.where(i == layer, x, entering)
        x, _, _ = block(x, ctx, None, i)
    last = x[jnp.arange(len(tokens)), jnp.asarray(lengths) - 1]
    return entering, model.logits(params, llama.norm(last))


@functools.partial(jax.jit, static_argnames=("cfg", "layer"))
def _leave(
    params: Params,
    cfg: Config,
    entering: jax.Array,
    plain: jax.Array,
    tokens: Any,
    lengths: Any,
    which: Any,
    clamp: Clamp,
    concept: jax.Array,
    *,
    layer: int,
) -> tuple[jax.Array, ...]:
    """The columns of `Effects` for the prompts ``which`` [R], from ``layer`` on; ``concept`` is padded with `NO_TOKEN`."""
    which, lengths = jnp.asarray(which), jnp.asarray(lengths)
    lengths = lengths[which]
    llama = nnx.merge(model.definition(cfg), params)
    ctx = llama.context(entering.shape[1])
    ctx = dataclasses.replace(ctx, clamp=clamps.acting(clamp, jnp.asarray(tokens)[which], ctx.positions, lengths))
    x = entering[which]
    for i in range(layer, cfg.num_hidden_layers):
        x, _, _ = llama.layers[i](x, ctx, None, i)
    last = x[jnp.arange(len(which)), lengths - 1]
    z = model.logits(params, llama.norm(last))
    total = jax.nn.logsumexp(z, axis=-1)
    before = plain[which]
    log_before = before - jax.nn.logsumexp(before, axis=-1, keepdims=True)
    kl = jnp.sum(jnp.exp(log_before) * (log_before - (z - total[:, None])), axis=-1)
    chosen = jnp.where(concept >= 0, z[:, jnp.maximum(concept, 0)], -jnp.inf)
    logit = jax.nn.logsumexp(chosen, axis=-1)
    rank = 1 + jnp.sum(z > jnp.max(chosen, axis=-1, keepdims=True), axis=-1)
    return jnp.exp(logit - total), logit, rank, jnp.maximum(kl, 0), jnp.argmax(z, axis=-1)


def _pad_ids(ids: Sequence[int]) -> np.ndarray:
    out = np.full(_bucket(len(ids)), NO_TOKEN, np.int32)
    out[: len(ids)] = list(ids)
    return out


def _bucket(count: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(count - 1, 0).bit_length()


def _rows_together(cfg: Config, T: int) -> int:
    """A power of two of rows whose logits, and whose MLP activations, stay within `LOGITS_BYTES` each."""
    return 1 << max(0, int(math.log2(max(1, LOGITS_BYTES // (4 * max(cfg.vocab_size, T * cfg.intermediate_size))))))

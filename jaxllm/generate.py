"""Text generation: one compiled prefill per length bucket, one compiled loop for all decode steps.

The loop runs until a number of tokens that is an argument, so the same program serves a whole answer and a stream of pieces.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxllm import cache as kv
from jaxllm import clamp as clamps
from jaxllm import model
from jaxllm.clamp import Clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params
from jaxllm.sampling import GREEDY, Sampler, sample

NO_TOKEN = -1  # fills `Decoding.ids` after a row's last token
SMALLEST_BUCKET = 16


@flax.struct.dataclass
class Decoding:
    """B rows of text in the making, up to N new tokens each."""

    cache: kv.KVCache  # every token but the last sampled one
    ids: jax.Array  # [B, N] int32, sampled so far, a stop id included; NO_TOKEN elsewhere
    last: jax.Array  # [B] int32, the token to feed next
    keys: jax.Array  # [B] typed keys; token n of a row is drawn with its key folded with n
    prompt_lengths: jax.Array  # [B] int32, tokens of each prompt
    done: jax.Array  # [B] bool, the row has sampled a stop id
    step: jax.Array  # int32, tokens sampled by the rows that are not done


def bucket(length: int) -> int:
    """The padded length for ``length`` tokens: a power of two, at least `SMALLEST_BUCKET`."""
    return max(SMALLEST_BUCKET, 1 << max(length - 1, 0).bit_length())


@functools.partial(jax.jit, static_argnames=("cfg", "S", "N", "sampler", "mesh"))
def prefill(
    params: Params,
    cfg: Config,
    tokens: jax.typing.ArrayLike,
    lengths: jax.typing.ArrayLike,
    keys: jax.Array,
    stops: jax.typing.ArrayLike,
    *,
    S: int,
    N: int,
    sampler: Sampler = GREEDY,
    mesh: Mesh | None = None,
    clamp: Clamp | None = None,
) -> Decoding:
    """Reads the prompts and samples the first token of each row.

    Args:
      params: unstacked parameters.
      tokens: prompts ``[B, T]`` int32, padded on the right with anything.
      lengths: ``[B]`` int32, real tokens of each row, at least 1.
      keys: ``[B]`` typed random keys.
      stops: ``[n]`` int32, ids that end a row; NO_TOKEN is padding.
      S: room for prompt and answer, at least T.
      N: most tokens that will be sampled.
      mesh: where the parameters live, if on a mesh.
      clamp: what to change in the MLPs at the prompt's tokens, as of `jaxllm.clamp.make_clamp`; traced.
    """
    tokens, lengths = jnp.asarray(tokens), jnp.asarray(lengths)
    B, T = tokens.shape
    dtype = params["embed_tokens"]["weight"].dtype
    options: dict[str, Any] = {"lengths": lengths, "mesh": mesh, "clamp": clamp, "prompt_lengths": lengths}
    hidden, cache = model.forward(params, cfg, tokens, cache=kv.create(cfg, B, T, dtype), **options)
    state = Decoding(
        cache=kv.grow(cache, S),
        ids=jnp.full((B, N), NO_TOKEN, jnp.int32),
        last=jnp.zeros((B,), jnp.int32),
        keys=keys,
        prompt_lengths=lengths,
        done=jnp.zeros((B,), bool),
        step=jnp.zeros((), jnp.int32),
    )
    return _choose(params, hidden[jnp.arange(B), lengths - 1], state, stops, sampler, mesh)


@functools.partial(jax.jit, static_argnames=("cfg", "sampler", "mesh"), donate_argnames=("state",))
def decode(
    params: Params,
    cfg: Config,
    state: Decoding,
    stops: jax.typing.ArrayLike,
    until: jax.typing.ArrayLike,
    *,
    sampler: Sampler = GREEDY,
    mesh: Mesh | None = None,
    clamp: Clamp | None = None,
) -> Decoding:
    """Samples until ``until`` tokens are there or every row is done. ``state`` is donated: use the result instead.

    A row that is done samples nothing more and its cache is left as it is. ``clamp`` acts on each token that is fed, the first
    sampled one included; it is the clamp of `prefill`, unless the caller wants another for the answer.
    """

    def unfinished(state: Decoding) -> jax.Array:
        return (state.step < until) & ~jnp.all(state.done)

    def step(state: Decoding) -> Decoding:
        lengths = jnp.where(state.done, 0, 1)
        options: dict[str, Any] = {"lengths": lengths, "mesh": mesh, "clamp": clamp, "prompt_lengths": state.prompt_lengths}
        hidden, cache = model.forward(params, cfg, state.last[:, None], cache=state.cache, **options)
        return _choose(params, hidden[:, 0], dataclasses.replace(state, cache=cache), stops, sampler, mesh)

    return jax.lax.while_loop(unfinished, step, state)


def _choose(
    params: Params, hidden: jax.Array, state: Decoding, stops: jax.typing.ArrayLike, sampler: Sampler, mesh: Mesh | None
) -> Decoding:
    """The state with one more token per unfinished row, drawn from the head's view of ``hidden`` [B, D]."""
    logits = model.logits(params, hidden, mesh=mesh)
    with jax.named_scope("sample"):
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.keys, state.step)
        token = jnp.where(state.done, NO_TOKEN, sample(logits, keys, sampler))
    return dataclasses.replace(
        state,
        ids=jax.lax.dynamic_update_slice(state.ids, token[:, None], (0, state.step)),
        last=jnp.where(state.done, state.last, token),
        done=state.done | jnp.isin(token, stops),
        step=state.step + 1,
    )


def start(
    params: Params,
    cfg: Config,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    sampler: Sampler = GREEDY,
    seed: int = 0,
    mesh: Mesh | None = None,
    clamp: Clamp | None = None,
) -> tuple[Decoding, np.ndarray]:
    """Pads prompts to a bucket, runs `prefill`, and returns its state with the array of stop ids.

    Row i draws with the key of ``seed`` folded with i. ``clamp`` has one row for all prompts, or one for each.

    Raises:
      UserError: no prompt, an empty one, an id outside the vocabulary, a text longer than the model's positions, or a clamp
        for another number of rows or for positions that a prompt does not have.
    """
    if not prompts or not all(prompts):
        raise UserError("a prompt needs at least one token")
    if max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, found {max_tokens}")
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    longest = int(lengths.max())
    if longest + max_tokens > cfg.max_position_embeddings:
        raise UserError(
            f"prompt of {longest} tokens and {max_tokens} new ones exceed the model's {cfg.max_position_embeddings} positions"
        )
    N = bucket(max_tokens)
    tokens = np.zeros((len(prompts), bucket(longest)), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    if tokens.min() < 0 or tokens.max() >= cfg.vocab_size:
        raise UserError(f"prompt holds a token id outside 0..{cfg.vocab_size - 1}")
    if clamp is not None:
        clamps.check_batch(clamp, lengths)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), jnp.arange(len(prompts)))
    stops = np.full((bucket(len(stop_ids)),), NO_TOKEN, np.int32)
    stops[: len(stop_ids)] = sorted(stop_ids)
    options: dict[str, Any] = {"sampler": sampler, "mesh": mesh, "clamp": clamp}
    state = prefill(params, cfg, tokens, lengths, keys, stops, S=bucket(longest + N), N=N, **options)
    return state, stops


def generate(
    params: Params,
    cfg: Config,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    sampler: Sampler = GREEDY,
    seed: int = 0,
    mesh: Mesh | None = None,
    clamp: Clamp | None = None,
) -> list[list[int]]:
    """Continues each prompt by at most ``max_tokens`` ids, up to and including the first stop id.

    What a row samples depends on its prompt, its row of ``clamp``, the seed and its index, not on the other rows. A clamp acts
    on the prompt's tokens and on each new one that is fed, as its positions say.

    Raises:
      UserError: as `start`.
    """
    options: dict[str, Any] = {"sampler": sampler, "mesh": mesh, "clamp": clamp}
    state, stops = start(params, cfg, prompts, max_tokens=max_tokens, stop_ids=stop_ids, seed=seed, **options)
    state = decode(params, cfg, state, stops, max_tokens, **options)
    return [[int(token) for token in row if token != NO_TOKEN] for row in np.asarray(state.ids)]


def stream(
    params: Params,
    cfg: Config,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    sampler: Sampler = GREEDY,
    seed: int = 0,
    mesh: Mesh | None = None,
    clamp: Clamp | None = None,
    every: int = 4,
) -> Iterator[list[int]]:
    """The ids of `generate` for one prompt, in pieces of ``every`` tokens as they come; the first piece is one token.

    Raises:
      UserError: as `start`.
    """
    options: dict[str, Any] = {"sampler": sampler, "mesh": mesh, "clamp": clamp}
    state, stops = start(params, cfg, [prompt], max_tokens=max_tokens, stop_ids=stop_ids, seed=seed, **options)
    shown = 0
    while True:
        ids = np.asarray(state.ids[0])
        step, done = int(state.step), bool(state.done[0])
        yield [int(token) for token in ids[shown:step] if token != NO_TOKEN]
        if done or step >= max_tokens:
            return
        shown = step
        state = decode(params, cfg, state, stops, min(step + every, max_tokens), **options)

"""What a sampler keeps on the device, and the compiled functions that change it: read context, sample tokens, stop.

Attention looks at a span of the cache that holds every session at hand, not at all of its room. Spans, widths and numbers of
rows come in few sizes, so that few programs are compiled.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxllm import cache as kv
from jaxllm import model, sharding
from jaxllm.clamp import Clamp
from jaxllm.config import Config
from jaxllm.generate import NO_TOKEN
from jaxllm.params import Params
from jaxllm.sampling import GROUP, greedy

MAX_STOPS = 8  # stop ids of one request


@flax.struct.dataclass
class Slots:
    """What the device holds for B slots."""

    cache: kv.KVCache  # of every token of a session but its last
    last: jax.Array  # [B] int32, the session's last token, to be read next
    active: jax.Array  # [B] bool, in the middle of an answer
    left: jax.Array  # [B] int32, tokens that the answer may still have
    drawn: jax.Array  # [B] int32, tokens of the session: the number of its next draw
    keys: jax.Array  # [B] typed random keys of the sessions
    temperature: jax.Array  # [B] float32; 0 takes the most likely token
    stops: jax.Array  # [B, MAX_STOPS] int32; NO_TOKEN is padding
    prompt: jax.Array  # [B] int32, tokens before the present answer, which the positions of a clamp are about


@flax.struct.dataclass
class Row:
    """What R slots are set to; arrays of leading size R. A slot beyond the last is no slot: what is said of it is dropped."""

    slot: Any
    new: Any  # tokens to read
    held: Any  # tokens that the cache holds already
    last: Any
    left: Any
    drawn: Any
    temperature: Any
    stops: Any
    prompt: Any
    names: Any  # hash of the session's key


def blank(
    cfg: Config, seed: jax.Array, slots: int, context: int, dtype: jax.typing.DTypeLike, mesh: Mesh | None = None
) -> Slots:
    """The state of ``slots`` slots without a session. On a mesh the caches are made where they stay: no device holds all."""

    def make() -> Slots:
        return Slots(
            cache=kv.create(cfg, slots, context, dtype),
            last=jnp.zeros(slots, jnp.int32),
            active=jnp.zeros(slots, bool),
            left=jnp.zeros(slots, jnp.int32),
            drawn=jnp.zeros(slots, jnp.int32),
            keys=jax.random.split(seed, slots),
            temperature=jnp.ones(slots),
            stops=jnp.full((slots, MAX_STOPS), NO_TOKEN, jnp.int32),
            prompt=jnp.zeros(slots, jnp.int32),
        )

    if mesh is None:
        return make()
    return jax.jit(make, out_shardings=placements(jax.eval_shape(make), mesh))()


def placements(state: Slots, mesh: Mesh) -> Slots:
    """Where each array of `Slots` lives on a mesh: split by slots, caches by heads as well."""

    def place(leaf: Any) -> NamedSharding:
        rest = ("kv_heads", "length", None) if leaf.ndim == 4 else (None,) * (leaf.ndim - 1)
        return NamedSharding(mesh, sharding.spec_for(("batch", *rest), leaf.shape, mesh))

    return jax.tree.map(place, state)


@functools.partial(jax.jit, static_argnames=("cfg", "span", "mesh"), donate_argnames=("state",))
def read(
    params: Params,
    cfg: Config,
    state: Slots,
    seed: jax.Array,
    tokens: jax.Array,
    row: Row,
    clamp: Clamp | None,
    *,
    span: int,
    mesh: Mesh | None,
) -> Slots:
    """Reads ``tokens`` [R, W] into the caches of R slots, whose sessions fit into ``span``, and sets the slots up to sample."""
    take = jnp.minimum(row.slot, state.last.shape[0] - 1)
    part = kv.KVCache(
        k=tuple(side[take, :, :span] for side in state.cache.k),
        v=tuple(side[take, :, :span] for side in state.cache.v),
        lengths=row.held,
    )
    if clamp is not None:
        clamp = dataclasses.replace(jax.tree.map(lambda leaf: leaf[take], clamp), special=clamp.special)
    options: dict[str, Any] = {"mesh": mesh, "clamp": clamp, "prompt_lengths": row.prompt}
    _, part = model.forward(params, cfg, tokens, cache=part, lengths=row.new, **options)

    def put(held: jax.Array, new: jax.Array) -> jax.Array:
        return held.at[row.slot].set(new, mode="drop")

    def put_span(held: jax.Array, new: jax.Array) -> jax.Array:
        return held.at[row.slot, :, :span].set(new, mode="drop")

    return Slots(
        cache=kv.KVCache(
            k=tuple(map(put_span, state.cache.k, part.k)),
            v=tuple(map(put_span, state.cache.v, part.v)),
            lengths=put(state.cache.lengths, part.lengths),
        ),
        last=put(state.last, row.last),
        active=put(state.active, row.left > 0),
        left=put(state.left, row.left),
        drawn=put(state.drawn, row.drawn),
        keys=put(state.keys, jax.vmap(jax.random.fold_in, in_axes=(None, 0))(seed, row.names)),
        temperature=put(state.temperature, row.temperature),
        stops=put(state.stops, row.stops),
        prompt=put(state.prompt, row.prompt),
    )


@functools.partial(jax.jit, static_argnames=("cfg", "steps", "span", "mesh"), donate_argnames=("state",))
def sample(
    params: Params,
    cfg: Config,
    state: Slots,
    quota: jax.Array,
    clamp: Clamp | None,
    *,
    steps: int,
    span: int,
    mesh: Mesh | None,
) -> tuple[Slots, jax.Array, jax.Array]:
    """Up to ``steps`` tokens of every active slot, until ``quota`` of them finish: state, ids [B, steps], logp [B, steps].

    Every active session must fit into ``span`` with the tokens that it gets. In ids NO_TOKEN stands behind a row's last one.
    """
    B, whole = state.last.shape[0], state.cache
    begun = state.active.sum()
    near = kv.KVCache(k=tuple(k[:, :, :span] for k in whole.k), v=tuple(v[:, :, :span] for v in whole.v), lengths=whole.lengths)

    def going(carry: tuple[Any, ...]) -> jax.Array:
        n, state, *_ = carry
        active = state.active.sum()
        return (n < steps) & (active > 0) & (begun - active < quota)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        n, state, ids, logp = carry
        active = state.active
        options: dict[str, Any] = {"mesh": mesh, "clamp": clamp, "prompt_lengths": state.prompt}
        lengths = active.astype(jnp.int32)
        hidden, cache = model.forward(params, cfg, state.last[:, None], cache=state.cache, lengths=lengths, **options)
        token, score = draw(model.logits(params, hidden[:, 0], mesh=mesh), state.keys, state.drawn, state.temperature)
        left = state.left - active
        state = dataclasses.replace(
            state,
            cache=cache,
            last=jnp.where(active, token, state.last),
            active=active & (left > 0) & ~(token[:, None] == state.stops).any(axis=1),
            left=left,
            drawn=state.drawn + active,
        )
        ids = ids.at[:, n].set(jnp.where(active, token, NO_TOKEN))
        return n + 1, state, ids, logp.at[:, n].set(jnp.where(active, score, 0))

    blank_ids, blank_logp = jnp.full((B, steps), NO_TOKEN, jnp.int32), jnp.zeros((B, steps))
    start = jnp.int32(0), dataclasses.replace(state, cache=near), blank_ids, blank_logp
    _, state, ids, logp = jax.lax.while_loop(going, step, start)

    def put(held: jax.Array, new: jax.Array) -> jax.Array:
        return held.at[:, :, :span].set(new)

    near = state.cache
    cache = kv.KVCache(k=tuple(map(put, whole.k, near.k)), v=tuple(map(put, whole.v, near.v)), lengths=near.lengths)
    return dataclasses.replace(state, cache=cache), ids, logp


def draw(logits: jax.Array, keys: jax.Array, number: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token a row and its log-probability under softmax(logits / temperature).

    A group of tokens is drawn by its sum, then a token of the group: far fewer random numbers than tokens. At temperature 0 the
    most likely token, with its log-probability at temperature 1.

    Args:
      logits: [B, V].
      keys: [B] typed keys; the draw depends on the key folded with ``number`` [B].
      temperature: [B].
    """
    B, V = logits.shape
    logits = logits.astype(jnp.float32)
    logits = logits / jnp.where(temperature == 0, 1.0, temperature)[:, None]
    groups = logits.reshape(B, -1, GROUP if V % GROUP == 0 else V)
    sums = jax.nn.logsumexp(groups, axis=-1)
    keys = jax.vmap(jax.random.fold_in)(keys, number)
    rows, categorical = jnp.arange(B), jax.vmap(jax.random.categorical)
    group = categorical(jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, 1), sums)
    within = categorical(keys, groups[rows, group])
    token = jnp.where(temperature == 0, greedy(logits), group * groups.shape[-1] + within).astype(jnp.int32)
    return token, logits[rows, token] - jax.nn.logsumexp(sums, axis=-1)


@functools.partial(jax.jit, donate_argnames=("state",))
def stop(state: Slots, slot: jax.Array) -> Slots:
    """Ends the answer of a slot."""
    return dataclasses.replace(state, active=state.active.at[slot].set(False))


def compilations() -> int:
    """Programs that this process has compiled so far to read and to sample."""
    programs: tuple[Any, ...] = read, sample
    return sum(program._cache_size() for program in programs)

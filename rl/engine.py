"""Generation for many sessions at once: fixed slots, continuous batching, caches that stay from turn to turn.

A session is a growing list of token ids: context that the caller adds, answers that the engine samples. Its keys and values
stay in its slot, so that a new turn reads only what is new. Sessions come and go while others are in the middle of an answer;
all compiled shapes are fixed by the number of slots, the room for context and a few buckets: nothing is compiled after warm-up.

What a session samples depends on its own tokens, its key and the weights, not on its slot or on the others.
"""

import dataclasses
import functools
import heapq
import zlib
from collections.abc import Collection, Hashable, Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxllm import cache as kv
from jaxllm import model, sharding
from jaxllm.clamp import Clamp, NeuronClamp, make_clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.generate import NO_TOKEN
from jaxllm.params import Params

SMALLEST_FEED = 16  # tokens; a feed is padded to a power of two from here on
MAX_STOPS = 8  # stop ids of one request


@dataclasses.dataclass(frozen=True)
class Completion:
    """One answer. `ids`, `logp` and `version` are about the same tokens."""

    key: Hashable  # the session
    ids: tuple[int, ...]  # as sampled; the stop id is the last one, if it was sampled
    logp: tuple[float, ...]  # of the sampled distribution (temperature included), in nats
    version: tuple[int, ...]  # of the weights that sampled each token
    stopped: bool  # whether a stop id ended it, not the limit of tokens


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


@dataclasses.dataclass
class _Session:
    """What the host knows of a session."""

    slot: int
    ids: list[int] = dataclasses.field(default_factory=list)  # all tokens, those of the present answer included
    held: int = 0  # of them in the cache
    waiting: bool = False  # whether there is a request whose context is not read yet
    left: int = 0  # tokens that the answer may still have; 0 without a request
    temperature: float = 1.0
    stops: frozenset[int] = frozenset()
    clamps: tuple[NeuronClamp, ...] = ()
    answer: list[tuple[int, float, int]] = dataclasses.field(default_factory=list)  # id, logp, version

    @property
    def stale(self) -> bool:
        """Whether the cache has to be read anew before the answer goes on."""
        return self.waiting or (self.left > 0 and self.held < len(self.ids) - 1)


class Engine:
    """Generates answers of sessions in a fixed number of slots. Used from one thread."""

    def __init__(
        self,
        params: Params,
        cfg: Config,
        *,
        slots: int,
        context: int,
        temperature: float = 1.0,
        stop_ids: Collection[int] = (),
        seed: int = 0,
        mesh: Mesh | None = None,
        version: int = 0,
        on_publish: Literal["reprefill", "keep"] = "reprefill",
        steps: int = 16,
    ):
        """
        Args:
          params: unstacked parameters; the engine only reads them.
          slots: B, sessions at one time.
          context: S, most tokens of a session.
          temperature: of the sampled distribution; 1 is the model's own.
          stop_ids: that end an answer.
          seed: of all draws; a session draws with it, its key and the number of the token.
          version: of ``params``.
          on_publish: what becomes of caches when weights change: "reprefill" reads every session anew before it goes on, which
            is exact; "keep" goes on with what old weights have read, and the versions of tokens tell of it.
          steps: tokens that `advance` samples at most before it returns.
        Raises:
          UserError: no slot, or more context than the model has positions.
        """
        if slots < 1 or not 1 < context <= cfg.max_position_embeddings:
            raise UserError(f"{slots} slots of {context} tokens: the model has {cfg.max_position_embeddings} positions")
        if on_publish not in ("reprefill", "keep"):
            raise UserError(f"on_publish is reprefill or keep, not {on_publish!r}")
        self.cfg, self.slots, self.context, self.mesh, self.steps = cfg, slots, context, mesh, steps
        self.version, self.on_publish = version, on_publish
        self._params = params
        self._default: dict[str, Any] = {"temperature": temperature, "stop_ids": frozenset(stop_ids)}
        self._seed = jax.random.key(seed)
        self._sessions: dict[Hashable, _Session] = {}
        self._free = list(range(slots))  # a heap: which slots are taken does not depend on what was released before
        self._state = blank(cfg, self._seed, slots, context, jax.tree.leaves(params)[0].dtype, mesh)

    @property
    def free(self) -> int:
        """Slots without a session."""
        return len(self._free)

    @property
    def busy(self) -> int:
        """Sessions whose answer is not finished."""
        return sum(session.left > 0 for session in self._sessions.values())

    def room(self, key: Hashable) -> int:
        """Tokens that a session may still get, context and answers together; a new session may get all."""
        return self.context - (len(self._sessions[key].ids) if key in self._sessions else 0)

    def submit(
        self,
        key: Hashable,
        ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float | None = None,
        stop_ids: Collection[int] | None = None,
        clamps: Sequence[NeuronClamp] = (),
    ) -> None:
        """Adds context to a session and asks for an answer. A new key takes a free slot.

        Args:
          ids: what the session has not seen yet; may be empty only if the last answer was cut at its limit.
          max_tokens: of the answer.
          temperature, stop_ids: for this answer, instead of the engine's.
          clamps: what to change in the MLPs while this context is read and answered.
        Raises:
          UserError: no free slot, an answer of this session under way, an id outside the vocabulary, too many stop ids, or more
            tokens than the session has room for.
        """
        stops = self._default["stop_ids"] if stop_ids is None else frozenset(stop_ids)
        session = self._sessions.get(key)
        if session is None and not self._free:
            raise UserError(f"all {self.slots} slots hold a session: release one first")
        if session is not None and session.left:
            raise UserError(f"session {key!r} is in the middle of an answer")
        if session is None and not ids:
            raise UserError("a session begins with at least one token")
        if max_tokens < 1 or len(ids) + max_tokens > self.room(key):
            raise UserError(
                f"{len(ids)} tokens and an answer of {max_tokens} do not fit: session {key!r} has room for {self.room(key)}"
            )
        if len(stops) > MAX_STOPS:
            raise UserError(f"{len(stops)} stop ids; at most {MAX_STOPS} are possible")
        if any(not 0 <= token < self.cfg.vocab_size for token in ids):
            raise UserError(f"an id is outside 0..{self.cfg.vocab_size - 1}")
        if session is None:
            session = self._sessions[key] = _Session(heapq.heappop(self._free))
        session.ids += map(int, ids)
        session.waiting, session.left, session.stops, session.clamps = True, max_tokens, stops, tuple(clamps)
        session.temperature = self._default["temperature"] if temperature is None else temperature

    def release(self, key: Hashable) -> None:
        """Ends a session and frees its slot, in the middle of an answer too."""
        session = self._sessions.pop(key)
        heapq.heappush(self._free, session.slot)
        if session.left and not session.waiting:
            self._state = _stop(self._state, np.int32(session.slot))

    def publish(self, params: Params, version: int) -> None:
        """Takes new weights, all at once: the next token of every session is sampled by them.

        Raises UserError unless ``version`` grows, or if the tree has other shapes.
        """
        if version <= self.version:
            raise UserError(f"version {version} does not follow {self.version}")
        ours, theirs = (jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (self._params, params))
        if ours != theirs:
            raise UserError("the published parameters have other shapes or types than the engine's")
        self._params, self.version = params, version
        if self.on_publish == "reprefill":
            for session in self._sessions.values():
                session.held = 0

    def advance(self) -> list[Completion]:
        """Reads what waits and samples up to `steps` tokens of every answer under way; returns the answers that are finished.

        It returns earlier once an eighth of the slots have finished, so that they need not wait for the others.
        """
        self._feed()
        if not self.busy:
            return []
        quota = np.int32(max(1, self.slots // 8))
        self._state, ids, logp = _sample(
            self._params, self.cfg, self._state, quota, self._clamp(), steps=self.steps, mesh=self.mesh
        )
        rows, scores = np.asarray(ids).tolist(), np.asarray(logp).tolist()
        finished = []
        for key, session in self._sessions.items():
            if not session.left:
                continue
            for token, score in zip(rows[session.slot], scores[session.slot], strict=True):
                if token == NO_TOKEN:
                    break
                session.answer.append((token, score, self.version))
                session.ids.append(token)
                session.left -= 1
            session.held = len(session.ids) - 1
            stopped = session.ids[-1] in session.stops
            if stopped or not session.left:
                tokens, logp_of, version = zip(*session.answer, strict=True)
                finished.append(Completion(key, tokens, logp_of, version, stopped))
                session.answer, session.left = [], 0
        return finished

    def _clamp(self) -> Clamp | None:
        """The clamps of all slots; None while there are none."""
        if not any(session.clamps for session in self._sessions.values()):
            return None
        rows: list[tuple[NeuronClamp, ...]] = [()] * self.slots
        for session in self._sessions.values():
            rows[session.slot] = session.clamps if session.left else ()
        return make_clamp(self.cfg, rows)

    def _feed(self) -> None:
        """Reads the context of waiting sessions, and all of those whose cache is older than the weights."""
        pending = [(len(s.ids) - 1 - s.held, key, s) for key, s in self._sessions.items() if s.stale]
        groups: dict[int, list[Any]] = {}
        for entry in pending:  # feeds of similar length go together, so that little is padding
            groups.setdefault(min(_bucket(entry[0], SMALLEST_FEED), self.context), []).append(entry)
        for width, group in sorted(groups.items()):
            self._read(group, width)

    def _read(self, group: list[tuple[int, Hashable, _Session]], width: int) -> None:
        R = min(
            4 ** ((_bucket(len(group), 1).bit_length()) // 2), _bucket(self.slots, 1)
        )  # few sizes, so that little is compiled
        slot, tokens = np.full(R, self.slots, np.int32), np.zeros((R, width), np.int32)  # a slot beyond the last is dropped
        new, held, last, left, drawn, prompt = np.zeros((6, R), np.int32)
        temperature, names = np.ones(R, np.float32), np.zeros(R, np.uint32)
        stops = np.full((R, MAX_STOPS), NO_TOKEN, np.int32)
        for i, (count, key, session) in enumerate(group):
            tokens[i, :count] = session.ids[session.held : -1]
            slot[i], new[i], held[i], last[i] = session.slot, count, session.held, session.ids[-1]
            left[i], drawn[i], temperature[i] = session.left, len(session.ids), session.temperature
            prompt[i] = len(session.ids) - len(session.answer)
            stops[i, : len(session.stops)] = sorted(session.stops)
            names[i] = zlib.crc32(repr(key).encode())
            session.held, session.waiting = len(session.ids) - 1, False
        row = _Row(slot, new, held, last, left, drawn, temperature, stops, prompt, names)
        self._state = _prefill(self._params, self.cfg, self._state, self._seed, tokens, row, self._clamp(), mesh=self.mesh)


@flax.struct.dataclass
class _Row:
    """What R slots are set to; arrays of leading size R."""

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


@functools.partial(jax.jit, static_argnames=("cfg", "mesh"), donate_argnames=("state",))
def _prefill(
    params: Params,
    cfg: Config,
    state: Slots,
    seed: jax.Array,
    tokens: jax.Array,
    row: _Row,
    clamp: Clamp | None,
    *,
    mesh: Mesh | None,
) -> Slots:
    """Reads ``tokens`` [R, W] into the caches of R slots and sets the slots up to sample."""
    take = jnp.minimum(row.slot, state.last.shape[0] - 1)
    part = kv.KVCache(
        k=tuple(side[take] for side in state.cache.k), v=tuple(side[take] for side in state.cache.v), lengths=row.held
    )
    if clamp is not None:
        clamp = dataclasses.replace(jax.tree.map(lambda leaf: leaf[take], clamp), special=clamp.special)
    options: dict[str, Any] = {"mesh": mesh, "clamp": clamp, "prompt_lengths": row.prompt}
    _, part = model.forward(params, cfg, tokens, cache=part, lengths=row.new, **options)

    def put(held: jax.Array, new: jax.Array) -> jax.Array:
        return held.at[row.slot].set(new, mode="drop")

    return Slots(
        cache=jax.tree.map(put, state.cache, part),
        last=put(state.last, row.last),
        active=put(state.active, row.left > 0),
        left=put(state.left, row.left),
        drawn=put(state.drawn, row.drawn),
        keys=put(state.keys, jax.vmap(jax.random.fold_in, in_axes=(None, 0))(seed, row.names)),
        temperature=put(state.temperature, row.temperature),
        stops=put(state.stops, row.stops),
        prompt=put(state.prompt, row.prompt),
    )


@functools.partial(jax.jit, static_argnames=("cfg", "steps", "mesh"), donate_argnames=("state",))
def _sample(
    params: Params,
    cfg: Config,
    state: Slots,
    quota: jax.Array,
    clamp: Clamp | None,
    *,
    steps: int,
    mesh: Mesh | None,
) -> tuple[Slots, jax.Array, jax.Array]:
    """Up to ``steps`` tokens of every active slot, until ``quota`` of them finish: state, ids [B, steps], logp [B, steps]."""
    B = state.last.shape[0]
    begun = state.active.sum()

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
        goes_on = active & (left > 0) & ~(token[:, None] == state.stops).any(axis=1)
        state = dataclasses.replace(
            state,
            cache=cache,
            last=jnp.where(active, token, state.last),
            active=goes_on,
            left=left,
            drawn=state.drawn + active,
        )
        ids = ids.at[:, n].set(jnp.where(active, token, NO_TOKEN))
        return n + 1, state, ids, logp.at[:, n].set(jnp.where(active, score, 0))

    start = (jnp.int32(0), state, jnp.full((B, steps), NO_TOKEN, jnp.int32), jnp.zeros((B, steps)))
    return jax.lax.while_loop(going, step, start)[1:]


def draw(logits: jax.Array, keys: jax.Array, number: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token a row and its log-probability under softmax(logits / temperature).

    At temperature 0 the most likely token, with its log-probability at temperature 1.

    Args:
      logits: [B, V].
      keys: [B] typed keys; the draw depends on the key folded with ``number`` [B].
      temperature: [B].
    """
    logits = logits.astype(jnp.float32)
    greedy = temperature == 0
    logp = jax.nn.log_softmax(logits / jnp.where(greedy, 1.0, temperature)[:, None])
    drawn = jax.vmap(jax.random.categorical)(jax.vmap(jax.random.fold_in)(keys, number), logp)
    token = jnp.where(greedy, jnp.argmax(logp, axis=-1), drawn).astype(jnp.int32)
    return token, jnp.take_along_axis(logp, token[:, None], axis=-1)[:, 0]


@functools.partial(jax.jit, donate_argnames=("state",))
def _stop(state: Slots, slot: jax.Array) -> Slots:
    return dataclasses.replace(state, active=state.active.at[slot].set(False))


def _bucket(count: int, smallest: int) -> int:
    """The smallest power of two of at least ``count`` and ``smallest``."""
    return max(smallest, 1 << max(count - 1, 0).bit_length())

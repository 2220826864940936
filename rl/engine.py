"""Generation for many sessions at once: fixed slots, continuous batching, caches that stay from turn to turn.

A session is a growing list of token ids: context that the caller adds, answers that the engine samples. Its keys and values
stay in its slot, so that a new turn reads only what is new. Sessions come and go while others are in the middle of an answer;
all compiled shapes are fixed by the number of slots, the room for context and a few buckets: nothing is compiled after warm-up.

What a session samples depends on its own tokens, its key and the weights, not on its slot or on the others.
"""

import dataclasses
import heapq
import zlib
from collections.abc import Collection, Hashable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from jaxllm.clamp import Clamp, NeuronClamp, make_clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.generate import NO_TOKEN
from jaxllm.params import Params
from rl.slots import MAX_STOPS, Row, blank, compilations, read, sample, stop
from rl.tokens import bucket

# Tokens. What is read is cut and padded to powers of two, so that few programs are compiled.
SMALLEST_FEED, FEED = 16, 512  # in one row of one program
SMALLEST_SPLIT = 256  # wider pieces that would be padding by a quarter are read as two
FEED_TOKENS = 2048  # in all rows of one program
SMALLEST_SPAN = 256  # of the cache that a program looks at


@dataclasses.dataclass(frozen=True)
class Completion:
    """One answer. `ids`, `logp` and `version` are about the same tokens."""

    key: Hashable  # the session
    ids: tuple[int, ...]  # as sampled; the stop id is the last one, if it was sampled
    logp: tuple[float, ...]  # of the sampled distribution (temperature included), in nats
    version: tuple[int, ...]  # of the weights that sampled each token
    stopped: bool  # whether a stop id ended it, not the limit of tokens


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
        self._params = _committed(params)
        self._default: dict[str, Any] = {"temperature": temperature, "stop_ids": frozenset(stop_ids)}
        self._seed = jax.random.key(seed)
        self._sessions: dict[Hashable, _Session] = {}
        self._free = list(range(slots))  # a heap: which slots are taken does not depend on what was released before
        first = jax.tree.leaves(self._params)[0]
        state = blank(cfg, self._seed, slots, context, first.dtype, mesh)
        self._state = state if mesh else jax.device_put(state, first.sharding)

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
            self._state = stop(self._state, np.int32(session.slot))

    def publish(self, params: Params, version: int) -> None:
        """Takes new weights, all at once: the next token of every session is sampled by them.

        Raises UserError unless ``version`` grows, or if the tree has other shapes.
        """
        if version <= self.version:
            raise UserError(f"version {version} does not follow {self.version}")
        ours, theirs = (jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (self._params, params))
        if ours != theirs:
            raise UserError("the published parameters have other shapes or types than the engine's")
        self._params, self.version = _committed(params), version
        if self.on_publish == "reprefill":
            for session in self._sessions.values():
                session.held = 0

    def advance(self) -> list[Completion]:
        """Reads what waits and samples up to `steps` tokens of every answer under way; returns the answers that are finished.

        It returns earlier once an eighth of the slots have finished, so that they need not wait for the others.
        """
        self._feed()
        longest = max((len(s.ids) + min(s.left, self.steps) for s in self._sessions.values() if s.left), default=0)
        if not longest:
            return []
        quota, span = np.int32(max(1, self.slots // 8)), self._span(longest)
        options: dict[str, Any] = {"steps": self.steps, "span": span, "mesh": self.mesh}
        self._state, ids, logp = sample(self._params, self.cfg, self._state, quota, self._clamp(), **options)
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

    def warm_up(self) -> int:
        """Compiles all programs of requests without a clamp ahead of time; returns `compilations`. No session is touched."""
        for span in sorted({self._span(length) for length in range(1, self.context + 1)}):
            for width in (1 << n for n in range(SMALLEST_FEED.bit_length() - 1, FEED.bit_length())):
                for R in self._sizes(width) if width <= bucket(span, smallest=SMALLEST_FEED) else ():
                    self._read([], R, min(width, self.context), span)
            options: dict[str, Any] = {"steps": self.steps, "span": span, "mesh": self.mesh}
            self._state, *_ = sample(self._params, self.cfg, self._state, np.int32(0), None, **options)
        return self.compilations

    @property
    def compilations(self) -> int:
        """Programs that this process has compiled for engines so far."""
        return compilations()

    def _clamp(self) -> Clamp | None:
        """The clamps of all slots; None while there are none."""
        if not any(session.clamps for session in self._sessions.values()):
            return None
        rows: list[tuple[NeuronClamp, ...]] = [()] * self.slots
        for session in self._sessions.values():
            rows[session.slot] = session.clamps if session.left else ()
        return make_clamp(self.cfg, rows)

    def _span(self, length: int) -> int:
        """How much of the cache a program looks at when the longest session is of ``length``."""
        return min(bucket(length, smallest=SMALLEST_SPAN), self.context)

    def _sizes(self, width: int) -> list[int]:
        """Numbers of rows of ``width`` that are read together, the largest first."""
        most = min(bucket(self.slots, smallest=1), max(1, FEED_TOKENS // width))
        return sorted({1, most, *(2 * 4**n for n in range(8) if 2 * 4**n < most)}, reverse=True)

    def _feed(self) -> None:
        """Reads the context of waiting sessions, and all of those whose cache is older than the weights."""
        while pending := [(key, session) for key, session in self._sessions.items() if session.stale]:
            groups: dict[int, list[tuple[Hashable, _Session]]] = {}
            for entry in pending:  # pieces of similar length go together, so that little is padding
                groups.setdefault(_piece(len(entry[1].ids) - 1 - entry[1].held), []).append(entry)
            for width, group in sorted(groups.items()):
                span = self._span(max(min(len(s.ids) - 1, s.held + width) for _, s in group))
                while group:
                    R = next(size for size in self._sizes(width) if 2 * len(group) > size)
                    self._read(group[:R], R, min(width, self.context), span)
                    group = group[R:]

    def _read(self, group: list[tuple[Hashable, _Session]], R: int, width: int, span: int) -> None:
        """Reads the next piece of each of at most R sessions."""
        slot, tokens = np.full(R, self.slots, np.int32), np.zeros((R, width), np.int32)
        new, held, last, left, drawn, prompt = np.zeros((6, R), np.int32)
        temperature, names = np.ones(R, np.float32), np.zeros(R, np.uint32)
        stops = np.full((R, MAX_STOPS), NO_TOKEN, np.int32)
        for i, (key, session) in enumerate(group):
            piece = session.ids[session.held : -1][:width]
            tokens[i, : len(piece)] = piece
            slot[i], new[i], held[i], last[i] = session.slot, len(piece), session.held, session.ids[-1]
            left[i], drawn[i], temperature[i] = session.left, len(session.ids), session.temperature
            prompt[i] = len(session.ids) - len(session.answer)
            stops[i, : len(session.stops)] = sorted(session.stops)
            names[i] = zlib.crc32(repr(key).encode())
            session.held += len(piece)
            session.waiting = session.held < len(session.ids) - 1
        row = Row(slot, new, held, last, left, drawn, temperature, stops, prompt, names)
        options: dict[str, Any] = {"span": span, "mesh": self.mesh}
        self._state = read(self._params, self.cfg, self._state, self._seed, tokens, row, self._clamp(), **options)


def _committed(params: Params) -> Params:
    """The same arrays, tied to where they are: programs are compiled anew for arrays that are not."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, leaf.sharding), params)


def _piece(count: int) -> int:
    """The width at which ``count`` tokens begin to be read: no more than `FEED`, and less where much of it would be padding."""
    if count > FEED:
        return FEED
    width = bucket(count, smallest=SMALLEST_FEED)
    return width // 2 if width > SMALLEST_SPLIT and 4 * count <= 3 * width else width

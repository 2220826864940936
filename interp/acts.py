"""Natural activations: which values some neurons take on a text, how often, and on which tokens.

The text is streamed in windows of one shape (`interp.windows`). The model runs only up to the highest layer asked for, without
the head, and only the values asked for leave the device. What is kept does not grow with the text (`interp.tally`).
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interp import tally, windows
from interp.tally import Histogram, Moments, Place
from interp.windows import LENGTH, Batch, Shape, Windows, shape_for
from jaxllm import model
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params
from jaxllm.record import Neurons, Recorded
from jaxllm.tokenizer import Tokenizer

SITES = ("up", "gate_pre", "product")
MAX_NEURONS = 64  # of one search; each keeps half a megabyte of counts
SIGMAS = (1, 2, 3, 4, 5, 6)
BEFORE, AFTER = 24, 8  # tokens of a context around the marked one, where its window has them


@dataclasses.dataclass(frozen=True)
class Tail:
    """How many of a neuron's values lie far out on one side."""

    sigmas: int  # standard deviations from the mean, about; negative below it
    value: float  # the exact bound
    share: float  # of the values at least ``value``; with negative sigmas, of those below it


@dataclasses.dataclass(frozen=True)
class NeuronActivations:
    """The values of one neuron on a text."""

    layer: int
    neuron: int
    count: int  # finite values, one per counted token
    nonfinite: int  # NaN and infinities, left out of all else
    mean: float
    std: float
    min: float
    max: float
    highest: tuple[Place, ...]  # largest values first, one per context, ties by place in the text
    lowest: tuple[Place, ...]  # smallest values first
    counts: np.ndarray  # [tally.KEYS] int64, by `tally.key` of the value

    def histogram(self, bins: int = 24) -> Histogram:
        """At most ``bins`` bins of about equal width from the smallest value to the largest."""
        return tally.histogram(self.counts, self.min, self.max, bins)

    def quantile(self, q: float) -> float:
        """The value below which a share ``q`` of the values lies, to a part in 128."""
        return min(max(tally.quantile(self.counts, q), self.min), self.max)

    def tails(self) -> list[Tail]:
        """Shares of values beyond 1 to 6 standard deviations on either side; bounds are exact, sigmas rounded to a bin."""
        found, total = [], max(self.count, 1)
        for sigmas in (*SIGMAS, *(-n for n in SIGMAS)):
            at = int(tally.key(self.mean + sigmas * self.std))
            share = (self.counts[at:] if sigmas > 0 else self.counts[:at]).sum() / total
            found.append(Tail(sigmas, float(tally.floor(np.array([at]))[0]), float(share)))
        return found


@dataclasses.dataclass(frozen=True)
class Activations:
    """What a search over a text found."""

    site: str
    tokens: int  # of the text that were counted
    size: int  # bytes of the text that they stand for
    complete: bool  # False: interrupted, what was found up to there
    neurons: tuple[NeuronActivations, ...]  # in the order asked for


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    tokens: int  # counted so far
    size: int  # bytes of text that they stand for


def activations(
    params: Params,
    cfg: Config,
    tokenizer: Tokenizer,
    neurons: Sequence[tuple[int, int]],
    text: Path | Iterable[str],
    *,
    site: str = "up",
    top: int = 20,
    shape: Shape | None = None,
    progress: Callable[[Progress], None] | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> Activations:
    """Searches a text for the values of some neurons.

    Args:
      params: unstacked or stacked parameters of ``cfg``.
      neurons: (layer, neuron) pairs, at most `MAX_NEURONS`.
      text: a UTF-8 file, or a text in pieces of any size.
      site: ``up`` (output of the up projection), ``gate_pre`` (of the gate projection, before SiLU) or ``product`` (SiLU of the
        gate times up: what enters the down projection).
      top: contexts to keep at each end, per neuron.
      shape: how the text is cut; windows of 256 tokens by default.
      progress: called after each batch.
      mesh: where the parameters live, if on a mesh.
    Returns:
      What was found; after Ctrl-C (KeyboardInterrupt) what was found until then, with ``complete`` False.
    Raises:
      UserError: no such neuron or site, windows longer than the model's positions, or the text is missing, empty, not UTF-8 or
        a single token.
      KeyboardInterrupt: before anything was found.
    """
    if top < 1:
        raise UserError(f"at least one context must be kept, found top {top}")
    if len(neurons) > MAX_NEURONS:
        raise UserError(f"{len(neurons)} neurons are too many for one search; give at most {MAX_NEURONS}")
    shape = shape or shape_for(min(LENGTH, cfg.max_position_embeddings))
    if shape.length > cfg.max_position_embeddings:
        raise UserError(f"windows of {shape.length} tokens exceed the model's {cfg.max_position_embeddings} positions")
    search = Search(neurons, site, top)
    pieces = windows.read(text) if isinstance(text, Path) else text
    batches = Windows(tokenizer, shape).batches(windows.encode(tokenizer, pieces))
    complete = True
    try:
        for batch, values in record(params, cfg, batches, neurons, site, mesh=mesh):
            search.add(batch, values)
            if progress is not None:
                progress(Progress(search.tokens, search.size))
    except KeyboardInterrupt:
        if not search.tokens:
            raise
        complete = False
    if not search.tokens:
        raise UserError(f"{text if isinstance(text, Path) else 'the text'}: a text needs at least two tokens")
    return search.result(complete)


def record(
    params: Params,
    cfg: Config,
    batches: Iterable[Batch],
    neurons: Sequence[tuple[int, int]],
    site: str = "up",
    *,
    mesh: jax.sharding.Mesh | None = None,
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Each batch with the values of the m neurons on it, ``[B, T, m]`` float32; the next batch is computed meanwhile.

    Raises:
      UserError: no neuron, an unknown site, or a neuron that the model does not have.
    """
    check(cfg, neurons, site)
    m = len(neurons)
    padded = [*neurons, *[neurons[0]] * ((1 << (m - 1).bit_length()) - m)]  # few shapes, few compilations
    wanted = Neurons(*(jnp.asarray(column, jnp.int32) for column in zip(*padded, strict=True)))
    last = max(layer for layer, _ in neurons)
    waiting: tuple[Batch, jax.Array] | None = None
    for batch in batches:
        launched = batch, getattr(run(params, cfg, batch.tokens, wanted, last=last, mesh=mesh), site)
        if waiting is not None:
            yield waiting[0], _collect(waiting[1])[..., :m]
        waiting = launched
    if waiting is not None:
        yield waiting[0], _collect(waiting[1])[..., :m]


def check(cfg: Config, neurons: Sequence[tuple[int, int]], site: str) -> None:
    """Raises UserError for no neurons, an unknown site, or a neuron that the model does not have."""
    if site not in SITES:
        raise UserError(f"site {site!r} is not known; choose one of {', '.join(SITES)}")
    if not neurons:
        raise UserError("no neuron given; name one such as L12/N345")
    L, F = cfg.num_hidden_layers, cfg.intermediate_size
    for layer, neuron in neurons:
        if not (0 <= layer < L and 0 <= neuron < F):
            raise UserError(f"L{layer}/N{neuron}: the model has layers 0 to {L - 1} with neurons 0 to {F - 1}")


@functools.partial(jax.jit, static_argnames=("cfg", "last", "mesh"))
def run(
    params: Params,
    cfg: Config,
    tokens: jax.typing.ArrayLike,
    neurons: Neurons,
    *,
    last: int,
    mesh: jax.sharding.Mesh | None = None,
) -> Recorded:
    """What m neurons, none above layer ``last``, hold at each of ``tokens`` [B, T]; nothing behind them is computed."""
    return model.forward(params, cfg, jnp.asarray(tokens), record=neurons, last_layer=last, mesh=mesh)[1]


def _collect(values: Any) -> np.ndarray:
    """The array on the host; waits in Python, so that Ctrl-C is heard during a long computation."""
    while not values.is_ready():
        time.sleep(0.001)
    return np.asarray(values)


@dataclasses.dataclass(frozen=True)
class _Found:
    """All that is known after some batches; replaced as a whole, so that an interruption leaves it true."""

    tokens: int
    size: int
    moments: Moments
    counts: np.ndarray  # [m, KEYS]
    ends: tuple[tuple[tuple[Place, ...], tuple[Place, ...]], ...]  # per neuron: highest, lowest


class Search:
    """Collects what batches tell of m neurons."""

    def __init__(self, neurons: Sequence[tuple[int, int]], site: str, top: int):
        self.neurons, self.site, self.top = tuple(neurons), site, top
        m = len(neurons)
        empty = tally.moments(np.zeros((0, m), np.float32))
        self._found = _Found(0, 0, empty, np.zeros((m, tally.KEYS), np.int64), (((), ()),) * m)

    @property
    def tokens(self) -> int:
        """Tokens counted so far."""
        return self._found.tokens

    @property
    def size(self) -> int:
        """Bytes of text that they stand for."""
        return self._found.size

    def add(self, batch: Batch, values: np.ndarray) -> None:
        """Takes the values ``[B, T, m]`` of one batch; batches come in the order of the text."""
        old, flat = self._found, values[batch.counted]
        contexts = windows.keys(batch, tally.SAME)[batch.counted]
        places = np.argwhere(batch.counted)
        ends = []
        for j, kept in enumerate(old.ends):
            both = []
            for sign, before in zip((1, -1), kept, strict=True):
                bound = sign * before[-1].value if len(before) == self.top else -np.inf
                chosen = tally.best(sign * flat[:, j], contexts, self.top, bound)
                found = [_place(batch, int(places[at, 0]), int(places[at, 1]), float(flat[at, j])) for at in chosen]
                both.append(tally.merge_best(before, found, self.top, sign))
            ends.append((both[0], both[1]))
        self._found = _Found(
            old.tokens + len(flat),
            old.size + batch.size,
            tally.merge(old.moments, tally.moments(flat)),
            tally.count(flat, old.counts),
            tuple(ends),
        )

    def result(self, complete: bool = True) -> Activations:
        """What was found up to now."""
        found, known = self._found, self._found.moments
        neurons = [
            NeuronActivations(
                layer=layer,
                neuron=neuron,
                count=int(known.count[j]),
                nonfinite=int(known.nonfinite[j]),
                mean=float(known.mean[j]),
                std=float(known.std[j]),
                min=float(known.min[j]),
                max=float(known.max[j]),
                highest=found.ends[j][0],
                lowest=found.ends[j][1],
                counts=found.counts[j],
            )
            for j, (layer, neuron) in enumerate(self.neurons)
        ]
        return Activations(self.site, found.tokens, found.size, complete, tuple(neurons))


def _place(batch: Batch, row: int, column: int, value: float) -> Place:
    """Token ``column`` of window ``row`` with its surroundings in the window."""
    text = np.flatnonzero(batch.index[row] != windows.NO_ID)
    begin, end = max(text[0], column - BEFORE), min(text[-1], column + AFTER) + 1
    ids = tuple(batch.tokens[row, begin:end].tolist())
    return Place(value, int(batch.index[row, column]), int(batch.line[row, column]), ids, int(column - begin))

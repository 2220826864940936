"""Clamps: holding single MLP neurons at a value, or bounding, shifting or scaling them, while the model runs.

A clamp is data, an argument of `jaxllm.model.forward` and of generation. Nothing of it is kept anywhere, so none can outlive a
call; and since it is arrays, another neuron, value or position compiles nothing anew.

Within a block the sites are, in the order in which clamps act::

    gate_pre   a = G h            the gate's projection
    gate_act   silu(a)
    up         u = U h            the up-projection: the default, gated by silu(a)
    product    s = silu(a) * u    what the down-projection reads: not gated
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.config import Config
from jaxllm.errors import UserError

SITES = ("gate_pre", "gate_act", "up", "product")
MODES = ("set", "add", "scale", "floor", "ceil", "set_if_active")
POSITIONS = ("all", "prompt", "generated", "last")

NO_LAYER = -1  # marks an empty slot of a `Clamp`
NO_TOKEN = -1  # fills `Clamp.special`
# So many slots are each compared with all values of a layer, which fuses and needs no communication between devices; more are
# gathered and scattered, so that programs stay small.
FEW = 2

_FAR = 1 << 30  # beyond any position
# Position rule -> first and last + 1 as positions, and the same counted from the prompt's end.
_RANGES = {
    "all": (0, _FAR, -_FAR, _FAR),
    "prompt": (0, _FAR, -_FAR, 0),
    "generated": (0, _FAR, 0, _FAR),
    "last": (0, _FAR, -1, 0),
}

# What a slot consists of, in the order of `Clamp`.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("layer", "neuron", "site", "mode"), np.int32),
    **dict.fromkeys(("value", "threshold"), np.float32),
    **dict.fromkeys(("start", "stop", "after", "before"), np.int32),
    "exclude_special": np.bool_,
}
_EMPTY = (NO_LAYER, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, False)


@dataclasses.dataclass(frozen=True)
class NeuronClamp:
    """What to do with one neuron. Layers, neurons and positions count from 0."""

    layer: int
    neuron: int  # row of the up-projection
    value: float  # what to set, add, multiply with, or bound by
    site: str = "up"  # one of `SITES`
    mode: str = "set"  # one of `MODES`; floor is a least value, ceil a greatest one
    threshold: float = 0.0  # set_if_active acts where the site's value is above this
    positions: str | tuple[int, ...] = (
        "all"  # one of `POSITIONS` ("last" is the prompt's last token), or positions of the prompt
    )
    exclude_special: bool = False  # leave special tokens alone

    def __str__(self) -> str:
        return f"L{self.layer}/N{self.neuron}"


@flax.struct.dataclass
class Clamp:
    """Clamps of a batch, n slots for each row; made by `make_clamp`.

    The arrays have shape ``[B, n]``, or ``[1, n]`` when all rows share the slots; n is a power of two, or 0 for none. A slot
    acts on tokens whose position p satisfies ``start <= p < stop`` and ``after <= p - prompt length < before``.
    """

    layer: jax.typing.ArrayLike  # int32, NO_LAYER in an empty slot
    neuron: jax.typing.ArrayLike  # int32
    site: jax.typing.ArrayLike  # int32, index into SITES
    mode: jax.typing.ArrayLike  # int32, index into MODES
    value: jax.typing.ArrayLike  # float32
    threshold: jax.typing.ArrayLike  # float32
    start: jax.typing.ArrayLike  # int32
    stop: jax.typing.ArrayLike  # int32
    after: jax.typing.ArrayLike  # int32
    before: jax.typing.ArrayLike  # int32
    exclude_special: jax.typing.ArrayLike  # bool
    special: jax.typing.ArrayLike  # [1, m] int32, ids of the special tokens; NO_TOKEN is padding

    @property
    def rows(self) -> int:
        """B, or 1 when all rows share the slots."""
        return np.shape(self.layer)[0]

    @property
    def slots(self) -> int:
        """n; 0 means that there is nothing to do."""
        return np.shape(self.layer)[1]


@dataclasses.dataclass(frozen=True)
class Acting:
    """A clamp at the tokens of one call. What a slot does not set becomes ``clip(x * factor + offset, low, high)``."""

    here: jax.Array  # [B, T, n] bool, whether a slot acts on a token
    layer: jax.Array  # these and the following [B or 1, n]
    neuron: jax.Array
    site: jax.Array
    value: jax.Array
    above: jax.Array  # values above this are set; -inf to set all but NaN, inf to set none
    factor: jax.Array
    offset: jax.Array
    low: jax.Array
    high: jax.Array


def make_clamp(
    cfg: Config,
    rows: Sequence[NeuronClamp] | Sequence[Sequence[NeuronClamp]],
    *,
    special_ids: Collection[int] = (),
) -> Clamp:
    """The arrays of a clamp, on the host; nothing is computed.

    Args:
      cfg: the model's shape, against which everything is checked.
      rows: clamps for all rows of a batch, or a list of clamps for each row.
      special_ids: ids of the special tokens, for ``exclude_special``.
    Raises:
      UserError: a layer, neuron or position that the model does not have, a value that is not finite, an unknown site, mode or
        position rule, or two clamps of one row on the same neuron and site whose positions may meet.
    """
    each: list[Sequence[NeuronClamp]]
    if not rows or isinstance(rows[0], NeuronClamp):
        each = [cast(Sequence[NeuronClamp], rows)]
    else:
        each = list(cast(Sequence[Sequence[NeuronClamp]], rows))
    slots = []
    for row in each:
        for clamp in row:
            _check(clamp, cfg)
        _check_apart(row)
        slots.append([slot for clamp in row for slot in _slots(clamp)])
    n = _padded(max(map(len, slots)))
    full = [slot for row in slots for slot in [*row, *[_EMPTY] * (n - len(row))]]
    leaves = {
        name: np.array([slot[i] for slot in full], kind).reshape(len(slots), n) for i, (name, kind) in enumerate(_KINDS.items())
    }
    special = np.full((1, _padded(len(special_ids))), NO_TOKEN, np.int32)
    special[0, : len(special_ids)] = sorted(special_ids)
    return Clamp(**leaves, special=special)


def check_batch(clamp: Clamp, lengths: np.ndarray) -> None:
    """Raises UserError unless ``clamp``, on the host, fits prompts of ``lengths`` [B]: rows, and explicit positions."""
    if clamp.rows not in (1, len(lengths)):
        raise UserError(f"a clamp of {clamp.rows} rows for {len(lengths)} prompts; it needs one row, or one for each")
    layer, neuron, stop = (np.asarray(x) for x in (clamp.layer, clamp.neuron, clamp.stop))
    beyond = (layer != NO_LAYER) & (stop < _FAR) & (stop > lengths[:, None])
    if beyond.any():
        row, slot = np.argwhere(beyond)[0]
        name = f"L{layer[row % clamp.rows, slot]}/N{neuron[row % clamp.rows, slot]}"
        last = stop[row % clamp.rows, slot] - 1
        raise UserError(f"{name}: position {last} is beyond prompt {row}, whose tokens are 0 to {lengths[row] - 1}")


def acting(clamp: Clamp | None, tokens: jax.Array, positions: jax.Array, prompt_lengths: jax.typing.ArrayLike) -> Acting | None:
    """Where a clamp acts on ``tokens`` [B, T] at ``positions`` [B or 1, T]; None where there is nothing to do.

    Args:
      prompt_lengths: ``[B or 1]`` int32, tokens of each row that are its prompt.
    """
    if clamp is None or clamp.slots == 0:
        return None
    if clamp.rows not in (1, tokens.shape[0]):
        raise UserError(f"a clamp of {clamp.rows} rows for a batch of {tokens.shape[0]}")
    clamp = jax.tree.map(jnp.asarray, clamp)
    position = positions[..., None]
    from_end = position - jnp.asarray(prompt_lengths)[:, None, None]
    start, stop, after, before, exclude = (
        jnp.asarray(leaf)[:, None] for leaf in (clamp.start, clamp.stop, clamp.after, clamp.before, clamp.exclude_special)
    )
    here = (start <= position) & (position < stop) & (after <= from_end) & (from_end < before)
    here &= ~(exclude & jnp.isin(tokens, clamp.special)[..., None])
    mode, value = jnp.asarray(clamp.mode), jnp.asarray(clamp.value)

    def when(name: str, then: jax.typing.ArrayLike, otherwise: jax.typing.ArrayLike) -> jax.Array:
        return jnp.where(mode == MODES.index(name), then, otherwise)

    return Acting(
        here=here,
        layer=jnp.asarray(clamp.layer),
        neuron=jnp.asarray(clamp.neuron),
        site=jnp.asarray(clamp.site),
        value=value,
        above=when("set", -jnp.inf, when("set_if_active", clamp.threshold, jnp.inf)),
        factor=when("scale", value, 1),
        offset=when("add", value, 0),
        low=when("floor", value, -jnp.inf),
        high=when("ceil", value, jnp.inf),
    )


def in_layer(
    now: Acting | None, layer: Any, function: Callable[..., tuple[jax.Array, ...]], *values: jax.Array
) -> tuple[jax.Array, ...]:
    """``function(clamped, *values)``, where ``clamped(site, values)`` puts the clamps of ``layer`` on a site's values.

    A layer without any takes the plain way: a step of generation is made of many small operations, and those of a clamp count.
    """

    def clamped(site: str, values: jax.Array) -> jax.Array:
        return apply(now, site, values, layer)

    def plain(_: str, values: jax.Array) -> jax.Array:
        return values

    if now is None:
        return function(plain, *values)
    here = jnp.any(now.layer == layer)
    return jax.lax.cond(here, functools.partial(function, clamped), functools.partial(function, plain), *values)


def apply(now: Acting | None, site: str, values: jax.Array, layer: Any) -> jax.Array:
    """``values`` [B, T, F] of a layer's site with the clamps on it; ``layer`` may be traced."""
    if now is None:
        return values
    hit = now.here & ((now.site == SITES.index(site)) & (now.layer == layer))[:, None]
    F, n = values.shape[-1], now.neuron.shape[1]
    if n <= FEW:
        columns = jax.lax.broadcasted_iota(jnp.int32, (1, 1, F), 2)
        for i in range(n):
            here = hit[..., i, None] & (columns == now.neuron[:, i, None, None])
            values = jnp.where(here, _changed(now, values, (slice(None), i, None, None)), values)
        return values
    b, t = jnp.arange(hit.shape[0])[:, None, None], jnp.arange(hit.shape[1])[:, None]
    neuron = now.neuron[:, None]
    new = _changed(now, values[b, t, neuron], (slice(None), None))
    return values.at[b, t, jnp.where(hit, neuron, F)].set(new, mode="drop")


def _changed(now: Acting, values: jax.Array, at: tuple[Any, ...]) -> jax.Array:
    """What slots make of values, in their element type; ``at`` indexes the slots' arrays so that they broadcast."""
    wide = values.astype(jnp.float32)
    bounded = jnp.clip(wide * now.factor[at] + now.offset[at], now.low[at], now.high[at])
    return jnp.where(wide > now.above[at], now.value[at], bounded).astype(values.dtype)


def _check(clamp: NeuronClamp, cfg: Config) -> None:
    L, F, S = cfg.num_hidden_layers, cfg.intermediate_size, cfg.max_position_embeddings
    if not (_is_index(clamp.layer, L) and _is_index(clamp.neuron, F)):
        raise UserError(f"{clamp}: the model has layers 0 to {L - 1} and neurons 0 to {F - 1}")
    if clamp.site not in SITES:
        raise UserError(f"{clamp}: unknown site {clamp.site!r}; there are {', '.join(SITES)}")
    if clamp.mode not in MODES:
        raise UserError(f"{clamp}: unknown mode {clamp.mode!r}; there are {', '.join(MODES)}")
    for name in ("value", "threshold"):
        if not _is_finite(getattr(clamp, name)):
            raise UserError(f"{clamp}: {name} {getattr(clamp, name)!r} is not a finite float32 number")
    if isinstance(clamp.positions, str):
        if clamp.positions not in POSITIONS:
            raise UserError(f"{clamp}: unknown positions {clamp.positions!r}; write {', '.join(POSITIONS)}, or numbers")
    elif not clamp.positions or not all(_is_index(position, S) for position in clamp.positions):
        raise UserError(f"{clamp}: positions {clamp.positions!r} are not one or more numbers from 0 to {S - 1}")


def _is_index(value: Any, size: int) -> bool:
    try:
        return 0 <= operator.index(value) < size
    except TypeError:
        return False


def _is_finite(value: Any) -> bool:
    with np.errstate(over="ignore"):
        return isinstance(value, int | float | np.floating | np.integer) and math.isfinite(np.float32(value))


def _check_apart(row: Sequence[NeuronClamp]) -> None:
    """Raises for two clamps of one neuron and site whose positions may meet."""
    seen: dict[tuple[int, int, str], list[NeuronClamp]] = {}
    for clamp in row:
        others = seen.setdefault((clamp.layer, clamp.neuron, clamp.site), [])
        for other in others:
            if _meet(clamp.positions, other.positions):
                raise UserError(
                    f"{clamp}: two clamps at site {clamp.site}, on positions {other.positions} and {clamp.positions}, which "
                    "may be the same; give one, or positions apart (prompt and generated, or different numbers)"
                )
        others.append(clamp)


def _meet(a: str | tuple[int, ...], b: str | tuple[int, ...]) -> bool:
    """Whether a token can be in both, for a prompt of any length."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return bool(set(a) & set(b))
    return not ("generated" in (a, b) and a != b and "all" not in (a, b))


def _slots(clamp: NeuronClamp) -> Iterable[tuple[Any, ...]]:
    """The slots of one clamp: one, or one for each run of explicit positions."""
    fixed = clamp.layer, clamp.neuron, SITES.index(clamp.site), MODES.index(clamp.mode), clamp.value, clamp.threshold
    if isinstance(clamp.positions, str):
        ranges = [_RANGES[clamp.positions]]
    else:
        ranges = [(first, last + 1, -_FAR, 0) for first, last in _runs(sorted(set(clamp.positions)))]
    return [(*fixed, *span, clamp.exclude_special) for span in ranges]


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbours in ascending numbers."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and runs[-1][1] == position - 1:
            runs[-1] = runs[-1][0], position
        else:
            runs.append((position, position))
    return runs


def _padded(count: int) -> int:
    """The smallest power of two that is no less, or 0."""
    return count and 1 << (count - 1).bit_length()

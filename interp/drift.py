"""How far training has moved the labels of a model's neurons, from two parameter trees in memory: no map, no file.

start = label(params, cfg, sample=4096)                  # before training, once
moved = drift(start, params, cfg)                        # now and then; `moved.scalars()` goes to a logger

Each neuron is labelled by the top token of its row's + pole, as a map does it (arXiv 2501.02688).
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from interp import matching
from interp.atlas import NO_TOKEN
from interp.decode import Vocabulary, prepare_head, top
from interp.matching import Count
from interp.rows import Norm, Site
from jaxllm import intervals
from jaxllm import params as params_lib
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.intervals import Mean, Rate
from jaxllm.params import Params

BLOCK_ROWS = 8192  # of a head, looked at together


@dataclasses.dataclass(frozen=True)
class Labels:
    """The neurons of one parameter tree, n of them by layer, with what `drift` needs of them."""

    layer: np.ndarray  # [n] int64, ascending
    neuron: np.ndarray  # [n] int64
    ids: np.ndarray  # [n] int32 top tokens; `NO_TOKEN` for a row that is zero or not finite
    margin: np.ndarray  # [n] float32, logit of the top token minus the second's
    rows: tuple[jax.Array, ...]  # the rows themselves, in batches, on the device: [n, D] together
    allowed: np.ndarray  # [V] bool, ids that may be a label
    site: Site
    norm: Norm


@dataclasses.dataclass(frozen=True)
class Moved:
    """The M neurons whose top token is another one now, by the margin they had, largest first. All arrays [M]."""

    layer: np.ndarray
    neuron: np.ndarray
    old: np.ndarray  # token ids
    new: np.ndarray
    margin_before: np.ndarray  # in logits
    margin_after: np.ndarray


@dataclasses.dataclass(frozen=True)
class Drift:
    """What `drift` found among the neurons that have a label before and after."""

    match: Rate  # neurons that kept their top token
    layers: list[int]  # that have neurons in the sample
    by_layer: list[Rate]
    row_cos: Mean  # cosine of a neuron's row before and after
    row_cos_by_layer: list[Mean]
    moved: Moved
    labels: list[Count]  # how many neurons each word labels; the greatest gain first, the greatest loss last
    left_out: int  # neurons without a label before or after

    def gained(self, count: int = 10) -> list[Count]:
        """The words that label more neurons than before, the greatest gain first."""
        return [word for word in self.labels[:count] if word.after > word.before]

    def lost(self, count: int = 10) -> list[Count]:
        """The words that label fewer neurons than before, the greatest loss first."""
        return [word for word in self.labels[: -count - 1 : -1] if word.after < word.before]

    def scalars(self) -> dict[str, float]:
        """Names and numbers for a logger."""
        out = {
            "match": self.match.share,
            "match_low": self.match.low,
            "match_high": self.match.high,
            "row_cos": self.row_cos.value,
            "moved": float(len(self.moved.layer)),
            "left_out": float(self.left_out),
        }
        return out | {f"match/layer_{n:02d}": rate.share for n, rate in zip(self.layers, self.by_layer, strict=True)}


def drift(
    before: Params | Labels,
    after: Params,
    cfg: Config,
    *,
    sample: int | None = None,
    site: Site = "up",
    norm: Norm = "rms",
    allowed: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
) -> Drift:
    """Labels the same neurons in two parameter trees of one config and compares.

    Args:
      before: parameters, stacked or not; or what `label` made of them, which then decides sample, site, norm and allowed ids.
      after: parameters.
      sample: how many neurons, drawn at random over all layers; all when None.
      site: rows of ``up`` or ``gate``, or columns of ``down``.
      norm: ``rms``, ``final`` or ``none``, as in `interp.rows.directions`.
      allowed: ``[V]`` bool, ids that may be a label; all by default. Head rows that are not finite never are.
      groups: ``[V]`` int, spellings of one word have equal numbers (`interp.tokens.group_tokens`): `Drift.labels` joins them.
      seed: of the sample.
      mesh: where the parameters live, if on a mesh; decoding is then spread over it.
    Raises:
      UserError: a head has no finite row.
    """
    if not isinstance(before, Labels):
        before = label(before, cfg, sample=sample, site=site, norm=norm, allowed=allowed, seed=seed, mesh=mesh)
    elif sample is not None:
        raise ValueError("the labels of before decide which neurons are looked at; leave sample out")
    now = _label(after, cfg, before.layer, before.neuron, before.site, before.norm, before.allowed, mesh=mesh)
    cosine = np.concatenate([np.asarray(_cosine(*pair)) for pair in zip(before.rows, now.rows, strict=True)])
    judged = (before.ids != NO_TOKEN) & (now.ids != NO_TOKEN)
    match, layer = before.ids == now.ids, before.layer
    layers = np.unique(layer).tolist()
    at = np.flatnonzero(judged & ~match)
    at = at[np.argsort(-before.margin[at], kind="stable")]
    groups = np.arange(len(before.allowed)) if groups is None else np.asarray(groups)
    return Drift(
        match=intervals.rate_of(match[judged]),
        layers=layers,
        by_layer=[intervals.rate_of(match[judged & (layer == n)]) for n in layers],
        row_cos=intervals.mean(cosine),
        row_cos_by_layer=[intervals.mean(cosine[layer == n]) for n in layers],
        moved=Moved(layer[at], before.neuron[at], before.ids[at], now.ids[at], before.margin[at], now.margin[at]),
        labels=matching.label_counts(before.ids[judged], now.ids[judged], groups),
        left_out=int((~judged).sum()),
    )


def label(
    params: Params,
    cfg: Config,
    *,
    sample: int | None = None,
    site: Site = "up",
    norm: Norm = "rms",
    allowed: np.ndarray | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
) -> Labels:
    """Labels neurons once, to compare later parameters with them. It keeps their rows, so ``params`` may be donated.

    Arguments and errors as of `drift`.
    """
    L, F = cfg.num_hidden_layers, cfg.intermediate_size
    chosen = np.arange(L * F)
    if sample is not None:
        if sample < 1:
            raise ValueError(f"sample must be at least 1, found {sample}")
        chosen = np.sort(np.random.default_rng(seed).choice(L * F, min(sample, L * F), replace=False))
    ids = np.ones(cfg.vocab_size, bool) if allowed is None else np.asarray(allowed, bool)
    return _label(params, cfg, chosen // F, chosen % F, site, norm, ids, mesh=mesh)


def _label(
    params: Params,
    cfg: Config,
    layer: np.ndarray,
    neuron: np.ndarray,
    site: Site,
    norm: Norm,
    allowed: np.ndarray,
    *,
    mesh: Mesh | None,
) -> Labels:
    vocabulary = _prepare(params, allowed, mesh)
    gain = _local(params["norm"]["weight"], mesh)
    rows, ids, margin = [], [], []
    for batch in _batches(params, layer, neuron, site, len(layer) == cfg.num_hidden_layers * cfg.intermediate_size):
        batch = _local(batch, mesh)
        w, usable = _directions(batch, gain, norm=norm, eps=cfg.rms_norm_eps)
        found = top(w, vocabulary, k=min(2, vocabulary.count))
        ok, logits = np.asarray(usable), np.asarray(found.logits)
        rows.append(batch)
        ids.append(np.where(ok, np.asarray(found.ids)[:, 0], NO_TOKEN))
        margin.append(np.where(ok, logits[:, 0] - logits[:, -1], np.float32(np.nan)))
    return Labels(layer, neuron, np.concatenate(ids), np.concatenate(margin), tuple(rows), allowed, site, norm)


def _prepare(params: Params, allowed: np.ndarray, mesh: Mesh | None) -> Vocabulary:
    head = np.asarray(params_lib.head(params))
    finite = np.ones(len(head), bool)
    for start in range(0, len(head), BLOCK_ROWS):
        finite[start : start + BLOCK_ROWS] = np.isfinite(head[start : start + BLOCK_ROWS].astype(np.float32)).all(1)
    if not (finite & allowed).any():
        raise UserError("no row of the head is finite and allowed: the parameters have diverged, and no neuron has a label")
    if not finite.all():
        head = np.where(finite[:, None], head, head.dtype.type(0))
    return prepare_head(head, allowed=finite & allowed, mesh=mesh)


def _batches(params: Params, layer: np.ndarray, neuron: np.ndarray, site: Site, everything: bool) -> Iterator[jax.Array]:
    """The rows of the neurons in order: a layer at a time when all are wanted, else all at once."""
    layers = params["layers"]
    stacked = 0 not in layers

    def matrix(n: int) -> jax.Array:
        block = layers if stacked else layers[n]
        weight = block["mlp"][f"{site}_proj"]["weight"]
        weight = weight[n] if stacked else weight
        return weight.T if site == "down" else weight

    if everything:
        yield from (jnp.copy(matrix(n)) for n in range(int(layer[-1]) + 1))
        return
    yield jnp.concatenate([matrix(n)[neuron[layer == n]] for n in np.unique(layer).tolist()])


def _local(array: jax.Array, mesh: Mesh | None) -> jax.Array:
    """The array where decoding happens: on the mesh, or on the default device."""
    return array if mesh is not None else jax.device_put(array, jax.devices()[0])


@functools.partial(jax.jit, static_argnames=("norm", "eps"))
def _directions(rows: jax.Array, gain: jax.Array, *, norm: Norm, eps: float) -> tuple[jax.Array, jax.Array]:
    """`interp.rows.directions` on the device: [n, D] float32, zero for rows without a label; and which have one, [n]."""
    w = rows.astype(jnp.float32)
    square = jnp.sum(w * w, axis=1)
    usable = jnp.isfinite(square) & (square > 0)
    w = jnp.where(usable[:, None], w, 0)
    if norm != "none":
        w = w / jnp.sqrt(jnp.where(usable, square, 0)[:, None] / w.shape[1] + eps)
    if norm == "final":
        w = w * gain.astype(jnp.float32)
    return w, usable


@jax.jit
def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """[n] cosine of the rows of ``a`` and ``b`` [n, D]; NaN where either is zero or not finite."""
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    cosine = jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1))
    return jnp.where(jnp.isfinite(cosine), jnp.clip(cosine, -1, 1), jnp.nan)

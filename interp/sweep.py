"""Dose curves: what a neuron's clamp does to a concept as its value goes from negative to positive, beside controls.

A rise under a large value proves little alone, so the same values are set in other neurons: some of the same layer, drawn at
random among those whose down columns are about as long; the same neuron at the opposite value; and the neuron of the whole
model whose up row, after this one's, lifts the concept most.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interp.concept import Concept
from interp.continuations import Continuation, continuations
from interp.effects import Effects, Row, effects, record_last
from interp.sign import Proposal, proposals
from interp.written import Written
from jaxllm import params as tree
from jaxllm.clamp import NeuronClamp
from jaxllm.config import Config
from jaxllm.params import Params
from jaxllm.sampling import Sampler
from jaxllm.tokenizer import Tokenizer

KINDS = ("neuron", "other pole", "second best", "random")
POOL = 64  # neurons of the layer with the nearest lengths, from which the random ones are drawn
SAMPLER = Sampler(temperature=1.0, top_p=0.95)  # of the sampled continuations


@dataclasses.dataclass(frozen=True)
class Dose:
    """One value of a curve."""

    value: float
    written: str  # as the user gave it, such as "3sd", or "natural"


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One neuron at one site over n values, on P prompts."""

    kind: str  # one of `KINDS`
    layer: int
    neuron: int
    site: str
    p: np.ndarray  # [n, P] probability of the concept as the next token
    logit: np.ndarray  # [n, P]
    rank: np.ndarray  # [n, P]
    kl: np.ndarray  # [n, P] KL(plain || clamped), nats
    top: np.ndarray  # [n, P] ids of the most likely tokens
    greedy: tuple[tuple[Continuation, ...], ...] = ()  # [n][P]; empty for controls
    sampled: tuple[tuple[Continuation, ...], ...] = ()  # [n][P * samples]


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """The curves of one neuron."""

    neuron: Written
    concept: Concept
    prompts: int  # P
    doses: Mapping[str, tuple[Dose, ...]]  # site -> values in ascending order, the natural one among them
    natural: Mapping[str, float]  # site -> mean of the neuron's own values where the next token is predicted
    signs: Mapping[str, Proposal]  # site -> which sign raises the concept
    plain: Curve  # n = 1, without a clamp; its neuron and site say nothing
    curves: tuple[Curve, ...]

    def curve(self, site: str, kind: str = "neuron") -> list[Curve]:
        """The curves of a site and kind; several only for "random"."""
        return [curve for curve in self.curves if (curve.site, curve.kind) == (site, kind)]


def share(row: Sequence[Continuation]) -> float:
    """Share of continuations in which the concept occurs."""
    return float(np.mean([text.occurs for text in row]))


def mean_fluency(row: Sequence[Continuation]) -> float:
    """Mean over continuations of the plain model's mean log-probability per token, in nats."""
    return float(np.mean([text.fluency for text in row]))


def sweep(
    params: Params,
    cfg: Config,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    neuron: Written,
    concept: Concept,
    doses: Mapping[str, Sequence[Dose]],
    *,
    controls: int = 4,
    seed: int = 0,
    max_tokens: int = 16,
    samples: int = 0,
    stop_ids: Collection[int] = (),
    progress: Callable[[int], None] = lambda rows: None,
) -> Sweep:
    """Runs all values, prompts, sites and controls as one batch; and continues the prompts under the neuron's own clamps.

    Args:
      params: unstacked parameters.
      prompts: token ids of P prompts.
      neuron: from `interp.written.written`, with the concept's ids.
      doses: site (`up` or `product`) -> values; the neuron's natural value is added.
      controls: random neurons; 0 for none.
      seed: draws the random neurons and the samples.
      max_tokens: of a continuation; 0 leaves continuations out.
      samples: sampled continuations of each prompt and value, beside the greedy one.
      progress: called with the number of rows just done, of `rows_of` in all.
    Raises:
      UserError: a wrong prompt or value, before anything is computed.
    """
    P, here = len(prompts), (neuron.layer, neuron.neuron)
    _, up, product = record_last(params, cfg, prompts, [here])
    natural = {site: float((up if site == "up" else product).mean()) for site in doses}
    full = {site: _with_natural(given, natural[site]) for site, given in doses.items()}
    others: list[tuple[str, tuple[int, int]]] = [("other pole", here)]
    if (second := second_best(params, cfg, concept.ids, besides=here)) is not None:
        others.append(("second best", second))
    others += [("random", (neuron.layer, j)) for j in matched(params, *here, count=controls, seed=seed)]
    wanted = [(kind, at, site) for site in full for kind, at in [("neuron", here), *others]]

    # Equal clamps run once: the other pole of a symmetric range is the range itself.
    clamps: dict[NeuronClamp | None, int] = {None: 0}
    for kind, at, site in wanted:
        for dose in full[site]:
            clamps.setdefault(_clamp(kind, at, site, dose), len(clamps))
    found = _run(params, cfg, prompts, list(clamps), concept.ids, tokenizer.special_ids, progress)

    def curve(kind: str, at: tuple[int, int], site: str, chosen: list[int]) -> Curve:
        columns = {name: getattr(found, name).reshape(-1, P)[chosen] for name in ("p", "logit", "rank", "kl", "top")}
        return Curve(kind, *at, site, **columns)

    plain = curve("neuron", here, "", [0])
    curves = [curve(k, at, site, [clamps[_clamp(k, at, site, d)] for d in full[site]]) for k, at, site in wanted]
    if max_tokens:
        own = [curve for curve in curves if curve.kind == "neuron"]
        settings: list[NeuronClamp | None] = [None]
        settings += [_clamp("neuron", here, curve.site, dose) for curve in own for dose in full[curve.site]]
        common: dict[str, Any] = {"max_tokens": max_tokens, "stop_ids": stop_ids, "progress": progress}
        texts = continuations(params, cfg, tokenizer, prompts, _rows(settings, P), concept, **common)
        greedy, drawn = _split(texts, P), []
        if samples:
            common |= {"sampler": SAMPLER, "seed": seed}
            texts = continuations(params, cfg, tokenizer, prompts, _rows(settings, P, samples), concept, **common)
            drawn = _split(texts, P * samples)
        plain = dataclasses.replace(plain, greedy=tuple(greedy[:1]), sampled=tuple(drawn[:1]))
        start = 1
        for own_curve in own:
            stop = start + len(full[own_curve.site])
            place = next(i for i, curve in enumerate(curves) if curve is own_curve)
            curves[place] = dataclasses.replace(own_curve, greedy=tuple(greedy[start:stop]), sampled=tuple(drawn[start:stop]))
            start = stop
    signs = {site: proposals(params, cfg, prompts, [neuron], site=site)[0] for site in full}
    return Sweep(neuron, concept, P, full, natural, signs, plain, tuple(curves))


def rows_of(prompts: int, doses: Mapping[str, Sequence[Dose]], controls: int, max_tokens: int, samples: int) -> int:
    """About how many rows `sweep` runs, for a progress bar."""
    values = sum(len(given) + 1 for given in doses.values())
    return prompts * (1 + values * (3 + controls) + ((1 + values) * (1 + samples) if max_tokens else 0))


def matched(params: Params, layer: int, neuron: int, *, count: int, seed: int = 0) -> list[int]:
    """Other neurons of the layer, drawn among the `POOL` whose down columns have the nearest lengths, in ascending order."""
    lengths = np.asarray(_lengths(params["layers"][layer]["mlp"]["down_proj"]["weight"]), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(np.log(lengths / lengths[neuron]))
    distance = np.where(np.isnan(distance), np.inf, distance)
    distance[neuron] = np.inf
    pool = np.argsort(distance, kind="stable")[: min(POOL, len(lengths) - 1)]
    return sorted(np.random.default_rng(seed).choice(pool, min(count, len(pool)), replace=False).tolist())


def second_best(params: Params, cfg: Config, concept: Sequence[int], *, besides: tuple[int, int]) -> tuple[int, int] | None:
    """The neuron whose up row, at either pole, lifts the concept farthest above all tokens, that one left out.

    Measured as the concept's mean logit in standard deviations of the logits of all head rows, which follow from the head's
    mean and covariance. None in a model of one neuron.
    """
    center, covariance = _moments(tree.head(params))
    direction = jnp.mean(tree.head(params)[jnp.asarray(list(concept))].astype(jnp.float32), axis=0) - center
    best, where = -1.0, None
    for layer in range(cfg.num_hidden_layers):
        scores = np.array(_scores(params["layers"][layer]["mlp"]["up_proj"]["weight"], direction, covariance))
        if layer == besides[0]:
            scores[besides[1]] = -np.inf
        j = int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf)))
        if scores[j] > best:
            best, where = float(scores[j]), (layer, j)
    return where


@jax.jit
def _moments(head: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean [D] and covariance [D, D] of the head's rows."""
    center = jnp.mean(head, axis=0, dtype=jnp.float32)
    square = jnp.einsum("vd,ve->de", head, head, preferred_element_type=jnp.float32) / len(head)
    return center, square - jnp.outer(center, center)


@jax.jit
def _scores(rows: jax.Array, direction: jax.Array, covariance: jax.Array) -> jax.Array:
    """[F]: absolute logit along ``direction`` over the standard deviation of all logits, for each row."""
    rows = rows.astype(jnp.float32)
    variance = jnp.einsum("fd,de,fe->f", rows, covariance, rows)
    return jnp.abs(rows @ direction) / jnp.sqrt(jnp.maximum(variance, 1e-30))


@jax.jit
def _lengths(down: jax.Array) -> jax.Array:
    return jnp.linalg.norm(down.astype(jnp.float32), axis=0)


def _with_natural(doses: Sequence[Dose], natural: float) -> tuple[Dose, ...]:
    both = {dose.value: dose for dose in [Dose(natural, "natural"), *doses]}
    return tuple(both[value] for value in sorted(both))


def _clamp(kind: str, at: tuple[int, int], site: str, dose: Dose) -> NeuronClamp:
    return NeuronClamp(*at, -dose.value if kind == "other pole" else dose.value, site=site)


def _rows(settings: Sequence[NeuronClamp | None], P: int, times: int = 1) -> list[Row]:
    return [(i, [] if clamp is None else [clamp]) for clamp in settings for _ in range(times) for i in range(P)]


def _split(texts: list[Continuation], size: int) -> list[tuple[Continuation, ...]]:
    return [tuple(texts[start : start + size]) for start in range(0, len(texts), size)]


def _run(
    params: Params,
    cfg: Config,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[NeuronClamp | None],
    concept: Sequence[int],
    special_ids: Collection[int],
    progress: Callable[[int], None],
) -> Effects:
    """`effects` of every setting on every prompt; the settings of each layer run together, so that they share more."""
    P = len(prompts)
    layers = [None if clamp is None else clamp.layer for clamp in settings]
    columns: dict[str, np.ndarray] = {}
    late = max((layer for layer in layers if layer is not None), default=None)
    for layer in dict.fromkeys(late if layer is None else layer for layer in layers):
        at = [i for i, own in enumerate(layers) if (late if own is None else own) == layer]
        found = effects(
            params, cfg, prompts, _rows([settings[i] for i in at], P), concept, special_ids=special_ids, progress=progress
        )
        for field in dataclasses.fields(Effects):
            values = getattr(found, field.name).reshape(len(at), P)
            columns.setdefault(field.name, np.zeros((len(settings), P), values.dtype))[at] = values
    return Effects(**{name: values.reshape(-1) for name, values in columns.items()})

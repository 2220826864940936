"""Two maps side by side: which neurons kept their top token, which changed it, and how much of that is chance.

comparison = compare(Atlas("maps/base"), Atlas("maps/instruct"))
comparison.overall.match.share                                      # the measure of H. J. Davies, arXiv 2501.02688
drift(params_before, params_after, cfg).match                       # the same between two parameter trees, without maps

A neuron is judged by its + pole, the view of the paper. Rows without a label in one of the maps are left out of every rate, and
counted. What needs weights besides (`interp.attribution`) is added when the two checkpoints are given.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from interp import matching
from interp.alignment import SETTINGS, Alignment, align
from interp.atlas import AMBIGUOUS, DEGENERATE, NO_TOKEN, NONFINITE, Atlas
from interp.attribution import Weights, weigh
from interp.drift import Drift, Labels, drift, label
from interp.matching import Count, Decile
from jaxllm import intervals
from jaxllm.intervals import Mean, Rate
from jaxllm.load import Checkpoint

__all__ = ["Agreement", "Changed", "Comparison", "Drift", "Labels", "Weights", "compare", "drift", "label"]

PAPER_SHARE = 0.754  # of the 458,752 neurons of Llama 3.1 8B and its Instruct (arXiv 2501.02688)
PAPER_SHAPE = {"layers": 32, "neurons": 14336, "width": 4096, "vocabulary": 128256}
PAPER_NAME = re.compile(r"(meta-)?llama-3\.1-8b(-instruct)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far the top tokens of two maps agree over one layer, or over all."""

    layer: int | None  # None for all layers together
    match: Rate  # equal top tokens, among all rows that both maps label
    match_group: Rate  # equal but for leading space and case
    clear: Rate  # equal, among the rows whose top token is beyond rounding error in both maps
    ambiguous: Rate  # equal, among the others
    overlap: Mean  # share of the top k that both have
    rbo: Mean  # rank-biased overlap of the top k
    chance: float  # share of equal top tokens to expect of neurons that are paired at random
    shuffled: Rate  # equal top tokens after one random pairing
    degenerate: int  # rows left out: zero in either map
    nonfinite: int  # rows left out: NaN or infinity in either map
    unmatched: int  # rows left out: none of the stored tokens exists in both vocabularies


@dataclasses.dataclass(frozen=True)
class Changed:
    """The M neurons that have another top token, by the first map's margin, largest first. All arrays [M].

    Token ids are the first map's. A margin is NaN where a masked token leaves fewer than two stored ones.
    """

    layer: np.ndarray
    neuron: np.ndarray
    old: np.ndarray  # top token in the first map
    new: np.ndarray  # top token in the second
    margin_a: np.ndarray  # logit of the top token minus the second's, in the first map
    margin_b: np.ndarray  # and in the second
    old_place: np.ndarray  # of the old token in the second map, 0 for the top; -1 when it is not stored
    new_place: np.ndarray  # of the new token in the first map
    same_group: np.ndarray  # bool: another spelling of the same word
    ambiguous: np.ndarray  # bool: within rounding error in either map


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    names: tuple[str, str]  # of the models
    paths: tuple[str, str]  # of the maps
    settings: dict[str, Any]  # that both maps share
    layers: list[int]  # that both maps hold
    k: int  # places that are compared
    masked: tuple[int, int]  # tokens of either vocabulary that the other lacks
    overall: Agreement
    by_layer: list[Agreement]
    minus: Rate  # equal top tokens of the - poles
    deciles: list[Decile]
    changed: Changed
    labels: list[Count]  # how many neurons each word labels; the greatest gain first, the greatest loss last
    paper: float | None  # the paper's share, where the models are the paper's; else None
    weights: Weights | None = None  # None when no weights were given


@dataclasses.dataclass(frozen=True)
class _Side:
    """One pole of one map, N rows in the first map's ids. Rows end in `NO_TOKEN` where fewer than k tokens are common."""

    ids: np.ndarray  # [N, k]
    margin: np.ndarray  # [N]
    flags: np.ndarray  # [N]


def compare(
    a: Atlas,
    b: Atlas,
    *,
    checkpoints: tuple[Checkpoint, Checkpoint] | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compares two maps of models with equal shapes, neuron by neuron, over the layers that both hold.

    Args:
      checkpoints: the mapped models, to add what their weights tell: see `interp.attribution.weigh`.
      sample: neurons that the attribution decodes; its default when None.
      seed: of the shuffled pairing and of the samples.
    Raises:
      UserError: the maps are not comparable (`interp.alignment.align`), damaged, or not of these checkpoints.
    """
    alignment = align(a, b)
    k = min(a.top_k, b.top_k)
    plus, minus = ((_side(a, alignment, k, pole, first=True), _side(b, alignment, k, pole, first=False)) for pole in (0, 1))
    groups, F = a.tokens.group, a.num_neurons
    spans = [slice(i * F, (i + 1) * F) for i in range(len(alignment.layers))]
    by_layer = [
        _agreement(layer, _part(plus[0], span), _part(plus[1], span), groups, (seed, layer))
        for layer, span in zip(alignment.layers, spans, strict=True)
    ]
    judged = _judged(*plus)
    changed = _changed(alignment.layers, F, *plus, groups)
    match = (plus[0].ids[:, 0] == plus[1].ids[:, 0])[judged]
    comparison = Comparison(
        names=(a.meta["model"]["name"], b.meta["model"]["name"]),
        paths=(str(a.path), str(b.path)),
        settings={name: a.meta["settings"][name] for name in SETTINGS},
        layers=alignment.layers,
        k=k,
        masked=alignment.masked,
        overall=_agreement(None, *plus, groups, seed),
        by_layer=by_layer,
        minus=intervals.rate_of((minus[0].ids[:, 0] == minus[1].ids[:, 0])[_judged(*minus)]),
        deciles=matching.deciles(match, plus[0].margin[judged]),
        changed=changed,
        labels=matching.label_counts(plus[0].ids[judged, 0], plus[1].ids[judged, 0], groups),
        paper=PAPER_SHARE if _are_the_papers(a, b) else None,
    )
    if checkpoints is None:
        return comparison
    weights = weigh((a, b), checkpoints, alignment, (changed.layer, changed.neuron), sample=sample, seed=seed)
    return dataclasses.replace(comparison, weights=weights)


def _side(atlas: Atlas, alignment: Alignment, k: int, pole: int, *, first: bool) -> _Side:
    held = [atlas.layers.index(layer) for layer in alignment.layers]
    ids, logits, margin, flags = (
        (column := atlas.column(name)[held, :, pole]).reshape(-1, *column.shape[2:])
        for name in ("ids", "logits", "margin", "flags")
    )
    translate = np.append(alignment.common if first else alignment.to_a != NO_TOKEN, False)  # the last answers for NO_TOKEN
    kept = translate[ids]
    missing = ~kept & (ids != NO_TOKEN)
    if not first:
        ids = np.append(alignment.to_a, NO_TOKEN)[ids]
    ids = np.where(kept, ids, NO_TOKEN)
    if missing.any():  # tokens that the other vocabulary lacks go, and the rest moves up
        order = np.argsort(~kept, axis=1, kind="stable")
        ids = np.take_along_axis(ids, order, 1)
        best = np.take_along_axis(np.where(kept, logits, np.nan), order, 1)[:, :2]
        margin = np.where(missing[:, :2].any(1), best[:, 0] - best[:, 1] if best.shape[1] > 1 else np.nan, margin)
    return _Side(ids[:, :k], margin, flags)


def _part(side: _Side, rows: Any) -> _Side:
    return _Side(side.ids[rows], side.margin[rows], side.flags[rows])


def _judged(a: _Side, b: _Side) -> np.ndarray:
    """[N] bool: rows that have a label in both maps."""
    return (a.ids[:, 0] != NO_TOKEN) & (b.ids[:, 0] != NO_TOKEN)


def _agreement(layer: int | None, a: _Side, b: _Side, groups: np.ndarray, seed: Any) -> Agreement:
    judged, flags = _judged(a, b), a.flags | b.flags
    nonfinite = (flags & NONFINITE) != 0
    degenerate = (flags & DEGENERATE != 0) & ~nonfinite
    one, other = (_part(side, judged) for side in (a, b))
    old, new = one.ids[:, 0], other.ids[:, 0]
    match, ambiguous = old == new, (flags[judged] & AMBIGUOUS) != 0
    depth = np.minimum((one.ids != NO_TOKEN).sum(1), (other.ids != NO_TOKEN).sum(1))
    places = np.arange(one.ids.shape[1]) < depth[:, None]
    common = matching.shared(*(np.where(places, side.ids, NO_TOKEN) for side in (one, other)))
    return Agreement(
        layer=layer,
        match=intervals.rate_of(match),
        match_group=intervals.rate_of(groups[old] == groups[new]),
        clear=intervals.rate_of(match[~ambiguous]),
        ambiguous=intervals.rate_of(match[ambiguous]),
        overlap=intervals.mean(matching.overlap(common, depth)),
        rbo=intervals.mean(matching.rank_biased_overlap(common, depth)),
        chance=matching.chance(old, new),
        shuffled=matching.shuffled(old, new, seed),
        degenerate=int(degenerate.sum()),
        nonfinite=int(nonfinite.sum()),
        unmatched=int((~judged & ~degenerate & ~nonfinite).sum()),
    )


def _changed(layers: list[int], F: int, a: _Side, b: _Side, groups: np.ndarray) -> Changed:
    at = np.flatnonzero(_judged(a, b) & (a.ids[:, 0] != b.ids[:, 0]))
    at = at[np.argsort(-a.margin[at], kind="stable")]
    old, new = a.ids[at, 0], b.ids[at, 0]
    return Changed(
        layer=np.array(layers)[at // F],
        neuron=at % F,
        old=old,
        new=new,
        margin_a=a.margin[at],
        margin_b=b.margin[at],
        old_place=_place(b.ids[at], old),
        new_place=_place(a.ids[at], new),
        same_group=groups[old] == groups[new],
        ambiguous=((a.flags[at] | b.flags[at]) & AMBIGUOUS) != 0,
    )


def _place(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    hit = ids == wanted[:, None]
    return np.where(hit.any(1), hit.argmax(1), -1)


def _are_the_papers(a: Atlas, b: Atlas) -> bool:
    """Whether these are Llama 3.1 8B and its Instruct, in either order, by shape and name."""
    tuned = set()
    for model in (a.meta["model"], b.meta["model"]):
        name = PAPER_NAME.fullmatch(str(model["name"]).rstrip("/").rpartition("/")[2])
        if name is None or any(model[key] != value for key, value in PAPER_SHAPE.items()):
            return False
        tuned.add(bool(name[2]))
    return len(tuned) == 2

"""Which neurons come first: rankings of a map, and where its rows stand against the control.

Every pole of every neuron is a row; a neuron stands where its better pole stands. A ranking adds percentiles, so no
statistic's unit matters. Columns come from `interp.atlas`, shapes [L, F, 2].
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from interp.atlas import DEGENERATE, NO_TOKEN, NONFINITE, Atlas, Tokens

LABEL_K = 10  # top tokens that make a label
WORDS = (2, 6)  # the second to the sixth distinct word count in `concepts`
STEM_LETTERS = 3
CONTROL_QUANTILE = 0.99

RANKINGS = {
    "specialisation": "top tokens alike, far above the rest, and seldom at the top of other rows",
    "concepts": "the same, over different words instead of spellings of one word",
}

Column = Callable[[str], np.ndarray]  # `Atlas.column` or `Atlas.control`


@dataclasses.dataclass(frozen=True)
class Ranking:
    """An order of all L·F mapped neurons."""

    name: str
    score: np.ndarray  # [L, F, 2] float64, mean percentile of three statistics among all rows, 0 to 1; -1 without a label
    control: np.ndarray | None  # [L, C, 2], where the control rows would stand; None without a control
    order: np.ndarray  # [L*F] int64, flat neuron numbers (layer position * F + neuron), best first
    place: np.ndarray  # [L, F] int64, 0 for the best neuron
    pole: np.ndarray  # [L, F] int64, the better pole: 0 for +w, 1 for -w

    def top(self, count: int) -> list[tuple[int, int, int]]:
        """(layer position, neuron, pole index) of the best neurons."""
        F = self.place.shape[1]
        return [(i // F, i % F, int(self.pole[i // F, i % F])) for i in self.order[:count].tolist()]

    def above_control(self) -> tuple[np.ndarray, np.ndarray]:
        """Which rows, [L, F, 2] bool and [L, C, 2] bool, score above the 99th percentile of their layer's control rows.

        The second is what chance reaches: 1 % of the poles. Raises ValueError without a control.
        """
        if self.control is None:
            raise ValueError("the map has no control rows")
        threshold = np.quantile(self.control, CONTROL_QUANTILE, axis=(1, 2))[:, None, None]
        return self.score > threshold, self.control > threshold


def rank(atlas: Atlas, name: str = "specialisation") -> Ranking:
    """One of `RANKINGS`. Neurons without a label come last; ties go to the earlier neuron."""
    statistics = {"specialisation": specialisation, "concepts": concepts}[name]
    tops = tops_of(atlas)
    unlabelled = (atlas.column("flags") & (DEGENERATE | NONFINITE)) != 0
    real = [np.where(unlabelled, -np.inf, values) for values in statistics(atlas.column, tops, atlas.tokens)]
    score = np.where(unlabelled, -1.0, sum(percentiles(values, values) for values in real) / len(real))
    control = None
    if atlas.has_control:
        drawn = statistics(atlas.control, tops, atlas.tokens)
        control = np.mean([percentiles(values, among) for values, among in zip(drawn, real, strict=True)], axis=0)
    best = score.max(-1)
    order = np.argsort(-best.ravel(), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return Ranking(name, score, control, order, place.reshape(best.shape), score.argmax(-1))


def specialisation(column: Column, tops: np.ndarray, tokens: Tokens) -> list[np.ndarray]:
    """Three statistics [L, F, 2], larger is better: ``coherence``, ``zmax_sigma``, and the rarity of the top ten tokens.

    Some tokens, undertrained ones above all, top thousands of rows and resemble one another; without rarity they lead the list.
    """
    ids = column("ids")[..., :LABEL_K]
    return [column("coherence"), column("zmax_sigma"), rarity(ids, ids != NO_TOKEN, tops)]


def concepts(column: Column, tops: np.ndarray, tokens: Tokens) -> list[np.ndarray]:
    """The same three over distinct words: how far the second to the sixth different word stand out, instead of the first.

    Different words are different `stems`; a row with fewer words than six counts the absent ones as not standing out at all.
    """
    ids = column("ids")
    first = first_of_word(stems(tokens)[ids], ids)
    sigmas = (column("logits") - column("mean")[..., None]) / np.maximum(column("std"), 1e-30)[..., None]
    count = np.cumsum(first, -1, dtype=np.int32)
    counted = first & (count >= WORDS[0]) & (count <= WORDS[1])
    standing_out = np.where(counted, sigmas, 0).sum(-1)
    return [column("coherence"), standing_out, rarity(ids, first, tops)]


def tops_of(atlas: Atlas) -> np.ndarray:
    """[V] float32: log(rows / rows that have this token among their top ten), in nats; large for tokens that label few rows."""
    labels = atlas.column("ids")[..., :LABEL_K]
    rows = np.bincount(labels[labels != NO_TOKEN], minlength=len(atlas.tokens.data))
    return (np.log(labels[..., 0].size) - np.log(np.maximum(rows, 1))).astype(np.float32)


def rarity(ids: np.ndarray, counted: np.ndarray, tops: np.ndarray) -> np.ndarray:
    """[...] float32: mean of ``tops`` over the ids [..., k] that are counted; 0 for a row in which nothing is."""
    return np.where(counted, tops[ids], 0).sum(-1) / np.maximum(counted.sum(-1), 1)


def stems(tokens: Tokens) -> np.ndarray:
    """[V] int32: equal for tokens that count as one word, -1 for tokens that are no word (digits, marks, part of a character).

    The groups of the vocabulary, joined where their first three letters agree: "run", "running" and "runner", but not "white"
    and "yellow". Coarse on purpose: it is to count different words, and a miss only costs a row one of them.
    """
    numbers: dict[str, int] = {}
    group_stem: dict[int, int] = {}
    out = np.full(len(tokens.data), -1, np.int32)
    for token, (data, group) in enumerate(zip(tokens.data, tokens.group.tolist(), strict=True)):
        if group not in group_stem:
            word = data.decode("utf-8", errors="replace").strip().casefold()
            named = len(word) > 1 and word.isalpha()
            group_stem[group] = numbers.setdefault(word[:STEM_LETTERS], len(numbers)) if named else -1
        out[token] = group_stem[group]
    return out


def first_of_word(words: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """[..., k] bool: this token brings a word that no earlier token of its row has brought."""
    out = (words >= 0) & (ids != NO_TOKEN)
    for j in range(1, words.shape[-1]):
        out[..., j] &= (words[..., :j] != words[..., j : j + 1]).all(-1)
    return out


def percentiles(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Share of ``among`` that is smaller than each of ``values``, 0 to 1, in the shape of ``values``."""
    return np.searchsorted(np.sort(among, axis=None), values.ravel()).reshape(values.shape) / among.size


def specialised(atlas: Atlas) -> np.ndarray:
    """[L, F, 2] bool: ``zmax_sigma`` and ``coherence`` both reach the 99th percentile of their layer's control rows.

    Raises UserError when the map has no control.
    """
    thresholds = control_thresholds(atlas)
    reached = [atlas.column(name) >= thresholds[name][:, None, None] for name in ("zmax_sigma", "coherence")]
    return reached[0] & reached[1] & ((atlas.column("flags") & (DEGENERATE | NONFINITE)) == 0)


def control_specialised(atlas: Atlas) -> np.ndarray:
    """[L, C, 2] bool: the same for the control rows: the rate that chance reaches."""
    thresholds = control_thresholds(atlas)
    reached = [atlas.control(name) >= thresholds[name][:, None, None] for name in ("zmax_sigma", "coherence")]
    return reached[0] & reached[1]


def control_thresholds(atlas: Atlas) -> dict[str, np.ndarray]:
    """``zmax_sigma`` and ``coherence`` -> [L]: the 99th percentile over both poles of each layer's control rows."""
    return {name: np.quantile(atlas.control(name), CONTROL_QUANTILE, axis=(1, 2)) for name in ("zmax_sigma", "coherence")}

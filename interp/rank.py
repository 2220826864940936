"""Which neurons come first: rankings of a map, and where its rows stand against the control.

Both rankings add ranks, so no statistic's unit matters. Every pole of every neuron is a row; a neuron stands where its better
pole stands. Columns come from `interp.atlas`, shapes [L, F, 2].
"""

import dataclasses

import numpy as np

from interp.atlas import DEGENERATE, NO_TOKEN, NONFINITE, Atlas, Tokens

LABEL_K = 10  # top tokens that make a label
WORDS = (2, 6)  # the second to the sixth distinct word count in `concepts`
STEM_LETTERS = 3

RANKINGS = {
    "specialisation": "top tokens alike, far above the rest, and seldom at the top of other rows",
    "concepts": "the same over distinct words instead of spellings of one word",
}


@dataclasses.dataclass(frozen=True)
class Ranking:
    """An order of all L·F mapped neurons."""

    name: str
    score: np.ndarray  # [L, F, 2] int64, sum of ranks among all rows; lower is better
    order: np.ndarray  # [L*F] int64, flat neuron numbers (layer position * F + neuron), best first
    place: np.ndarray  # [L, F] int64, 0 for the best neuron
    pole: np.ndarray  # [L, F] int64, the better pole: 0 for +w, 1 for -w

    def top(self, count: int) -> list[tuple[int, int, int]]:
        """(layer position, neuron, pole index) of the best neurons."""
        F = self.place.shape[1]
        return [(i // F, i % F, int(self.pole[i // F, i % F])) for i in self.order[:count].tolist()]


def rank(atlas: Atlas, name: str = "specialisation") -> Ranking:
    """One of `RANKINGS`. Rows without a label come last; ties go to the earlier neuron."""
    statistics = {"specialisation": specialisation, "concepts": concepts}[name](atlas)
    unlabelled = (atlas.column("flags") & (DEGENERATE | NONFINITE)) != 0
    score = sum(ranks(np.where(unlabelled, -np.inf, values)) for values in statistics)
    score = np.where(unlabelled, np.iinfo(np.int64).max, score)
    best = score.min(-1)
    order = np.argsort(best.ravel(), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return Ranking(name, score, order, place.reshape(best.shape), score.argmin(-1))


def specialisation(atlas: Atlas) -> list[np.ndarray]:
    """Three statistics [L, F, 2], larger is better: ``coherence``, ``zmax_sigma``, and the rarity of the top ten tokens.

    Some tokens, undertrained ones above all, top thousands of rows and resemble one another; without rarity they lead the list.
    """
    ids = atlas.column("ids")[..., :LABEL_K]
    return [atlas.column("coherence"), atlas.column("zmax_sigma"), rarity(ids, ids >= 0, len(atlas.tokens.data))]


def concepts(atlas: Atlas) -> list[np.ndarray]:
    """The same three over distinct words: how far the second to the sixth different word stand out, instead of the first.

    Different words are different `stems`; a row with fewer words than six counts the absent ones as not standing out at all.
    """
    ids = atlas.column("ids")
    first = first_of_word(stems(atlas.tokens)[ids], ids)
    sigmas = (atlas.column("logits") - atlas.column("mean")[..., None]) / np.maximum(atlas.column("std"), 1e-30)[..., None]
    count = np.cumsum(first, -1)
    counted = first & (count >= WORDS[0]) & (count <= WORDS[1])
    standing_out = np.where(counted, sigmas, 0).sum(-1)
    return [atlas.column("coherence"), standing_out, rarity(ids, first, len(atlas.tokens.data))]


def rarity(ids: np.ndarray, counted: np.ndarray, V: int) -> np.ndarray:
    """How seldom the tokens of a row top other rows: mean over ``counted`` ids of log(rows / rows with it in the top ten).

    Args:
      ids: [..., k] int32; the first ten of each row are the ones that other rows are compared with.
      counted: [..., k] bool, the ids that matter for their row.
      V: vocabulary size.
    Returns:
      [...] float64, in nats; 0 for a row in which nothing counts.
    """
    labels = ids[..., :LABEL_K].ravel()
    rows = np.bincount(labels[labels >= 0], minlength=V)
    seldom = np.log(ids[..., 0].size) - np.log(np.maximum(rows, 1))
    return np.where(counted, seldom[ids], 0).sum(-1) / np.maximum(counted.sum(-1), 1)


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


def ranks(values: np.ndarray) -> np.ndarray:
    """[...] int64: 0 for the largest value of the whole array; equal values in array order."""
    order = np.argsort(-values.ravel(), kind="stable")
    out = np.empty(order.size, np.int64)
    out[order] = np.arange(order.size)
    return out.reshape(values.shape)


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
    return {name: np.quantile(atlas.control(name), 0.99, axis=(1, 2)) for name in ("zmax_sigma", "coherence")}

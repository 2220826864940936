"""What only the weights of two models can tell: how far rows turned, and whether rows, final gain or head moved the labels.

Everything is over the tokens that both maps may have as labels, at the + pole, under the settings of the maps.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from interp import rows as rows_lib
from interp.alignment import Alignment
from interp.atlas import Atlas
from interp.decode import Vocabulary, prepare_head, top
from interp.head import BLOCK_BYTES, Head, read_head
from interp.run import Settings
from jaxllm import intervals
from jaxllm.errors import UserError
from jaxllm.intervals import Mean, Rate
from jaxllm.load import Checkpoint

PARTS = ("rows", "gain", "head")  # of a decode; the gain is the final norm's, and counts with norm="final" alone
SAMPLE = 8192  # neurons that are decoded in every combination
SAMPLE_JS = 512  # neurons whose whole distributions are compared
CAUSED = 1000  # changed neurons whose cause is found, the first of the list
ROWS_PER_CALL = 2048
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)

Mix = tuple[int, ...]  # for each of `PARTS`, the model that it is taken from: 0 the first, 1 the second


@dataclasses.dataclass(frozen=True)
class Part:
    """One of `PARTS` and its share in the change of labels."""

    part: str
    alone: Rate  # neurons whose label changes when this part alone is the second model's
    without: Rate  # neurons whose label still differs from the first model's when this part alone is the first's
    shapley: (
        float  # its share of all changed labels, averaged over the orders in which parts can be exchanged; they add up to 1
    )


@dataclasses.dataclass(frozen=True)
class Weights:
    """What `weigh` found."""

    row_cos: Mean  # cosine of a neuron's row in both models
    row_cos_by_layer: list[Mean]
    row_cos_quantiles: dict[float, float]
    row_cos_changed: Mean  # of the neurons in the list of changed ones
    row_cos_kept: Mean  # of the others
    js: Mean  # Jensen-Shannon distance of a neuron's two token distributions, base 2, 0 to 1
    combinations: dict[str, Rate]  # "ABA" (rows, gain, head taken from either model) -> labels equal to those of "AAA"
    parts: list[Part]
    norms: dict[str, Rate]  # equal labels under the norms "rms", which ranks as "none" does, and "final"
    causes: list[str]  # for the first `CAUSED` changed neurons: the part that alone brings the new label, or "together"


def weigh(
    atlases: tuple[Atlas, Atlas],
    checkpoints: tuple[Checkpoint, Checkpoint],
    alignment: Alignment,
    changed: tuple[np.ndarray, np.ndarray],
    *,
    sample: int | None = None,
    sample_js: int = SAMPLE_JS,
    seed: int = 0,
) -> Weights:
    """Reads both models a layer at a time; decodes a random sample of neurons in every combination of the models' parts.

    Args:
      changed: layers [M] and neurons [M] that changed their label.
      sample: neurons to decode, `SAMPLE` by default; ``sample_js`` of them are compared as whole distributions.
    Raises:
      UserError: a checkpoint is not the one that its map was made from.
    """
    settings = Settings(**{f.name: atlases[0].meta["settings"][f.name] for f in dataclasses.fields(Settings)})
    heads = tuple(_head(atlas, checkpoint) for atlas, checkpoint in zip(atlases, checkpoints, strict=True))
    F = atlases[0].num_neurons
    total = len(alignment.layers) * F
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(sample or SAMPLE, total), replace=False))
    places = np.searchsorted(alignment.layers, changed[0]) * F + changed[1]
    wanted = np.concatenate([drawn, places[:CAUSED]])
    cosines, rows = [], np.zeros((2, len(wanted), heads[0].rows.shape[1]), np.float32)
    for position, layer in enumerate(alignment.layers):
        pair = [_layer(atlas, checkpoint, layer, settings) for atlas, checkpoint in zip(atlases, checkpoints, strict=True)]
        cosines.append(_cosines(*(part.rows for part in pair)))
        here = np.flatnonzero(wanted // F == position)
        for i, part in enumerate(pair):
            gain = _input_gain(checkpoints[i], layer, settings)
            rows[i, here] = rows_lib.directions(part.rows[wanted[here] % F], "none", eps=heads[i].eps, input_gain=gain)
    cosine = np.stack(cosines)
    moved = np.zeros(total, bool)
    moved[places] = True

    decoder = _Decoder(settings, heads, rows, (alignment.ids_a, alignment.ids_b))
    usable = np.isfinite(rows).all((0, 2)) & (rows != 0).any(2).all(0)
    inside, listed = usable[: len(drawn)], np.arange(len(drawn), len(wanted))
    labels = {mix: decoder.labels(mix, settings.norm) for mix in itertools.product((0, 1), repeat=3)}
    of_sample = {mix: found[: len(drawn)][inside] for mix, found in labels.items()}
    norms = {}
    for norm in rows_lib.NORMS[:2]:
        old, new = (decoder.labels(mix, norm)[: len(drawn)][inside] for mix in ((0, 0, 0), (1, 1, 1)))
        norms[str(norm)] = intervals.rate_of(np.asarray(old == new))
    chosen = np.random.default_rng(seed).permutation(np.flatnonzero(inside))[:sample_js]
    return Weights(
        row_cos=intervals.mean(cosine),
        row_cos_by_layer=[intervals.mean(row) for row in cosine],
        row_cos_quantiles={q: float(np.nanquantile(cosine, q)) for q in QUANTILES} if np.isfinite(cosine).any() else {},
        row_cos_changed=intervals.mean(cosine.ravel()[moved]),
        row_cos_kept=intervals.mean(cosine.ravel()[~moved]),
        js=intervals.mean(decoder.distances(chosen)),
        combinations={
            "".join("AB"[i] for i in mix): intervals.rate_of(found == of_sample[0, 0, 0]) for mix, found in of_sample.items()
        },
        parts=_parts(of_sample),
        norms=norms,
        causes=_causes({mix: found[listed] for mix, found in labels.items()}),
    )


class _Decoder:
    """Labels of the wanted rows [2, N, D] with any norm, gain and head of two models; [n] common tokens of each head."""

    def __init__(self, settings: Settings, heads: tuple[Head, ...], rows: np.ndarray, ids: tuple[np.ndarray, ...]):
        self.settings, self.heads, self.rows, self.ids = settings, heads, rows, ids
        self._prepared: dict[int, Vocabulary] = {}
        self._labels: dict[Any, np.ndarray] = {}

    def labels(self, mix: Iterable[int], norm: rows_lib.Norm) -> np.ndarray:
        """[N] int32 top tokens, as places among the common ones."""
        source, gain, head = mix
        key = (source, gain if norm == "final" else 0, head, norm)
        if key not in self._labels:
            vocabulary = self._vocabulary(head)
            w = self._directions(source, gain, norm)
            found = []
            for start in range(0, len(w), ROWS_PER_CALL):
                block = w[start : start + ROWS_PER_CALL]
                padding = ROWS_PER_CALL - len(block) if len(w) > ROWS_PER_CALL else 0
                found.append(np.asarray(top(np.pad(block, ((0, padding), (0, 0))), vocabulary, k=1).ids)[: len(block), 0])
            self._labels[key] = np.concatenate(found)
        return self._labels[key]

    def distances(self, chosen: np.ndarray) -> np.ndarray:
        """[n] Jensen-Shannon distances between the two models' token distributions of the rows ``chosen`` [n], in NumPy."""
        logits = []
        for i in (0, 1):
            w, head = self._directions(i, i, self.settings.norm, chosen), self._common_rows(i)
            z = np.empty((len(w), len(head)), np.float32)
            for start in range(0, len(head), step := max(1, BLOCK_BYTES // (4 * head.shape[1]))):
                z[:, start : start + step] = w @ head[start : start + step].astype(np.float32).T
            logits.append(z)
        blocks = [_jensen_shannon(*(z[start : start + 32] for z in logits)) for start in range(0, len(chosen), 32)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _directions(self, source: int, gain: int, norm: rows_lib.Norm, chosen: Any = slice(None)) -> np.ndarray:
        rows = np.where(np.isfinite(self.rows[source, chosen]), self.rows[source, chosen], 0)
        w = rows_lib.directions(rows, norm, eps=self.heads[source].eps, final_gain=self.heads[gain].gain)
        if self.settings.score == "cosine":
            w /= np.maximum(np.linalg.norm(w, axis=1, keepdims=True), np.float32(1e-30))
        return w

    def _vocabulary(self, head: int) -> Vocabulary:
        if head not in self._prepared:
            self._prepared[head] = prepare_head(self._common_rows(head), dtype=self.settings.dtype)
        return self._prepared[head]

    def _common_rows(self, head: int) -> np.ndarray:
        """[n, D] as stored."""
        ids, rows, length = self.ids[head], self.heads[head].rows, self.heads[head].length
        common = rows if len(ids) == len(rows) else rows[ids]
        if self.settings.score == "cosine":
            common = common / np.maximum(length[ids], np.float32(1e-30))[:, None].astype(common.dtype)
        return common


def _head(atlas: Atlas, checkpoint: Checkpoint) -> Head:
    _check(checkpoint.config.to_hf() == atlas.meta["model"]["config"], atlas, checkpoint, "their configs differ")
    head = read_head(checkpoint, mask_nonfinite=True)
    _check(head.sha256 == atlas.meta["settings"]["head_sha256"], atlas, checkpoint, "their heads differ")
    return head


def _layer(atlas: Atlas, checkpoint: Checkpoint, layer: int, settings: Settings) -> rows_lib.Layer:
    read = rows_lib.read_layer(checkpoint, layer, settings.site)
    same = read.sha256 == atlas.meta["layers"][str(layer)]["weights_sha256"]
    _check(same, atlas, checkpoint, f"the weights of layer {layer} differ")
    return read


def _check(same: bool, atlas: Atlas, checkpoint: Checkpoint, reason: str) -> None:
    if not same:
        name = atlas.meta["model"]["name"]
        raise UserError(f"{checkpoint.path} is not the model of the map {atlas.path} ({name}): {reason}; give the mapped one")


def _input_gain(checkpoint: Checkpoint, layer: int, settings: Settings) -> np.ndarray | None:
    if not settings.fold_input_norm:
        return None
    return checkpoint.read(f"model.layers.{layer}.post_attention_layernorm.weight")


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[F] cosine of each row of ``a`` and ``b`` [F, D]; NaN where either is zero or not finite."""
    one, other = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        cosine = np.einsum("fd,fd->f", one, other) / lengths
    return np.where(np.isfinite(cosine), np.clip(cosine, -1, 1), np.nan)


def _jensen_shannon(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[n] square root of the Jensen-Shannon divergence, in bits, of the softmaxes of logits [n, V]: 0 equal, 1 disjoint."""
    p, q = (np.exp(z.astype(np.float64) - z.max(1, keepdims=True)) for z in (a, b))
    p, q = (x / x.sum(1, keepdims=True) for x in (p, q))
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(x > 0, x * np.log2(x / middle), 0).sum(1) for x in (p, q)]
    return np.sqrt(np.clip((parts[0] + parts[1]) / 2, 0, 1))


def _parts(labels: dict[Mix, np.ndarray]) -> list[Part]:
    changed = {mix: labels[mix] != labels[0, 0, 0] for mix in labels}
    whole = int(changed[1, 1, 1].sum())
    out = []
    for i, part in enumerate(PARTS):
        alone, without = _only(i), tuple(1 - source for source in _only(i))
        value = 0.0
        for mix in labels:
            if not mix[i]:  # what this part adds to those already exchanged (Shapley 1953)
                added = (*mix[:i], 1, *mix[i + 1 :])
                weight = math.factorial(sum(mix)) * math.factorial(2 - sum(mix)) / math.factorial(3)
                value += weight * (int(changed[added].sum()) - int(changed[mix].sum()))
        share = value / whole if whole else 0.0
        out.append(Part(part, intervals.rate_of(changed[alone]), intervals.rate_of(changed[without]), share))
    return out


def _only(part: int) -> Mix:
    """This part from the second model, the others from the first."""
    return tuple(int(i == part) for i in range(len(PARTS)))


def _causes(labels: dict[Mix, np.ndarray]) -> list[str]:
    """For each neuron the part that alone turns the old label into the new one; several are joined by "or"."""
    new = labels[1, 1, 1]
    brought = {part: labels[_only(i)] == new for i, part in enumerate(PARTS)}
    return [" or ".join(part for part in PARTS if brought[part][n]) or "together" for n in range(len(new))]

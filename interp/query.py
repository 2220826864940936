"""Questions to a map: which neurons stand for a word, and all that is known of one neuron."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.atlas import FLAGS, NEURON_STATISTICS, NO_TOKEN, POLE_STATISTICS, Atlas
from interp.ranking import RANKINGS, Ranking, rank
from interp.rows import BLOCK_BYTES, tensor_name
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from jaxllm.tensors import Checkpoint

POLES = ("+", "-")
LABEL_TOKENS = 10


@dataclasses.dataclass(frozen=True)
class Token:
    """A stored token of one pole."""

    id: int
    data: bytes  # what it stands for
    display: str  # those bytes made visible
    logit: float
    probability: float


@dataclasses.dataclass(frozen=True)
class Match:
    """One pole of a neuron that has a wanted token among its stored ones."""

    layer: int
    neuron: int
    pole: str  # "+" or "-"
    probability: float  # of the wanted tokens among the stored top k, added up
    place: int  # of the best wanted token, 0 for the top token
    tokens: tuple[Token, ...]  # the pole's ten top tokens


@dataclasses.dataclass(frozen=True)
class Standing:
    """A statistic of one neuron and what it compares to."""

    value: float
    percentile: float  # share of the layer's values that are smaller, 0 to 100
    control: float | None  # the same among the layer's control rows; None without a control


@dataclasses.dataclass(frozen=True)
class Pole:
    """One direction of a neuron."""

    pole: str
    tokens: tuple[Token, ...]  # all that are stored, best first; empty without a label
    statistics: dict[str, Standing]
    flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Neuron:
    """What `show` tells of a neuron."""

    layer: int
    neuron: int
    places: dict[str, int]  # ranking -> place among all mapped neurons, 1 for the first
    better_pole: str  # by specialisation
    statistics: dict[str, Standing]  # of the neuron itself: norms and read_write
    poles: tuple[Pole, Pole]


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """Another neuron whose row lies along the same line."""

    layer: int
    neuron: int
    cosine: float  # negative: its - pole reads what the asked neuron's + pole reads
    tokens: tuple[Token, ...]  # top tokens of its pole that points the same way as the asked neuron's pole


def parse_neuron(text: str) -> tuple[int, int]:
    """``L12/N345`` -> (12, 345). Raises UserError for another form."""
    match = re.fullmatch(r"[Ll]([0-9]{1,6})/[Nn]([0-9]{1,9})", text.strip())
    if match is None:
        raise UserError(f"{text!r} is not a neuron; write layer and number as in L12/N345, both counted from 0")
    return int(match[1]), int(match[2])


def find(atlas: Atlas, ids: Sequence[int], *, limit: int = 20, pole: str | None = None) -> list[Match]:
    """The neurons that stand for any of ``ids``, by the sum of these tokens' probabilities, best first.

    Ids come from `interp.tokens.parse_query`. A map stores the top k of each pole only. So a neuron is found when one of the
    ids is among them, and the probability counts those that are; it is exact for each of these, and a token outside the top k
    is rarer than all of them.
    """
    stored = atlas.column("ids")
    member = np.zeros(len(atlas.tokens.data) + 1, bool)  # the last one answers for NO_TOKEN
    member[list(ids)] = True
    hits = member[stored]
    if pole is not None:
        hits[:, :, 1 - POLES.index(pole)] = False
    at = np.flatnonzero(hits.any(-1))
    k = stored.shape[-1]
    hit = hits.reshape(-1, k)[at]
    logits, lse = atlas.column("logits").reshape(-1, k)[at], atlas.column("lse").reshape(-1)[at]
    probability = np.where(hit, np.exp(logits - lse[:, None]), 0).sum(-1)
    order = np.argsort(-probability, kind="stable")[:limit]
    matches = []
    for i in order.tolist():
        position, neuron, p = (int(n) for n in np.unravel_index(at[i], stored.shape[:3]))
        tokens = pole_tokens(atlas, position, neuron, p)[:LABEL_TOKENS]
        place = int(hit[i].argmax())
        matches.append(Match(atlas.layers[position], neuron, POLES[p], float(probability[i]), place, tokens))
    return matches


def pole_tokens(atlas: Atlas, position: int, neuron: int, pole: int) -> tuple[Token, ...]:
    """The stored tokens of a pole, best first; ``position`` counts the mapped layers. Empty without a label."""
    ids = atlas.column("ids")[position, neuron, pole]
    logits, lse = atlas.column("logits")[position, neuron, pole], atlas.column("lse")[position, neuron, pole]
    names = atlas.tokens
    return tuple(
        Token(i, names.data[i], names.display[i], float(z), float(np.exp(z - lse)))
        for i, z in zip(ids.tolist(), logits, strict=True)
        if i != NO_TOKEN
    )


def show(atlas: Atlas, layer: int, neuron: int, rankings: Mapping[str, Ranking] | None = None) -> Neuron:
    """Both poles of one neuron, with its statistics among its layer's and the control's. Raises UserError when not mapped.

    ``rankings`` are those of all `RANKINGS`, for a caller that has them: they cost far more than the rest.
    """
    position, _ = atlas.position(layer, neuron)
    rankings = rankings or {name: rank(atlas, name) for name in RANKINGS}
    flags = atlas.column("flags")[position, neuron]
    poles = tuple(
        Pole(
            POLES[p],
            pole_tokens(atlas, position, neuron, p),
            {name: _standing(atlas, name, position, neuron, p) for name in POLE_STATISTICS},
            tuple(name for name, bit in FLAGS.items() if flags[p] & bit),
        )
        for p in (0, 1)
    )
    return Neuron(
        layer,
        neuron,
        {name: int(ranking.place[position, neuron]) + 1 for name, ranking in rankings.items()},
        POLES[int(rankings["specialisation"].pole[position, neuron])],
        {name: _standing(atlas, name, position, neuron, 0, control=False) for name in NEURON_STATISTICS},
        (poles[0], poles[1]),
    )


def neighbours(
    atlas: Atlas, checkpoint: "Checkpoint", layer: int, neuron: int, *, pole: str = "+", count: int = 8
) -> list[Neighbour]:
    """The mapped neurons with the largest absolute cosine to this one's row, read from the model block by block.

    The sign of a row is a free choice of the network, so opposite rows count as near. Raises UserError when the checkpoint is
    not the one that was mapped.
    """
    model, site = atlas.meta["model"], atlas.meta["settings"]["site"]
    if checkpoint.config.to_hf() != model["config"]:
        raise UserError(f"{checkpoint.path} is not the model of this map ({model['name']}): their configs differ")
    row = _read_rows(checkpoint, layer, site, neuron, neuron + 1)[0]
    cosines = np.zeros((len(atlas.layers), atlas.num_neurons), np.float32)
    for position, other in enumerate(atlas.layers):
        step = max(1, BLOCK_BYTES // (4 * len(row))) if site != "down" else atlas.num_neurons
        for start in range(0, atlas.num_neurons, step):
            rows = _read_rows(checkpoint, other, site, start, min(start + step, atlas.num_neurons))
            with np.errstate(invalid="ignore", over="ignore"):
                lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
                cosine = np.divide(rows @ row, lengths, out=np.zeros(len(rows), np.float32), where=lengths > 0)
            cosines[position, start : start + len(rows)] = np.where(np.isfinite(cosine), cosine, 0)
    cosines[atlas.layers.index(layer), neuron] = 0
    order = np.argsort(-np.abs(cosines), axis=None, kind="stable")[:count]
    found = []
    for flat in order.tolist():
        position, other = divmod(flat, atlas.num_neurons)
        cosine = float(cosines[position, other])
        tokens = pole_tokens(atlas, position, other, POLES.index(pole) ^ (cosine < 0))[:LABEL_TOKENS]
        found.append(Neighbour(atlas.layers[position], other, cosine, tokens))
    return found


def as_json(value: Any) -> Any:
    """Dataclasses of this module as JSON values: bytes become hexadecimal, so that nothing is lost, and NaN becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            ("bytes" if field.name == "data" else field.name): as_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


def _standing(atlas: Atlas, name: str, position: int, neuron: int, pole: int, *, control: bool = True) -> Standing:
    values = atlas.column(name)[position]
    value = values[neuron, pole]
    against = None
    if control and atlas.has_control:
        against = 100 * float((atlas.control(name)[position] < value).mean())
    return Standing(float(value), 100 * float((values < value).mean()), against)


def _read_rows(checkpoint: "Checkpoint", layer: int, site: Any, start: int, stop: int) -> np.ndarray:
    rows, name = slice(start, stop), tensor_name(layer, site)
    if site == "down":
        return np.ascontiguousarray(checkpoint.read(name, (slice(None), rows)).T, np.float32)
    return checkpoint.read(name, (rows,)).astype(np.float32)

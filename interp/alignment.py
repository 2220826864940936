"""Whether two maps can be compared, and which token of one is which token of the other."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np

from interp.atlas import NO_TOKEN, Atlas, Tokens
from jaxllm.errors import UserError

SHAPE = {"layers": "layers", "neurons": "neurons a layer", "width": "wide"}
# Everything that decides what a label means. `top_k` may differ; the head, its eps and the hashes are the models' own.
SETTINGS = (
    "site",
    "norm",
    "fold_input_norm",
    "score",
    "dtype",
    *(f"mask_{c}" for c in ("padding", "special", "untrained", "bytes")),
)


@dataclasses.dataclass(frozen=True)
class Alignment:
    """Two token tables laid side by side. A common token is one that both maps may have as a label."""

    layers: list[int]  # that both maps hold
    to_a: np.ndarray  # [V_B] int32: id in A of a common token of B, else `NO_TOKEN`
    common: np.ndarray  # [V_A] bool
    masked: tuple[int, int]  # allowed ids of A, and of B, that are not common; none where the tables are equal

    @property
    def ids_a(self) -> np.ndarray:
        """[n] int64: the common ids of A, ascending."""
        return np.flatnonzero(self.common)

    @property
    def ids_b(self) -> np.ndarray:
        """[n] int64: their ids in B, in the order of `ids_a`."""
        of_a = np.full(len(self.common), NO_TOKEN, np.int64)
        used = np.flatnonzero(self.to_a != NO_TOKEN)
        of_a[self.to_a[used]] = used
        return of_a[self.common]


def align(a: Atlas, b: Atlas) -> Alignment:
    """Checks that two maps are comparable and matches their tokens.

    Raises:
      UserError: other numbers of layers, neurons or width; other token tables, heads of another size aside; other settings; no
        layer in common.
    """
    shapes = [{name: atlas.meta["model"][name] for name in SHAPE} for atlas in (a, b)]
    if shapes[0] != shapes[1]:
        one, other = (", ".join(f"{shape[name]:,} {word}" for name, word in SHAPE.items()) for shape in shapes)
        raise UserError(f"{a.path} and {b.path} map models of other shapes, whose neurons do not pair up: {one}; {other}")
    settings = [atlas.meta["settings"] for atlas in (a, b)]
    differing = [name for name in SETTINGS if settings[0].get(name) != settings[1].get(name)]
    if differing:
        words = "; ".join(f"{name} is {settings[0].get(name)!r} and {settings[1].get(name)!r}" for name in differing)
        raise UserError(f"{a.path} and {b.path} were made with other settings: {words}; map one of the models again")
    layers = sorted(set(a.layers) & set(b.layers))
    if not layers:
        raise UserError(f"{a.path} holds layers {a.layers} and {b.path} {b.layers}: none is in both; map more of one")
    to_a = _match(a, b)
    kept = to_a != NO_TOKEN
    kept[kept] &= b.tokens.allowed[kept] & a.tokens.allowed[to_a[kept]]
    to_a = np.where(kept, to_a, NO_TOKEN).astype(np.int32)
    common = np.zeros(len(a.tokens.data), bool)
    common[to_a[kept]] = True
    if not kept.any():
        raise UserError(f"{a.path} and {b.path} have no token in common")
    masked = int(a.tokens.allowed.sum() - common.sum()), int(b.tokens.allowed.sum() - kept.sum())
    return Alignment(layers, to_a, common, masked)


def _match(a: Atlas, b: Atlas) -> np.ndarray:
    """[V_B]: id in A of every token of B, by its bytes; `NO_TOKEN` where A has none. Raises UserError for other tables."""
    one, other = a.tokens, b.tokens
    if len(one.data) == len(other.data):
        wrong = [i for i, pair in enumerate(zip(one.data, other.data, strict=True)) if pair[0] != pair[1]]
        if wrong:
            i = wrong[0]
            raise UserError(
                f"{a.path} and {b.path} name {len(wrong):,} of {len(one.data):,} tokens otherwise, first id {i}: "
                f"{one.display[i]} and {other.display[i]}; their models do not share a tokenizer"
            )
        return np.arange(len(one.data), dtype=np.int32)
    known = dict(_keys(one))
    to_a = np.full(len(other.data), NO_TOKEN, np.int32)
    words = absent = 0
    for key, i in _keys(other):
        to_a[i] = known.get(key, NO_TOKEN)
        words += not key[0]
        absent += not key[0] and key not in known
    surplus = sum(not key[0] for key in known) - (words - absent)
    if not known or not words or (absent and surplus):
        raise UserError(
            f"{a.path} and {b.path} have heads of {len(one.data):,} and {len(other.data):,} rows, and besides special tokens "
            f"{surplus:,} and {absent:,} tokens that the other lacks; their models do not share a tokenizer"
        )
    return to_a


def _keys(tokens: Tokens) -> Iterator[tuple[tuple[bool, bytes, int], int]]:
    """What tells tokens apart besides their id: special or not, the bytes, and which of several with equal bytes it is."""
    seen: Counter[tuple[bool, bytes]] = Counter()
    for i, (data, kind) in enumerate(zip(tokens.data, tokens.kind, strict=True)):
        if data and kind != "padding":
            key = (kind == "special", data)
            yield (*key, seen[key]), i
            seen[key] += 1

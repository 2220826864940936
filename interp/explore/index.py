"""An inverted index of a map's labels: token id -> the poles that hold it, with place and probability, made once.

A *row* is one pole of one neuron, number ``2 * (layer position * F + neuron) + pole`` of ``R = 2 * L * F``; an *entry* is one
stored token of a row, number ``row * k + place`` of ``E = R * k``. NumPy only: a search costs a few arrays as long as what it
finds.
"""

import dataclasses

import numpy as np

from interp.atlas import NO_TOKEN, Atlas

FEW_ENTRIES = 200_000  # up to here all entries of the wanted tokens are gathered; beyond, all entries are scanned, best first
SCAN = 1 << 14  # entries of the first step of a scan; each step is twice the last


@dataclasses.dataclass(frozen=True)
class Index:
    """The labels of a map by token, in compressed sparse rows."""

    start: np.ndarray  # [V + 1] int64; the entries of token t are ``entry[start[t] : start[t + 1]]``
    entry: np.ndarray  # [E'] int32 (int64 for huge maps), ascending within a token; E' leaves out entries without a token
    probability: np.ndarray  # [E] float32 of every entry
    token: np.ndarray  # [E] int32 of every entry, NO_TOKEN where there is none
    best: np.ndarray  # [E] every entry, the most probable first
    uses: np.ndarray  # [V] int64: entries of each token
    k: int  # entries of a row


@dataclasses.dataclass(frozen=True)
class Hits:
    """The rows that hold wanted tokens, best first."""

    row: np.ndarray  # [n] int64
    score: np.ndarray  # [n] float32
    entries: int  # places in the whole map that hold one of them, at both poles
    rows: int | None  # different rows among them, of the poles asked for; None where that was not counted


def build(atlas: Atlas) -> Index:
    """The index of a map; takes a second or two for 459,000 neurons."""
    return build_index(atlas.column("ids"), atlas.column("logits"), atlas.column("lse"), len(atlas.tokens.data))


def build_index(ids: np.ndarray, logits: np.ndarray, lse: np.ndarray, V: int) -> Index:
    """The same of ids, logits [L, F, 2, k] and lse [L, F, 2]; ids are below V."""
    k = ids.shape[-1]
    token = np.ascontiguousarray(ids, np.int32).ravel()
    probability = np.exp(logits - lse[..., None]).astype(np.float32).ravel()
    probability[(token == NO_TOKEN) | ~np.isfinite(probability)] = 0
    start = np.zeros(V + 1, np.int64)
    np.cumsum(np.bincount(token[token != NO_TOKEN], minlength=V), out=start[1:])
    entry = _order(token)[token.size - start[-1] :]  # those without a token come first
    return Index(start, entry, probability, token, _order(-probability.view(np.int32)), np.diff(start), k)


def _order(keys: np.ndarray) -> np.ndarray:
    """A stable argsort of int32 keys by way of sorting 64-bit numbers, several times as fast as `np.argsort`."""
    pairs = (keys.astype(np.int64) << 32) | np.arange(keys.size, dtype=np.int64)
    pairs.sort()
    return (pairs & 0xFFFFFFFF).astype(np.int32 if keys.size < 2**31 else np.int64)


def by_sum(index: Index, ids: np.ndarray, limit: int, pole: int | None = None) -> Hits:
    """The rows with the largest probability of all wanted tokens together: for the spellings of one word."""
    entries = _entries(index, ids)
    kept = _at_pole(entries, index.k, pole)
    rows, which = np.unique(kept // index.k, return_inverse=True)
    score = np.bincount(which, weights=index.probability[kept], minlength=len(rows)).astype(np.float32)
    order = np.lexsort((rows, -score))[:limit]
    return Hits(rows[order].astype(np.int64), score[order], entries.size, len(rows))


def by_best(index: Index, ids: np.ndarray, limit: int, pole: int | None = None) -> Hits:
    """The rows with the largest probability of any one wanted token: for patterns, which may match half the vocabulary."""
    total = int(index.uses[ids].sum())
    if total <= FEW_ENTRIES:
        entries = _at_pole(_entries(index, ids), index.k, pole)
        p = index.probability[entries]
        order = np.lexsort((entries, -p))
        rows, first = np.unique(entries[order] // index.k, return_index=True)
        kept = order[np.sort(first)[:limit]]
        return Hits((entries[kept] // index.k).astype(np.int64), p[kept], total, len(rows))
    wanted = np.zeros(len(index.start), bool)  # the last one answers for NO_TOKEN
    wanted[ids] = True
    found: list[np.ndarray] = []
    count, at, step = 0, 0, SCAN
    while at < index.best.size and count < limit:
        part = index.best[at : at + step]
        part = _at_pole(part[wanted[index.token[part]]], index.k, pole)
        found.append(part)
        at, step = at + step, 2 * step
        count = len(np.unique(np.concatenate(found) // index.k))
    entries = np.concatenate(found) if found else np.zeros(0, np.int32)
    _, first = np.unique(entries // index.k, return_index=True)
    kept = entries[np.sort(first)[:limit]]
    return Hits((kept // index.k).astype(np.int64), index.probability[kept], total, None)


def of_all(index: Index, ids: np.ndarray) -> np.ndarray:
    """[R / 2] float32: for every neuron the largest probability of any one wanted token at either pole, 0 without."""
    wanted = np.zeros(len(index.start), bool)
    wanted[ids] = True
    return np.where(wanted[index.token], index.probability, 0).reshape(-1, 2 * index.k).max(1)


def _entries(index: Index, ids: np.ndarray) -> np.ndarray:
    """All entries of some tokens."""
    lengths = index.uses[ids]
    ends = np.cumsum(lengths)
    at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(index.start[ids] - (ends - lengths), lengths)
    return index.entry[at]


def _at_pole(entries: np.ndarray, k: int, pole: int | None) -> np.ndarray:
    return entries if pole is None else entries[(entries // k) % 2 == pole]

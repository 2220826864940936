"""The dense decode of neuron rows in NumPy: all logits at once, in float64 unless told otherwise.

Written from the formulas alone, apart from the streamed kernel, so that each checks the other. It holds an N x V array, so
inputs must be small.
"""

from typing import Any, NamedTuple

import numpy as np

LABEL_K = 10  # top tokens over which `coherence` is taken


class Dense(NamedTuple):
    """Every field of `interp.decode.Decoded`, for N rows and the poles P = (+w, -w)."""

    ids: np.ndarray  # [N, P, k] int32, by (logit descending, id ascending)
    logits: np.ndarray  # [N, P, k]
    lse: np.ndarray  # [N, P], natural log
    entropy: np.ndarray  # [N, P], divided by the log of the number of allowed ids
    group_mass: np.ndarray  # [N, P], probability of all allowed ids in the top id's group
    coherence: np.ndarray  # [N, P], mean cosine over pairs of the top ten's centred head rows
    mean: np.ndarray  # [N], of +w's logits over allowed ids
    std: np.ndarray  # [N], with the number of ids as divisor
    skew: np.ndarray  # [N]
    kurtosis: np.ndarray  # [N], excess


def scale_rows(rows: np.ndarray, norm: str, *, eps: float = 1e-5, gain: np.ndarray | None = None) -> np.ndarray:
    """``w2`` of the formula, ``[N, D]``: the row as it is, RMS-normed, or put through the model's own final norm."""
    if norm == "none":
        return rows
    scaled = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + eps)
    return scaled if norm == "rms" else scaled * gain


def dense_decode(
    rows: Any,
    head: Any,
    k: int,
    *,
    norm: str = "none",
    eps: float = 1e-5,
    gain: Any = None,
    allowed: Any = None,
    groups: Any = None,
    cosine: bool = False,
    dtype: Any = np.float64,
) -> Dense:
    """Decodes ``rows [N, D]`` through ``head [V, D]``.

    ``allowed [V]`` bool (all by default), ``groups [V]`` int group numbers (each id its own by default). Masked ids enter
    nothing. For ``coherence`` the head rows are centred by the mean of the allowed ones, and are the head's own, without the
    gain. ``cosine`` ranks by ``z / (|E_v| |w2|)``.
    """
    rows, head = np.asarray(rows, dtype), np.asarray(head, dtype)
    V = len(head)
    allowed = np.ones(V, bool) if allowed is None else np.asarray(allowed, bool)
    groups = np.arange(V) if groups is None else np.asarray(groups)
    gain = None if gain is None else np.asarray(gain, dtype)
    ids_allowed = np.flatnonzero(allowed)
    w2 = scale_rows(rows, norm, eps=eps, gain=gain)
    z = w2 @ head[ids_allowed].T + 0.0  # the sum turns -0.0 into +0.0
    if cosine:
        lengths = np.linalg.norm(w2, axis=1)[:, None] * np.linalg.norm(head[ids_allowed], axis=1)
        z = np.divide(z, lengths, out=np.zeros_like(z), where=lengths > 0)
    mean, std = z.mean(1), z.std(1)
    unit = np.divide(z - mean[:, None], std[:, None], out=np.zeros_like(z), where=std[:, None] > 0)
    poles = [_pole(sign * z + 0.0, ids_allowed, groups, head - head[ids_allowed].mean(0), k) for sign in (1, -1)]
    stacked = [np.stack(field, 1) for field in zip(*poles, strict=True)]
    return Dense(*stacked, mean, std, (unit**3).mean(1), np.where(std > 0, (unit**4).mean(1) - 3, 0))


def _pole(z: np.ndarray, ids_allowed: np.ndarray, groups: np.ndarray, centred: np.ndarray, k: int) -> tuple[np.ndarray, ...]:
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]  # stable: of equal logits the lower id comes first
    logits = np.take_along_axis(z, order, 1)
    ids = ids_allowed[order].astype(np.int32)
    top = logits[:, :1]
    lse = top[:, 0] + np.log(np.exp(z - top).sum(1))
    p = np.exp(z - lse[:, None])
    entropy = (lse - (p * z).sum(1)) / max(np.log(len(ids_allowed)), 1e-30)
    group_mass = (p * (groups[ids_allowed] == groups[ids[:, :1]])).sum(1)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 0)[ids[:, :LABEL_K]]
    n = unit.shape[1]
    gram = np.einsum("nid,njd->nij", unit, unit)
    pairs = ~np.eye(n, dtype=bool)
    coherence = gram[:, pairs].mean(1) if n > 1 else np.zeros(len(z), z.dtype)
    return ids, logits, lse, entropy, group_mass, coherence

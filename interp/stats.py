"""Counts over a whole map: classes of the labels, tokens that label many neurons, specialised neurons by layer."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from interp.atlas import NO_TOKEN, Atlas
from interp.ranking import Ranking, control_specialised, rank, specialised


@dataclasses.dataclass(frozen=True)
class LayerCount:
    """How many neurons of one layer have a pole that chance seldom reaches."""

    layer: int
    neurons: int
    above_control: int  # ranking score above the 99th percentile of the layer's control rows
    specialised: int  # `zmax_sigma` and `coherence` both at or above their 99th percentiles
    above_control_by_chance: float  # share of the control rows
    specialised_by_chance: float  # share of the control rows


def layer_counts(atlas: Atlas, ranking: Ranking | None = None) -> list[LayerCount]:
    """One entry per mapped layer; the ranking is by specialisation unless given. Raises UserError without a control."""
    poles = (specialised(atlas), control_specialised(atlas), *(ranking or rank(atlas)).above_control())
    both, chance_both, above, chance = (np.asarray(rows.any(-1)) for rows in poles)
    return [
        LayerCount(
            layer,
            above.shape[1],
            int(above[i].sum()),
            int(both[i].sum()),
            float(chance[i].mean()),
            float(chance_both[i].mean()),
        )
        for i, layer in enumerate(atlas.layers)
    ]


def labels(atlas: Atlas) -> np.ndarray:
    """[L, F] int32: top token of the + pole, the view of the paper; `NO_TOKEN` where there is none."""
    return atlas.column("ids")[..., 0, 0]


def class_shares(atlas: Atlas) -> dict[str, float]:
    """Class of token -> share of the labelled neurons whose top token (+ pole) is of that class, largest first."""
    top = labels(atlas)
    top = top[top != NO_TOKEN]
    kinds, index = np.unique(np.array(atlas.tokens.kind), return_inverse=True)
    counts = np.bincount(index[top], minlength=len(kinds))
    order = np.argsort(-counts, kind="stable")
    return {str(kinds[i]): float(counts[i] / max(len(top), 1)) for i in order if counts[i]}


def coverage(atlas: Atlas) -> float:
    """Share of the allowed tokens that label at least one neuron, at either pole."""
    top = atlas.column("ids")[..., 0]
    return float(np.unique(top[top != NO_TOKEN]).size / max(atlas.tokens.allowed.sum(), 1))


def frequent_labels(atlas: Atlas, count: int = 20) -> list[tuple[int, int]]:
    """(token id, number of neurons with it on top of the + pole), most frequent first."""
    top = labels(atlas)
    counts = np.bincount(top[top != NO_TOKEN], minlength=1)
    order = np.argsort(-counts, kind="stable")[:count]
    return [(int(i), int(counts[i])) for i in order if counts[i]]


@jax.jit
def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)


def matmul_peak(dtype: str, *, size: int = 2048, repeats: int = 5) -> float:
    """Measured speed of a ``size``³ matmul with float32 output, in FLOP/s: the yardstick of a run. Best of ``repeats``."""
    a = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    _product(a, a).block_until_ready()
    best = np.inf
    for _ in range(repeats):
        begun = time.perf_counter()
        _product(a, a).block_until_ready()
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best

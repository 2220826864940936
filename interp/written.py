"""What one neuron reads and what it writes, decoded from its weights.

The up row says what the neuron reads, the down column what it adds to the residual stream. Neither fixes the other, and
flipping both changes nothing; so they are shown together, at both poles. Which sign of a clamp raises a concept: `interp.sign`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm import params as tree
from jaxllm.config import Config
from jaxllm.params import Params

CONCEPT_TOKENS = 10  # top tokens of the up row that make its concept, unless another is given


@dataclasses.dataclass(frozen=True)
class Reading:
    """The top tokens of one direction, best first."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]
    probabilities: tuple[float, ...]  # over all allowed ids


@dataclasses.dataclass(frozen=True)
class Written:
    """One neuron, read from the weights alone. Poles are (+, -): the direction and its opposite."""

    layer: int
    neuron: int
    up: tuple[Reading, Reading]  # the up row, scaled to unit mean square
    down: tuple[Reading, Reading]  # the down column, through the final norm with its gain
    cosine: float  # of up row and down column
    norm_down: float  # length of the down column
    writing: float  # where the concept stands in the logits of the down column: mean standard score over all allowed tokens
    concept: tuple[int, ...]  # ids


def written(
    params: Params,
    cfg: Config,
    layer: int,
    neuron: int,
    *,
    concept: Sequence[int] | None = None,
    allowed: Any = None,
    k: int = CONCEPT_TOKENS,
) -> Written:
    """Decodes a neuron's up row and down column at both poles.

    Args:
      params: unstacked parameters.
      concept: token ids; by default the ``CONCEPT_TOKENS`` top tokens of the up row.
      allowed: [V] bool, the ids that may appear; all by default.
      k: tokens per pole.
    """
    mask = jnp.ones(cfg.vocab_size, bool) if allowed is None else jnp.asarray(allowed)
    mlp = params["layers"][layer]["mlp"]
    rows = mlp["up_proj"]["weight"][neuron], mlp["down_proj"]["weight"][:, neuron]
    k = min(k, int(mask.sum()))
    logits, values, ids, lse, cosine, length = jax.tree.map(
        np.asarray, _decode(tree.head(params), params["norm"]["weight"], *rows, mask, eps=cfg.rms_norm_eps, k=k)
    )
    readings = [
        Reading(tuple(i.tolist()), tuple(z.tolist()), tuple(np.exp(z - total).tolist()))
        for i, z, total in zip(ids, values, lse, strict=True)
    ]
    ids_of_concept = readings[0].ids[:CONCEPT_TOKENS] if concept is None else tuple(concept)
    scores = logits[1].astype(np.float64)
    kept = np.asarray(mask)
    spread = scores[kept].std()
    writing = float((scores[list(ids_of_concept)].mean() - scores[kept].mean()) / spread) if spread > 0 else 0.0
    return Written(
        layer,
        neuron,
        (readings[0], readings[2]),
        (readings[1], readings[3]),
        float(cosine),
        float(length),
        writing,
        ids_of_concept,
    )


@functools.partial(jax.jit, static_argnames=("eps", "k"))
def _decode(
    head: jax.Array, gain: jax.Array, up: jax.Array, down: jax.Array, allowed: jax.Array, *, eps: float, k: int
) -> tuple[jax.Array, ...]:
    """Logits [2, V] of row and column; top k and logsumexp of +row, +column, -row, -column; cosine; the column's length."""
    rows = jnp.stack([up, down]).astype(jnp.float32)
    scaled = rows * jax.lax.rsqrt(jnp.mean(rows * rows, axis=1, keepdims=True) + eps)
    scaled = scaled * jnp.stack([jnp.ones_like(gain), gain]).astype(jnp.float32)
    precision = jax.lax.Precision.HIGHEST if head.dtype == jnp.float32 else None
    logits = jnp.einsum("nd,vd->nv", scaled.astype(head.dtype), head, precision=precision, preferred_element_type=jnp.float32)
    poles = jnp.where(allowed, jnp.concatenate([logits, -logits]), -jnp.inf)
    values, ids = jax.lax.top_k(poles, k)
    lengths = jnp.sqrt(jnp.sum(rows * rows, axis=1))
    product = lengths[0] * lengths[1]
    cosine = jnp.where(product > 0, jnp.sum(rows[0] * rows[1]) / jnp.where(product > 0, product, 1), 0)
    return logits, values, ids, jax.nn.logsumexp(poles, axis=1), cosine, lengths[1]

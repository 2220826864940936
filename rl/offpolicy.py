"""Samples that are older than the weights: importance weights, the mismatch of sampler and trainer, admission.

Three policies: the sampler's (logp_roll), the one at the start of the update (logp_old), and the one that is optimised.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rl.losses import kl, log_ratio


def importance_weights(logp_old: jax.Array, logp_roll: jax.Array, mask: jax.Array, cap: float = 2.0) -> jax.Array:
    """min(exp(logp_old - logp_roll), cap) without gradient, [B, T]; 1 at M = 0 (AReaL's objective, arXiv 2505.24298)."""
    return lax.stop_gradient(jnp.minimum(jnp.exp(log_ratio(logp_old, logp_roll, mask)), cap))


def token_band(logp_old: jax.Array, logp_roll: jax.Array, mask: jax.Array, low: float = 0.5, high: float = 2.0) -> jax.Array:
    """bool [B, T]: policy tokens whose ratio of trainer to sampler is within [low, high]."""
    ratio = jnp.exp(log_ratio(logp_old, logp_roll, mask))
    return mask & (ratio >= low) & (ratio <= high)


def sequence_band(
    logp_old: jax.Array, logp_roll: jax.Array, mask: jax.Array, low: float = 0.99, high: float = 1.01
) -> jax.Array:
    """bool [B]: rows whose geometric mean ratio of trainer to sampler is within [low, high]."""
    ratios = log_ratio(logp_old, logp_roll, mask)
    mean = jnp.exp(ratios.sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1))
    return (mean >= low) & (mean <= high)


class Mismatch(NamedTuple):
    """How far sampler and trainer are apart, over all policy tokens before any is left out. A mean of 0 proves nothing."""

    abs_dlogp_mean: jax.Array
    abs_dlogp_max: jax.Array
    abs_dlogp_p99: jax.Array
    ratio_min: jax.Array
    ratio_max: jax.Array
    outside: jax.Array  # share of tokens whose ratio is outside [0.9, 1.1]
    kl_k3: jax.Array  # KL of the sampler from the trainer


def mismatch(logp_old: jax.Array, logp_roll: jax.Array, mask: jax.Array) -> Mismatch:
    """The mismatch over a batch [B, T]; all 0 (ratios 1) for an empty one."""
    d = log_ratio(logp_old, logp_roll, mask)
    count = jnp.maximum(mask.sum(), 1)
    size, ratio = jnp.abs(d), jnp.exp(d)
    p99 = jnp.nanpercentile(jnp.where(mask, size, jnp.nan), 99)
    return Mismatch(
        size.sum() / count,
        size.max(),
        jnp.where(mask.any(), p99, 0),
        ratio.min(),
        ratio.max(),
        (mask & ((ratio < 0.9) | (ratio > 1.1))).sum() / count,
        kl(logp_roll, logp_old, mask, "k3").sum() / count,
    )


def capacity(*, version: int, eta: int, batch: int, accepted: int, running: int, max_concurrent: int) -> int:
    """How many more episodes may start so that none is trained more than ``eta`` versions late.

    Args:
      version: of the weights now.
      eta: the bound; 0 is synchronous training.
      batch: trajectories for each update.
      accepted: finished and kept since the run began, over restarts.
      running: episodes under way.
      max_concurrent: of them at most.
    """
    return max(0, min(max_concurrent - running, (eta + version + 1) * batch - (accepted + running)))

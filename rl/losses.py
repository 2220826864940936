"""Losses of policy and critic, token by token, and how tokens add up to one number.

A loss is [B, T] and 0 at M = 0. `token_weights` gives each token its share once, for the whole batch of an optimiser's step
over all devices and micro-batches: the total is then the plain sum of weight times loss, however the batch is cut.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rl.names import ESTIMATORS, REDUCTIONS

MAX_LOG_RATIO = 20.0  # beyond it the exponential says nothing more than "far away"


def token_weights(
    mask: jax.Array,
    reduction: str = "token_mean",
    *,
    sequence_id: jax.Array | None = None,
    num_sequences: int | None = None,
    denominator: float | None = None,
) -> jax.Array:
    """The share of each token in the loss of a batch, so that loss = sum(weights * losses).

    Args:
      mask: bool [B, T] tokens that count, of the whole batch of one optimiser's step.
      reduction: "token_mean" (DAPO, VAPO), "seq_mean_token_mean" (GRPO), "seq_mean_token_sum", "fixed_denominator" (Dr.GRPO).
      sequence_id: int [B] in [0, num_sequences): the trajectory of each row, where several rows make one; or [B, T] for several
        packed in one row. A row is a sequence by default. Sequences without tokens don't count.
      denominator: of "fixed_denominator", a number from the configuration.
    Returns:
      float32 [B, T]; all 0 for an empty batch.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is unknown; there are {', '.join(REDUCTIONS)}")
    ones = mask.astype(jnp.float32)
    if reduction == "fixed_denominator":
        if not denominator or denominator < 0:
            raise ValueError("fixed_denominator needs a positive denominator")
        return ones / denominator
    if reduction == "token_mean":
        return ones / jnp.maximum(ones.sum(), 1)
    lengths, of_token = _per_sequence(ones, mask, sequence_id, num_sequences)
    sequences = jnp.maximum((lengths > 0).sum(), 1)
    if reduction == "seq_mean_token_sum":
        return ones / sequences
    return ones / (jnp.maximum(of_token(lengths), 1) * sequences)


def log_ratio(logp: jax.Array, logp_old: jax.Array, mask: jax.Array) -> jax.Array:
    """logp - logp_old in float32 or wider, within ±`MAX_LOG_RATIO`; 0 at M = 0. A NaN at a policy token stays one."""
    dtype = jnp.promote_types(jnp.promote_types(logp.dtype, logp_old.dtype), jnp.float32)
    now, then = (jnp.where(mask, x.astype(dtype), 0) for x in (logp, lax.stop_gradient(logp_old)))
    return jnp.clip(now - then, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_log_ratio(
    logp: jax.Array,
    logp_old: jax.Array,
    mask: jax.Array,
    sequence_id: jax.Array | None = None,
    num_sequences: int | None = None,
) -> jax.Array:
    """The mean log-ratio of each token's sequence (GSPO, arXiv 2507.18071, eq. 7); shapes as for `token_weights`.

    The gradient of each sequence's ratio flows to all of its tokens.
    """
    ratios = log_ratio(logp, logp_old, mask)
    lengths, of_token = _per_sequence(mask.astype(ratios.dtype), mask, sequence_id, num_sequences)
    sums, _ = _per_sequence(ratios, mask, sequence_id, num_sequences)
    return jnp.where(mask, of_token(sums / jnp.maximum(lengths, 1)), 0)


class PolicyLoss(NamedTuple):
    """The clipped objective of each token, as a loss, and where it is clipped."""

    loss: jax.Array  # [B, T]
    ratio: jax.Array  # [B, T] pi / pi_old; 1 at M = 0
    clipped_high: jax.Array  # bool [B, T] advantage > 0 and ratio above 1 + eps_high: no gradient
    clipped_low: jax.Array  # bool [B, T] advantage < 0 and ratio below 1 - eps_low: no gradient


def ppo_loss(
    log_ratios: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float | None = None,
    weights: jax.Array | None = None,
) -> PolicyLoss:
    """- min(ratio A, clip(ratio, 1 - eps_low, 1 + eps_high) A): PPO with clip-higher (DAPO, arXiv 2503.14476, eq. 8).

    Args:
      log_ratios: [B, T] by `log_ratio` or `sequence_log_ratio`.
      eps_low, eps_high: 0.2 and 0.28 as in DAPO and VAPO.
      dual_clip: c > 1: a negative advantage costs at most c |A| (arXiv 1912.09729).
      weights: [B, T] truncated importance weights; see `rl.offpolicy`.
    Raises:
      ValueError: dual_clip of 1 or less, or bounds that are not positive.
    """
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1, not {dual_clip}")
    if not (0 < eps_low <= 1 and eps_high > 0):
        raise ValueError(f"eps_low must be in (0, 1] and eps_high above 0, not {eps_low} and {eps_high}")
    A = jnp.where(mask, lax.stop_gradient(advantages).astype(log_ratios.dtype), 0)
    ratio = jnp.exp(jnp.where(mask, log_ratios, 0))
    free, clipped = ratio * A, jnp.clip(ratio, 1 - eps_low, 1 + eps_high) * A
    loss = -jnp.where(free <= clipped, free, clipped)  # at equality the free branch has the gradient; minimum would halve it
    loss = jnp.where(jnp.isnan(free), free, loss)
    if dual_clip is not None:
        bound = dual_clip * jnp.abs(A)
        loss = jnp.where((A < 0) & (loss > bound), bound, loss)
    if weights is not None:
        loss = loss * jnp.where(mask, lax.stop_gradient(weights), 0)
    high, low = mask & (A > 0) & (ratio > 1 + eps_high), mask & (A < 0) & (ratio < 1 - eps_low)
    return PolicyLoss(jnp.where(mask, loss, 0), ratio, high, low)


def value_loss(
    values: jax.Array, values_old: jax.Array, returns: jax.Array, mask: jax.Array, eps_v: float | None = None
) -> jax.Array:
    """Half the squared error of the critic; with ``eps_v`` the larger of it and that of values clipped around the old ones."""
    dtype = jnp.promote_types(values.dtype, jnp.float32)
    V, old, target = (jnp.where(mask, x.astype(dtype), 0) for x in (values, values_old, returns))
    old, target = lax.stop_gradient(old), lax.stop_gradient(target)
    loss = (V - target) ** 2
    if eps_v is not None:
        loss = jnp.maximum(loss, (old + jnp.clip(V - old, -eps_v, eps_v) - target) ** 2)
    return 0.5 * loss


def explained_variance(values: jax.Array, returns: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(1 - Var(Ret - V) / Var(Ret) over policy tokens, whether Var(Ret) is 0: it then says 0).

    A constant offset of the values does not lower it: watch the loss too.
    """
    variance = _variance(returns, mask)
    flat = variance < 1e-12
    left = _variance(jnp.where(mask, returns, 0) - jnp.where(mask, values, 0), mask)
    return jnp.where(flat, 0.0, 1 - left / jnp.where(flat, 1, variance)), flat


def kl(logp: jax.Array, logp_ref: jax.Array, mask: jax.Array, estimator: str = "k3") -> jax.Array:
    """An estimate of KL(pi, ref) from each sampled token, [B, T]; positive in the mean when the policy moved away.

    With d = logp - logp_ref: k1 = d, k2 = d² / 2, k3 = exp(-d) + d - 1, which is never negative.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator {estimator!r} is unknown; there are {', '.join(ESTIMATORS)}")
    d = log_ratio(logp, logp_ref, mask)
    if estimator == "k1":
        return d
    return d**2 / 2 if estimator == "k2" else jnp.expm1(-d) + d


def overlong_penalty(lengths: jax.Array, limit: int = 20480, buffer: int = 4096) -> jax.Array:
    """DAPO's soft penalty in [-1, 0] on the count of policy tokens: falls over the last ``buffer`` of ``limit`` (eq. 13)."""
    return -jnp.clip((jnp.asarray(lengths, jnp.float32) - (limit - buffer)) / buffer, 0, 1)


def positive_nll(logp: jax.Array, mask: jax.Array, solved: jax.Array) -> jax.Array:
    """The mean negative log-probability of the policy tokens of solved trajectories (VAPO, arXiv 2504.05118); 0 if none.

    Args:
      logp: [B, T].
      mask: bool [B, T].
      solved: bool [B] the row belongs to a fully successful trajectory.
    """
    chosen = mask & solved[:, None]
    return -(token_weights(chosen) * jnp.where(chosen, logp, 0)).sum()


def _variance(x: jax.Array, mask: jax.Array) -> jax.Array:
    count = jnp.maximum(mask.sum(), 1)
    clean = jnp.where(mask, x, 0)
    return (jnp.where(mask, clean - clean.sum() / count, 0) ** 2).sum() / count


def _per_sequence(x: jax.Array, mask: jax.Array, sequence_id: jax.Array | None, num_sequences: int | None):
    """Sums over the policy tokens of each sequence, and the function that hands a sequence's number to its tokens."""
    clean = jnp.where(mask, x, 0)
    if sequence_id is None:
        return clean.sum(axis=1), lambda sums: sums[:, None]
    if num_sequences is None:
        raise ValueError("sequence_id needs num_sequences")
    if sequence_id.ndim == 1:
        return jax.ops.segment_sum(clean.sum(axis=1), sequence_id, num_sequences), lambda sums: sums[sequence_id][:, None]
    sums = jax.ops.segment_sum(clean.reshape(-1), sequence_id.reshape(-1), num_sequences)
    return sums, lambda sums: sums[sequence_id]

"""Figures of an update that need its arrays: what the critic knows, entropy by domain, the age of samples.

All are over the policy tokens (M = 1) of the whole batch, before any is left out of the update.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl.types import NO_GROUP, Batch

FLAT = 1e-12  # a variance below it is none


def of_update(
    batch: Batch, entropy: Any, domains: Sequence[str], now: int, *, values: Any = None, returns: Any = None
) -> dict[str, float]:
    """All figures below.

    Args:
      batch: [B, T] rows.
      entropy: [B, T] of the distribution that each token was drawn from, in nats.
      domains: of each trajectory, by its number in the batch: the environment's name.
      now: version of the weights that the update begins with.
      values, returns: [B, T] of the critic, where there is one.
    """
    mask = np.asarray(batch.mask)
    of_row = ["" if number == NO_GROUP else domains[number] for number in np.asarray(batch.traj_id).tolist()]
    found = of_entropy(np.asarray(entropy), mask, of_row) | of_lag(np.asarray(batch.version), mask, now)
    if values is not None:
        found |= of_critic(np.asarray(values), np.asarray(returns), mask, np.asarray(batch.outcome))
    return found


def of_critic(values: np.ndarray, returns: np.ndarray, mask: np.ndarray, outcome: np.ndarray) -> dict[str, float]:
    """What the values say about what came.

    Args:
      values: [B, T] of the critic before the update.
      returns: [B, T] its targets.
      mask: bool [B, T] policy tokens.
      outcome: [B] of the whole trajectory.
    Returns:
      ``critic/explained_variance``: 1 - Var(returns - values) / Var(returns), at most 1; a constant offset does not lower it.
      ``critic/value_reward_corr``: Pearson's correlation in [-1, 1] of a token's value with its trajectory's outcome; a critic
      that was not pretrained can begin below 0 (VC-PPO, arXiv 2503.01491). Either is NaN where what it divides by is 0: all
      returns, outcomes or values are equal.
    """
    at = np.asarray(mask, bool)
    V, target = np.asarray(values, np.float64)[at], np.asarray(returns, np.float64)[at]
    reached = np.broadcast_to(np.asarray(outcome, np.float64)[:, None], at.shape)[at]
    variance = target.var() if at.any() else 0.0
    return {
        "critic/explained_variance": float(1 - (target - V).var() / variance) if variance > FLAT else float("nan"),
        "critic/value_reward_corr": correlation(V, reached),
    }


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation of two [N], in [-1, 1]; NaN where one of them is constant or empty."""
    if x.size == 0 or min(x.var(), y.var()) <= FLAT:
        return float("nan")
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    return float(np.clip(covariance / np.sqrt(x.var() * y.var()), -1, 1))


def of_entropy(entropy: np.ndarray, mask: np.ndarray, domains: Sequence[str]) -> dict[str, float]:
    """``entropy/{domain}``: the mean entropy of the sampled distribution in nats, for each domain with a policy token.

    Args:
      entropy: [B, T] of the distribution that each token was drawn from.
      mask: bool [B, T] policy tokens.
      domains: of each of the B rows, such as the environment's name; "" for rows that are inert.
    """
    at, per_row = np.asarray(mask, bool), np.asarray(domains)
    found = {}
    for domain in sorted(set(domains) - {""}):
        chosen = at & (per_row == domain)[:, None]
        if chosen.any():
            found[f"entropy/{domain}"] = float(np.asarray(entropy, np.float64)[chosen].mean())
    return found


def of_lag(version: np.ndarray, mask: np.ndarray, now: int) -> dict[str, float]:
    """``off/lag_mean`` and ``off/lag_max``: how many published versions the weights are ahead of those that sampled a token.

    Args:
      version: int [B, T] of the weights that sampled each token.
      mask: bool [B, T] policy tokens.
      now: version of the weights that the update begins with.
    """
    lag = now - np.asarray(version)[np.asarray(mask, bool)]
    if lag.size == 0:
        return {"off/lag_mean": 0.0, "off/lag_max": 0.0}
    return {"off/lag_mean": float(lag.mean()), "off/lag_max": float(lag.max())}

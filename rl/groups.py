"""Advantages relative to a group: several trajectories of one task, or several visits of one state.

Statistics are per trajectory, whatever its length; groups may lie in any order and straddle devices.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

EQUAL = 1e-6  # returns whose range is at most this count as equal


class GroupAdvantages(NamedTuple):
    """Advantages of N trajectories, and what became of their groups."""

    advantages: jax.Array  # [N] 0 for failed members, and in groups that are dropped or all equal
    live: jax.Array  # bool [N] the group is large enough and its returns differ: it teaches something
    kept: jax.Array  # bool [N] a valid member of a group that is not dropped
    zero_var: jax.Array  # groups of two or more members whose returns are all equal
    singleton: jax.Array  # groups of one valid member
    dropped: jax.Array  # groups with members, but fewer than ``min_group_size`` valid ones


def group_advantages(
    returns: jax.Array,
    group_id: jax.Array,
    num_groups: int,
    *,
    valid: jax.Array | None = None,
    scale: str = "std",
    ddof: int = 1,
    baseline: str = "mean",
    eps: float = 1e-6,
    min_group_size: int = 2,
) -> GroupAdvantages:
    """A_i = (R_i - mean) / (std + eps) over the valid members of a group (GRPO, arXiv 2402.03300).

    Equal returns give exact zeros, as does a group of one.

    Args:
      returns: [N] of whole trajectories.
      group_id: int [N] in [0, num_groups), in any order.
      valid: bool [N]; a failed member is left out of mean and std, and can't poison them. A non-finite return counts as failed.
      scale: "std", or "none" for the difference alone (Dr.GRPO, arXiv 2503.20783).
      ddof: 1 for the sample's standard deviation, 0 for the population's.
      baseline: "mean", or "others": the mean of the other members (RLOO, arXiv 2402.14740).
      min_group_size: a group with fewer valid members is dropped.
    """
    if scale not in ("std", "none") or baseline not in ("mean", "others"):
        raise ValueError(f"scale is std or none, baseline mean or others; not {scale!r}, {baseline!r}")
    returns = jnp.asarray(returns, jnp.promote_types(jnp.asarray(returns).dtype, jnp.float32))
    used = jnp.isfinite(returns) if valid is None else jnp.isfinite(returns) & valid
    R = jnp.where(used, returns, 0)

    def total(x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, group_id, num_groups)

    count = total(used.astype(R.dtype))
    lowest = jax.ops.segment_min(jnp.where(used, R, jnp.inf), group_id, num_groups)
    highest = jax.ops.segment_max(jnp.where(used, R, -jnp.inf), group_id, num_groups)
    differ = highest - lowest > EQUAL
    mean = total(R) / jnp.maximum(count, 1)
    centred = jnp.where(used, R - mean[group_id], 0)
    advantages = centred
    if baseline == "others":
        advantages = centred * (count / jnp.maximum(count - 1, 1))[group_id]
    if scale == "std":
        variance = total(centred**2) / jnp.maximum(count - ddof, 1)
        advantages = advantages / (jnp.sqrt(jnp.where(variance > 0, variance, 1)) + eps)[group_id]
    large = count >= max(min_group_size, 2)
    live = (large & differ)[group_id] & used
    members = total(jnp.ones_like(R)) > 0
    return GroupAdvantages(
        jnp.where(live, advantages, 0),
        live,
        (count >= min_group_size)[group_id] & used,
        (large & ~differ).sum(),
        (count == 1).sum(),
        (members & (count < min_group_size)).sum(),
    )


def step_returns(rewards: jax.Array, mask: jax.Array, gamma: float = 0.95) -> jax.Array:
    """R_k = sum over j >= k of gamma^(j-k) r_j along the turns of a trajectory (GiGPO, arXiv 2505.10978, eq. 6).

    Args:
      rewards: [N, K] of each turn.
      mask: bool [N, K]: turns that were played, from the first on.
    Returns:
      [N, K], 0 where no turn was played.
    """

    def back(carry: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = reward + gamma * carry
        return carry, carry

    clean = jnp.where(mask, rewards, 0)
    _, found = jax.lax.scan(back, jnp.zeros_like(clean[:, 0]), clean.T, reverse=True)
    return jnp.where(mask, found.T, 0)


def anchor_ids(keys: Sequence[Sequence[Hashable]], group_id: Sequence[int], width: int) -> np.ndarray:
    """Numbers the states before each turn: equal numbers for equal states within one task group.

    Args:
      keys: for each of N trajectories, the digest of the environment's state before each of its turns.
      group_id: [N].
      width: K, at least the longest trajectory.
    Returns:
      int32 [N, K], counted from 0; -1 where no turn was played.
    """
    numbers: dict[Hashable, int] = {}
    ids = np.full((len(keys), width), -1, np.int32)
    for i, (states, group) in enumerate(zip(keys, group_id, strict=True)):
        for k, state in enumerate(states):
            ids[i, k] = numbers.setdefault((group, state), len(numbers))
    return ids


def gigpo_advantages(
    returns: jax.Array,
    turn_returns: jax.Array,
    group_id: jax.Array,
    num_groups: int,
    anchor_id: jax.Array,
    *,
    valid: jax.Array | None = None,
    omega: float = 1.0,
    scale: str = "none",
    ddof: int = 1,
    eps: float = 1e-6,
) -> jax.Array:
    """A^E + omega A^S: against the trajectories of the task, and against the visits of the same state (arXiv 2505.10978).

    Without a repeated state it is `group_advantages`. All policy tokens of a turn share its advantage.

    Args:
      returns: [N] of whole trajectories.
      turn_returns: [N, K] by `step_returns`.
      anchor_id: int [N, K] by `anchor_ids`.
    Returns:
      [N, K], 0 where no turn was played.
    """
    options: dict[str, Any] = {"scale": scale, "ddof": ddof, "eps": eps}
    episode = group_advantages(returns, group_id, num_groups, valid=valid, **options).advantages
    played = anchor_id >= 0
    used = played if valid is None else played & valid[:, None]
    flat = jnp.where(played, anchor_id, anchor_id.size).reshape(-1)  # what was not played has a group of its own
    step = group_advantages(turn_returns.reshape(-1), flat, anchor_id.size + 1, valid=used.reshape(-1), **options).advantages
    return jnp.where(used, episode[:, None] + omega * step.reshape(anchor_id.shape), 0)


def spread_turns(advantages: jax.Array, turn_id: jax.Array) -> jax.Array:
    """[B, T] the advantage of each token's turn. advantages: [B, K]; turn_id: int [B, T], -1 outside policy tokens."""
    return jnp.where(turn_id >= 0, jnp.take_along_axis(advantages, jnp.maximum(turn_id, 0), axis=1), 0)

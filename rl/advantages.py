"""Advantages and returns of trajectories whose policy tokens stand between observations.

Arrays are [B, T], aligned to the token that they describe; a mask M is true where the policy sampled the token. What stands at
other positions (rewards excepted) changes nothing, be it NaN: it is selected away before arithmetic. All functions are pure,
work under ``jit`` on sharded arrays, and send no gradient back.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Scalars = jax.Array | np.ndarray | float  # a number, or one for each row [B]


class Gae(NamedTuple):
    """What generalised advantage estimation gives; both are 0 at M = 0."""

    advantages: jax.Array  # [B, T]
    returns: jax.Array  # [B, T] advantages + values: the critic's target


def place_rewards(rewards: jax.Array, mask: jax.Array) -> jax.Array:
    """Moves each reward to the nearest policy token at or before it, or else to the row's first one; the sum is kept.

    A row without policy tokens gets zeros.

    Args:
      rewards: [B, T] reward that arrived at each position, policy token or not.
      mask: bool [B, T].
    Returns:
      [B, T] in the dtype of ``rewards``, 0 at M = 0.
    """
    B, T = mask.shape
    before = lax.cummax(jnp.where(mask, jnp.arange(T), -1), axis=1)
    at = jnp.where(before < 0, jnp.argmax(mask, axis=1)[:, None], before)
    placed = jnp.zeros_like(rewards).at[jnp.arange(B)[:, None], at].add(rewards)
    return jnp.where(mask, placed, 0)


def gae(
    rewards: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    boot: Scalars = 0.0,
    *,
    gamma: Scalars = 1.0,
    lam: Scalars = 0.95,
    turn_id: jax.Array | None = None,
    gamma_turn: float = 1.0,
    associative: bool = False,
) -> Gae:
    """Generalised advantage estimation (arXiv 1506.02438) over policy tokens alone: others neither decay nor count.

    delta_i = r_i + gamma V_{i+1} - V_i and A_i = delta_i + gamma lam A_{i+1} along the policy tokens of a row, with
    V_{n+1} = ``boot``. Inserting any tokens with M = 0 leaves the results unchanged, bit for bit.

    Args:
      rewards: [B, T], placed by `place_rewards` first.
      values: [B, T] the critic's estimate of the state before token t.
      mask: bool [B, T].
      boot: [B] value of the state after the last policy token; 0 unless truncated.
      gamma: discount of a token; default 1 (VAPO, arXiv 2504.05118).
      lam: lambda, a number or one per row.
      turn_id: int [B, T], needed for a ``gamma_turn`` other than 1, which multiplies gamma once at each change of turn.
      associative: in O(log T) steps on an accelerator, equal to rounding; the default goes token by token.
    """
    dtype = jnp.promote_types(jnp.promote_types(rewards.dtype, values.dtype), jnp.float32)
    values = jnp.where(mask, lax.stop_gradient(values).astype(dtype), 0)
    rewards = place_rewards(lax.stop_gradient(rewards).astype(dtype), mask)
    column = lambda x: jnp.broadcast_to(jnp.asarray(x, dtype), mask.shape[:1])[:, None]  # noqa: E731
    following = _next(values, mask, lax.stop_gradient(column(boot)))
    discount = jnp.broadcast_to(column(gamma), mask.shape)
    if turn_id is not None:
        changes = _next(turn_id, mask, turn_id[:, -1:]) != turn_id
        inside = jnp.arange(mask.shape[1]) != _last(mask)
        discount = jnp.where(changes & inside, discount * gamma_turn, discount)
    delta = jnp.where(mask, rewards + discount * following - values, 0)
    decay = jnp.where(mask, discount * column(lam), 1)
    advantages = jnp.where(mask, (_associative if associative else _sequential)(delta, decay, mask), 0)
    return Gae(advantages, jnp.where(mask, advantages + values, 0))


def bootstrap(after: jax.Array, mask: jax.Array, truncated: jax.Array) -> jax.Array:
    """[B] the ``boot`` of `gae` where a limit cuts episodes short: the value of the state after the last policy token.

    It is 0 where the episode ended by itself, and for a row without policy tokens (Pardo et al., arXiv 1712.00378).

    Args:
      after: [B, T] value of the state after each token.
      mask: bool [B, T].
      truncated: bool [B], as the rollout has it: the length of a row does not tell.
    """
    last = jnp.take_along_axis(after, _last(mask), axis=1)[:, 0]
    return lax.stop_gradient(jnp.where(truncated & mask.any(axis=1), last, 0))


def decoupled_gae(
    rewards: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    boot: Scalars = 0.0,
    *,
    gamma: Scalars = 1.0,
    lambda_policy: Scalars = 0.95,
    lambda_critic: Scalars = 1.0,
    associative: bool = False,
) -> Gae:
    """Advantages by the policy's lambda, returns by the critic's (VC-PPO, arXiv 2503.01491).

    With ``lambda_critic`` 1 and gamma 1 the returns are the sums of later rewards, whatever the critic says.
    """
    policy = gae(rewards, values, mask, boot, gamma=gamma, lam=lambda_policy, associative=associative)
    critic = gae(rewards, values, mask, boot, gamma=gamma, lam=lambda_critic, associative=associative)
    return Gae(policy.advantages, critic.returns)


def adaptive_lambda(lengths: jax.Array, alpha: float = 0.05, lambda_min: float = 0.0) -> jax.Array:
    """Length-adaptive lambda of the policy: clip(1 - 1 / (alpha l), lambda_min, 1) (VAPO, arXiv 2504.05118; UI-TARS-2).

    The coefficients of the TD errors then sum to alpha l.

    Args:
      lengths: [...] l, the policy tokens of a whole trajectory (all of its rows, observations not counted).
      alpha: 0.05 as published.
    Returns:
      [...] in [0, 1]; 0 for a trajectory without tokens.
    """
    lengths = jnp.asarray(lengths)
    safe = jnp.maximum(lengths, 1).astype(float)
    return lax.stop_gradient(jnp.where(lengths > 0, jnp.clip(1 - 1 / (alpha * safe), lambda_min, 1), 0))


def trajectory_lengths(mask: jax.Array, traj_id: jax.Array, num_trajectories: int) -> jax.Array:
    """[B] for each row, the policy tokens of its whole trajectory. ``traj_id``: int [B] in [0, num_trajectories)."""
    return jax.ops.segment_sum(mask.sum(axis=1), traj_id, num_trajectories)[traj_id]


def whiten(advantages: jax.Array, mask: jax.Array, eps: float = 1e-8) -> jax.Array:
    """(A - mean) / sqrt(var + eps) over all policy tokens of the batch, population variance in two passes; 0 at M = 0.

    On arrays sharded over a mesh the statistics are those of the whole. A single policy token becomes 0.
    """
    dtype = jnp.promote_types(advantages.dtype, jnp.float32)
    kept = jnp.where(mask, advantages.astype(dtype), 0)
    count = jnp.maximum(mask.sum(), 1).astype(dtype)
    centred = jnp.where(mask, kept - kept.sum() / count, 0)
    centred = jnp.where(mask, centred - centred.sum() / count, 0)  # what rounding left of a large mean
    return centred / jnp.sqrt((centred**2).sum() / count + eps)


@dataclasses.dataclass(frozen=True)
class Chains:
    """Trajectories that are spread over several rows, each as one chain of its policy tokens in the order of turns."""

    index: np.ndarray | jax.Array  # int32 [C, L] position in the flattened rows [B * T]; -1 after the chain's end
    shape: tuple[int, int]  # B, T

    @property
    def mask(self) -> np.ndarray | jax.Array:
        """bool [C, L]: where a chain has a token."""
        return self.index >= 0

    def gather(self, rows: jax.Array) -> jax.Array:
        """[C, L] of [B, T]; 0 after the end of a chain."""
        return jnp.where(self.mask, rows.reshape(-1)[jnp.maximum(self.index, 0)], 0)

    def scatter(self, chains: jax.Array) -> jax.Array:
        """[B, T] of [C, L]; 0 where no chain has a token."""
        B, T = self.shape
        at = jnp.where(self.mask, self.index, B * T)
        return jnp.zeros(B * T, chains.dtype).at[at.reshape(-1)].set(chains.reshape(-1), mode="drop").reshape(B, T)


def chains(mask: np.ndarray, traj_id: np.ndarray, order: np.ndarray, length: int | None = None) -> Chains:
    """The chains of a batch of step samples, made on the host before anything is compiled.

    Each turn's row has a context of its own; running GAE row by row would cut every trajectory at its turns.

    Args:
      mask: bool [B, T].
      traj_id: int [B]; one chain for each value from 0 to the largest.
      order: int [B] place of a row within its trajectory.
      length: L, at least the longest chain; the longest chain by default.
    """
    mask, traj_id = np.asarray(mask, bool), np.asarray(traj_id)
    B, T = mask.shape
    found: list[list[int]] = [[] for _ in range(int(traj_id.max(initial=-1)) + 1)]
    for row in np.lexsort((order, traj_id)):
        found[traj_id[row]].extend(row * T + np.flatnonzero(mask[row]))
    longest = max((len(one) for one in found), default=0)
    if length is not None and length < longest:
        raise ValueError(f"a chain of {longest} policy tokens does not fit into a length of {length}")
    index = np.full((len(found), max(length or longest, 1)), -1, np.int32)
    for chain, positions in zip(index, found, strict=True):
        chain[: len(positions)] = positions
    return Chains(index, (B, T))


def _last(mask: jax.Array) -> jax.Array:
    """[B, 1] position of the last policy token."""
    return mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)[:, None]


def _next(x: jax.Array, mask: jax.Array, last: jax.Array) -> jax.Array:
    """[B, T] the value at the next policy token after t, or ``last`` [B, 1]."""
    T = mask.shape[1]
    at = lax.cummin(jnp.where(mask, jnp.arange(T), T), axis=1, reverse=True)
    at = jnp.concatenate([at[:, 1:], jnp.full_like(at[:, :1], T)], axis=1)
    extended = jnp.concatenate([x, last.astype(x.dtype)], axis=1)
    return jnp.take_along_axis(extended, at, axis=1)


def _sequential(delta: jax.Array, decay: jax.Array, mask: jax.Array) -> jax.Array:
    def back(carry: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        delta, decay, mask = now
        carry = jnp.where(mask, delta + decay * carry, carry)
        return carry, carry

    _, advantages = lax.scan(back, jnp.zeros_like(delta[:, 0]), (delta.T, decay.T, mask.T), reverse=True)
    return advantages.T


def _associative(delta: jax.Array, decay: jax.Array, mask: jax.Array) -> jax.Array:
    def join(late: tuple[jax.Array, jax.Array], early: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return early[0] + early[1] * late[0], early[1] * late[1]

    return lax.associative_scan(join, (delta, decay), axis=1, reverse=True)[0]

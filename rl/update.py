"""The arithmetic of one update: targets from a batch, then steps of the critic and of the policy.

Everything here is compiled and pure. Parameters are stacked (scanned) trees in float32; the passes run in the compute dtype.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh

from jaxllm.config import Config
from jaxllm.params import Params
from rl import advantages as adv
from rl import critic as critics
from rl import groups, losses, offpolicy, policy
from rl.config import Algo, Optim
from rl.types import Batch


@flax.struct.dataclass
class TrainState:
    """All that an optimiser moves."""

    policy: Params  # float32, stacked
    critic: Any  # `rl.critic.Critic`, or None
    policy_opt: optax.OptState
    critic_opt: optax.OptState
    reference: Params | None  # the starting policy, where the KL divergence from it counts


@flax.struct.dataclass
class Targets:
    """What an update aims at, computed once for all of its steps; [B, T]."""

    advantages: jax.Array
    returns: jax.Array  # the critic's targets; 0 without a critic
    values: jax.Array  # of the critic that the rollouts began with
    logp_old: jax.Array
    logp_ref: jax.Array  # 0 without a reference
    importance: jax.Array  # weights that correct for the sampler's weights
    mask: jax.Array  # bool, tokens that are trained
    solved: jax.Array  # bool [B]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is fixed while compiled functions run; hashable."""

    cfg: Config
    algo: Algo
    optim: Optim
    temperature: float
    mesh: Mesh | None = None

    def compute(self, params: Params) -> Params:
        """The parameters in the dtype of the passes; gradients come back in float32."""
        return jax.tree.map(lambda leaf: leaf.astype(self.optim.compute_dtype), params)


def optimiser(lr: float, optim: Optim) -> optax.GradientTransformation:
    """AdamW (0.9, 0.95) after clipping by the global norm, constant after a linear warm-up."""
    schedule = optax.linear_schedule(lr / max(optim.warmup, 1), lr, max(optim.warmup - 1, 1))
    return optax.chain(
        optax.clip_by_global_norm(optim.clip_norm), optax.adamw(schedule, 0.9, 0.95, 1e-8, weight_decay=optim.weight_decay)
    )


@functools.partial(jax.jit, static_argnames=("setting",))
def score(setting: Setting, state: TrainState, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(logp_old, entropy, values, logp_ref) of a batch's tokens, all [B, T]; 0 where there is no critic or no reference."""
    options: dict[str, Any] = {"temperature": setting.temperature, "mesh": setting.mesh}
    logp, entropy = policy.logprobs(setting.compute(state.policy), setting.cfg, tokens, **options)
    none = jnp.zeros_like(logp)
    values = none
    if state.critic is not None:
        shared = None if "trunk" in state.critic else setting.compute(state.policy)
        values = critics.values(setting.compute(state.critic), setting.cfg, tokens, policy=shared, mesh=setting.mesh)
    if state.reference is None:
        return logp, entropy, values, none
    return logp, entropy, values, policy.logprobs(setting.compute(state.reference), setting.cfg, tokens, **options)[0]


def targets(
    setting: Setting,
    batch: Batch,
    scores: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    anchor_id: np.ndarray | None = None,
) -> tuple[Targets, dict[str, float]]:
    """What to aim at, and what to log of it.

    Args:
      batch: on the host, as of `rl.tokens.make_batch`.
      scores: of `score`.
      anchor_id: int [N, K] of `rl.groups.anchor_ids` by trajectory, for GiGPO.
    """
    algo = setting.algo
    logp_old, entropy, values, logp_ref = scores
    mask = jnp.asarray(batch.mask)
    num = int(np.max(batch.traj_id, initial=-1)) + 1
    lengths = np.bincount(batch.traj_id[batch.traj_id >= 0], np.asarray(batch.mask).sum(1)[batch.traj_id >= 0], num)
    first = np.array([np.flatnonzero(batch.traj_id == k)[0] for k in range(num)], int)  # a row of each trajectory
    rewards = np.array(batch.rewards)
    extra = _shaping(algo, batch, lengths, num)
    metrics = {f"reward/{name}": float(value.mean()) for name, value in extra.items()}
    shaped = sum(extra.values(), np.zeros(num))
    for k in range(num):  # shaping lands where the episode ends
        rows = np.flatnonzero(batch.traj_id == k)
        rewards[rows[np.argmax(batch.order[rows])], -1] += shaped[k]
    info: dict[str, Any] = {}
    if algo.critic:
        lam = adv.adaptive_lambda(jnp.asarray(lengths), algo.alpha) if algo.lambda_policy == "adaptive" else None
        found = _with_critic(algo, batch, rewards, values, lam, lengths)
        advantages, returns = found
        if lam is not None:
            info |= {"gae/lambda_mean": lam.mean(), "gae/lambda_min": lam.min(), "gae/lambda_max": lam.max()}
        if algo.whiten:
            advantages = adv.whiten(advantages, mask)
    else:
        episode = np.array([batch.outcome[b] for b in first]) + shaped
        advantages, mask, stats = _by_group(algo, batch, episode, first, anchor_id, mask)
        returns, info = jnp.zeros_like(values), stats
    apart = offpolicy.mismatch(logp_old, jnp.asarray(batch.logp_roll), jnp.asarray(batch.mask))
    importance = offpolicy.importance_weights(logp_old, jnp.asarray(batch.logp_roll), mask, algo.importance_cap)
    count = jnp.maximum(mask.sum(), 1)
    info |= {
        "off/abs_dlogp_mean": apart.abs_dlogp_mean,
        "off/abs_dlogp_p99": apart.abs_dlogp_p99,
        "off/abs_dlogp_max": apart.abs_dlogp_max,
        "off/w_mean": jnp.where(mask, importance, 0).sum() / count,
        "off/w_clip_frac": (mask & (importance >= algo.importance_cap)).sum() / count,
        "entropy": jnp.where(jnp.asarray(batch.mask), entropy, 0).sum() / jnp.maximum(batch.mask.sum(), 1),
    }
    metrics |= {name: float(value) for name, value in info.items()}
    solved = jnp.asarray(batch.success)
    return Targets(advantages, returns, values, logp_old, logp_ref, importance, mask, solved), metrics


def _shaping(algo: Algo, batch: Batch, lengths: np.ndarray, num: int) -> dict[str, np.ndarray]:
    """Rewards beside the outcome, [num] each: what the configuration asks for."""
    if not algo.overlong_limit:
        return {}
    return {"len": np.asarray(losses.overlong_penalty(jnp.asarray(lengths), algo.overlong_limit, algo.overlong_buffer))}


def _with_critic(
    algo: Algo, batch: Batch, rewards: np.ndarray, values: jax.Array, lam: jax.Array | None, lengths: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """Advantages and returns by GAE along each trajectory's chain of tokens."""
    options: dict[str, Any] = {"gamma": algo.gamma, "lambda_critic": algo.lambda_critic}
    mask = jnp.asarray(batch.mask)
    placed = adv.place_rewards(jnp.asarray(rewards), mask)
    fixed = 0.0 if algo.lambda_policy == "adaptive" else algo.lambda_policy
    if not np.any(batch.order):
        rows = fixed if lam is None else lam[jnp.maximum(batch.traj_id, 0)]
        one = adv.decoupled_gae(placed, values, mask, lambda_policy=rows, **options)
        return one.advantages, one.returns
    traj_id = np.where(np.asarray(batch.traj_id) < 0, len(lengths), batch.traj_id)  # inert rows are a chain without tokens
    chain = adv.chains(np.asarray(batch.mask), traj_id, np.asarray(batch.order))
    each = fixed if lam is None else jnp.pad(lam, (0, len(chain.index) - len(lam)))
    found = adv.decoupled_gae(
        chain.gather(placed), chain.gather(values), jnp.asarray(chain.mask), lambda_policy=each, **options
    )
    return chain.scatter(found.advantages), chain.scatter(found.returns)


def _by_group(
    algo: Algo,
    batch: Batch,
    episode: np.ndarray,
    first: np.ndarray,
    anchor_id: np.ndarray | None,
    mask: jax.Array,
) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """Advantages relative to the group, the tokens that are trained, and counts of groups."""
    group = jnp.asarray(batch.group_id[first])
    num_groups = int(np.max(batch.group_id, initial=0)) + 1
    scale = "none" if algo.name in ("dr_grpo", "rloo") else "std"
    baseline = "others" if algo.name == "rloo" else "mean"
    options: dict[str, Any] = {"scale": scale, "ddof": algo.ddof}
    found = groups.group_advantages(
        jnp.asarray(episode), group, num_groups, baseline=baseline, min_group_size=algo.min_group_size, **options
    )
    rows = np.maximum(batch.traj_id, 0)
    if algo.name == "gigpo":
        if anchor_id is None:
            raise ValueError("gigpo needs the anchors of the states")
        K = anchor_id.shape[1]
        turn_rewards = np.zeros((len(first), K))
        at = batch.turn_id >= 0
        np.add.at(turn_rewards, (rows[:, None].repeat(at.shape[1], 1)[at], batch.turn_id[at]), np.asarray(batch.rewards)[at])
        steps = groups.step_returns(jnp.asarray(turn_rewards, jnp.float32), jnp.asarray(anchor_id >= 0), algo.turn_gamma)
        each = groups.gigpo_advantages(
            jnp.asarray(episode), steps, group, num_groups, jnp.asarray(anchor_id), omega=algo.omega, **options
        )
        advantages = groups.spread_turns(each[rows], jnp.asarray(batch.turn_id))
    else:
        advantages = found.advantages[rows][:, None] * jnp.ones(mask.shape)
    kept = mask & found.kept[rows][:, None]
    stats = {"groups/zero_var": found.zero_var, "groups/singleton": found.singleton, "groups/dropped": found.dropped}
    return jnp.where(kept, advantages, 0), kept, stats


class Step(NamedTuple):
    """The result of one optimiser step."""

    params: Any
    opt: optax.OptState
    metrics: dict[str, jax.Array]


@functools.partial(jax.jit, static_argnames=("setting",), donate_argnames=("params", "opt"))
def policy_step(
    setting: Setting, params: Params, opt: optax.OptState, tokens: jax.Array, turns: jax.Array, aims: Targets
) -> Step:
    """One step of the policy on a mini-batch, its gradient added up over micro-batches with weights of the whole."""
    algo = setting.algo
    by_trajectory: dict[str, Any] = {"sequence_id": turns, "num_sequences": tokens.shape[0]} if "seq" in algo.reduction else {}
    weights = losses.token_weights(aims.mask, algo.reduction, denominator=algo.denominator, **by_trajectory)
    good = losses.token_weights(aims.mask & aims.solved[:, None])

    def loss(params: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        tokens, aims, weights, good = part
        logp, _ = policy.logprobs(
            setting.compute(params), setting.cfg, tokens, temperature=setting.temperature, mesh=setting.mesh
        )
        ratio_of = losses.sequence_log_ratio if algo.name == "gspo" else losses.log_ratio
        found = losses.ppo_loss(
            ratio_of(logp, aims.logp_old, aims.mask),
            aims.advantages,
            aims.mask,
            eps_low=algo.eps_low,
            eps_high=algo.eps_high,
            dual_clip=algo.dual_clip,
            weights=aims.importance,
        )
        total = (weights * found.loss).sum()
        if algo.kl:
            total += algo.kl * (weights * losses.kl(logp, aims.logp_ref, aims.mask, algo.kl_estimator)).sum()
        if algo.positive_nll:
            total -= algo.positive_nll * (good * jnp.where(aims.mask, logp, 0)).sum()
        drift = losses.kl(aims.logp_old, lax.stop_gradient(logp), aims.mask, "k3")
        return total, {
            "ppo/loss": total,
            "ppo/clip_high_frac": found.clipped_high.sum(),
            "ppo/clip_low_frac": found.clipped_low.sum(),
            "ppo/kl_k3": drift.sum(),
        }

    step = _step(setting, optimiser(setting.optim.actor_lr, setting.optim), loss, params, opt, (tokens, aims, weights, good))
    count = jnp.maximum(aims.mask.sum(), 1)
    shares = {name: value / count for name, value in step.metrics.items() if name.endswith("_frac") or name.endswith("k3")}
    return step._replace(metrics={**step.metrics, **shares, "ppo/grad_norm": step.metrics["grad_norm"]})


@functools.partial(jax.jit, static_argnames=("setting",), donate_argnames=("params", "opt"))
def critic_step(
    setting: Setting, params: Any, opt: optax.OptState, tokens: jax.Array, aims: Targets, shared: Params | None
) -> Step:
    """One step of the critic on a mini-batch; ``shared`` is the policy whose trunk it reads, or None."""
    weights = losses.token_weights(aims.mask)

    def loss(params: Any, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        tokens, aims, weights = part
        trunk = None if shared is None else setting.compute(shared)
        values = critics.values(setting.compute(params), setting.cfg, tokens, policy=trunk, mesh=setting.mesh)
        total = (weights * losses.value_loss(values, aims.values, aims.returns, aims.mask, setting.algo.eps_v)).sum()
        return total, {"critic/loss": total}

    step = _step(setting, optimiser(setting.optim.critic_lr, setting.optim), loss, params, opt, (tokens, aims, weights))
    return step._replace(metrics={**step.metrics, "critic/grad_norm": step.metrics["grad_norm"]})


def _step(
    setting: Setting, optimise: optax.GradientTransformation, loss: Callable, params: Any, opt: optax.OptState, parts: Any
) -> Step:
    """Adds gradients up over micro-batches, and moves unless something is not finite."""
    count = setting.optim.micro_batches
    parts = jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), parts)
    gradient_of = jax.grad(loss, has_aux=True)

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient_of(params, part)), None

    shapes = jax.eval_shape(gradient_of, params, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (gradient, metrics), _ = lax.scan(add, zeros, parts)
    norm = optax.global_norm(gradient)
    updates, moved = optimise.update(gradient, opt, params)
    new = optax.apply_updates(params, updates)
    finite = jnp.isfinite(norm)
    params, opt = jax.tree.map(lambda a, b: jnp.where(finite, a, b), (new, moved), (params, opt))
    return Step(params, opt, {**metrics, "grad_norm": norm, "skipped": ~finite})


@functools.partial(jax.jit, static_argnames=("setting",), donate_argnames=("params", "opt"))
def imitation_step(setting: Setting, params: Params, opt: optax.OptState, tokens: jax.Array, mask: jax.Array) -> Step:
    """One step of supervised learning: the mean negative log-probability of the tokens of a mask."""

    def loss(params: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        tokens, mask, weights = part
        logp, _ = policy.logprobs(setting.compute(params), setting.cfg, tokens, mesh=setting.mesh)
        total = -(weights * jnp.where(mask, logp, 0)).sum()
        return total, {"sft/loss": total}

    weights = losses.token_weights(mask)
    return _step(setting, optimiser(setting.optim.actor_lr, setting.optim), loss, params, opt, (tokens, mask, weights))

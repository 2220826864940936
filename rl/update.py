"""The arithmetic of one update: targets from a batch, then steps of the critic and of the policy.

Everything here is compiled and pure. Parameters are stacked (scanned) trees in float32; the passes run in the compute dtype.
Where low-rank adapters are trained, they are the parameters, and the model that they adapt is a base beside them, which stands
still.
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
from rl import groups, losses, offpolicy, placement, policy
from rl.config import Algo, Optim
from rl.lora import Lora, attach
from rl.tokens import bucket as _bucket
from rl.tokens import to_tokens
from rl.types import Batch

LAST_RATE = 0.1  # of the learning rate, where it falls
MAX_SKIPPED = 3  # optimiser steps in a row that are not finite, after which a run stops
# On CPUs XLA runs early what depends on little: what each layer's backward pass computes again would be kept of all of them.
LEAN = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@flax.struct.dataclass
class TrainState:
    """All that an optimiser moves, and what stands still beside it."""

    policy: Params  # float32, stacked; with a base, adapters of it
    critic: Any  # `rl.critic.Critic`, or None; with a base, its trunk is adapters too
    policy_opt: optax.OptState
    critic_opt: optax.OptState
    reference: Params | None  # the starting policy, where the KL divergence from it counts
    base: Params | None = None  # what `Setting.lora` adapts, in the dtype of the passes; in no checkpoint, for it never changes


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
    lora: Lora | None = None

    @property
    def passes(self) -> dict[str, Any]:
        """Options of a forward pass that a backward pass follows."""
        return {"remat": self.optim.remat, "mesh": self.mesh}

    def compute(self, params: Params) -> Params:
        """The parameters in the dtype of the passes; gradients come back in float32."""
        return jax.tree.map(lambda leaf: leaf.astype(self.optim.compute_dtype), params)

    def model(self, params: Params, base: Params | None) -> Params:
        """The parameters of a pass: those that are trained, or a base with the adapters that are."""
        params = self.compute(params)
        return params if base is None or self.lora is None else attach(self.compute(base), params, self.lora)

    def judge(self, critic: critics.Critic, base: Params | None) -> critics.Critic:
        """The critic of a pass, its trunk as of `model`."""
        critic = self.compute(critic)
        return {**critic, "trunk": self.model(critic["trunk"], base)} if "trunk" in critic else critic


def rate(top: float, warmup: int, decay: int = 0) -> optax.Schedule:
    """The learning rate by step: a linear rise, then `LAST_RATE` of it after a cosine of ``decay`` steps; 0 for the same."""
    rise = optax.linear_schedule(top / max(warmup, 1), top, max(warmup - 1, 1))
    then = optax.cosine_decay_schedule(top, decay, LAST_RATE) if decay else optax.constant_schedule(top)
    return optax.join_schedules([rise, then], [warmup])


def optimiser(lr: float | optax.Schedule, optim: Optim) -> optax.GradientTransformation:
    """AdamW (0.9, 0.95) after clipping by the global norm; a number rises and falls as the settings say."""
    schedule = lr if callable(lr) else rate(lr, optim.warmup, optim.decay)
    return optax.chain(
        optax.clip_by_global_norm(optim.clip_norm), optax.adamw(schedule, 0.9, 0.95, 1e-8, weight_decay=optim.weight_decay)
    )


@functools.partial(jax.jit, static_argnames=("setting",))
def score(setting: Setting, state: TrainState, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(logp_old, entropy, values, logp_ref) of a batch's tokens, all [B, T]; 0 where there is no critic or no reference.

    Values are [B, T + 1]: of the state before each token, and after the last; position 0 holds 0.
    """
    options: dict[str, Any] = {"temperature": setting.temperature, "mesh": setting.mesh}
    actor = setting.model(state.policy, state.base)
    logp, entropy = policy.logprobs(actor, setting.cfg, tokens, **options)
    none = values = jnp.zeros_like(logp)
    if state.critic is not None:
        shared = None if "trunk" in state.critic else actor
        values = critics.after(setting.judge(state.critic, state.base), setting.cfg, tokens, policy=shared, mesh=setting.mesh)
    values = to_tokens(values)
    if state.reference is None:
        return logp, entropy, values, none
    return logp, entropy, values, policy.logprobs(setting.model(state.reference, state.base), setting.cfg, tokens, **options)[0]


def targets(
    setting: Setting,
    batch: Batch,
    scores: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    anchor_id: np.ndarray | None = None,
    shaping: np.ndarray | None = None,
) -> tuple[Targets, dict[str, float]]:
    """What to aim at, and what to log of it.

    Args:
      batch: on the host, as of `rl.tokens.make_batch`.
      scores: of `score`.
      anchor_id: int [N, K] of `rl.groups.anchor_ids` by trajectory, for GiGPO.
      shaping: [N] rewards beside the outcome by trajectory, paid where an episode ends.
    """
    algo, B = setting.algo, batch.shape[0]
    host = jax.tree.map(np.asarray, batch)
    real = np.flatnonzero(host.traj_id >= 0)
    lengths = np.bincount(host.traj_id[real], host.mask.sum(1)[real], B)  # by trajectory, of which there are B at most
    first = np.full(B, -1)  # a row of each trajectory
    first[host.traj_id[real][::-1]] = real[::-1]
    penalty = np.zeros(B)
    if shaping is not None:
        penalty[: len(shaping)] = shaping
    rewards = np.array(host.rewards)
    last = real[np.lexsort((host.order[real], host.traj_id[real]))]  # in the order of turns: the last one written stays
    final = np.zeros(B, int)
    final[host.traj_id[last]] = last
    np.add.at(rewards[:, -1], final[first >= 0], penalty[first >= 0])
    chain = None
    if algo.critic and host.order.any():
        chain = adv.chains(host.mask, np.where(host.traj_id < 0, B, host.traj_id), host.order).index[:B]
        chain = np.pad(chain, ((0, B - len(chain)), (0, _bucket(chain.shape[1]) - chain.shape[1])), constant_values=-1)
    turn_rewards = None
    if algo.name == "gigpo":
        if anchor_id is None:
            raise ValueError("gigpo needs the anchors of the states")
        anchor_id = np.pad(anchor_id, ((0, B - len(anchor_id)), (0, 0)), constant_values=-1)
        turn_rewards = np.zeros(anchor_id.shape, np.float32)
        at = host.turn_id >= 0
        np.add.at(turn_rewards, (np.broadcast_to(host.traj_id[:, None], at.shape)[at], host.turn_id[at]), host.rewards[at])
    extra = (rewards, lengths, first, penalty, chain, anchor_id, turn_rewards)
    aims, figures = _aim(setting, host, scores, *extra)
    return aims, {name: float(value) for name, value in figures.items()}


@functools.partial(jax.jit, static_argnames=("setting",))
def _aim(
    setting: Setting,
    batch: Batch,
    scores: tuple[jax.Array, ...],
    rewards: jax.Array,
    lengths: jax.Array,
    first: jax.Array,
    penalty: jax.Array,
    chain: jax.Array | None,
    anchor_id: jax.Array | None,
    turn_rewards: jax.Array | None,
) -> tuple[Targets, dict[str, jax.Array]]:
    algo, mask = setting.algo, batch.mask
    logp_old, entropy, values, logp_ref = scores
    values, after = values[:, :-1], values[:, 1:]
    there, rows = first >= 0, jnp.maximum(batch.traj_id, 0)
    figures: dict[str, jax.Array] = {}
    if algo.critic:
        lam: Any = algo.lambda_policy
        if lam == "adaptive":
            lam = adv.adaptive_lambda(lengths, algo.alpha)
            count = jnp.maximum(there.sum(), 1)
            figures["gae/lambda_mean"] = jnp.where(there, lam, 0).sum() / count
            figures["gae/lambda_min"] = jnp.where(there, lam, 1).min()
            figures["gae/lambda_max"] = jnp.where(there, lam, 0).max()
        placed = adv.place_rewards(rewards, mask)
        options: dict[str, Any] = {"gamma": algo.gamma, "lambda_critic": algo.lambda_critic}
        if chain is None:
            by_row = lam[rows] if isinstance(lam, jax.Array) else lam
            if algo.bootstrap_truncated:
                options["boot"] = adv.bootstrap(after, mask, batch.truncated)
            found = adv.decoupled_gae(placed, values, mask, lambda_policy=by_row, **options)
        else:  # a trajectory of several rows is one chain of tokens
            along = adv.Chains(chain, batch.shape)
            chained = jnp.asarray(along.mask)
            if algo.bootstrap_truncated:
                options["boot"] = adv.bootstrap(along.gather(after), chained, batch.truncated[jnp.maximum(first, 0)])
            each = adv.decoupled_gae(along.gather(placed), along.gather(values), chained, lambda_policy=lam, **options)
            found = adv.Gae(along.scatter(each.advantages), along.scatter(each.returns))
        advantages, returns = found
        if algo.whiten:
            advantages = adv.whiten(advantages, mask)
    else:
        episode = batch.outcome[jnp.maximum(first, 0)] + penalty
        group = jnp.maximum(batch.group_id[jnp.maximum(first, 0)], 0)
        common: dict[str, Any] = {"scale": "none" if algo.name in ("dr_grpo", "rloo") else "std", "ddof": algo.ddof}
        baseline = "others" if algo.name == "rloo" else "mean"
        grouped = groups.group_advantages(
            episode, group, len(first), valid=there, baseline=baseline, min_group_size=algo.min_group_size, **common
        )
        mask = mask & (grouped.live if algo.mask_zero_var_groups else grouped.kept)[rows][:, None]
        advantages = grouped.advantages[rows][:, None] * jnp.ones(mask.shape)
        if anchor_id is not None and turn_rewards is not None:
            steps = groups.step_returns(turn_rewards, anchor_id >= 0, algo.turn_gamma)
            each_turn = groups.gigpo_advantages(
                episode, steps, group, len(first), anchor_id, valid=there, omega=algo.omega, **common
            )
            advantages = groups.spread_turns(each_turn[rows], batch.turn_id)
        advantages, returns = jnp.where(mask, advantages, 0), jnp.zeros_like(values)
        figures["groups/zero_var"], figures["groups/singleton"] = grouped.zero_var, grouped.singleton
        figures["groups/dropped"] = (grouped.dropped).astype(jnp.int32)
    apart = offpolicy.mismatch(logp_old, batch.logp_roll, batch.mask)
    importance = offpolicy.importance_weights(logp_old, batch.logp_roll, mask, algo.importance_cap)
    count, every = jnp.maximum(mask.sum(), 1), jnp.maximum(batch.mask.sum(), 1)
    figures |= {
        "off/abs_dlogp_mean": apart.abs_dlogp_mean,
        "off/abs_dlogp_p99": apart.abs_dlogp_p99,
        "off/abs_dlogp_max": apart.abs_dlogp_max,
        "off/ratio_min": apart.ratio_min,
        "off/ratio_max": apart.ratio_max,
        "off/outside_frac": apart.outside,
        "off/kl_k3": apart.kl_k3,
        "off/w_mean": jnp.where(mask, importance, 0).sum() / count,
        "off/w_clip_frac": (mask & (importance >= algo.importance_cap)).sum() / count,
        "entropy": jnp.where(batch.mask, entropy, 0).sum() / every,
    }
    return Targets(advantages, returns, values, logp_old, logp_ref, importance, mask, batch.success), figures


class Step(NamedTuple):
    """The result of one optimiser step."""

    params: Any
    opt: optax.OptState
    metrics: dict[str, jax.Array]


@functools.partial(jax.jit, static_argnames=("setting",), donate_argnames=("params", "opt"), compiler_options=LEAN)
def policy_step(
    setting: Setting,
    params: Params,
    opt: optax.OptState,
    tokens: jax.Array,
    turns: jax.Array,
    aims: Targets,
    base: Params | None = None,
) -> Step:
    """One step of the policy on a mini-batch, its gradient added up over micro-batches with weights of the whole."""
    algo = setting.algo
    by_trajectory: dict[str, Any] = {"sequence_id": turns, "num_sequences": tokens.shape[0]} if "seq" in algo.reduction else {}
    weights = losses.token_weights(aims.mask, algo.reduction, denominator=algo.denominator, **by_trajectory)
    good = losses.token_weights(aims.mask & aims.solved[:, None])

    def loss(params: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        tokens, aims, weights, good = part
        actor = setting.model(params, base)
        logp, _ = policy.logprobs(actor, setting.cfg, tokens, temperature=setting.temperature, **setting.passes)
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

    step = descend(setting, optimiser(setting.optim.actor_lr, setting.optim), loss, params, opt, (tokens, aims, weights, good))
    count = jnp.maximum(aims.mask.sum(), 1)
    shares = {name: value / count for name, value in step.metrics.items() if name.endswith("_frac") or name.endswith("k3")}
    return step._replace(metrics=_named("ppo", {**step.metrics, **shares}))


@functools.partial(jax.jit, static_argnames=("setting",), donate_argnames=("params", "opt"), compiler_options=LEAN)
def critic_step(
    setting: Setting,
    params: Any,
    opt: optax.OptState,
    tokens: jax.Array,
    aims: Targets,
    shared: Params | None,
    base: Params | None = None,
) -> Step:
    """One step of the critic on a mini-batch; ``shared`` is the policy whose trunk it reads, or None."""
    weights = losses.token_weights(aims.mask)

    def loss(params: Any, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        tokens, aims, weights = part
        trunk = None if shared is None else setting.model(shared, base)
        values = critics.values(setting.judge(params, base), setting.cfg, tokens, policy=trunk, **setting.passes)
        total = (weights * losses.value_loss(values, aims.values, aims.returns, aims.mask, setting.algo.eps_v)).sum()
        return total, {"critic/loss": total}

    step = descend(setting, optimiser(setting.optim.critic_lr, setting.optim), loss, params, opt, (tokens, aims, weights))
    return step._replace(metrics=_named("critic", step.metrics))


def _named(prefix: str, metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The common figures of a step under the name of what was moved."""
    return {name if "/" in name else f"{prefix}/{name}": value for name, value in metrics.items()}


def descend(
    setting: Setting, optimise: optax.GradientTransformation, loss: Callable, params: Any, opt: optax.OptState, parts: Any
) -> Step:
    """Adds gradients up over micro-batches, and moves unless something is not finite.

    Args:
      loss: (parameters, part) to (the part's share of the loss, figures that add up).
      parts: a tree of [B, ...], cut into micro-batches along B.
    """
    count = setting.optim.micro_batches
    # Each part takes every count-th row: where rows are split over devices, none has to move.
    parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 1, 0), parts)
    gradient_of = jax.grad(loss, has_aux=True)

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient_of(params, part)), None

    first = jax.tree.map(lambda x: x[0], parts)
    if count == 1:
        gradient, metrics = gradient_of(params, first)
    else:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient_of, params, first))
        (gradient, metrics), _ = lax.scan(add, zeros, parts)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm)

    def move(held: tuple[Any, optax.OptState]) -> tuple[Any, optax.OptState]:
        params, opt = held
        updates, opt = optimise.update(gradient, opt, params)
        return optax.apply_updates(params, updates), opt

    # One way or the other, not both and a choice: half the time of it.
    params, opt = placement.keep(lax.cond(finite, move, lambda held: held, (params, opt)), setting.cfg, setting.mesh)
    return Step(params, opt, {**metrics, "grad_norm": norm, "skipped": ~finite})


@functools.partial(jax.jit, static_argnames=("setting",), donate_argnames=("params", "opt"), compiler_options=LEAN)
def imitation_step(
    setting: Setting, params: Params, opt: optax.OptState, tokens: jax.Array, mask: jax.Array, base: Params | None = None
) -> Step:
    """One step of supervised learning: the mean negative log-probability of the tokens of a mask."""

    def loss(params: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        tokens, mask, weights = part
        logp, _ = policy.logprobs(setting.model(params, base), setting.cfg, tokens, **setting.passes)
        total = -(weights * jnp.where(mask, logp, 0)).sum()
        return total, {"sft/loss": total}

    weights = losses.token_weights(mask)
    return descend(setting, optimiser(setting.optim.actor_lr, setting.optim), loss, params, opt, (tokens, mask, weights))

"""One update of a very small model, whole or on a mesh: score, aim, a step of the critic, a step of the policy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxllm import params
from jaxllm.config import Config
from rl import critic, placement, tokens, update
from rl.config import Algo, Optim
from rl.types import Batch, Stop, Trajectory, Turn
from rl.update import Setting, TrainState

ROWS = 16
CFG = Config(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=32,
    max_position_embeddings=64,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)


def setting(mesh: Mesh | None = None, **optim: Any) -> Setting:
    """PPO without clipping of the gradient, so that the moments after a step hold the gradient itself."""
    common = {"actor_lr": 1e-2, "critic_lr": 1e-2, "warmup": 1, "weight_decay": 0.0, "clip_norm": 1e9}
    return Setting(CFG, Algo(lambda_policy=0.9, positive_nll=0.1), Optim(**{**common, **optim}), 1.0, mesh)


def batch() -> Batch:
    """Two shards of eight rows: the first with three short episodes, the second with five long ones; the rest is inert."""
    rng = np.random.default_rng(0)
    played = []
    for i in range(8):
        turns = []
        for k in range(1 if i < 3 else 4):
            ids, context = (tuple(rng.integers(0, 32, n).tolist()) for n in (2, 3))
            turns.append(Turn(context, ids, (-3.0,) * 2, (0, 0), reward=float(i % 2) / (k + 1)))
        outcome = sum(turn.reward for turn in turns)
        played.append(Trajectory(tuple(turns), Stop.TERMINATED, outcome=outcome, success=bool(i % 2)))
    whole = tokens.make_batch(played, [0] * 8, num_rows=ROWS)
    order = np.array([0, 1, 2, *range(8, 13), *range(3, 8), *range(13, 16)])
    return jax.tree.map(lambda column: column[order], whole)


def begin(how: Setting) -> TrainState:
    """Weights of which no two are alike, and fresh moments, where they belong."""
    weights, trunk = (params.init(jax.random.key(i), CFG, stacked=True) for i in range(2))
    judge = critic.init(CFG, trunk=trunk, bias=0.1)
    judge["head"]["weight"] = 0.1 * jax.random.normal(jax.random.key(2), judge["head"]["weight"].shape)
    state = TrainState(
        policy=weights,
        critic=judge,
        policy_opt=update.optimiser(how.optim.actor_lr, how.optim).init(weights),
        critic_opt=update.optimiser(how.optim.critic_lr, how.optim).init(judge),
        reference=None,
    )
    return placement.put(jax.device_get(state), CFG, how.mesh)


def run(
    how: Setting, state: TrainState, host: Batch, place: Callable[[Any], Any] = jnp.asarray, keep: Any = None
) -> tuple[TrainState, dict[str, float]]:
    """The state after one update, and its figures.

    Args:
      place: puts the rows of an array where they are computed.
      keep: rows [B] that the policy learns from; all by default.
    """
    ids = place(host.tokens)
    aims, figures = update.targets(how, host, update.score(how, state, ids))
    judged = update.critic_step(how, state.critic, state.critic_opt, ids, aims, None)
    if keep is not None:
        aims = dataclasses.replace(aims, mask=aims.mask & keep[:, None])
    moved = update.policy_step(how, state.policy, state.policy_opt, ids, place(host.traj_id), aims)
    after = TrainState(moved.params, judged.params, moved.opt, judged.opt, None)
    return after, figures | {name: float(value) for name, value in (judged.metrics | moved.metrics).items()}

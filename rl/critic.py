"""The critic: what a state is worth, by a scalar head on a trunk of its own or on the policy's.

Its parameters are a tree of their own, ``{"trunk": ..., "head": {"weight": [D], "bias": []}}``, so that no step of the policy
moves them; without a trunk the policy's is read, and no gradient goes back into it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxllm import model
from jaxllm.config import Config
from jaxllm.params import Params
from rl.tokens import to_tokens

Critic = dict[str, Any]


def init(cfg: Config, *, trunk: Params | None = None, bias: float = 0.0, dtype: jax.typing.DTypeLike = jnp.float32) -> Critic:
    """A critic that says ``bias`` of every state: its head's weights are 0.

    Args:
      trunk: parameters of a model, usually a copy of the policy's; None to read the policy's own.
      bias: the mean return of the starting policy.
    """
    head = {"weight": jnp.zeros((cfg.hidden_size,), dtype), "bias": jnp.asarray(bias, dtype)}
    return {"head": head} if trunk is None else {"trunk": trunk, "head": head}


def after(
    critic: Critic,
    cfg: Config,
    tokens: jax.Array,
    *,
    policy: Params | None = None,
    remat: bool = False,
    mesh: Mesh | None = None,
) -> jax.Array:
    """[B, T] float32: the value of the state after each token.

    Args:
      tokens: [B, T] int32.
      policy: the policy's parameters, needed where the critic has no trunk; no gradient reaches them.
      remat: recompute each layer in the backward pass.
    Raises:
      ValueError: neither a trunk nor a policy.
    """
    trunk = critic.get("trunk", None if policy is None else lax.stop_gradient(policy))
    if trunk is None:
        raise ValueError("a critic without a trunk needs the policy's parameters")
    hidden = model.forward(trunk, cfg, tokens, remat=remat, mesh=mesh).astype(jnp.float32)
    head = critic["head"]
    return hidden @ head["weight"].astype(jnp.float32) + head["bias"].astype(jnp.float32)


def values(critic: Critic, cfg: Config, tokens: jax.Array, **options: Any) -> jax.Array:
    """[B, T] float32: the value of the state before each token; position 0 holds 0. Arguments and errors as of `after`."""
    return to_tokens(after(critic, cfg, tokens, **options)[:, :-1])

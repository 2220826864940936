"""Rewards that know nothing: what training does under them is what any other reward has to beat."""

from typing import Any, NamedTuple

import numpy as np

from jaxllm.errors import UserError
from rewards.geometry import given
from rewards.peers.hits import NoOptions


class Random(NamedTuple):
    """A random reward."""

    reward: Any
    """see the function"""
    valid: Any
    """bool; always True"""


def random_uniform(pred_box: Any, gt_box: Any, *, key: Any, options: NoOptions | None = None, **inputs: Any) -> Random:
    """Uniform in [0, 1), whatever was answered.

    Args:
      key: a JAX key for JAX arrays; an integer seed or `numpy.random.Generator` for NumPy ones.
    """
    g = given(pred_box, gt_box, **inputs)
    dtype = g.gt_box.dtype
    if g.xp is np:
        if not isinstance(key, int | np.integer | np.random.Generator):
            raise UserError(f"key is a {type(key).__name__}; for NumPy arrays give an integer seed or a numpy.random.Generator")
        return Random(np.random.default_rng(key).random(g.shape, dtype), np.ones(g.shape, bool))
    import jax  # the inputs are its arrays

    return Random(jax.random.uniform(key, g.shape, dtype), g.xp.ones(g.shape, bool))


def random_binary(pred_box: Any, gt_box: Any, *, key: Any, options: NoOptions | None = None, **inputs: Any) -> Random:
    """0 or 1 with even chances, whatever was answered; ``key`` as in `random_uniform`."""
    drawn = random_uniform(pred_box, gt_box, key=key, **inputs)
    return Random((drawn.reward < 0.5).astype(drawn.reward.dtype), drawn.valid)

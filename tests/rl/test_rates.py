"""Learning rates: policy and critic each have their own, and every parameter follows it, the critic's head included."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
import small_update

from jaxllm import params
from rl import critic, update
from rl.config import Optim

OPTIM = Optim(actor_lr=1e-3, critic_lr=4e-3, warmup=4, decay=8, weight_decay=0.0)
# Up by quarters, down along half a cosine to a tenth; the mean of both ends is its middle.
SHARES = {0: 1 / 4, 1: 2 / 4, 3: 1.0, 4: 1.0, 8: 0.55, 12: 0.1, 13: 0.1}


WEIGHTS = jax.tree.map(lambda _: jnp.zeros(2), params.abstract(small_update.CFG, stacked=True))  # as many arrays, small ones
TREES = {"policy": WEIGHTS, "critic": critic.init(small_update.CFG, trunk=WEIGHTS)}


def rates(optimise: optax.GradientTransformation, weights: Any) -> list[dict[str, float]]:
    """How far each step moves each array: by the rate alone, since Adam divides equal gradients by their size."""
    gradient = jax.tree.map(jnp.ones_like, weights)

    def step(opt, _):
        change, opt = optimise.update(gradient, opt, weights)
        return opt, jax.tree.map(lambda leaf: -leaf.mean(), change)

    _, moved = jax.jit(lambda opt: jax.lax.scan(step, opt, length=14))(optimise.init(weights))
    columns = {
        jax.tree_util.keystr(path): column for path, column in jax.tree_util.tree_leaves_with_path(jax.device_get(moved))
    }
    return [{name: float(column[i]) for name, column in columns.items()} for i in range(14)]


@pytest.mark.parametrize(("of", "top"), [("policy", 1e-3), ("critic", 4e-3)])
def test_every_parameter_follows_its_schedule(of: str, top: float):
    found = rates(update.optimiser({"policy": OPTIM.actor_lr, "critic": OPTIM.critic_lr}[of], OPTIM), TREES[of])
    for step, share in SHARES.items():
        for name, rate in found[step].items():
            assert rate == pytest.approx(top * share, rel=1e-3), (name, step)
    assert len([name for name in found[0] if "head" in name]) == (2 if of == "critic" else 0)  # its weight and its bias


def test_a_head_that_is_left_out_would_be_seen():
    apart = optax.masked(update.optimiser(4e-3, OPTIM), {"trunk": True, "head": False})
    wrong = {name for name, rate in rates(apart, TREES["critic"])[0].items() if rate != pytest.approx(1e-3, rel=1e-3)}
    assert wrong == {"['head']['weight']", "['head']['bias']"}

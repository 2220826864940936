"""Groups whose outcomes are all equal: what they count for when they are kept, and when they are left out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_update

from jaxllm import params
from jaxllm.errors import UserError
from rl import tokens, update
from rl.config import PRESETS, Algo
from rl.types import Batch, Stop, Trajectory, Turn

OUTCOMES = (0.0, 1.0, 0.5, 0.5, 1.0, 0.0, 0.35, 0.35)  # four groups of two: live, dead, live, dead
LIVE = np.array([1, 1, 0, 0, 1, 1, 0, 0], bool)
LENGTHS = (2, 3, 4, 5, 3, 2, 1, 6)


def setting(**algo) -> update.Setting:
    return dataclasses.replace(small_update.setting(), algo=Algo(name="grpo", kl=0.5, **algo))


KEPT, LEFT_OUT = setting(), setting(mask_zero_var_groups=True)


def batch() -> Batch:
    rng = np.random.default_rng(0)
    played = []
    for outcome, length in zip(OUTCOMES, LENGTHS, strict=True):
        context, ids = (tuple(rng.integers(0, 32, n).tolist()) for n in (3, length))
        turn = Turn(context, ids, (-3.0,) * length, (0,) * length, reward=outcome)
        played.append(Trajectory((turn,), Stop.TERMINATED, outcome=outcome))
    return tokens.make_batch(played, [0, 0, 1, 1, 2, 2, 3, 3], num_rows=8)


@pytest.fixture(scope="module")
def begun() -> update.TrainState:
    """A policy, and the one that it must stay near to."""
    weights, near = (params.init(jax.random.key(i), small_update.CFG, stacked=True) for i in range(2))
    opt = update.optimiser(1e-2, KEPT.optim).init(weights)
    return update.TrainState(weights, None, opt, (), near)


@pytest.fixture(scope="module")
def scores(begun):
    return update.score(KEPT, begun, jnp.asarray(batch().tokens))


def gradient(begun: update.TrainState, aims: update.Targets) -> np.ndarray:
    """Of the policy's step, as its first moments hold it."""
    fresh = jax.tree.map(jnp.copy, (begun.policy, begun.policy_opt))
    step = update.policy_step(KEPT, *fresh, jnp.asarray(batch().tokens), jnp.arange(8), aims)
    before, after = (jax.tree.leaves(opt)[1:] for opt in (begun.policy_opt, step.opt))
    half = len(jax.tree.leaves(begun.policy))
    assert not any(leaf.any() for leaf in before[:half])
    return np.concatenate([np.asarray(leaf).ravel() for leaf in after[:half]])


def test_kept_groups_count_in_the_denominator_and_left_out_ones_nowhere(begun, scores):
    logp_old, entropy, values, _ = scores
    unmoved = (logp_old, entropy, values, logp_old)  # at the reference itself the divergence has no slope
    kept, figures = update.targets(KEPT, batch(), unmoved)
    left, _ = update.targets(LEFT_OUT, batch(), unmoved)
    mask = np.asarray(batch().mask)
    np.testing.assert_array_equal(kept.mask, mask)
    np.testing.assert_array_equal(left.mask, mask & LIVE[:, None])
    assert (np.asarray(kept.advantages)[~LIVE] == 0).all()
    assert figures["groups/zero_var"] == 2
    live, every = sum(n for n, alive in zip(LENGTHS, LIVE, strict=True) if alive), sum(LENGTHS)
    assert (live, every) == (10, 26)
    a, b = gradient(begun, kept), gradient(begun, left)
    assert np.abs(b).max() > 1e-4
    np.testing.assert_allclose(a, b * live / every, rtol=1e-3, atol=1e-8)


def test_the_divergence_holds_kept_groups_and_not_those_left_out(begun, scores):
    kept, left = (update.targets(how, batch(), scores)[0] for how in (KEPT, LEFT_OUT))
    dead = dataclasses.replace(kept, mask=kept.mask & ~LIVE[:, None])  # their divergence alone: advantages are 0
    live = dataclasses.replace(kept, mask=kept.mask & LIVE[:, None])
    of_dead, of_live = gradient(begun, dead), gradient(begun, live)
    assert np.abs(of_dead).max() > 1e-4
    np.testing.assert_allclose(gradient(begun, kept), (10 * of_live + 16 * of_dead) / 26, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(gradient(begun, left), of_live)


def test_it_is_about_groups():
    config = PRESETS["toy-hilo"]
    with pytest.raises(UserError, match=r"algo\.mask_zero_var_groups keeps groups of unequal outcomes; with a critic no group"):
        dataclasses.replace(config, algo=dataclasses.replace(config.algo, mask_zero_var_groups=True))

"""Importance weights, mismatch and admission against the specification's vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl import losses, offpolicy

ONES = jnp.ones((1, 4), bool)
OLD, ROLL = jnp.log(jnp.array([[0.5, 0.2, 0.9, 0.01]])), jnp.log(jnp.array([[0.4, 0.05, 0.9, 0.02]]))


def test_truncated_weights():
    np.testing.assert_allclose(offpolicy.importance_weights(OLD, ROLL, ONES)[0], [1.25, 2, 1, 0.5], rtol=1e-6)
    placeholder = offpolicy.importance_weights(OLD, ROLL.at[0, 0].set(-jnp.inf), ONES.at[0, 0].set(False))
    assert placeholder[0, 0] == 1
    gradient = jax.grad(lambda x: offpolicy.importance_weights(x, ROLL, ONES).sum())(OLD)
    assert (gradient == 0).all()


def test_decoupled_objective():
    one = jnp.ones((1, 1), bool)
    now, old, roll = (jnp.log(jnp.full((1, 1), p)) for p in (0.045, 0.03, 0.02))
    weights = offpolicy.importance_weights(old, roll, one)
    found = losses.ppo_loss(losses.log_ratio(now, old, one), jnp.ones((1, 1)), one, weights=weights).loss
    np.testing.assert_allclose(found, -1.92, rtol=1e-6)
    # Centred on the sampler's policy it would be another number.
    assert abs(losses.ppo_loss(losses.log_ratio(now, roll, one), jnp.ones((1, 1)), one).loss[0, 0] + 1.92) > 0.1


def test_bands():
    np.testing.assert_array_equal(offpolicy.token_band(OLD, ROLL, ONES)[0], [True, False, True, True])
    rows = jnp.array([[0.0, 0.0], [0.05, 0.0]])
    np.testing.assert_array_equal(offpolicy.sequence_band(rows, jnp.zeros((2, 2)), jnp.ones((2, 2), bool)), [True, False])


def test_mismatch():
    mask = jnp.array([[True, True, True, False]])
    found = offpolicy.mismatch(OLD, ROLL.at[0, 3].set(jnp.nan), mask)
    d = np.log([1.25, 4, 1])
    assert found.abs_dlogp_mean == pytest.approx(np.abs(d).mean(), rel=1e-6)
    assert found.abs_dlogp_max == pytest.approx(d.max(), rel=1e-6)
    assert found.abs_dlogp_p99 == pytest.approx(np.percentile(d, 99), rel=1e-5)
    assert found.outside == pytest.approx(2 / 3)
    assert (found.ratio_min, found.ratio_max) == (pytest.approx(1), pytest.approx(4))
    assert found.kl_k3 == pytest.approx(np.mean(np.expm1(d) - d), rel=1e-5)
    balanced = offpolicy.mismatch(jnp.array([[0.5, -0.5]]), jnp.zeros((1, 2)), jnp.ones((1, 2), bool))
    assert balanced.abs_dlogp_mean == pytest.approx(0.5)  # though the signed mean is 0
    assert all(np.isfinite(x) for x in offpolicy.mismatch(OLD, ROLL, ONES & False))


@pytest.mark.parametrize(
    ("version", "eta", "batch", "accepted", "running", "limit", "expected"),
    [
        (0, 2, 8, 0, 0, 16, 16),
        (0, 2, 8, 16, 8, 16, 0),
        (3, 2, 8, 32, 4, 16, 12),
        (5, 0, 8, 40, 8, 16, 0),
        (3, 2, 8, 0, 0, 64, 48),
        (3, 2, 8, 24, 0, 64, 24),
    ],
)
def test_admission(version, eta, batch, accepted, running, limit, expected):
    found = offpolicy.capacity(version=version, eta=eta, batch=batch, accepted=accepted, running=running, max_concurrent=limit)
    assert found == expected

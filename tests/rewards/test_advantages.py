"""Group advantages at the values of the specification, and what must never happen to a group."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import UserError
from rewards.advantages import group_advantages
from tests.rewards.vectors import INF, NAN

GROUP = [2, 1.489027561, 0.5, 0]
ADVANTAGES = [1.100727731, 0.5398248156, -0.5458471297, -1.094705416]


def test_the_reference_group(array: Any):
    np.testing.assert_allclose(group_advantages(array(GROUP)), ADVANTAGES, rtol=2e-6)


def test_a_biased_std_would_not_give_these():
    rewards = np.array(GROUP)
    wrong = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert np.abs(wrong - ADVANTAGES).max() > 0.1


def test_any_axis(array: Any):
    both = np.array([GROUP, GROUP[::-1]])
    rows = group_advantages(array(both))
    np.testing.assert_allclose(group_advantages(array(both.T), axis=0).T, rows, rtol=1e-6)
    np.testing.assert_allclose(rows[1][::-1], rows[0], rtol=1e-5)


@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 9))
def test_equal_rewards_give_exact_zeros(reward: float, G: int):
    assert not group_advantages(np.full(G, reward, np.float32)).any()
    assert not group_advantages(np.full(G, reward, np.float32), scale="none", baseline="others").any()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_bad_reward_does_not_poison_its_group(bad: float, array: Any):
    found = group_advantages(array([bad, *GROUP]))
    np.testing.assert_allclose(found, [0, *ADVANTAGES], rtol=2e-6)
    alone = group_advantages(array([bad, 1.0]))
    np.testing.assert_array_equal(alone, [0, 0])


def test_masked_members_do_not_count(array: Any):
    found = group_advantages(array([9, *GROUP]), mask=np.array([False, True, True, True, True]))
    np.testing.assert_allclose(found, [0, *ADVANTAGES], rtol=2e-6)


def test_other_baselines(array: Any):
    rewards = np.array(GROUP)
    np.testing.assert_allclose(group_advantages(array(rewards), scale="none"), rewards - rewards.mean(), atol=1e-6)
    others = [r - np.delete(rewards, i).mean() for i, r in enumerate(rewards)]
    np.testing.assert_allclose(group_advantages(array(rewards), scale="none", baseline="others"), others, atol=1e-6)


def test_gradients_are_finite():
    slope = jax.jit(jax.grad(lambda r: (group_advantages(r) ** 2).sum()))
    for group in ([1.0, 1.0], [NAN, 2.0, 1.0], [3.0], [INF, INF]):
        gradient = slope(jnp.asarray(group))
        assert np.isfinite(gradient).all()


def test_wrong_arguments():
    with pytest.raises(UserError, match="group axis"):
        group_advantages(np.float32(1))
    with pytest.raises(UserError, match="scale is 'var'"):
        group_advantages(np.ones(3), scale="var")

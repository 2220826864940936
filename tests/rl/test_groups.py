"""Group advantages: the specification's table, and what poisons or biases a naive version."""

import jax
import numpy as np
import pytest

from jaxllm import sharding
from rl import groups


@pytest.fixture(autouse=True)
def float64():
    """The vectors are float64."""
    with jax.enable_x64(True):
        yield


group_advantages = jax.jit(
    groups.group_advantages, static_argnames=("num_groups", "scale", "baseline", "ddof", "min_group_size")
)
gigpo_advantages = jax.jit(groups.gigpo_advantages, static_argnames=("num_groups", "scale"))


def one(returns, **options):
    """Advantages of one group."""
    return group_advantages(np.asarray(returns, float), np.zeros(len(returns), int), 1, **options)


@pytest.mark.parametrize(
    ("returns", "unbiased", "population", "difference"),
    [
        ([1, 0, 0, 1], np.array([1, -1, -1, 1]) * 0.8660239038, np.array([1, -1, -1, 1]) * 0.999998, [0.5, -0.5, -0.5, 0.5]),
        (
            [0.2, 0.5, 0.9, 0.4],
            [-1.0190458692, 0, 1.3587278256, -0.3396819564],
            [-1.1766921955, 0, 1.5689229273, -0.3922307318],
            [-0.3, 0, 0.4, -0.1],
        ),
    ],
)
def test_table(returns, unbiased, population, difference):
    np.testing.assert_allclose(one(returns).advantages, unbiased, atol=1e-9)
    np.testing.assert_allclose(one(returns, ddof=0).advantages, population, atol=1e-9)
    np.testing.assert_allclose(one(returns, scale="none").advantages, difference, atol=1e-12)


@pytest.mark.parametrize("returns", [[1, 1, 1, 1], [1, 1, 1 + 1e-9, 1], [0.35] * 8, [0.1] * 7])
@pytest.mark.parametrize("options", [{}, {"ddof": 0}, {"scale": "none"}, {"baseline": "others"}])
def test_equal_returns_are_exactly_zero(returns, options):
    found = one(returns, **options)
    assert (found.advantages == 0).all()
    assert (found.zero_var, found.singleton, found.dropped) == (1, 0, 0)
    assert not found.live.any()
    assert found.kept.all()


def test_naive_formula_blows_up_rounding():
    returns = np.array([1, 1, 1 + 1e-9, 1])
    naive = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    assert abs(naive[2]) == pytest.approx(7.496e-4, rel=1e-3)


def test_leave_one_out():
    np.testing.assert_allclose(
        one([1, 0, 0, 1], scale="none", baseline="others").advantages, np.array([2, -2, -2, 2]) / 3, atol=1e-12
    )
    found = one([0.35] * 7 + [0.95], scale="none", baseline="others").advantages
    np.testing.assert_allclose(found, [-0.6 / 7] * 7 + [0.6], atol=1e-12)


def test_group_of_one_is_zero_and_counted():
    found = one([0.7])
    assert found.advantages == 0
    assert (found.singleton, found.dropped) == (1, 1)
    assert one([0.7], min_group_size=1).dropped == 0


def test_failures_are_left_out():
    returns, group = np.array([1.0, np.nan, 0.0, 0.5, 9.0, 2.0]), np.array([0, 0, 0, 0, 1, 1])
    valid = np.array([True, True, True, True, False, True])
    found = group_advantages(returns, group, 3, valid=valid)
    np.testing.assert_allclose(np.asarray(found.advantages)[[0, 2, 3]], [1 / (1 + 2e-6), -1 / (1 + 2e-6), 0], atol=1e-9)
    assert found.advantages[1] == 0
    np.testing.assert_array_equal(found.kept, [True, False, True, True, False, False])
    assert (found.zero_var, found.singleton, found.dropped) == (0, 1, 1)
    # A failure is not a reward of 0: that would shift the others.
    as_zero = group_advantages(np.nan_to_num(returns), group, 3)
    assert abs(as_zero.advantages[0] - found.advantages[0]) > 0.1


def test_any_order_and_any_sharding():
    rng = np.random.default_rng(0)
    group, returns = rng.integers(0, 5, 24), rng.normal(size=24)
    found = np.asarray(group_advantages(returns, group, 5).advantages)
    for g in range(5):
        mine = returns[group == g]
        np.testing.assert_allclose(found[group == g], (mine - mine.mean()) / (mine.std(ddof=1) + 1e-6), atol=1e-9)
    order = rng.permutation(24)
    shuffled = group_advantages(returns[order], group[order], 5).advantages
    np.testing.assert_allclose(shuffled, found[order], atol=1e-12)
    spread = jax.NamedSharding(sharding.make_mesh(data=8), jax.P("data"))
    on_mesh = group_advantages(jax.device_put(returns, spread), jax.device_put(group, spread), 5).advantages
    np.testing.assert_allclose(on_mesh, found, atol=1e-12)


def gigpo(scale, keys=(("s0", "s1", "s2"), ("s0", "s2"))):
    """The specification's example."""
    mask = np.array([[1, 1, 1], [1, 1, 0]], bool)
    returns = jax.jit(groups.step_returns)(np.array([[0, 0, 1.0], [0, 0, np.nan]]), mask)
    anchors = groups.anchor_ids(keys, [0, 0], 3)
    return returns, gigpo_advantages(np.array([1.0, 0.0]), returns, np.array([0, 0]), 1, anchors, scale=scale)


def test_two_level_groups():
    returns, found = gigpo("none")
    np.testing.assert_allclose(returns, [[0.9025, 0.95, 1], [0, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(found, [[0.95125, 0.5, 1.0], [-0.95125, -1.0, 0]], atol=1e-12)
    _, found = gigpo("std")
    np.testing.assert_allclose(found[0, 0], 0.7071057812 + 0.7071056732, atol=1e-9)
    _, found = gigpo("std", (("a", "b", "c"), ("d", "e")))
    np.testing.assert_allclose(found, [[0.7071057812] * 3, [-0.7071057812] * 2 + [0]], atol=1e-9)  # nothing repeats: GRPO


def test_anchors_stay_within_a_task():
    ids = groups.anchor_ids([["s", "t", "s"], ["s"]], [0, 1], 4)
    np.testing.assert_array_equal(ids, [[0, 1, 0, -1], [2, -1, -1, -1]])


def test_turns_to_tokens():
    found = jax.jit(groups.spread_turns)(np.array([[5.0, 7.0]]), np.array([[-1, 0, 0, -1, 1]]))
    np.testing.assert_array_equal(found, [[0, 5, 5, 0, 7]])


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match="scale"):
        one([1.0, 2.0], scale="variance")

"""Advantages over turns: the specification's vectors in float64, its properties P1 to P5, and what breaks a naive version."""

import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxllm import sharding
from rl import advantages as adv

try:
    import rlax
except (ImportError, AttributeError):  # it is not installed, or what it needs does not know this JAX
    rlax = None

M = np.array([[0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0]], bool)
V = np.array([[9, 9, 0.2, 0.4, 9, -7, 0.3, 0.5, 9, 100, 0.7, 50]])
R = np.array([[0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0, 1, 0.0]])


compiled = jax.jit(adv.gae, static_argnames=("gamma_turn", "associative"))
decoupled = jax.jit(adv.decoupled_gae)
whiten = jax.jit(adv.whiten)
adaptive = jax.jit(adv.adaptive_lambda)


@pytest.fixture(autouse=True)
def float64():
    """The vectors are float64."""
    with jax.enable_x64(True):
        yield


def padded(rewards, values, mask, boot=0.0, *, gamma=1.0, lam=0.95, turn_id=None, **options):
    """The estimator on rows that are padded to one shape, so that one program serves most tests."""
    B, T = np.shape(mask)
    wide = lambda x, dtype: np.pad(np.asarray(x, dtype), ((0, 4 - B), (0, 40 - T)))  # noqa: E731
    tall = lambda x: np.pad(np.broadcast_to(np.asarray(x, float), B), (0, 4 - B))  # noqa: E731
    if turn_id is not None:
        options["turn_id"] = wide(turn_id, int)
    arrays = wide(rewards, float), wide(values, float), wide(mask, bool), tall(boot)
    found = compiled(*arrays, gamma=tall(gamma), lam=tall(lam), **options)
    return adv.Gae(*(np.asarray(x)[:B, :T] for x in found))


@pytest.fixture(params=[False, True], ids=["sequential", "associative"])
def gae(request):
    """Both forms."""
    return functools.partial(padded, associative=request.param)


def at(mask, x):
    """The values at policy tokens."""
    return np.asarray(x)[np.asarray(mask)]


@pytest.mark.parametrize(
    ("lam", "gamma", "advantages", "returns"),
    [
        (1, 1, [0.9, 0.7, 0.8, 0.4], [1, 1, 1, 1]),
        (0.95, 1, [0.80895, 0.641, 0.78, 0.4], [0.90895, 0.941, 0.98, 1]),
        (0, 1, [0.2, -0.1, 0.4, 0.4], [0.3, 0.2, 0.6, 1]),
        (0.95, 0.99, [0.7823419005, 0.6223731, 0.7702, 0.4], [0.8823419005, 0.9223731, 0.9702, 1]),
    ],
)
def test_one_turn(gae, lam, gamma, advantages, returns):
    found = gae([[0, 0, 0, 1.0]], [[0.1, 0.3, 0.2, 0.6]], np.ones((1, 4), bool), lam=lam, gamma=gamma)
    np.testing.assert_allclose(found.advantages[0], advantages, atol=1e-9)
    np.testing.assert_allclose(found.returns[0], returns, atol=1e-9)


def test_turns_with_observations_between(gae):
    expected = [0, 0, 0.8073760661, 0.6861684243, 0, 0, 0.6051273, 0.4603, 0, 0, 0.3, 0]
    found = gae(R, V, M, gamma=0.99, lam=0.9)
    np.testing.assert_allclose(found.advantages[0], expected, atol=1e-9)
    np.testing.assert_allclose(
        found.returns[0], [0, 0, 1.0073760661, 1.0861684243, 0, 0, 0.9051273, 0.9603, 0, 0, 1.0, 0], atol=1e-9
    )
    compressed = gae([[0, 0.25, 0, 0, 1]], [[0.2, 0.4, 0.3, 0.5, 0.7]], np.ones((1, 5), bool), gamma=0.99, lam=0.9)
    np.testing.assert_allclose(at(M, found.advantages), compressed.advantages[0], atol=1e-12)
    late = np.roll(R, 1) * (np.roll(R, 1) == 1) + R * (R != 1)
    np.testing.assert_allclose(gae(late, V, M, gamma=0.99, lam=0.9).advantages, found.advantages, atol=1e-12)
    early = R.copy()
    early[0, 0] = 0.5
    changed = gae(early, V, M, gamma=0.99, lam=0.9).advantages
    np.testing.assert_allclose(changed[0, 2], 1.3073760661, atol=1e-9)
    np.testing.assert_allclose(changed[0, 3:], expected[3:], atol=1e-9)
    with_nan = gae(R, np.where(M, V, np.nan), M, gamma=0.99, lam=0.9)
    chex.assert_trees_all_equal(with_nan, found)


@pytest.mark.parametrize(
    ("boot", "expected"),
    [
        (0.8, [0.6762846813, 0.5390400463, 0.440000052, 0.274972, 0.092]),
        (0.0, [0.1771290239, -0.0211795467, -0.1887537, -0.4307, -0.7]),
    ],
)
def test_truncation_bootstraps(gae, boot, expected):
    cut = np.where(R == 1, 0, R)
    np.testing.assert_allclose(at(M, gae(cut, V, M, [boot], gamma=0.99, lam=0.9).advantages), expected, atol=1e-9)


def test_decoupled_lambdas():
    found = decoupled(R, V, M, lambda_policy=0.8)
    np.testing.assert_allclose(at(M, found.advantages), [0.67328, 0.5916, 0.552, 0.44, 0.3], atol=1e-9)
    np.testing.assert_allclose(at(M, found.returns), [1.25, 1.25, 1, 1, 1], atol=1e-9)
    # Equal lambdas are ordinary estimation.
    both = decoupled(R, V, M, lambda_policy=0.8, lambda_critic=0.8)
    chex.assert_trees_all_equal(both, padded(R, V, M, lam=0.8))


def test_adaptive_lambda_by_length():
    lengths = jnp.array([0, 1, 20, 21, 25, 40, 100, 400, 1000, 2000, 4000, 10000, 20000])
    expected = [0, 0, 0, 0.0476190476, 0.2, 0.5, 0.8, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999]
    np.testing.assert_allclose(adaptive(lengths), expected, atol=1e-9)
    assert adv.adaptive_lambda(jnp.array([1]), lambda_min=0.3) == 0.3


def test_each_row_has_its_lambda(gae):
    mask = np.arange(40) < np.array([[25], [40]])
    lam = adaptive(adv.trajectory_lengths(jnp.asarray(mask), jnp.arange(2), 2))
    rewards = np.zeros((2, 40))
    rewards[0, 24] = rewards[1, 39] = 1
    found = gae(rewards, np.full((2, 40), 0.5), mask, lam=lam).advantages
    np.testing.assert_allclose(found[0, 22:25], [0.02, 0.1, 0.5], atol=1e-9)
    np.testing.assert_allclose(found[1, 37:], [0.125, 0.25, 0.5], atol=1e-9)
    np.testing.assert_allclose(found.sum(axis=1), [0.625, 0.99999999999909], atol=1e-12)
    same = gae(rewards, np.full((2, 40), 0.5), mask, lam=0.2).advantages
    assert abs(same[1, 38] - 0.25) > 0.1  # one lambda for both rows is seen


def test_length_is_that_of_the_whole_trajectory():
    mask = jnp.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    np.testing.assert_array_equal(adv.trajectory_lengths(mask, jnp.array([1, 1, 0]), 2), [3, 3, 3])
    np.testing.assert_array_equal(adv.trajectory_lengths(mask, jnp.array([1, 0, 1]), 2), [5, 1, 5])


def test_step_samples_are_one_chain():
    mask = np.array([[0, 1, 0, 0], [0, 0, 1, 1]], bool)  # the second turn's row comes first
    values, rewards = np.array([[5, 0.7, 5, 5], [5, 5, 0.2, 0.4]]), np.array([[0, 1.0, 0, 0], [0, 0, 0, 0]])
    chains = adv.chains(mask, traj_id=[0, 0], order=[1, 0], length=4)
    found = padded(*(chains.gather(jnp.asarray(x)) for x in (rewards, values)), chains.mask, lam=0.5)
    np.testing.assert_allclose(found.advantages[0], [0.425, 0.45, 0.3, 0], atol=1e-9)
    np.testing.assert_allclose(found.returns[0], [0.625, 0.85, 1, 0], atol=1e-9)
    np.testing.assert_allclose(chains.scatter(jnp.asarray(found.advantages)), [[0, 0.3, 0, 0], [0, 0, 0.425, 0.45]], atol=1e-9)
    # Row by row is another thing.
    alone = padded(rewards, values, mask, lam=0.5).advantages
    np.testing.assert_allclose(alone[1], [0, 0, 0, -0.4], atol=1e-9)
    with pytest.raises(ValueError, match="3 policy tokens"):
        adv.chains(mask, traj_id=[0, 0], order=[1, 0], length=2)


def test_a_discount_for_each_turn(gae):
    turn = np.where(M, np.cumsum(~M, axis=1), -1)
    found = at(M, gae(R, V, M, gamma=0.99, lam=0.9, turn_id=turn, gamma_turn=0.5).advantages)
    chain, discount = np.array([0.2, 0.4, 0.3, 0.5, 0.7, 0.0]), [0.99, 0.495, 0.99, 0.495, 0.99]
    expected, carry = [], 0.0
    for i in reversed(range(5)):
        carry = [0, 0.25, 0, 0, 1][i] + discount[i] * chain[i + 1] - chain[i] + discount[i] * 0.9 * carry
        expected.insert(0, carry)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    one = gae(R, V, M, gamma=0.99, lam=0.9, turn_id=turn, gamma_turn=1.0)
    chex.assert_trees_all_equal(one, gae(R, V, M, gamma=0.99, lam=0.9))


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.data())
def test_inserted_tokens_change_nothing_bit_for_bit(data):
    n = data.draw(st.integers(1, 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    width = 24
    values, rewards = rng.normal(size=n), rng.normal(size=n)
    where = np.sort(rng.choice(width, n, replace=False))
    results = []
    for places, junk in ((np.arange(n), 0.0), (where, np.nan), (where, 1e6)):
        mask, V, R = np.zeros((1, width), bool), np.full((1, width), junk), np.zeros((1, width))
        mask[0, places], V[0, places], R[0, places] = True, values, rewards
        found = padded(R, V, mask, [0.3], gamma=0.97, lam=0.9)
        results.append((at(mask, found.advantages), at(mask, found.returns)))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    # lambda 1 and gamma 1: sums of later rewards; lambda 0: the TD errors.
    sums = padded(rewards[None], values[None], np.ones((1, n)), lam=1.0).returns[0]
    np.testing.assert_allclose(sums, np.cumsum(rewards[::-1])[::-1], atol=1e-9)
    errors = padded(rewards[None], values[None], np.ones((1, n)), lam=0.0).advantages[0]
    np.testing.assert_allclose(errors, rewards + np.append(values[1:], 0) - values, atol=1e-9)


def test_multiplying_by_the_mask_would_let_nan_through():
    values = np.where(M, V, np.nan)
    assert np.isnan(values * M).any()
    assert np.isfinite(padded(R, values, M).advantages).all()


def test_rewards_are_conserved_and_rows_without_tokens_are_zero(gae):
    mask = np.array([[0, 0, 1, 0, 1, 0], [0] * 6, [1, 0, 0, 0, 0, 0]], bool)
    rewards = np.arange(18.0).reshape(3, 6)
    placed = adv.place_rewards(jnp.asarray(rewards), jnp.asarray(mask))
    np.testing.assert_array_equal(placed[0], [0, 0, 0 + 1 + 2 + 3, 0, 4 + 5, 0])
    np.testing.assert_array_equal(placed.sum(axis=1), [15, 0, rewards[2].sum()])
    found = gae(rewards, np.full((3, 6), np.nan), mask & ~mask)
    np.testing.assert_array_equal(found.advantages, 0)
    trailing = gae([[0, 0, 1.0]], [[0.2, 0.4, 7]], np.array([[True, True, False]]), gamma=0.0)
    np.testing.assert_allclose(trailing.returns[0], [0, 1, 0])


def test_associative_agrees_over_32768_tokens_in_float32():
    rng = np.random.default_rng(0)
    T = 32768
    mask = jnp.asarray(rng.random((2, T)) < 0.6)
    values, rewards = (jnp.asarray(rng.normal(size=(2, T)), jnp.float32) for _ in range(2))
    lam = jnp.asarray([0.95, 0.999], jnp.float32)
    one = compiled(rewards, values, mask, gamma=0.999, lam=lam)
    other = compiled(rewards, values, mask, gamma=0.999, lam=lam, associative=True)
    assert one.advantages.dtype == jnp.float32
    one, other = (np.asarray(found.advantages) for found in (one, other))
    scale = np.abs(one).max()
    np.testing.assert_allclose(other / scale, one / scale, atol=1e-5)


def test_no_gradient_flows():
    def total(values, rewards):
        return sum(x.sum() for x in adv.decoupled_gae(rewards, values, jnp.asarray(M)))

    for gradient in jax.jit(jax.grad(total, argnums=(0, 1)))(V, R):
        np.testing.assert_array_equal(gradient, 0)


def test_whitening():
    found = whiten(np.array([[1, 2, 4, np.nan]]), np.array([[1, 1, 1, 0]], bool))
    np.testing.assert_allclose(found[0], [-1.0690449642, -0.2672612411, 1.3363062053, 0], atol=1e-7)
    assert (whiten(np.array([[3.0, 9.0]]), np.array([[True, False]])) == 0).all()
    assert (whiten(np.ones((2, 3)), np.zeros((2, 3), bool)) == 0).all()
    assert (whiten(np.full((1, 3), 0.1), np.ones((1, 3), bool)) == 0).all()


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_whitening_is_global_and_exact_far_from_zero(devices):
    rng = np.random.default_rng(1)
    x = (1e4 + rng.normal(size=(8, 64))).astype(np.float32)
    mask = rng.random((8, 64)) < 0.5
    mask[0] = False  # a shard without policy tokens joins in all the same
    mesh = sharding.make_mesh(data=devices, devices=jax.devices()[:devices])
    placed = [jax.device_put(a, NamedSharding(mesh, P("data"))) for a in (x, mask)]
    found = np.asarray(whiten(*placed))
    kept = x.astype(np.float64)[mask]
    np.testing.assert_allclose(found[mask], (kept - kept.mean()) / kept.std(), atol=1e-3)
    variance = np.mean(x[mask] ** 2) - x[mask].mean() ** 2
    assert abs(variance - kept.var()) > 0.1  # the mean of squares less the squared mean is not good enough


if rlax is not None:  # a second opinion

    @pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
    def test_rlax_agrees_on_the_chain_of_policy_tokens(gae, lam):
        rng = np.random.default_rng(0)
        rewards, values = rng.normal(size=(2, 3, 24))
        mask, boot = rng.random((3, 24)) < 0.6, rng.normal(size=3)
        found = gae(np.where(mask, rewards, 0), values, mask, boot, gamma=0.97, lam=lam)
        for row, (own, last) in enumerate(zip(mask, boot, strict=True)):
            chain = jnp.asarray(rewards[row, own])
            states = jnp.append(values[row, own], last)
            expected = rlax.truncated_generalized_advantage_estimation(chain, jnp.full_like(chain, 0.97), lam, states)
            np.testing.assert_allclose(found.advantages[row, own], expected, rtol=0, atol=1e-12)

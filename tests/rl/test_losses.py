"""Losses: the specification's vectors, tables by hand, and the traps of masks, ties, extremes and denominators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl import losses

RHO = np.array([[0.70, 0.90, 1.10, 1.25], [1.30, 1.50, 0.75, 1.00]])
A = np.array([[1, 1, 1, 1], [2, -1, -1, 5.0]])
M = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)


@pytest.fixture(autouse=True)
def float64():
    """The vectors are float64."""
    with jax.enable_x64(True):
        yield


def total(logp, reduction="token_mean", mask=M, advantages=A, old=None, reduce_options=None, **options):
    """The reduced loss of the example, whose old log-probabilities are 0 by default."""
    mask = jnp.asarray(mask)
    ratios = losses.log_ratio(logp, jnp.zeros_like(logp) if old is None else old, mask)
    found = losses.ppo_loss(ratios, jnp.asarray(advantages), mask, **options).loss
    return (losses.token_weights(mask, reduction, **(reduce_options or {})) * found).sum()


def test_clip_higher():
    found = losses.ppo_loss(jnp.log(RHO), jnp.asarray(A), jnp.asarray(M))
    np.testing.assert_allclose(found.loss, [[-0.7, -0.9, -1.1, -1.25], [-2.56, 1.5, 0.8, 0]], atol=1e-12)
    assert found.clipped_high.sum() + found.clipped_low.sum() == 2
    assert found.clipped_high[1, 0]
    assert found.clipped_low[1, 2]


@pytest.mark.parametrize(
    ("reduction", "options", "expected"),
    [
        ("token_mean", {}, -0.6014285714),
        ("seq_mean_token_mean", {}, -0.5370833333),
        ("seq_mean_token_sum", {}, -2.105),
        ("fixed_denominator", {"denominator": 1024}, -0.004111328125),
    ],
)
def test_reductions(reduction, options, expected):
    np.testing.assert_allclose(total(jnp.log(RHO), reduction, reduce_options=options), expected, atol=1e-7)


def test_gradient_and_symmetric_clip():
    gradient = jax.grad(total)(jnp.log(RHO))
    expected = [[-0.1, -0.1285714286, -0.1571428571, -0.1785714286], [0, 0.2142857143, 0, 0]]
    np.testing.assert_allclose(gradient, expected, atol=1e-7)
    np.testing.assert_allclose(total(jnp.log(RHO), eps_high=0.2), -0.5714285714, atol=1e-7)


def test_dual_clip():
    row = jnp.ones((1, 2), bool)
    found = losses.ppo_loss(jnp.log(jnp.array([[5, 2.5]])), -jnp.ones((1, 2)), row, dual_clip=3).loss
    np.testing.assert_allclose(found, [[3.0, 2.5]], atol=1e-12)
    for constant in (1.0, 0.5):
        with pytest.raises(ValueError, match="above 1"):
            losses.ppo_loss(jnp.zeros((1, 2)), jnp.zeros((1, 2)), row, dual_clip=constant)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.8, 1.0, 1.28, 1.5, 10.0, np.inf])
def test_every_branch(advantage, ratio):
    def loss(logp):
        mask = jnp.ones((1, 1), bool)
        return losses.ppo_loss(losses.log_ratio(logp, jnp.zeros((1, 1)), mask), jnp.full((1, 1), advantage), mask).loss.sum()

    bounded = float(np.clip(ratio, np.exp(-20), np.exp(20)))
    value, gradient = jax.value_and_grad(loss)(jnp.full((1, 1), np.log(ratio) if ratio else -np.inf))
    assert value == pytest.approx(-min(bounded * advantage, np.clip(bounded, 0.8, 1.28) * advantage))
    off = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    # Beyond the bounded log-ratio the gradient is 0 as well.
    expected = 0 if off or ratio in (0.0, np.inf) else -ratio * advantage
    assert gradient[0, 0] == pytest.approx(expected, abs=1e-12)


def test_a_tie_has_the_whole_gradient():
    logp = jnp.zeros((1, 3))
    gradient = jax.grad(lambda x: total(x, mask=np.ones((1, 3), bool), advantages=np.ones((1, 3))))(logp)
    np.testing.assert_allclose(gradient, -1 / 3, atol=1e-7)
    halved = jax.grad(lambda x: -jnp.minimum(jnp.exp(x), jnp.clip(jnp.exp(x), 1.0, 1.28)).sum() / 3)(logp)
    assert not np.allclose(halved, gradient)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e30])
def test_context_is_inert(junk):
    logp, old = jnp.where(M, jnp.log(RHO), junk), jnp.where(M, 0.0, -junk)
    advantages = jnp.where(M, A, junk)
    for options in ({}, {"weights": jnp.where(M, 1.0, junk)}):
        value, gradient = jax.value_and_grad(lambda x: total(x, advantages=advantages, old=old, **options))(logp)  # noqa: B023
        assert value == total(jnp.log(RHO))
        np.testing.assert_array_equal(gradient, jax.grad(total)(jnp.log(RHO)))


def test_selecting_after_the_arithmetic_is_too_late():
    logp = jnp.where(M, jnp.log(RHO), jnp.inf)
    late = jax.grad(lambda x: jnp.where(M, jnp.exp(x) * A, 0).sum())(logp)
    assert np.isnan(late[1, 3])
    assert np.isfinite(jax.grad(total)(logp)).all()


def test_nan_at_a_policy_token_stays_visible():
    assert np.isnan(total(jnp.log(RHO).at[0, 0].set(jnp.nan)))


def test_gradient_is_exactly_at_the_policy_tokens():
    mask = np.array([[0, 0, 1, 1, 0, 1]], bool)
    gradient = jax.grad(lambda x: total(x, mask=mask, advantages=np.ones((1, 6))))(jnp.zeros((1, 6)))
    np.testing.assert_array_equal(np.flatnonzero(gradient[0]), [2, 3, 5])


def test_lengths_1_10_1000():
    mask = jnp.arange(1024) < jnp.array([1, 10, 1000, 0])[:, None]
    for reduction, expected in (("token_mean", 1.0), ("seq_mean_token_mean", 1.0), ("seq_mean_token_sum", 1011 / 3)):
        assert losses.token_weights(mask, reduction).sum() == pytest.approx(expected)
        wider = losses.token_weights(jnp.pad(mask, ((0, 0), (0, 64))), reduction)
        np.testing.assert_array_equal(wider[:, :1024], losses.token_weights(mask, reduction))
    weights = losses.token_weights(mask, "seq_mean_token_mean")
    np.testing.assert_allclose(weights.sum(axis=1), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-5)
    assert losses.token_weights(mask & ~mask).sum() == 0


def test_a_trajectory_in_several_rows_is_one_sequence():
    mask = jnp.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    weights = losses.token_weights(mask, "seq_mean_token_mean", sequence_id=jnp.array([0, 0, 1]), num_sequences=2)
    np.testing.assert_allclose(weights[:, 0], [1 / 6] * 3, rtol=1e-6)
    by_row = losses.token_weights(mask, "seq_mean_token_mean")
    assert not np.allclose(by_row, weights)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_micro_batches_add_up(cut):
    rng = np.random.default_rng(0)
    mask = rng.random((8, 16)) < np.linspace(0.05, 0.95, 8)[:, None]
    logp, advantages = jnp.asarray(rng.normal(size=(8, 16)) * 0.3), rng.normal(size=(8, 16))
    weights = losses.token_weights(jnp.asarray(mask))

    def part(logp, rows):
        ratios = losses.log_ratio(logp[rows], jnp.zeros_like(logp[rows]), mask[rows])
        return (weights[rows] * losses.ppo_loss(ratios, jnp.asarray(advantages[rows]), mask[rows]).loss).sum()

    parts = [slice(i, i + 8 // cut) for i in range(0, 8, 8 // cut)]
    whole = jax.grad(lambda x: total(x, mask=mask, advantages=advantages))(logp)
    np.testing.assert_allclose(sum(jax.grad(part)(logp, rows) for rows in parts), whole, rtol=1e-6)
    # Means of micro-batches are another thing.
    if cut > 1:
        means = sum(
            jax.grad(lambda x, rows=rows: total(x[rows], mask=mask[rows], advantages=advantages[rows]))(logp) for rows in parts
        )
        assert not np.allclose(means / cut, whole, rtol=1e-2)


def test_sequence_ratios_do_not_depend_on_packing():
    rng = np.random.default_rng(0)
    logp, mask = jnp.asarray(rng.normal(size=(2, 4))), jnp.array([[1, 1, 0, 1], [1, 1, 1, 1]], bool)
    rows = losses.sequence_log_ratio(logp, jnp.zeros((2, 4)), mask)
    np.testing.assert_allclose(rows[0], np.where(mask[0], np.mean(logp[0][mask[0]]), 0))
    ids = jnp.repeat(jnp.arange(2), 4)[None]
    packed = losses.sequence_log_ratio(logp.reshape(1, 8), jnp.zeros((1, 8)), mask.reshape(1, 8), ids, 2)
    np.testing.assert_allclose(packed.reshape(2, 4), rows)
    per_row = losses.sequence_log_ratio(logp.reshape(1, 8), jnp.zeros((1, 8)), mask.reshape(1, 8))
    assert not np.allclose(per_row.reshape(2, 4), rows)
    gradient = jax.grad(lambda x: losses.sequence_log_ratio(x, jnp.zeros((2, 4)), mask).sum())(logp)
    np.testing.assert_allclose(gradient, mask)


def test_value_loss():
    V, old, target = (jnp.array([x]) for x in ([0.5, 0.9, 0.1, jnp.nan], [0.4, 0.5, 0.4, jnp.nan], [1, 1, 0, jnp.nan]))
    mask = jnp.array([[1, 1, 1, 0]], bool)
    mean = lambda **options: (losses.value_loss(V, old, target, mask, **options) * losses.token_weights(mask)).sum()  # noqa: E731
    assert mean() == pytest.approx(0.045)
    assert mean(eps_v=0.2) == pytest.approx(0.0633333333)
    gradient = jax.grad(lambda V: losses.value_loss(V, old, target, mask).sum())(V)
    np.testing.assert_allclose(gradient, [[-0.5, -0.1, 0.1, 0]], atol=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"), [([0.8, 0.1, 0.6, 0.3], 0.71), ([0.5] * 4, 0), ([0, 1, 0, 1], -3), ([1.3, 0.3, 1.3, 0.3], 1)]
)
def test_explained_variance(values, expected):
    returns, mask = jnp.array([[1, 0, 1, 0, 7.0]]), jnp.array([[1, 1, 1, 1, 0]], bool)
    found, degenerate = losses.explained_variance(jnp.array([[*values, jnp.nan]]), returns, mask)
    assert found == pytest.approx(expected)
    assert not degenerate
    assert losses.explained_variance(jnp.array([[*values, 0.0]]), jnp.ones((1, 5)), mask) == (0, True)


@pytest.mark.parametrize(
    ("p", "q", "k1", "k2", "k3"),
    [(0.5, 0.4, 0.2231435513, 0.0248965222, 0.0231435513), (0.2, 0.3, -0.4054651081, 0.0822009769, 0.0945348919)],
)
def test_kl_estimators(p, q, k1, k2, k3):
    row = jnp.ones((1, 1), bool)
    for name, expected in (("k1", k1), ("k2", k2), ("k3", k3)):
        assert losses.kl(jnp.log(jnp.full((1, 1), p)), jnp.log(jnp.full((1, 1), q)), row, name)[0, 0] == pytest.approx(expected)


def test_kl_grows_away_from_the_reference_and_falls_under_descent():
    reference = jax.nn.log_softmax(jnp.array([0.3, -0.2, 0.1, 0.5]))
    tokens = jnp.arange(4)

    def mean(logits, name):
        logp = jax.nn.log_softmax(logits)
        estimate = losses.kl(logp[None, tokens], reference[None, tokens], jnp.ones((1, 4), bool), name)[0]
        return (jnp.exp(jax.lax.stop_gradient(logp)) * estimate).sum()

    for name in losses.ESTIMATORS:
        near, far = (mean(reference + scale * jnp.array([1.0, -1, 0.5, 0]), name) for scale in (0.1, 0.5))
        assert 0 < near < far
    assert (losses.kl(reference[None] + 0.3, reference[None], jnp.ones((1, 4), bool)) >= 0).all()

    def exact(logits):
        logp = jax.nn.log_softmax(logits)
        return (jnp.exp(logp) * (logp - reference)).sum()

    logits = reference + jnp.array([1.0, -1, 0.5, 0])
    before = exact(logits)
    for _ in range(20):
        logits = logits - 0.5 * jax.grad(mean)(logits, "k2")  # k2's gradient is that of the KL
    assert exact(logits) < before / 4


def test_overlong_penalty():
    lengths = jnp.array([16384, 17408, 18432, 20480, 20481])
    np.testing.assert_allclose(losses.overlong_penalty(lengths), [0, -0.25, -0.5, -1, -1])


def test_positive_examples():
    logp = jnp.array([[-0.5, -1.5], [-1.0, jnp.nan], [-9.0, -9.0]])
    mask, solved = jnp.array([[1, 1], [1, 0], [1, 1]], bool), jnp.array([True, True, False])
    assert losses.positive_nll(logp, mask, solved) == pytest.approx(1.0)
    assert losses.positive_nll(logp, mask, solved & False) == 0


def test_extremes_stay_finite():
    mask = np.ones((1, 2), bool)
    for advantage in (0.0, 1.0, -1.0):
        value, gradient = jax.value_and_grad(lambda x: total(x, mask=mask, advantages=np.full((1, 2), advantage)))(  # noqa: B023
            jnp.array([[1e3, -1e3]])
        )
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert advantage or value == 0


def test_bfloat16_is_widened():
    logp = jnp.log(RHO).astype(jnp.bfloat16)
    assert losses.log_ratio(logp, logp, jnp.asarray(M)).dtype == jnp.float32
    assert (jnp.exp(losses.log_ratio(logp, logp, jnp.asarray(M))) == 1).all()

"""Losses: the specification's vectors, tables by hand, and the traps of masks, ties, extremes and denominators."""

import functools

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


@functools.partial(jax.jit, static_argnames=("reduction", "denominator", "eps_high"))
def total(logp, reduction="token_mean", mask=M, advantages=A, old=None, denominator=None, **options):
    """The reduced loss of the example, whose old log-probabilities are 0 by default."""
    mask = jnp.asarray(mask)
    ratios = losses.log_ratio(logp, jnp.zeros_like(logp) if old is None else old, mask)
    found = losses.ppo_loss(ratios, jnp.asarray(advantages), mask, **options).loss
    return (losses.token_weights(mask, reduction, denominator=denominator) * found).sum()


slope, both = jax.jit(jax.grad(total)), jax.jit(jax.value_and_grad(total))
weights_of = jax.jit(losses.token_weights, static_argnames=("reduction", "num_sequences"))
ppo_loss = jax.jit(losses.ppo_loss, static_argnames="dual_clip")
sequence_log_ratio = jax.jit(losses.sequence_log_ratio, static_argnames="num_sequences")
kl = jax.jit(losses.kl, static_argnames="estimator")
value_loss, positive_nll, log_ratio = map(jax.jit, (losses.value_loss, losses.positive_nll, losses.log_ratio))
explained_variance = jax.jit(losses.explained_variance)


def test_clip_higher():
    found = ppo_loss(np.log(RHO), A, M)
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
    np.testing.assert_allclose(total(np.log(RHO), reduction, **options), expected, atol=1e-7)


def test_gradient_and_symmetric_clip():
    gradient = slope(np.log(RHO))
    expected = [[-0.1, -0.1285714286, -0.1571428571, -0.1785714286], [0, 0.2142857143, 0, 0]]
    np.testing.assert_allclose(gradient, expected, atol=1e-7)
    np.testing.assert_allclose(total(np.log(RHO), eps_high=0.2), -0.5714285714, atol=1e-7)


def test_dual_clip():
    row = np.ones((1, 2), bool)
    found = ppo_loss(np.log(np.array([[5, 2.5]])), -np.ones((1, 2)), row, dual_clip=3).loss
    np.testing.assert_allclose(found, [[3.0, 2.5]], atol=1e-12)
    for constant in (1.0, 0.5):
        with pytest.raises(ValueError, match="above 1"):
            losses.ppo_loss(np.zeros((1, 2)), np.zeros((1, 2)), row, dual_clip=constant)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.8, 1.0, 1.28, 1.5, 10.0, np.inf])
def test_every_branch(advantage, ratio):
    bounded = float(np.clip(ratio, np.exp(-20), np.exp(20)))
    logp = np.full((1, 1), np.log(ratio) if ratio else -np.inf)
    value, gradient = both(logp, mask=np.ones((1, 1), bool), advantages=np.full((1, 1), advantage))
    assert float(value) == pytest.approx(-min(bounded * advantage, np.clip(bounded, 0.8, 1.28) * advantage))
    off = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    # Beyond the bounded log-ratio the gradient is 0 as well.
    expected = 0 if off or ratio in (0.0, np.inf) else -ratio * advantage
    assert float(gradient[0, 0]) == pytest.approx(expected, abs=1e-12)


def test_a_tie_has_the_whole_gradient():
    logp = jnp.zeros((1, 3))
    gradient = slope(logp, mask=np.ones((1, 3), bool), advantages=np.ones((1, 3)))
    np.testing.assert_allclose(gradient, -1 / 3, atol=1e-7)
    halved = jax.jit(jax.grad(lambda x: -jnp.minimum(jnp.exp(x), jnp.clip(jnp.exp(x), 1.0, 1.28)).sum() / 3))(logp)
    assert not np.allclose(halved, gradient)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e30])
def test_context_is_inert(junk):
    logp, old = np.where(M, np.log(RHO), junk), np.where(M, 0.0, -junk)
    advantages = np.where(M, A, junk)
    for weights in (None, np.where(M, 1.0, junk)):
        value, gradient = both(logp, advantages=advantages, old=old, weights=weights)
        assert value == total(np.log(RHO))
        np.testing.assert_array_equal(gradient, slope(np.log(RHO)))


def test_selecting_after_the_arithmetic_is_too_late():
    logp = np.where(M, np.log(RHO), np.inf)
    late = jax.jit(jax.grad(lambda x: jnp.where(M, jnp.exp(x) * A, 0).sum()))(logp)
    assert np.isnan(late[1, 3])
    assert np.isfinite(slope(logp)).all()


def test_nan_at_a_policy_token_stays_visible():
    assert np.isnan(total(np.where(RHO == 0.7, np.nan, np.log(RHO))))


def test_gradient_is_exactly_at_the_policy_tokens():
    mask = np.array([[0, 0, 1, 1, 0, 1]], bool)
    gradient = slope(np.zeros((1, 6)), mask=mask, advantages=np.ones((1, 6)))
    np.testing.assert_array_equal(np.flatnonzero(gradient[0]), [2, 3, 5])


def test_lengths_1_10_1000():
    mask = np.arange(1024) < np.array([1, 10, 1000, 0])[:, None]
    for reduction, expected in (("token_mean", 1.0), ("seq_mean_token_mean", 1.0), ("seq_mean_token_sum", 1011 / 3)):
        assert weights_of(mask, reduction).sum() == pytest.approx(expected)
        wider = weights_of(np.pad(mask, ((0, 0), (0, 64))), reduction)
        np.testing.assert_array_equal(wider[:, :1024], weights_of(mask, reduction))
    weights = weights_of(mask, "seq_mean_token_mean")
    np.testing.assert_allclose(np.asarray(weights).sum(axis=1), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-5)
    assert weights_of(mask & ~mask).sum() == 0


def test_a_trajectory_in_several_rows_is_one_sequence():
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    weights = weights_of(mask, "seq_mean_token_mean", sequence_id=np.array([0, 0, 1]), num_sequences=2)
    np.testing.assert_allclose(weights[:, 0], [1 / 6] * 3, rtol=1e-6)
    by_row = weights_of(mask, "seq_mean_token_mean")
    assert not np.allclose(by_row, weights)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_micro_batches_add_up(cut):
    rng = np.random.default_rng(0)
    mask = rng.random((8, 16)) < np.linspace(0.05, 0.95, 8)[:, None]
    logp, advantages = rng.normal(size=(8, 16)) * 0.3, rng.normal(size=(8, 16))
    weights = weights_of(mask)

    @jax.jit
    @jax.grad
    def part(logp, weights, advantages, mask):
        ratios = losses.log_ratio(logp, jnp.zeros_like(logp), mask)
        return (weights * losses.ppo_loss(ratios, advantages, mask).loss).sum()

    columns = [np.split(np.asarray(x), cut) for x in (logp, weights, advantages, mask)]
    whole = slope(logp, mask=mask, advantages=advantages)
    np.testing.assert_allclose(np.concatenate(list(map(part, *columns))), whole, rtol=1e-6)
    # Means of micro-batches are another thing.
    if cut > 1:
        means = [slope(x, mask=m, advantages=a) for x, _, a, m in zip(*columns, strict=True)]
        assert not np.allclose(np.concatenate(means) / cut, whole, rtol=1e-2)


def test_sequence_ratios_do_not_depend_on_packing():
    rng = np.random.default_rng(0)
    logp, mask = np.asarray(rng.normal(size=(2, 4))), np.array([[1, 1, 0, 1], [1, 1, 1, 1]], bool)
    rows = sequence_log_ratio(logp, np.zeros((2, 4)), mask)
    np.testing.assert_allclose(rows[0], np.where(mask[0], np.mean(logp[0][mask[0]]), 0))
    ids = np.repeat(np.arange(2), 4)[None]
    packed = sequence_log_ratio(logp.reshape(1, 8), np.zeros((1, 8)), mask.reshape(1, 8), ids, 2)
    np.testing.assert_allclose(np.reshape(packed, (2, 4)), rows)
    per_row = sequence_log_ratio(logp.reshape(1, 8), np.zeros((1, 8)), mask.reshape(1, 8))
    assert not np.allclose(np.reshape(per_row, (2, 4)), rows)
    gradient = jax.jit(jax.grad(lambda x: sequence_log_ratio(x, jnp.zeros((2, 4)), mask).sum()))(logp)
    np.testing.assert_allclose(gradient, mask)


def test_value_loss():
    V, old, target = (np.array([x]) for x in ([0.5, 0.9, 0.1, np.nan], [0.4, 0.5, 0.4, np.nan], [1, 1, 0, np.nan]))
    mask = np.array([[1, 1, 1, 0]], bool)
    mean = lambda **options: (value_loss(V, old, target, mask, **options) * weights_of(mask)).sum()  # noqa: E731
    assert mean() == pytest.approx(0.045)
    assert mean(eps_v=0.2) == pytest.approx(0.0633333333)
    gradient = jax.jit(jax.grad(lambda V: value_loss(V, old, target, mask).sum()))(V)
    np.testing.assert_allclose(gradient, [[-0.5, -0.1, 0.1, 0]], atol=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"), [([0.8, 0.1, 0.6, 0.3], 0.71), ([0.5] * 4, 0), ([0, 1, 0, 1], -3), ([1.3, 0.3, 1.3, 0.3], 1)]
)
def test_explained_variance(values, expected):
    returns, mask = np.array([[1, 0, 1, 0, 7.0]]), np.array([[1, 1, 1, 1, 0]], bool)
    found, degenerate = explained_variance(np.array([[*values, np.nan]]), returns, mask)
    assert found == pytest.approx(expected)
    assert not degenerate
    assert explained_variance(np.array([[*values, 0.0]]), np.ones((1, 5)), mask) == (0, True)


@pytest.mark.parametrize(
    ("p", "q", "k1", "k2", "k3"),
    [(0.5, 0.4, 0.2231435513, 0.0248965222, 0.0231435513), (0.2, 0.3, -0.4054651081, 0.0822009769, 0.0945348919)],
)
def test_kl_estimators(p, q, k1, k2, k3):
    row = np.ones((1, 1), bool)
    for name, expected in (("k1", k1), ("k2", k2), ("k3", k3)):
        assert kl(np.log(np.full((1, 1), p)), np.log(np.full((1, 1), q)), row, name)[0, 0] == pytest.approx(expected)


def test_kl_grows_away_from_the_reference_and_falls_under_descent():
    reference = np.array([0.3, -0.2, 0.1, 0.5])
    reference -= np.log(np.exp(reference).sum())

    @functools.partial(jax.jit, static_argnames="name")
    def mean(logits, name):
        logp = jax.nn.log_softmax(logits)
        estimate = losses.kl(logp[None], reference[None], jnp.ones((1, 4), bool), name)[0]
        return (jnp.exp(jax.lax.stop_gradient(logp)) * estimate).sum()

    for name in losses.ESTIMATORS:
        near, far = (mean(reference + scale * np.array([1.0, -1, 0.5, 0]), name) for scale in (0.1, 0.5))
        assert 0 < near < far
    assert (kl(reference[None] + 0.3, reference[None], np.ones((1, 4), bool)) >= 0).all()

    def exact(logits):
        logp = logits - np.log(np.exp(logits).sum())
        return (np.exp(logp) * (logp - reference)).sum()

    logits = reference + np.array([1.0, -1, 0.5, 0])
    before = exact(logits)
    gradient = jax.jit(jax.grad(mean), static_argnums=1)
    for _ in range(20):
        logits = logits - 0.5 * np.asarray(gradient(logits, "k2"))  # k2's gradient is that of the KL
    assert exact(logits) < before / 4


def test_overlong_penalty():
    lengths = jnp.array([16384, 17408, 18432, 20480, 20481])
    np.testing.assert_allclose(jax.jit(losses.overlong_penalty)(lengths), [0, -0.25, -0.5, -1, -1])


def test_positive_examples():
    logp = np.array([[-0.5, -1.5], [-1.0, np.nan], [-9.0, -9.0]])
    mask, solved = np.array([[1, 1], [1, 0], [1, 1]], bool), np.array([True, True, False])
    assert positive_nll(logp, mask, solved) == pytest.approx(1.0)
    assert positive_nll(logp, mask, solved & False) == 0


def test_extremes_stay_finite():
    mask = np.ones((1, 2), bool)
    for advantage in (0.0, 1.0, -1.0):
        value, gradient = both(np.array([[1e3, -1e3]]), mask=mask, advantages=np.full((1, 2), advantage))
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert advantage or value == 0


def test_bfloat16_is_widened():
    logp = np.log(RHO).astype(jnp.bfloat16)
    assert log_ratio(logp, logp, M).dtype == jnp.float32
    assert (np.exp(log_ratio(logp, logp, M)) == 1).all()

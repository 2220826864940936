"""Figures over policy tokens, against values that were worked out by hand."""

import math

import numpy as np
import pytest

from rl.figures import correlation, of_critic, of_entropy, of_lag, of_update
from rl.losses import explained_variance
from rl.tokens import make_batch
from rl.types import Stop, Trajectory, Turn

RETURNS = np.array([[1.0, 0, 1, 0]])
MASK = np.ones((1, 4), bool)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ([0.8, 0.1, 0.6, 0.3], 0.71),
        ([0.5, 0.5, 0.5, 0.5], 0.0),
        ([0, 1, 0, 1], -3.0),
        ([1.3, 0.3, 1.3, 0.3], 1.0),  # an offset is invisible
    ],
)
def test_explained_variance(values: list[float], share: float):
    found = of_critic(np.array([values]), RETURNS, MASK, np.ones(1))["critic/explained_variance"]
    assert found == pytest.approx(share, abs=1e-9)
    assert found == pytest.approx(float(explained_variance(np.array([values]), RETURNS, MASK)[0]), abs=1e-6)


def test_what_is_no_policy_token_changes_nothing():
    values, returns = np.array([[0.8, 0.1, 0.6, 0.3, 9, -9]]), np.array([[1.0, 0, 1, 0, 5, 7]])
    mask = np.array([[True] * 4 + [False] * 2])
    outcome = np.ones(1)
    found = of_critic(values, returns, mask, outcome)["critic/explained_variance"]
    assert found == pytest.approx(0.71)
    without_mask = of_critic(values, returns, np.ones_like(mask), outcome)["critic/explained_variance"]
    assert without_mask != pytest.approx(0.71, abs=0.1)


def test_value_and_outcome():
    mask = np.array([[True, True, False], [True, False, False]])
    values = np.array([[0.2, 0.4, 50.0], [0.9, 50.0, 50.0]])
    # Tokens 0.2, 0.4, 0.9 with outcomes 0, 0, 1: means 0.5 and 1/3, covariance 0.4/3, variances 0.26/3 and 2/9.
    expected = (0.4 / 3) / math.sqrt(0.26 / 3 * 2 / 9)
    assert of_critic(values, values, mask, np.array([0.0, 1.0]))["critic/value_reward_corr"] == pytest.approx(expected)
    assert of_critic(values, values, mask, np.array([1.0, 0.0]))["critic/value_reward_corr"] == pytest.approx(-expected)


def test_nothing_to_divide_by_is_not_a_number():
    one = np.ones((1, 4))
    assert math.isnan(of_critic(RETURNS, one, MASK, np.ones(1))["critic/explained_variance"])
    assert math.isnan(of_critic(RETURNS, RETURNS, MASK, np.ones(1))["critic/value_reward_corr"])
    empty = of_critic(RETURNS, RETURNS, np.zeros_like(MASK), np.ones(1))
    assert math.isnan(empty["critic/explained_variance"])
    assert math.isnan(empty["critic/value_reward_corr"])


def test_correlation_is_numpys():
    x, y = np.random.default_rng(0).normal(size=(2, 50))
    assert correlation(x, y + x) == pytest.approx(np.corrcoef(x, y + x)[0, 1])


def test_entropy_by_domain():
    entropy = np.array([[1.0, 3, 100], [5, 100, 100], [100, 100, 100], [2, 100, 100]])
    mask = np.array([[True, True, False], [True, False, False], [False] * 3, [True, False, False]])
    found = of_entropy(entropy, mask, ["toy/hilo", "toy/maze", "", "toy/hilo"])
    assert found == {"entropy/toy/hilo": 2.0, "entropy/toy/maze": 5.0}
    assert of_entropy(entropy, np.zeros_like(mask), ["a", "a", "a", "a"]) == {}


def test_lag():
    version = np.array([[7, 7, 4], [5, -1, -1]])
    mask = np.array([[True, True, False], [True, False, False]])
    assert of_lag(version, mask, now=7) == {"off/lag_mean": pytest.approx(2 / 3), "off/lag_max": 2.0}
    assert of_lag(version, np.zeros_like(mask), now=7) == {"off/lag_mean": 0.0, "off/lag_max": 0.0}


def test_an_update_of_rewritten_and_inert_rows():
    one = Trajectory(
        (Turn((1,), (5, 6), (-1.0, -1.0), (3, 3)), Turn((1, 2), (7,), (-1.0,), (2,), rewritten=True)),
        Stop.TERMINATED,
        outcome=1.0,
    )
    other = Trajectory((Turn((1,), (8,), (-1.0,), (3,)),), Stop.TERMINATED)
    batch = make_batch([one, other], [0, 1], multiple=4)
    entropy = np.asarray(batch.tokens, float)  # of a token: its id
    found = of_update(batch, entropy, ["toy/hilo", "toy/keys"], now=3)
    assert found == {"entropy/toy/hilo": 6.0, "entropy/toy/keys": 8.0, "off/lag_mean": 0.25, "off/lag_max": 1.0}
    values = np.where(np.asarray(batch.outcome)[:, None] == 1, 0.5, 0.25) * np.ones(batch.shape)
    found = of_update(batch, entropy, ["a", "a"], 3, values=values, returns=2 * values)
    assert found["critic/value_reward_corr"] == pytest.approx(1)
    assert found["critic/explained_variance"] == pytest.approx(0.75)  # half of the spread is left, a quarter of the variance
    assert found["entropy/a"] == 6.5

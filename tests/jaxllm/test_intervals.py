"""Wilson's interval against published values, and the normal one for means."""

import math

import numpy as np
import pytest

from jaxllm.intervals import Rate, mean, rate, rate_of


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [  # R 4, package binom: binom.confint(count, total, methods = "wilson")
        (0, 10, 0.0, 0.2775328),
        (5, 10, 0.2365931, 0.7634069),
        (8, 10, 0.4901625, 0.9433178),
        (10, 10, 0.7224672, 1.0),
    ],
)
def test_the_interval_is_wilsons(count, total, low, high):
    found = rate(count, total)
    assert found.share == count / total
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


def test_half_widths_at_the_papers_sizes():
    layer, model = rate(14336 // 2, 14336), rate(round(0.754 * 458_752), 458_752)  # neuron-mapping, section 8
    assert (layer.high - layer.low) / 2 <= 0.0082
    assert (model.high - model.low) / 2 == pytest.approx(0.0012, abs=5e-5)


def test_no_outcome_says_nothing():
    found = rate(0, 0)
    assert math.isnan(found.share)
    assert (found.low, found.high) == (0.0, 1.0)
    assert rate_of(np.zeros(0, bool)).total == 0


@pytest.mark.parametrize(("count", "total"), [(3, 2), (-1, 2)])
def test_what_is_no_share_is_refused(count, total):
    with pytest.raises(ValueError, match="no share"):
        rate(count, total)


def test_outcomes_are_counted():
    assert rate_of(np.array([[True, False], [True, True]])) == Rate(3, 4, 0.75, rate(3, 4).low, rate(3, 4).high)


def test_a_mean_leaves_nan_out():
    found = mean(np.array([1.0, 2.0, np.nan, 3.0]))
    assert (found.count, found.value) == (3, 2.0)
    assert found.high - found.value == pytest.approx(1.959964 * 1.0 / math.sqrt(3))
    assert math.isnan(mean(np.array([np.nan])).value)
    assert math.isnan(mean(np.array([1.0])).low)

"""The dense reference against sums written out one token at a time."""

import math

import numpy as np
import pytest
from reference import dense_decode, scale_rows


def test_two_poles_of_a_row_by_hand():
    head = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -3.0]])
    got = dense_decode([[1.0, 1.0]], head, 2)  # logits 1, 2, -1, -3
    assert got.ids.tolist() == [[[1, 0], [3, 2]]]
    assert got.logits.tolist() == [[[2.0, 1.0], [3.0, 1.0]]]
    total = sum(math.exp(x) for x in (1, 2, -1, -3))
    assert got.lse[0, 0] == pytest.approx(math.log(total))
    p = [math.exp(x) / total for x in (1, 2, -1, -3)]
    assert got.entropy[0, 0] == pytest.approx(-sum(x * math.log(x) for x in p) / math.log(4))
    assert got.mean[0] == -0.25
    assert got.std[0] == pytest.approx(math.sqrt(sum((x + 0.25) ** 2 for x in (1, 2, -1, -3)) / 4))


def test_masked_ids_enter_nothing():
    rng = np.random.default_rng(0)
    rows, head = rng.normal(size=(5, 3)), rng.normal(size=(11, 3))
    allowed = np.arange(11) % 3 != 0
    got, small = dense_decode(rows, head, 4, allowed=allowed), dense_decode(rows, head[allowed], 4)
    assert np.array_equal(got.ids, np.flatnonzero(allowed)[small.ids])
    for mine, theirs in zip(got[1:], small[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_groups_add_and_ties_go_to_the_lower_id():
    head = np.array([[0.0], [1.0], [1.0], [0.5]])
    got = dense_decode([[1.0]], head, 4, groups=[0, 1, 2, 1])
    assert got.ids[0].tolist() == [[1, 2, 3, 0], [0, 3, 1, 2]]
    total = 1 + 2 * math.e + math.exp(0.5)
    assert got.group_mass[0, 0] == pytest.approx((math.e + math.exp(0.5)) / total)


def test_rms_keeps_the_order_and_the_gain_turns_it():
    rng = np.random.default_rng(1)
    rows, head, gain = rng.normal(size=(6, 8)), rng.normal(size=(40, 8)), rng.uniform(0.2, 3, 8)
    none, rms, final = (dense_decode(rows, head, 40, norm=norm, gain=gain) for norm in ("none", "rms", "final"))
    assert np.array_equal(none.ids, rms.ids)
    assert not np.array_equal(none.ids, final.ids)
    np.testing.assert_allclose(np.mean(scale_rows(rows, "rms") ** 2, axis=1), 1, rtol=1e-4)

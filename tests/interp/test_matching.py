"""Agreement of rankings against sets counted one by one, and against values worked out by hand."""

import numpy as np
import pytest

from interp.atlas import NO_TOKEN
from interp.matching import chance, deciles, label_counts, overlap, rank_biased_overlap, shared, shuffled


def lists(*rows):
    return np.array(rows, np.int32)


def test_shared_tokens_are_those_of_sets():
    rng = np.random.default_rng(0)
    a, b = (np.array([rng.permutation(12)[:7] for _ in range(200)], np.int32) for _ in range(2))
    a[:9, 5:], b[4:20, 3:] = NO_TOKEN, NO_TOKEN
    found = shared(a, b)
    for n in range(len(a)):
        for d in range(7):
            want = (set(a[n, : d + 1].tolist()) & set(b[n, : d + 1].tolist())) - {NO_TOKEN}
            assert found[n, d] == len(want)


def test_overlap_counts_places_that_are_known():
    common = shared(lists([1, 2, 3, 4], [1, 2, -1, -1]), lists([4, 3, 9, 8], [2, 1, -1, -1]))
    assert overlap(common, np.array([4, 2])).tolist() == [0.5, 1.0]


def test_rank_biased_overlap_by_hand():
    # [a, b, c] and [a, c, b] agree by 1, 1/2 and 1: 0.9^3 + (0.1 / 0.9) (0.9 + 0.81 / 2 + 0.729) = 0.955.
    common = shared(lists([1, 2, 3], [1, 2, 3], [1, 2, 3]), lists([1, 3, 2], [1, 2, 3], [7, 8, 9]))
    assert rank_biased_overlap(common, np.full(3, 3)) == pytest.approx([0.955, 1.0, 0.0])


def test_the_top_weighs_more_than_the_end():
    first, last = lists([9, 2, 3, 4]), lists([1, 2, 3, 9])
    common = [shared(lists([1, 2, 3, 4]), other) for other in (first, last)]
    at_top, at_end = (rank_biased_overlap(c, np.array([4]))[0] for c in common)
    assert at_top < at_end


def test_chance_is_what_shuffling_gives():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 9, 20_000) ** 2, rng.integers(0, 9, 20_000) ** 2 // 2
    found = shuffled(a, b, 3)
    assert found.low < chance(a, b) < found.high
    assert chance(np.array([1, 1, 2, 3]), np.array([1, 2, 2, 4])) == pytest.approx((2 * 1 + 1 * 2) / 16)


def test_deciles_are_equal_parts_in_order_of_margin():
    margin = np.random.default_rng(2).permutation(100).astype(float)
    parts = deciles(margin >= 30, np.append(margin, np.nan)[:100])
    assert [part.match.total for part in parts] == [10] * 10
    assert [part.match.count for part in parts] == [0] * 3 + [10] * 7
    assert (parts[4].low, parts[4].high) == (40, 49)
    assert sum(part.match.total for part in deciles(np.ones(3, bool), np.array([1.0, np.nan, 2.0]))) == 2


def test_label_counts_join_spellings():
    groups = np.array([0, 1, 1, 3, 4])
    counts = label_counts(np.array([0, 0, 1, 3]), np.array([1, 2, 2, 3]), groups)
    assert [(c.id, c.before, c.after) for c in counts] == [(1, 1, 3), (3, 1, 1), (0, 2, 0)]

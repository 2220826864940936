"""What is kept of a stream equals what the whole would give, computed by NumPy and by sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp import tally
from interp.tally import SAME, Place

RNG = np.random.default_rng(5)
VALUES = np.concatenate([RNG.normal(size=(500, 3)), 40 * RNG.normal(size=(20, 3))]).astype(np.float32)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("cuts", [[], [1], [0, 0, 17, 17, 519], list(range(0, 520, 7))])
def test_moments_of_parts_are_those_of_the_whole(cuts: list[int]):
    merged = tally.moments(VALUES[:0])
    for part in np.split(VALUES, cuts):
        merged = tally.merge(merged, tally.moments(part))
    wide = VALUES.astype(np.float64)
    np.testing.assert_allclose(merged.mean, wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(merged.std, wide.std(0), rtol=1e-12)
    assert (merged.min == VALUES.min(0)).all()
    assert (merged.max == VALUES.max(0)).all()
    assert (merged.count == 520).all()
    assert (merged.nonfinite == 0).all()


def test_what_is_not_finite_is_counted_apart():
    values = np.float32([[1, np.nan], [np.inf, np.nan], [3, -np.inf]])
    found = tally.moments(values)
    assert found.count.tolist() == [2, 0]
    assert found.nonfinite.tolist() == [1, 3]
    assert found.mean.tolist() == [2, 0]
    assert found.std.tolist() == [1, 0]
    assert (found.min[0], found.max[0]) == (1, 3)
    assert found.min[1] > found.max[1]
    assert tally.count(values, np.zeros((2, tally.KEYS), np.int64)).sum(1).tolist() == [2, 0]


@given(st.lists(FLOATS, min_size=1))
@settings(deadline=None)
def test_bins_rise_with_the_value_and_begin_at_their_floor(values: list[float]):
    x = np.sort(np.array(values, np.float32))
    keys = tally.key(x)
    assert (np.diff(keys) >= 0).all()
    assert (tally.floor(keys) <= x).all()
    above = keys < tally.key(np.float32([np.inf]))
    assert (x[above] < tally.floor(keys[above] + 1)).all()


def test_bins_are_a_part_in_128_wide_and_zeros_share_one():
    x = np.float32([-3e5, -2.5, -1e-3, 1e-3, 1, 2.5, 3e5])
    width = tally.floor(tally.key(x) + 1) - tally.floor(tally.key(x))
    assert (width <= np.abs(x) / 127).all()
    assert len({*tally.key(np.float32([0.0, -0.0]))}) == 1
    assert tally.floor(tally.key(np.float32([0, 1, -2, 0.5]))).tolist()[:2] == [0, 1]


@pytest.mark.parametrize("bins", [1, 2, 10, 24])
def test_histogram_counts_are_exact_for_its_edges(bins: int):
    counts = np.zeros((3, tally.KEYS), np.int64)
    for part in np.split(VALUES, [100, 101]):
        counts = tally.count(part, counts)
    for j, column in enumerate(VALUES.T):
        found = tally.histogram(counts[j], float(column.min()), float(column.max()), bins)
        assert 1 <= len(found.counts) <= bins
        assert (np.diff(found.edges) > 0).all()
        expected, _ = np.histogram(column.astype(np.float64), found.edges.astype(np.float64))
        assert found.counts.tolist() == expected.tolist()
        assert found.counts.sum() == len(column)


def test_histogram_of_one_value_and_of_none():
    counts = tally.count(np.float32([[2.5]] * 4), np.zeros((1, tally.KEYS), np.int64))[0]
    assert tally.histogram(counts, 2.5, 2.5, 10).counts.tolist() == [4]
    assert tally.histogram(np.zeros(tally.KEYS, np.int64), np.inf, -np.inf, 10).counts.tolist() == []


@pytest.mark.parametrize("q", [0, 0.001, 0.01, 0.5, 0.99, 1])
def test_quantiles_are_right_to_a_part_in_128(q: float):
    counts = tally.count(VALUES, np.zeros((3, tally.KEYS), np.int64))
    for j, column in enumerate(VALUES.T):
        expected = np.sort(column)[min(int(q * len(column)), len(column) - 1)]
        assert tally.quantile(counts[j], q) == pytest.approx(expected, rel=1 / 127)
    assert tally.quantile(np.zeros(tally.KEYS, np.int64), q) == 0


def places(values: list[int], contexts: list[int]) -> list[Place]:
    return [Place(float(v), i, 1, (c,), 0) for i, (v, c) in enumerate(zip(values, contexts, strict=True))]


def by_sorting(values: list[int], contexts: list[int], k: int, sign: int) -> list[tuple[float, int]]:
    """The k best from the whole list: each context at its best value, ties by position."""
    chosen: dict[int, tuple[float, int]] = {}
    for i, (v, c) in enumerate(zip(values, contexts, strict=True)):
        if c not in chosen or sign * v > sign * chosen[c][0]:
            chosen[c] = (float(v), i)
    return sorted(chosen.values(), key=lambda entry: (-sign * entry[0], entry[1]))[:k]


STREAM = st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 6)), min_size=1, max_size=60)


@given(stream=STREAM, size=st.integers(1, 20), k=st.integers(1, 9), sign=st.sampled_from([1, -1]))
@settings(deadline=None, max_examples=300)
def test_streamed_places_are_the_best_of_the_whole(stream: list[tuple[int, int]], size: int, k: int, sign: int):
    values, contexts = [v for v, _ in stream], [c for _, c in stream]
    everything, kept = places(values, contexts), ()
    for start in range(0, len(stream), size):
        part = everything[start : start + size]
        numbers = np.float32([place.value for place in part])
        keys = np.int32([[*[-1] * (SAME - 1), place.ids[0]] for place in part])
        bound = sign * kept[-1].value if len(kept) == k else -np.inf
        chosen = tally.best(sign * numbers, keys, k, bound)
        kept = tally.merge_best(kept, [part[i] for i in chosen], k, sign)
    assert [(place.value, place.index) for place in kept] == by_sorting(values, contexts, k, sign)


def test_best_passes_over_nan_and_over_repeated_contexts():
    contexts = np.repeat(np.int32([[1], [1], [2], [3], [4]]), SAME, 1)
    assert tally.best(np.float32([5, 7, np.nan, 7, -np.inf]), contexts, 5).tolist() == [1, 3]
    assert tally.best(np.float32([5, 7, 1, 7, 6]), contexts, 2).tolist() == [1, 3]
    assert tally.best(np.float32([5]), contexts[:1], 2, at_least=6).tolist() == []

"""Packing equals not packing (A9): the same log-probabilities and gradients, and no sequence sees another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm import params
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.model import forward
from rl import policy
from rl.packing import NO_SEGMENT, pack
from rl.tokens import Row

CFG = Config(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=64,
    max_position_embeddings=128,
    rope_theta=10000.0,
)
run = jax.jit(forward, static_argnames=("cfg", "remat"))
score = jax.jit(lambda weights, ids, segments: policy.logprobs(weights, CFG, ids, segments=segments)[0])


def sequence(length, seed=0):
    """Random tokens, every other one the policy's."""
    row = Row()
    for i, token in enumerate(np.random.default_rng([length, seed]).integers(1, 64, length).tolist()):
        row.context([token])
        row.turn_id[-1] = i // 2 if i % 2 else -1
    return row


@pytest.fixture(scope="module")
def weights():
    return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, params.init(jax.random.key(0), CFG, stacked=True))


@pytest.fixture(scope="module")
def three():
    return [sequence(9), sequence(5), sequence(7)]


@given(st.lists(st.integers(1, 16), max_size=30), st.integers(16, 40))
def test_every_sequence_is_in_one_place(lengths, width):
    rows = [sequence(length, i) for i, length in enumerate(lengths)]
    packed = pack(rows, width)
    assert (packed.segments != NO_SEGMENT).sum() == sum(lengths)
    for row, (at, start) in zip(rows, packed.places, strict=True):
        span = slice(start, start + len(row.tokens))
        assert packed.tokens[at, span].tolist() == row.tokens
        assert packed.mask[at, span].tolist() == [turn >= 0 for turn in row.turn_id]
        number = packed.segments[at, start]
        assert (packed.segments[at] == number).sum() == len(row.tokens)
        assert (packed.segments[at, span] == number).all()
    assert not packed.mask[packed.segments == NO_SEGMENT].any()
    # Half of the width is used at least, but for one row: two rows with less would have been one.
    used = (packed.segments != NO_SEGMENT).sum(1)
    assert (2 * used <= width).sum() <= 1


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(UserError, match="sequence 1 has 9 tokens, more than a row of 8"):
        pack([sequence(5), sequence(9)], 8)


def test_rows_are_taken_in_order_and_padded(three):
    packed = pack(three, 16)
    taken = packed.take(np.array([1, -1, 0]))
    np.testing.assert_array_equal(taken.tokens[[0, 2]], packed.tokens[[1, 0]])
    assert (taken.segments[1] == NO_SEGMENT).all()
    assert not taken.mask[1].any()


def test_log_probabilities_are_those_of_single_rows(weights, three):
    packed, single = pack(three, 24), pack(three, 9)
    assert packed.tokens.shape == (1, 24)
    together, alone = score(weights, packed.tokens, packed.segments), score(weights, single.tokens, None)
    blind = score(weights, packed.tokens, None)  # packed without telling the model
    for i, length in enumerate((9, 5, 7)):
        (at, start), (own, _) = packed.places[i], single.places[i]
        span = slice(start, start + length)
        np.testing.assert_allclose(together[at, span], alone[own, :length], atol=1e-5)
        assert together[at, start] == 0  # nothing predicts it
        if start:
            assert np.abs(blind[at, span] - alone[own, :length]).max() > 0.1


def test_hidden_states_are_those_of_single_rows_unrolled_and_recomputed(weights, three):
    packed, single = pack(three, 24), pack(three, 9)
    alone = run(weights, CFG, single.tokens)
    for hidden in (
        run(params.unstack(weights), CFG, packed.tokens, segments=packed.segments),
        run(weights, CFG, packed.tokens, segments=packed.segments, remat=True),
    ):
        for i, length in enumerate((9, 5, 7)):
            (at, start), (own, _) = packed.places[i], single.places[i]
            np.testing.assert_allclose(hidden[at, start : start + length], alone[own, :length], atol=1e-5)


def test_gradients_are_those_of_single_rows(weights, three):
    @jax.jit
    def gradient(weights, ids, mask, segments):
        return jax.grad(lambda w: jnp.where(mask, score(w, ids, segments), 0).sum())(weights)

    packed, single = pack(three, 24), pack(three, 9)
    assert single.tokens.shape == (3, 9)
    one, other = (gradient(weights, each.tokens, each.mask, each.segments) for each in (packed, single))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)


def test_a_sequence_does_not_see_another(weights, three):
    packed = pack(three, 24)
    (at, start), length = packed.places[1], 5
    changed = packed.tokens.copy()
    changed[at, start : start + length] = 63 - changed[at, start : start + length]
    before, after = score(weights, packed.tokens, packed.segments), score(weights, changed, packed.segments)
    elsewhere = np.ones(24, bool)
    elsewhere[start : start + length] = False
    np.testing.assert_array_equal(before[at, elsewhere], after[at, elsewhere])
    blind = score(weights, changed, None) - score(weights, packed.tokens, None)
    assert np.abs(blind[at, elsewhere]).max() > 1e-3


def test_packed_rows_have_no_cache(weights, three):
    from jaxllm.cache import create

    packed = pack(three, 24)
    with pytest.raises(ValueError, match="neither a cache nor a clamp"):
        forward(params.unstack(weights), CFG, packed.tokens, segments=packed.segments, cache=create(CFG, 1, 24, jnp.float32))


def test_padding_on_either_side_changes_nothing(weights):
    ids, width = np.asarray(sequence(5).tokens), 5 + 64
    alone = score(weights, jnp.asarray(ids[None]), jnp.zeros((1, 5), jnp.int32))[0]
    left = [0, 1, 7, 64]
    rows, segments = np.full((4, width), 9), np.full((4, width), NO_SEGMENT)
    for row, segment, n in zip(rows, segments, left, strict=True):
        row[n : n + 5], segment[n : n + 5] = ids, 0
    found = score(weights, jnp.asarray(rows), jnp.asarray(segments))
    for row, n in zip(found, left, strict=True):
        np.testing.assert_allclose(row[n : n + 5], alone, atol=1e-5)
    # Where padding is not told apart, it is text like any other.
    assert not np.allclose(score(weights, jnp.asarray(rows), jnp.zeros_like(segments))[2, 7:12], alone, atol=1e-2)

"""Token in, token out: what stands where in a batch, and what never changes it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.errors import UserError
from rl import tokens
from rl.advantages import place_rewards
from rl.types import NO_GROUP, NO_TURN, Stop, Trajectory, Turn


def turn(context, ids, **fields):
    """A turn whose log-probabilities are minus a tenth of its ids."""
    return Turn(tuple(context), tuple(ids), tuple(-0.1 * i for i in ids), (3,) * len(ids), **fields)


@pytest.fixture
def trajectory():
    """Two turns, the first cut at the limit so that the harness closed it with id 9."""
    turns = (turn([5, 6], [7, 8], stopped=False, reward=0.25), turn([9, 4], [2, 9], reward=1.0))
    return Trajectory(turns, Stop.TERMINATED, outcome=1.25, success=True, closing=(4, 4))


def test_one_stream(trajectory):
    (row,) = tokens.rows(trajectory)
    assert row.tokens == [5, 6, 7, 8, 9, 4, 2, 9, 4, 4]
    assert row.turn_id == [-1, -1, 0, 0, -1, -1, 1, 1, -1, -1]  # the sampled 9 is trained, the appended one is not
    assert row.rewards == [0, 0, 0, 0.25, 0, 0, 0, 1.0, 0, 0]
    batch = tokens.make_batch([trajectory], [0])
    assert batch.shape == (1, 32)
    np.testing.assert_array_equal(np.flatnonzero(batch.mask[0]), [2, 3, 6, 7])
    np.testing.assert_allclose(batch.logp_roll[0, [2, 3, 6, 7]], [-0.7, -0.8, -0.2, -0.9], rtol=1e-6)
    assert batch.real.sum() == 10
    assert (batch.terminated[0], batch.truncated[0], batch.success[0]) == (True, False, True)


def test_split_spellings_stay_split():
    # Ids 1, 2 spell "he", "llo"; 3 spells "hello": the text is the same, the tokens are those that were sampled.
    spelt = Trajectory((turn([8], [1, 2]), turn([8], [3]), turn([8], [1, 2])), Stop.TERMINATED)
    (row,) = tokens.rows(spelt)
    assert row.tokens == [8, 1, 2, 8, 3, 8, 1, 2]


def test_a_rewritten_history_opens_a_segment(trajectory):
    second = dataclasses.replace(trajectory.turns[1], context=(5, 1, 4), rewritten=True)
    rewritten = dataclasses.replace(trajectory, turns=(trajectory.turns[0], second))
    first, then = tokens.rows(rewritten)
    assert (first.tokens, then.tokens) == ([5, 6, 7, 8], [5, 1, 4, 2, 9, 4, 4])
    batch = tokens.make_batch([rewritten, trajectory], [1, 0], multiple=4)
    np.testing.assert_array_equal(batch.traj_id, [0, 0, 1, NO_GROUP])
    np.testing.assert_array_equal(batch.group_id, [1, 1, 0, NO_GROUP])
    np.testing.assert_array_equal(batch.order, [0, 1, 0, 0])
    assert batch.mask.sum() == rewritten.policy_tokens + trajectory.policy_tokens  # each sampled token once
    assert not batch.mask[3].any()
    assert not batch.terminated[3]


@pytest.mark.parametrize("pad", [0, 9, 4])
def test_masks_do_not_come_from_ids(trajectory, pad, monkeypatch):
    expected = tokens.make_batch([trajectory], [0])
    monkeypatch.setattr(tokens, "PAD", pad)  # 9 is also the id that ends a turn, 4 occurs in observations
    found = tokens.make_batch([trajectory], [0])
    for name in ("real", "mask", "turn_id", "rewards"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_the_end_is_told_not_guessed(trajectory):
    cut = dataclasses.replace(trajectory, turns=trajectory.turns[:1], closing=(), stop=Stop.MAX_TURNS)
    batch = tokens.make_batch([cut, trajectory], [0, 0])  # the shortest row is the one that was cut
    np.testing.assert_array_equal(batch.truncated, [True, False])
    np.testing.assert_array_equal(batch.terminated, [False, True])


def test_reward_of_a_turn_without_tokens_is_kept():
    silent = Trajectory((turn([5], [1]), turn([6, 6], [], reward=0.5)), Stop.TERMINATED)
    batch = tokens.make_batch([silent], [0])
    np.testing.assert_array_equal(np.flatnonzero(batch.rewards[0]), [3])
    placed = place_rewards(jnp.asarray(batch.rewards), jnp.asarray(batch.mask))
    np.testing.assert_array_equal(np.flatnonzero(placed[0]), [1])


def test_wrong_input_is_refused(trajectory):
    with pytest.raises(ValueError, match="begin with a sampled token"):
        list(tokens.rows(Trajectory((turn([], [1]),), Stop.TERMINATED)))
    with pytest.raises(ValueError, match="reward of nan"):
        list(tokens.rows(Trajectory((turn([1], [1], reward=float("nan")),), Stop.TERMINATED)))
    with pytest.raises(ValueError, match="failed episode"):
        tokens.make_batch([dataclasses.replace(trajectory, stop=Stop.ENV_ERROR)], [0])
    with pytest.raises(ValueError, match="2 ids, 1 log"):
        Turn((1,), (1, 2), (0.0,), (0, 0))
    with pytest.raises(UserError, match="no bucket"):
        tokens.make_batch([trajectory], [0], buckets=(4, 8))
    with pytest.raises(UserError, match="do not fit"):
        tokens.make_batch([trajectory] * 3, [0] * 3, num_rows=2)


def test_widths():
    assert [tokens.bucket(n) for n in (1, 32, 33, 100)] == [32, 32, 64, 128]
    assert tokens.bucket(5, (16, 8)) == 8
    assert len({tokens.bucket(n) for n in range(1, 1000)}) == 6  # so many programs are compiled, whatever comes


def test_two_hundred_lengths_compile_as_many_programs_as_there_are_buckets():
    compiled = []

    @jax.jit
    def program(ids):
        compiled.append(ids.shape)
        return ids.sum()

    lengths = np.random.default_rng(0).integers(2, 500, 200)
    for length in lengths:
        one = Trajectory((turn([1] * (length - 1), [2]),), Stop.TERMINATED)
        program(tokens.make_batch([one], [0]).tokens)
    assert len(set(lengths)) > 100  # without buckets it would be so many
    assert sorted(compiled) == [(1, 32), (1, 64), (1, 128), (1, 256), (1, 512)]


def test_shift():
    np.testing.assert_array_equal(tokens.to_tokens(jnp.array([[1.0, 2.0]])), [[0, 1, 2]])
    assert NO_TURN == -1

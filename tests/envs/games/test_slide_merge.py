"""The merges and moves of slide-merge against envpool's Game2048, and what every move keeps."""

import envpool
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envs.api import Action
from envs.games import slide_merge
from envs.games.core import DIRECTIONS, first_rng

STEPS, BOARDS = 60, 48
ORDER = ("up", "right", "down", "left")  # envpool's actions 0 to 3
boards = st.lists(
    st.lists(st.sampled_from([0, 0, 2, 2, 4, 8, 16]), min_size=4, max_size=4).map(tuple), min_size=4, max_size=4
).map(tuple)


def values(board: np.ndarray) -> slide_merge.Board:
    """envpool's exponents as tiles."""
    return tuple(tuple(int(2**tile) if tile else 0 for tile in row) for row in board)


def test_moves_are_those_of_envpool():
    pool = envpool.make("Game2048-v1", env_type="gymnasium", num_envs=BOARDS, seed=11)
    rng = np.random.default_rng(5)
    before, _ = pool.reset()
    ended = np.zeros(BOARDS, bool)
    compared = 0
    for _ in range(STEPS):
        actions = rng.integers(0, 4, BOARDS).astype(np.int32)
        after, reward, terminated, truncated, _ = pool.step(actions)
        for at in range(BOARDS):
            old = values(before["board"][at])
            ours, made = slide_merge.slide(old, ORDER[actions[at]])
            mask = [slide_merge.slide(old, way)[0] != old for way in ORDER]
            assert mask == list(before["action_mask"][at])
            if ended[at]:
                continue  # envpool resets by itself in the step after the end: that transition is no move
            theirs = values(after["board"][at])
            assert reward[at] == made
            new = [(a, b) for ra, rb in zip(ours, theirs, strict=True) for a, b in zip(ra, rb, strict=True) if a != b]
            if ours == old:
                assert new == [] or not any(mask)
            else:
                assert len(new) == 1
                assert new[0][0] == 0
                assert new[0][1] in (2, 4)
            compared += 1
        before, ended = after, terminated | truncated
    assert compared > 2500


@given(boards, st.sampled_from(sorted(DIRECTIONS)), st.integers(0, 2**32))
def test_a_move_keeps_the_sum_and_adds_one_tile(board, direction, seed):
    state = slide_merge.State(board, 0, first_rng(seed))
    moved, made = slide_merge.slide(board, direction)
    assert sum(map(sum, moved)) == sum(map(sum, board))
    if moved == board:
        assert made == 0
        return
    after = slide_merge.play(state, Action("move", {"direction": direction}))
    new = sum(map(sum, after.board)) - sum(map(sum, board))
    assert new in (2, 4)
    assert after.score == made


def test_a_tile_merges_once_a_move():
    assert slide_merge.merge_left((2, 2, 4, 8)) == ((4, 4, 8, 0), 4)
    assert slide_merge.merge_left((2, 2, 2, 2)) == ((4, 4, 0, 0), 8)
    assert slide_merge.merge_left((4, 0, 2, 2)) == ((4, 4, 0, 0), 4)
    assert slide_merge.merge_left((2, 2, 2, 0)) == ((4, 2, 0, 0), 4)


def test_new_tiles_come_everywhere_and_one_in_ten_is_a_four():
    rng, counts, cells = first_rng("x"), {2: 0, 4: 0}, set()
    for _ in range(4000):
        board, rng = slide_merge._spawned(((0,) * 4,) * 4, rng)
        ((cell, tile),) = [((r, c), tile) for r, row in enumerate(board) for c, tile in enumerate(row) if tile]
        counts[tile] += 1
        cells.add(cell)
    assert len(cells) == 16
    assert abs(counts[4] / 4000 - 0.1) < 4 * (0.1 * 0.9 / 4000) ** 0.5  # four standard errors


def test_the_game_is_over_without_a_legal_move():
    stuck = slide_merge.State(((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2)), 0, 1)
    assert slide_merge.GAME.over(stuck)
    assert not slide_merge.GAME.over(slide_merge.State(((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 4)), 0, 1))

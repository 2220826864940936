"""Gem rise: groups, melts, falls and rises, drawn by hand and as properties."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.api import Action
from envs.games import gem_rise
from envs.games.core import IllegalError


def state_of(*rows: str) -> gem_rise.State:
    """A state from its lowest rows, drawn from the top: digits are ranks, dots free cells."""
    columns = [tuple(int(row[c]) for row in reversed(rows) if row[c] != ".") for c in range(5)]
    return gem_rise.State(tuple(columns), 2, 0, False, 1)


def melted(state: gem_rise.State, column: int, height: int) -> list[str]:
    """The board after a melt, before anything rises, drawn from the top without empty rows."""
    cell = (column, height)
    board = gem_rise.melt(state.board, cell, gem_rise.group(state.board, cell))
    drawn = ["".join(str(gem or ".") for gem in row) for row in gem_rise.rows(board)]
    return [row for row in drawn if row != "....."]


def test_a_group_melts_into_the_cell_and_the_rest_falls():
    state = state_of("3....", "11.2.", "21.2.", "11121")
    assert melted(state, 0, 0) == ["3..2.", "2..2.", "2..21"]
    assert melted(state, 2, 0) == ["...2.", "3..2.", "2.221"]
    assert melted(state, 3, 1) == ["3....", "11...", "21...", "11131"]


def test_gems_of_one_rank_that_do_not_touch_stay():
    state = state_of("1.1..", "23221", "13131")
    assert gem_rise.group(state.board, (0, 0)) == {(0, 0)}
    assert gem_rise.group(state.board, (3, 1)) == {(2, 1), (3, 1)}
    with pytest.raises(IllegalError, match="row 7, column 1 touches none"):
        gem_rise.play(state, Action("melt", {"row": 7, "column": 1}))
    with pytest.raises(IllegalError, match="no gem at row 1, column 1"):
        gem_rise.play(state, Action("melt", {"row": 1, "column": 1}))


def test_the_next_gem_rises_in_the_column_of_the_melt_and_a_row_on_demand():
    state = state_of("11312")
    after = gem_rise.play(state, Action("melt", {"row": 7, "column": 2}))
    assert after.board == ((), (2, 2), (3,), (1,), (2,))
    assert after.best == 2
    assert after.next in (1, 2, 3)
    risen = gem_rise.play(state, Action("rise"))
    assert risen.next == state.next
    assert [column[1:] for column in risen.board] == list(state.board)
    assert all(column[0] in (1, 2, 3) for column in risen.board)


def test_gems_over_the_edge_end_the_game():
    state = state_of("1....", "2....", "1....", "2....", "1....", "2....", "11...")
    over = gem_rise.play(state, Action("rise"))
    assert over.full
    assert gem_rise.over(over)
    assert gem_rise.legal(over) == []
    with pytest.raises(IllegalError, match="over"):
        gem_rise.play(over, Action("rise"))


def test_rank_eleven_ends_the_game():
    state = gem_rise.State(((10, 1), (10,), (), (), ()), 1, 10, False, 1)
    assert not gem_rise.over(state)
    after = gem_rise.play(state, Action("melt", {"row": 7, "column": 1}))
    assert gem_rise.over(after)
    assert gem_rise.score(after) == 11


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), max_size=60))
@settings(max_examples=40, deadline=None)
def test_columns_never_exceed_the_board_and_scores_never_fall(seed, choices):
    state = gem_rise.start(seed)
    assert [len(column) for column in state.board] == [2] * 5
    for choice in choices:
        moves = gem_rise.legal(state)
        if not moves:
            assert gem_rise.over(state)
            return
        after = gem_rise.play(state, moves[choice % len(moves)])
        assert all(len(column) <= 7 and 0 not in column for column in after.board)
        assert after.best >= state.best
        state = after

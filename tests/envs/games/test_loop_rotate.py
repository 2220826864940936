"""Loop-rotate: turns, open ends, and levels that their stored solution solves."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.api import Action
from envs.games import loop_rotate
from envs.games.core import IllegalError

# What each line character joins, by the names of Unicode: U+2575 is "light up", U+2514 "light up and right" ...
SIDES = {" ": "", "╵": "u", "╶": "r", "└": "ur", "╷": "d", "│": "ud", "┌": "dr", "├": "udr", "╴": "l", "┘": "ul", "─": "lr"}
SIDES |= {"┴": "ulr", "┐": "dl", "┤": "udl", "┬": "dlr", "┼": "udlr"}
boards = st.integers(1, 5).flatmap(
    lambda columns: st.lists(
        st.lists(st.integers(0, 15), min_size=columns, max_size=columns).map(tuple), min_size=1, max_size=5
    )
)


def drawn(board: loop_rotate.Board) -> list[str]:
    return ["".join(loop_rotate.SHAPES[piece] for piece in row) for row in board]


def open_ends(rows: list[str]) -> int:
    """Counted from the drawing, one border after the other."""
    columns, count = len(rows[0]), 0
    for row in rows:
        across = [""] + [SIDES[mark] for mark in row] + [""]
        count += sum(("r" in a) != ("l" in b) for a, b in itertools.pairwise(across))
    for c in range(columns):
        down = [""] + [SIDES[row[c]] for row in rows] + [""]
        count += sum(("d" in a) != ("u" in b) for a, b in itertools.pairwise(down))
    return count


@given(boards)
def test_open_ends_are_those_of_the_drawing(board):
    assert loop_rotate.open_ends(tuple(board)) == open_ends(drawn(tuple(board)))


def test_a_turn_is_clockwise():
    after = {"╵": "╶", "└": "┌", "│": "─", "├": "┬", "┘": "└", "┤": "┴", "┼": "┼"}
    for before, wanted in after.items():
        assert loop_rotate.SHAPES[loop_rotate.turned(loop_rotate.SHAPES.index(before))] == wanted


@given(st.integers(0, 10**9), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_the_stored_solution_solves_each_level(seed, number):
    board, solved = loop_rotate.level(seed, number)
    assert open_ends(drawn(solved)) == 0 < open_ends(drawn(board))
    assert [sorted(map(int.bit_count, row)) for row in board] == [sorted(map(int.bit_count, row)) for row in solved]
    state, turns = loop_rotate.start(seed, number), 0
    assert loop_rotate.score(state) == number
    while state.level == number:
        state = loop_rotate.play(state, loop_rotate.oracle(state))
        turns += 1
    assert turns <= 3 * len(board) * len(board[0])
    assert state == loop_rotate.start(seed, number + 1)


def test_turns_that_change_nothing_are_refused():
    state = loop_rotate.State(0, 0, ((15, 0), (1, 4)), 6)
    for row, column, why in [(1, 1, "a cross"), (1, 2, "no pipe"), (3, 1, "no cell 3, 1"), (1, 3, "2 rows and 2 columns")]:
        with pytest.raises(IllegalError, match=why):
            loop_rotate.play(state, Action("rotate", {"row": row, "column": column}))
    assert loop_rotate.legal(state) == [Action("rotate", {"row": 2, "column": column}) for column in (1, 2)]

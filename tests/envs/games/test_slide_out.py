"""Slide-out's moves against a plain reading of its rules, and its yards against a search of their own."""

import collections
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.api import Action
from envs.games import slide_out, yards
from envs.games.core import IllegalError


def neighbours(board: yards.Board) -> set[yards.Board]:
    """Every board that one slide leads to: a bar goes on, cell by cell, while the next cell before it is free."""
    found = set()
    for name in {mark for row in board for mark in row} - {"."}:
        cells = [(r, c) for r in range(6) for c in range(6) if board[r][c] == name]
        ways = [(0, 1), (0, -1)] if len({r for r, _ in cells}) == 1 else [(1, 0), (-1, 0)]
        for dr, dc in ways:
            now = cells
            while True:
                now = [(r + dr, c + dc) for r, c in now]
                if any(not (0 <= r < 6 and 0 <= c < 6) or board[r][c] not in (".", name) for r, c in now):
                    break
                rows = [["." if mark == name else mark for mark in row] for row in board]
                for r, c in now:
                    rows[r][c] = name
                found.add(tuple("".join(row) for row in rows))
    return found


def fewest(board: yards.Board) -> int:
    """Slides of a shortest solution, by a plain search over boards."""
    seen, todo = {board}, collections.deque([(board, 0)])
    while todo:
        here, far = todo.popleft()
        if here[yards.GATE].endswith("KK"):
            return far
        for there in neighbours(here) - seen:
            seen.add(there)
            todo.append((there, far + 1))
    raise AssertionError("no way out")


@pytest.mark.parametrize(("seed", "number"), [(0, 0), (5, 3), (8, 9)])
def test_levels_need_as_many_slides_as_they_say(seed, number):
    board, wanted = slide_out.level(seed, number)
    assert wanted == min(4 + number, 9)
    assert fewest(board) == wanted


@given(st.integers(0, 30), st.lists(st.integers(0, 10**6), max_size=25))
@settings(max_examples=25, deadline=None)
def test_slides_are_those_of_the_rules(seed, picks):
    state = slide_out.start(seed, seed % 5)
    for pick in picks:
        after = [slide_out.play(state, move) for move in slide_out.legal(state)]
        solved = [there for there in after if there.level != state.level]
        wanted = neighbours(state.board)
        assert {there.board for there in after if there.level == state.level} == {
            board for board in wanted if not board[yards.GATE].endswith("KK")
        }
        assert len(solved) == sum(board[yards.GATE].endswith("KK") for board in wanted)
        state = after[pick % len(after)]


def test_the_file_of_yards_is_what_the_generator_keeps():
    stored = yards.stored()
    assert len(stored) >= 100
    assert len({board for _, _, board in stored}) == len(stored)
    # Two neighbours with few draws between them: the generator finds these two and nothing in between.
    pair = min(itertools.pairwise(stored), key=lambda pair: pair[1][0] - pair[0][0])
    assert tuple(itertools.islice(yards.kept(pair[0][0]), 2)) == pair
    for number, hardest, board in stored[:: len(stored) // 8]:
        assert yards.drawn(number) == board
        far = yards.distances(*yards.parse(board))
        assert max(far.values()) == hardest >= yards.HARDEST


def test_every_stored_yard_has_a_start_of_each_length():
    assert yards.FEWEST == 4
    assert yards.HARDEST == 9
    for _, _, board in yards.stored()[::12]:
        assert all(yards.starts(board, wanted) for wanted in range(4, 10))


def test_a_yard_without_a_way_out_is_never_kept():
    blocked = ("..ABC.", "..ABC.", "KKABC.", "DDDEEE", "FFFGGG", "HHHIII")  # the columns are full: no upright bar can move
    assert yards.distances(*yards.parse(blocked)) == {}
    assert yards.distances(*yards.parse(("......",) * 2 + ("KK....",) + ("......",) * 3))[(0,)] == 1


def test_refusals_say_why():
    state = slide_out.State(0, 0, ("A.....", "A.....", "KKB...", "..B...", "......", "......"), 0)
    for piece, cells, why in [("K", 1, "in the way"), ("Z", 1, "no bar 'Z'"), ("A", 0, "no move"), ("A", -1, "in the way")]:
        with pytest.raises(IllegalError, match=why):
            slide_out.play(state, Action("slide", {"piece": piece, "cells": cells}))
    assert slide_out.play(state, Action("slide", {"piece": "b", "cells": -2})).board[0] == "A.B..."


def test_score_is_the_way_of_the_key_bar():
    assert slide_out.score(slide_out.State(0, 2, ("......", "......", ".KK...", "......", "......", "......"), 0)) == 2.25
    assert slide_out.score(slide_out.State(0, 2, ("......", "......", "KK....", "......", "......", "......"), 1)) == 2.0

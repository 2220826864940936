"""Tray match: picks, sets that vanish, and piles that their stored solution clears."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.api import Action
from envs.games import tray_match
from envs.games.core import IllegalError

seeds, numbers = st.integers(0, 10**9), st.integers(0, 9)


def pick(state: tray_match.State, tile: int) -> tray_match.State:
    return tray_match.play(state, Action("pick", {"tile": tile}))


@given(seeds, numbers)
@settings(max_examples=60, deadline=None)
def test_the_stored_solution_clears_each_pile(seed, number):
    tiles, order = tray_match.level(seed, number)
    held = tray_match.HELD[min(number, 6)]
    assert len(tiles) == min(9 + 3 * number, 27)
    assert all(count % 3 == 0 for count in collections.Counter(tile[4] for tile in tiles).values())
    assert len({tile[1:4] for tile in tiles}) == len(tiles)
    state = tray_match.start(seed, number)
    for tile in order:
        assert len(state.tray) <= held
        state = pick(state, tile)
    assert state == tray_match.start(seed, number + 1)


@given(seeds, numbers, st.lists(st.integers(0, 10**6), max_size=40))
@settings(max_examples=40, deadline=None)
def test_tiles_are_kept_and_the_tray_never_holds_a_set(seed, number, choices):
    state = tray_match.start(seed, number)
    counts = collections.Counter(tile[4] for tile in state.tiles)
    for choice in choices:
        moves = tray_match.legal(state)
        if not moves:
            assert len(state.tray) == 7
            return
        state = tray_match.play(state, moves[choice % len(moves)])
        if state.level != number:
            return
        now = collections.Counter(tile[4] for tile in state.tiles) + collections.Counter(state.tray)
        assert all((counts[kind] - now[kind]) % 3 == 0 for kind in counts)
        assert max(collections.Counter(state.tray).values(), default=0) < 3
        assert len(state.tray) <= 7


def test_a_covered_tile_stays():
    # Tile 1 lies half a tile aside on tile 0; tile 2 lies beside it.
    tiles = ((0, 0, 0, 0, "A"), (1, 1, 1, 1, "B"), (2, 3, 0, 0, "A"))
    state = tray_match.State(0, 0, tiles, ())
    assert tray_match.free(tiles) == tiles[1:]
    with pytest.raises(IllegalError, match="tile 0 lies under 1"):
        pick(state, 0)
    with pytest.raises(IllegalError, match="no tile 5"):
        pick(state, 5)
    assert pick(pick(state, 1), 0).tray == ("B", "A")


def test_a_seventh_tile_without_a_set_ends_the_game_and_with_one_does_not():
    tiles = ((0, 0, 0, 0, "A"), (1, 4, 0, 0, "F"))
    state = tray_match.State(0, 0, tiles, ("A", "A", "B", "C", "D", "E"))
    assert not tray_match.over(pick(state, 0))
    assert pick(state, 0).tray == ("B", "C", "D", "E")
    assert tray_match.over(pick(state, 1))
    assert tray_match.legal(pick(state, 1)) == []


def test_off_its_way_the_oracle_goes_on_by_itself():
    state = tray_match.start(3, 1)
    wrong = next(move for move in tray_match.legal(state) if move != tray_match.oracle(state))
    state = tray_match.play(state, wrong)
    while state.level == 1 and not tray_match.over(state):
        state = tray_match.play(state, tray_match.oracle(state))
    assert state.level == 2

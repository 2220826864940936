"""Sokoban's moves against envpool's, and the generator of its levels against a search that knows nothing of it."""

import collections

import envpool
import numpy as np
import pytest

from envs.api import Action
from envs.games import sokoban
from envs.games.core import DIRECTIONS, IllegalError

ORDER = ("up", "right", "down", "left")  # envpool's actions 0 to 3
STEPS, BOARDS = 100, 16  # an episode of envpool's has 120 steps


def positions(grid: np.ndarray):
    """envpool's grid: layer 0 holds the player (3) and boxes (4), layer 1 walls (1) and targets (2)."""

    def cells(layer: int, value: int) -> frozenset[sokoban.Cell]:
        return frozenset((int(r), int(c)) for r, c in np.argwhere(grid[..., layer] == value))

    room = sokoban.Room(frozenset(np.ndindex(10, 10)) - cells(1, 1), cells(1, 2), (10, 10))
    (player,) = cells(0, 3)
    return room, player, cells(0, 4)


def test_moves_are_those_of_envpool():
    pool = envpool.make("Sokoban-v0", env_type="gymnasium", num_envs=BOARDS, seed=3)
    rng = np.random.default_rng(1)
    before, _ = pool.reset()
    ended = np.zeros(BOARDS, bool)
    compared = pushed = 0
    for _ in range(STEPS):
        actions = rng.integers(0, 4, BOARDS).astype(np.int32)
        after, reward, terminated, truncated, _ = pool.step(actions)
        for at in range(BOARDS):
            if ended[at]:
                continue  # envpool resets by itself in the step after the end
            room, player, boxes = positions(before["grid"][at])
            board = sokoban.written(room, player, boxes)
            assert sokoban.parse(board) == (room, player, boxes)
            moved = sokoban.push(room, player, boxes, ORDER[actions[at]]) or (player, boxes)
            assert positions(after["grid"][at]) == (room, *moved)
            gain = len(moved[1] & room.targets) - len(boxes & room.targets)
            assert reward[at] == pytest.approx(gain - 0.1 + 10 * (moved[1] == room.targets), abs=1e-5)
            compared += 1
            pushed += moved[1] != boxes
        before, ended = after, terminated | truncated
    assert compared > 1500
    assert pushed > 30


def fewest(board: sokoban.Board) -> int | None:
    """Length of a shortest solution, by a plain search over strings of the board."""
    seen, todo = {board}, collections.deque([(board, 0)])
    while todo:
        here, far = todo.popleft()
        for direction in DIRECTIONS:
            room, player, boxes = sokoban.parse(here)
            after = sokoban.push(room, player, boxes, direction)
            if after is None:
                continue
            if after[1] == room.targets:
                return far + 1
            there = sokoban.written(room, *after)
            if there not in seen:
                seen.add(there)
                todo.append((there, far + 1))
    return None


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 123456789])
def test_the_stored_solution_solves_each_level(seed):
    for number in range(8):
        level = sokoban.level(seed, number)
        state = sokoban.State(seed, number, level.board)
        boxes = "".join(level.board).count("$")
        assert boxes == sokoban.LEVELS[min(number, len(sokoban.LEVELS) - 1)][2]
        assert "*" not in "".join(level.board)
        for direction in level.solution:
            assert state.level == number
            state = sokoban.play(state, Action("move", {"direction": direction}))
        assert state.level == number + 1


def test_stored_solutions_are_the_shortest():
    for seed in range(6):
        for number in range(3):
            level = sokoban.level(seed, number)
            assert fewest(level.board) == len(level.solution) == len(sokoban.solve(level.board))


def pieces(board: sokoban.Board) -> list[int]:
    """Walls, boxes, targets and players of a board."""
    text = "".join(board)
    return [sum(text.count(mark) for mark in marks) for marks in ("#", "$*", ".*+", "@+")]


def test_pieces_are_kept_and_a_restart_brings_the_level_back():
    rng = np.random.default_rng(0)
    state = sokoban.start(4, 5)
    wanted = pieces(state.board)
    for _ in range(300):
        moves = sokoban.legal(state)[:-1]  # all but the restart
        state = sokoban.play(state, moves[rng.integers(len(moves))])
        assert state.level == 5
        assert pieces(state.board) == wanted
    assert state != sokoban.start(4, 5)
    assert sokoban.play(state, Action("restart")) == sokoban.start(4, 5)


def test_a_wall_and_a_second_box_stop_the_player():
    state = sokoban.State(0, 0, ("#######", "#@$$ .#", "#    .#", "#######"))
    for direction in ("up", "left", "right"):
        with pytest.raises(IllegalError, match=f"the way {direction} is blocked"):
            sokoban.play(state, Action("move", {"direction": direction}))
    assert sokoban.legal(state) == [Action("move", {"direction": "down"}), Action("restart", {})]


def test_the_oracle_restarts_what_can_not_be_solved():
    dead = ("#####", "#$ .#", "# @ #", "#####")
    assert sokoban.solve(dead) is None
    assert sokoban.oracle(sokoban.State(0, 0, dead)) == Action("restart", {})


def test_score_is_levels_and_the_share_of_boxes_at_home():
    assert sokoban.score(sokoban.State(0, 3, ("#####", "#*$.#", "# @ #", "#####"))) == 3.5

"""What environments of envpool show in words, beside other implementations of the same worlds."""

from typing import Any

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS
from gymnasium.envs.toy_text.taxi import TaxiEnv

import envs
from envs import Action
from envs.envpool.text import FROZEN_LAKE, VIEWS, view


def play(name: str, *values: Any, seed: int = 3, **options: Any) -> list[str]:
    env = envs.make(f"envpool/{name}", **options)
    texts = [env.reset(seed=seed).text or ""]
    texts += [env.step(Action("act", {"value": value})).obs.text or "" for value in values]
    env.close()
    return texts


def test_maps_of_the_lake_are_gymnasiums() -> None:
    assert list(FROZEN_LAKE[16]) == MAPS["4x4"]
    assert list(FROZEN_LAKE[64]) == MAPS["8x8"]


@pytest.mark.parametrize("state", [0, 17, 203, 328, 416, 499])
def test_a_taxis_state_reads_as_gymnasium_decodes_it(state: int) -> None:
    taxi = TaxiEnv()
    row, column, passenger, goal = taxi.decode(state)
    text = VIEWS["Taxi-v3"].write({"obs": np.array([state])})
    where = "in the taxi" if passenger == 4 else f"waiting at {'RGYB'[passenger]}"
    assert text.startswith(
        f"The taxi (T) is at row {row}, column {column}. The passenger is {where} and wants to {'RGYB'[goal]}"
    )
    plain = ["".join(cells) for cells in taxi.desc.astype(str)]
    drawn = text.split("\n")[1:]
    changed = [(r, c) for r, line in enumerate(drawn) for c, cell in enumerate(line) if cell != plain[r][c]]
    assert changed == [(row + 1, 2 * column + 1)]


def test_moves_of_the_text_worlds() -> None:
    up, right = play("CliffWalking-v1", 0, 1)[1:]
    assert up.startswith("You (A) are at row 2, column 0")
    assert right.startswith("You (A) are at row 2, column 1")
    assert up.endswith("SCCCCCCCCCCG")
    first, left = play("Catch-v0", 0)
    assert [first.split("\n")[-1].split().index("_"), left.split("\n")[-1].split().index("_")] == [2, 1]
    assert left.split("\n")[1].count("o") == 1
    assert "Your cards make" in play("Blackjack-v1", 1)[1]
    assert play("NChain-v0")[0] == "You are at link 0 of the chain 0 to 4."


def test_minigrid_tells_mission_view_and_what_lies_where() -> None:
    """The key lies right of the agent; after a turn to the right it is ahead, and the door beyond it on the left."""
    east, south = play("MiniGrid-DoorKey-5x5-v0", 1)
    assert east.startswith("Mission: use the key to open the door and then get to the goal\nYou (^) face east.")
    assert "yellow key: 1 to the right" in east
    assert "yellow door (locked): 1 ahead, 1 to the right" in east
    assert "face south" in south
    assert "yellow key: 1 ahead;" in south or "yellow key: 1 ahead." in south
    assert "yellow door (locked): 1 ahead, 1 to the left" in south
    carried = play("MiniGrid-DoorKey-5x5-v0", 1, 3)[-1]
    assert "you carry a yellow key" in carried


def check_connector(text: str) -> None:
    """What an agent may do follows from the board: it moves onto free cells and its own target, and stays once it is there."""
    lines = text.split("\n")
    grid = {(y, x): cell for y, line in enumerate(lines[1:11]) for x, cell in enumerate(line.split())}
    assert len(grid) == 100
    for agent, line in zip("ABCDEFGHIJ", lines[11:], strict=True):
        ((y, x),) = (place for place, cell in grid.items() if cell == agent)
        around = {"up": (y - 1, x), "right": (y, x + 1), "down": (y + 1, x), "left": (y, x - 1)}
        open_to = [name for name, place in around.items() if grid.get(place) in (".", f"{agent}!")]
        arrived = f"{agent}!" not in grid.values()
        assert line == f"{agent}: " + ", ".join(["stay", *([] if arrived else open_to)])


def test_boards_of_jumanji() -> None:
    tiles = play("Game2048-v1", 0, 1, 2, 3)
    assert all(set(tile.split("\n")[0].split()) <= {"0", "2", "4", "8"} for tile in tiles)
    sokoban = play("Sokoban-v0", 0)
    assert [text.count("$") + text.count("*") for text in sokoban] == [4, 4]
    assert [sum(text.count(glyph) for glyph in "@+") for text in sokoban] == [1, 1]
    assert [len(line) for line in sokoban[0].split("\n")] == [10] * 10
    snake = play("Snake-v1", 0)
    assert all(text.startswith("Length 1.") and text.count("H") == text.count("*") == 1 for text in snake)
    maze = play("Maze-v0", 1)
    assert maze[0].startswith("You (A) are at row 0, column 0")
    assert maze[1].startswith("You (A) are at row 0, column 1")
    puzzle = play("SlidingTilePuzzle-v0", 0)[0].split("\n")
    assert sorted(int(tile) for line in puzzle[:5] for tile in line.split()) == list(range(25))
    mines = play("Minesweeper-v0", [2, 5])
    assert mines[0].count("?") == 101
    assert 1 < mines[1].count("?") < 101
    cube = play("RubiksCube-v0", [0, 0, 1])[1]
    assert [cube.split().count(colour) for colour in "012345"] == [9] * 6
    check_connector(play("Connector-v2", [2] * 10)[1])
    tetris = play("Tetris-v0", [0, 3])[1]
    assert tetris.split("Board:")[1].count("#") == 4
    assert play("GraphColoring-v1", 0)[1].startswith("Colour node 1.\nnode 0 (colour 0)")
    assert play("Cleaner-v0", [1, 1, 1])[1].startswith("* is dirty")


def test_boards_of_two_players() -> None:
    first, second = play("TicTacToe-v1", 4)
    assert first.endswith("Legal actions: 0, 1, 2, 3, 4, 5, 6, 7, 8.")
    assert second.endswith("Legal actions: 0, 1, 2, 3, 5, 6, 7, 8.")
    assert {first.split("\n")[0], second.split("\n")[0]} == {"Player 0 is to move.", "Player 1 is to move."}
    assert view("Chess-v1", "envpool.pgx") is not None
    assert envs.make("envpool/KuhnPoker-v1").reset().text is None  # no board to show


def test_an_environment_of_numbers_has_no_text() -> None:
    assert envs.make("envpool/CartPole-v1").reset().text is None
    assert view("CartPole-v1", "envpool.classic_control") is None

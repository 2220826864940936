"""What some of envpool's environments show, in words: toy text, MiniGrid, the board games of Jumanji and PGX.

Each view takes an observation's arrays by name (of one environment, without the batch axis) and gives a few lines of text.
The meaning of the numbers is that of the originals: Gymnasium's toy text, MiniGrid, Jumanji, PGX.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
Writer = Callable[[Arrays], str]


@dataclasses.dataclass(frozen=True)
class View:
    """How an environment is told to someone who reads."""

    about: str  # one line: the task
    actions: str  # what the numbers of an action mean
    write: Writer


FROZEN_LAKE = {
    16: ("SFFF", "FHFH", "FFFH", "HFFG"),
    64: ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}
TAXI_MAP = ("+---------+", "|R: | : :G|", "| : | : : |", "| : : : : |", "| | : | : |", "|Y| : |B: |", "+---------+")
TAXI_PLACES = ("R", "G", "Y", "B")
OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
GLYPHS = "?.#.DKBXGLA"
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")
COMPASS = ("east", "south", "west", "north")


def _rows(grid: np.ndarray, glyphs: Mapping[int, str] | None = None, between: str = " ") -> str:
    """A grid of numbers, a line a row; numbers are aligned where they are shown as they are."""
    if glyphs is not None:
        return "\n".join(between.join(glyphs.get(int(cell), "?") for cell in row) for row in grid)
    width = max(len(str(int(cell))) for cell in grid.flat)
    return "\n".join(between.join(str(int(cell)).rjust(width) for cell in row) for row in grid)


def _put(lines: list[list[str]], row: int, column: int, glyph: str) -> None:
    if 0 <= row < len(lines) and 0 <= column < len(lines[0]):
        lines[row][column] = glyph


def _text(lines: list[list[str]], between: str = " ") -> str:
    return "\n".join(between.join(line) for line in lines)


def _frozen_lake(size: int) -> Writer:
    cells = FROZEN_LAKE[size]

    def write(arrays: Arrays) -> str:
        row, column = divmod(int(arrays["obs"].flat[0]), len(cells))
        lines = [list(line) for line in cells]
        lines[row][column] = "A"
        return f"You (A) are at row {row}, column {column}, on {cells[row][column]}.\n{_text(lines, '')}"

    return write


def _taxi(arrays: Arrays) -> str:
    state = int(arrays["obs"].flat[0])
    rest, goal = divmod(state, 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    lines = [list(line) for line in TAXI_MAP]
    lines[row + 1][2 * column + 1] = "T"
    where = "in the taxi" if passenger == 4 else f"waiting at {TAXI_PLACES[passenger]}"
    return (
        f"The taxi (T) is at row {row}, column {column}. The passenger is {where} and wants to {TAXI_PLACES[goal]}.\n"
        + _text(lines, "")
    )


def _cliff(arrays: Arrays) -> str:
    row, column = divmod(int(arrays["obs"].flat[0]), 12)
    lines = [["."] * 12 for _ in range(4)]
    lines[3] = ["S", *["C"] * 10, "G"]
    lines[row][column] = "A"
    return f"You (A) are at row {row}, column {column}.\n{_text(lines, '')}"


def _chain(arrays: Arrays) -> str:
    return f"You are at link {int(arrays['obs'].flat[0])} of the chain 0 to 4."


def _blackjack(arrays: Arrays) -> str:
    total, dealer, ace = (int(value) for value in arrays["obs"].flat)
    return f"Your cards make {total}{', with an ace that counts 11' if ace else ''}. The dealer shows {dealer}."


def _catch(arrays: Arrays) -> str:
    board = arrays["obs"] > 0
    lines = [["." for _ in row] for row in board]
    for row, column in np.argwhere(board[:-1]):
        lines[row][column] = "o"
    for column in np.flatnonzero(board[-1]):
        lines[-1][column] = "_"
    return _text(lines)


def _minigrid(arrays: Arrays) -> str:
    mission = bytes(arrays["mission"].astype(np.uint8)).split(b"\0")[0].decode("utf-8", "replace")
    image = arrays["image"]  # [column, row, (object, colour, state)], seen from the agent, who looks up from the lowest row
    columns, rows = image.shape[:2]
    lines, seen = [], []
    for row in range(rows):
        line = []
        for column in range(columns):
            kind, colour, state = (int(value) for value in image[column, row])
            here = row == rows - 1 and column == columns // 2
            line.append("^" if here else GLYPHS[kind] if kind < len(GLYPHS) else "?")
            if 4 <= kind < 10:
                words = "goal" if kind == 8 else "lava" if kind == 9 else f"{COLOURS[colour % 6]} {OBJECTS[kind]}"
                if kind == 4:
                    words += f" ({DOORS[state % 3]})"
                seen.append(f"you carry a {words}" if here else f"{words}: {_where(rows - 1 - row, column - columns // 2)}")
        lines.append(" ".join(line))
    facing = COMPASS[int(arrays["direction"].flat[0]) % 4]
    return f"Mission: {mission}\nYou (^) face {facing}. You see: {'; '.join(seen) or 'nothing'}.\n" + "\n".join(lines)


def _where(ahead: int, right: int) -> str:
    side = f"{abs(right)} to the {'right' if right > 0 else 'left'}" if right else ""
    front = f"{ahead} ahead" if ahead else ""
    return ", ".join(part for part in (front, side) if part) or "here"


def _moves(mask: np.ndarray, words: tuple[str, ...]) -> str:
    return ", ".join(word for word, allowed in zip(words, mask.reshape(-1), strict=True) if allowed) or "none"


FOUR = ("up", "right", "down", "left")
FOUR_WORDS = "0 up, 1 right, 2 down, 3 left"


def _masked(arrays: Arrays) -> str:
    return f"\nPossible: {_moves(arrays['action_mask'], FOUR)}."


def _game_2048(arrays: Arrays) -> str:
    board = np.where(arrays["board"] > 0, 1 << arrays["board"].astype(np.int64).clip(0, 62), 0)
    return _rows(board) + _masked(arrays)


def _sokoban(arrays: Arrays) -> str:
    moving, fixed = arrays["grid"][..., 0], arrays["grid"][..., 1]
    glyphs = {(1, 0): "#", (2, 0): ".", (0, 0): " ", (0, 3): "@", (2, 3): "+", (0, 4): "$", (2, 4): "*"}
    lines = (zip(*pair, strict=True) for pair in zip(fixed, moving, strict=True))
    return "\n".join("".join(glyphs.get((int(a), int(b)), "?") for a, b in line) for line in lines)


def _snake(arrays: Arrays) -> str:
    grid = arrays["grid"] > 0
    lines = [["." for _ in row] for row in grid]
    for channel, glyph in ((0, "o"), (2, "t"), (1, "H"), (3, "*")):
        for row, column in np.argwhere(grid[..., channel]):
            lines[row][column] = glyph
    return f"Length {int(grid[..., 0].sum())}.\n{_text(lines)}{_masked(arrays)}"


def _maze(arrays: Arrays) -> str:
    lines = [["#" if wall else "." for wall in row] for row in arrays["walls"]]
    _put(lines, *_place(arrays, "target_position", "row", "col"), "G")
    row, column = _place(arrays, "agent_position", "row", "col")
    _put(lines, row, column, "A")
    return f"You (A) are at row {row}, column {column}.\n{_text(lines)}{_masked(arrays)}"


def _place(arrays: Arrays, name: str, row: str, column: str) -> tuple[int, int]:
    return int(arrays[f"{name}.{row}"].flat[0]), int(arrays[f"{name}.{column}"].flat[0])


def _sliding(arrays: Arrays) -> str:
    return _rows(arrays["puzzle"]) + f"\nPossible for the gap (0): {_moves(arrays['action_mask'], FOUR)}."


def _minesweeper(arrays: Arrays) -> str:
    board = _rows(arrays["board"], {-1: "?", **{count: str(count) for count in range(9)}})
    return f"{int(arrays['num_mines'].flat[0])} mines; ? is hidden.\n{board}"


def _rubik(arrays: Arrays) -> str:
    names = ("up", "front", "right", "back", "left", "down")
    faces = (f"{name}:\n{_rows(face)}" for name, face in zip(names, arrays["cube"], strict=True))
    return "\n".join(faces)


def _connector(arrays: Arrays) -> str:
    def glyph(cell: int) -> str:
        agent, kind = divmod(cell - 1, 3)
        name = chr(ord("A") + agent)
        return (name.lower(), name, name + "!")[kind] if cell > 0 else "."

    lines = "\n".join(" ".join(glyph(int(cell)).ljust(2) for cell in row).rstrip() for row in arrays["grid"])
    words = ("stay", "up", "right", "down", "left")
    masks = (f"{chr(ord('A') + agent)}: {_moves(mask, words)}" for agent, mask in enumerate(arrays["action_mask"]))
    return f"A is the head of agent A's line, a the line, A! its target.\n{lines}\n" + "\n".join(masks)


def _tetris(arrays: Arrays) -> str:
    glyphs = {0: ".", 1: "#"}
    piece = _rows(arrays["tetromino"] > 0, glyphs)
    columns = (
        f"{turn}: {', '.join(map(str, np.flatnonzero(mask))) or 'none'}" for turn, mask in enumerate(arrays["action_mask"])
    )
    return f"Piece:\n{piece}\nBoard:\n{_rows(arrays['grid'] > 0, glyphs)}\nColumns by rotation:\n" + "\n".join(columns)


def _graph(arrays: Arrays) -> str:
    colours = [int(colour) for colour in arrays["colors"]]
    lines = []
    for node, near in enumerate(arrays["adj_matrix"]):
        colour = f"colour {colours[node]}" if colours[node] >= 0 else "no colour"
        lines.append(f"node {node} ({colour}): next to {', '.join(map(str, np.flatnonzero(near)))}")
    return f"Colour node {int(arrays['current_node_index'].flat[0])}.\n" + "\n".join(lines)


def _cleaner(arrays: Arrays) -> str:
    lines = [[{0: "*", 1: ".", 2: "#"}.get(int(cell), "?") for cell in row] for row in arrays["grid"]]
    for agent, (row, column) in enumerate(arrays["agents_locations"]):
        _put(lines, int(row), int(column), chr(ord("A") + agent))
    masks = (f"{chr(ord('A') + agent)}: {_moves(mask, FOUR)}" for agent, mask in enumerate(arrays["action_mask"]))
    return "* is dirty.\n" + _text(lines) + "\n" + "\n".join(masks)


def _sudoku(arrays: Arrays) -> str:
    return _rows(arrays["board"], {-1: ".", **{digit: str(digit + 1) for digit in range(9)}})


def _pgx(arrays: Arrays) -> str:
    """Any board of PGX: the cells as they are, whose turn it is, and the legal actions."""
    board = arrays["info.board"]
    board = board.reshape(-1, board.shape[-1]) if board.ndim > 1 else board.reshape(1, -1)
    player = f"Player {int(arrays['info.current_player'].flat[0])} is to move.\n" if "info.current_player" in arrays else ""
    legal = np.flatnonzero(arrays["info.legal_action_mask"])
    return f"{player}{_rows(board)}\nLegal actions: {', '.join(map(str, legal))}."


_SLIP = "0 left, 1 down, 2 right, 3 up"
_FACES = "(face, 0, turn): faces 0 up, 1 front, 2 right, 3 back, 4 left, 5 down; turns 0 clockwise, 1 anticlockwise, 2 half"
_MINIGRID = View(
    "does what the mission says, seeing what lies ahead",
    "0 turn left, 1 turn right, 2 go forward, 3 pick up, 4 drop, 5 open or toggle, 6 done",
    _minigrid,
)
_CLIFF = View("walks from S to G along the cliff C, which costs 100", "0 up, 1 right, 2 down, 3 left", _cliff)
_LAKE = "crosses the ice from S to G without falling into a hole H; the ice is slippery"

VIEWS = {
    "FrozenLake-v1": View(_LAKE, _SLIP, _frozen_lake(16)),
    "FrozenLake8x8-v1": View(_LAKE, _SLIP, _frozen_lake(64)),
    "Taxi-v3": View(
        "takes a passenger where they want to go", "0 south, 1 north, 2 east, 3 west, 4 pick up, 5 drop off", _taxi
    ),
    "CliffWalking-v0": _CLIFF,
    "CliffWalking-v1": _CLIFF,
    "CliffWalkingSlippery-v1": _CLIFF,
    "NChain-v0": View("earns 2 at the chain's start or 10 at its end", "0 forward, 1 back to the start", _chain),
    "Blackjack-v1": View("beats the dealer without going over 21", "0 stick, 1 hit", _blackjack),
    "Catch-v0": View("catches the falling ball o with the paddle _", "0 left, 1 stay, 2 right", _catch),
    "Game2048-v1": View("slides tiles: equal ones merge", FOUR_WORDS, _game_2048),
    "Sokoban-v0": View("pushes all boxes ($) onto targets (.)", FOUR_WORDS, _sokoban),
    "Snake-v1": View("eats fruit (*) without biting itself; H is the head, t the tail", FOUR_WORDS, _snake),
    "Maze-v0": View("walks to G", FOUR_WORDS, _maze),
    "SlidingTilePuzzle-v0": View(
        "slides tiles until they are in order, the gap last", FOUR_WORDS + ": moves the gap", _sliding
    ),
    "Minesweeper-v0": View("opens every cell without a mine", "(row, column) to open", _minesweeper),
    "RubiksCube-v0": View("turns faces until each has one colour", _FACES, _rubik),
    "RubiksCube-partly-scrambled-v0": View("turns faces until each has one colour", _FACES, _rubik),
    "Connector-v2": View(
        "joins each agent to its target without crossing a line",
        "one per agent: 0 stay, 1 up, 2 right, 3 down, 4 left",
        _connector,
    ),
    "Tetris-v0": View("drops pieces so that rows fill", "(rotation, leftmost column)", _tetris),
    "GraphColoring-v1": View("colours each node unlike its neighbours, with few colours", "the colour", _graph),
    "Cleaner-v0": View("three agents clean a maze", "one per agent: 0 up, 1 right, 2 down, 3 left", _cleaner),
    "Sudoku-v0": View("fills the square: each digit once a row, column and box", "(row, column, digit - 1)", _sudoku),
    "Sudoku-very-easy-v0": View("fills the square: each digit once a row, column and box", "(row, column, digit - 1)", _sudoku),
}


def view(name: str, module: str) -> View | None:
    """The view of an id (without a prefix such as ``Jumanji/``) of a module of envpool; None where there is none."""
    if module == "envpool.minigrid":
        return _MINIGRID
    if module == "envpool.pgx":
        return View(f"{name.rsplit('-', 1)[0]}, both players in turn", "the number of a legal action", _pgx)
    return VIEWS.get(name.rsplit("/", 1)[-1])

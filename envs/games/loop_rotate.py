"""Loop and rotate: turn the pieces of pipe until no end is open."""

import dataclasses
import functools

from envs.api import Action, ActionSpec, Argument
from envs.games.core import Chance, Game, IllegalError, table

# Level -> rows and columns. The last one goes on for ever.
LEVELS = ((2, 3), (3, 3), (3, 3), (3, 4), (4, 4), (4, 4), (4, 5), (5, 5))
FILLED = 62  # per cent of the borders between cells that pipe crosses
# A piece is a sum of its open sides, clockwise from the top; side -> rows, columns to the neighbour.
SIDES = {1: (-1, 0), 2: (0, 1), 4: (1, 0), 8: (0, -1)}
SHAPES = " ╵╶└╷│┌├╴┘─┴┐┤┬┼"  # by that sum
Board = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class State:
    """A level and its pieces of pipe."""

    seed: int
    level: int  # levels solved so far
    board: Board  # for each cell, the sum of its open sides: 1 top, 2 right, 4 bottom, 8 left; 0 without pipe
    first_open: int  # open ends that the level began with


def turned(piece: int) -> int:
    """A piece after a quarter turn clockwise."""
    return (piece << 1 | piece >> 3) & 15


def open_sides(board: Board) -> Board:
    """For each cell, the sum of the sides at which its pipe meets no other."""

    def cell(r: int, c: int) -> int:
        found = 0
        for side, (dr, dc) in SIDES.items():
            inside = 0 <= r + dr < len(board) and 0 <= c + dc < len(board[0])
            if board[r][c] & side and not (inside and board[r + dr][c + dc] & turned(turned(side))):
                found |= side
        return found

    return tuple(tuple(cell(r, c) for c in range(len(row))) for r, row in enumerate(board))


def open_ends(board: Board) -> int:
    """Ends of pipe that no other end meets."""
    return sum(sides.bit_count() for row in open_sides(board) for sides in row)


@functools.lru_cache(maxsize=512)
def level(seed: int, number: int) -> tuple[Board, Board]:
    """The board of a level, and a board of the same pieces that is solved."""
    rows, columns = LEVELS[min(number, len(LEVELS) - 1)]
    for attempt in range(1000):
        chance = Chance("loop-rotate", seed, number, attempt)
        cells = [[0] * columns for _ in range(rows)]
        for r in range(rows):
            for c in range(columns):
                for side in (2, 4):
                    dr, dc = SIDES[side]
                    if r + dr < rows and c + dc < columns and chance.below(100) < FILLED:
                        cells[r][c] |= side
                        cells[r + dr][c + dc] |= turned(turned(side))
        solved = tuple(map(tuple, cells))
        mixed = tuple(tuple(_spun(piece, chance.below(4)) for piece in row) for row in solved)
        if 4 * sum(map(bool, sum(solved, ()))) >= 3 * rows * columns and open_ends(mixed) >= rows * columns // 2:
            return mixed, solved
    raise AssertionError(f"no level for seed {seed}, number {number}")


def _spun(piece: int, turns: int) -> int:
    for _ in range(turns):
        piece = turned(piece)
    return piece


def start(seed: int, first: int = 0) -> State:
    """The first level."""
    board, _ = level(seed, first)
    return State(seed, first, board, open_ends(board))


def play(state: State, action: Action) -> State:
    """Turns a piece clockwise."""
    r, c = action.arguments["row"] - 1, action.arguments["column"] - 1
    board = state.board
    if not (0 <= r < len(board) and 0 <= c < len(board[0])):
        raise IllegalError(f"there is no cell {r + 1}, {c + 1}: the board has {len(board)} rows and {len(board[0])} columns")
    piece = turned(board[r][c])
    if piece == board[r][c]:
        raise IllegalError(f"there is {'a cross' if piece else 'no pipe'} at {r + 1}, {c + 1}: a turn changes nothing")
    row = (*board[r][:c], piece, *board[r][c + 1 :])
    board = (*board[:r], row, *board[r + 1 :])
    if not open_ends(board):
        return start(state.seed, state.level + 1)
    return dataclasses.replace(state, board=board)


def legal(state: State) -> list[Action]:
    """The pieces that look different after a turn."""
    return [
        Action("rotate", {"row": r + 1, "column": c + 1})
        for r, row in enumerate(state.board)
        for c, piece in enumerate(row)
        if turned(piece) != piece
    ]


def score(state: State) -> float:
    """Levels solved, and the share of the open ends of this one that are closed."""
    return state.level + max(0.0, 1 - open_ends(state.board) / state.first_open)


def draw(state: State) -> str:
    """The pieces as lines."""
    board = table([[SHAPES[piece] for piece in row] for row in state.board])
    return f"Level {state.level + 1}, open ends {open_ends(state.board)}\n\n{board}"


def oracle(state: State) -> Action:
    """Turns the first piece that stands otherwise than in the stored solution."""
    _, solved = level(state.seed, state.level)
    for r, (row, goal) in enumerate(zip(state.board, solved, strict=True)):
        for c, (piece, wanted) in enumerate(zip(row, goal, strict=True)):
            if piece != wanted:
                return Action("rotate", {"row": r + 1, "column": c + 1})
    raise ValueError("this board is solved")


CELL = (Argument("row", "int", low=1), Argument("column", "int", low=1))
GAME = Game(
    name="loop-rotate",
    title="Loop and rotate",
    goal="Turn the pieces of pipe until every end meets an end of the neighbour and none is open. Then the next level begins.",
    legend="Lines are pieces of pipe, blanks are empty cells. rotate(row, column) gives a piece a quarter turn clockwise; rows "
    "and columns count from 1.",
    actions=(ActionSpec("rotate", CELL, "a quarter turn clockwise of the piece in this cell; rows and columns count from 1"),),
    success=1.0,
    state=State,
    start=start,
    play=play,
    legal=legal,
    score=score,
    over=lambda state: False,
    draw=draw,
    oracle=oracle,
)

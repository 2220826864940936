"""Slide and merge: push all tiles of a 4 x 4 board to one side; equal tiles that meet become one of twice the value."""

import dataclasses
import functools
import itertools

from envs.api import Action
from envs.games.core import DIRECTIONS, MOVE, Game, IllegalError, draw_below, first_rng, table

SIZE = 4
FOURS = 10  # one new tile in so many is a 4
AHEAD = 2  # moves that the oracle looks ahead
Board = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class State:
    """A board, the score so far, and the random state of the tiles to come."""

    board: Board  # values of the tiles, 0 where there is none
    score: int  # sum of the tiles that merges made
    rng: int


@functools.lru_cache(maxsize=1 << 16)
def merge_left(row: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """A row pushed to the left, and the sum of the tiles made. A tile that was just made does not merge again."""
    made, waiting = 0, 0
    kept: list[int] = []
    for tile in row:
        if not tile:
            continue
        if tile == waiting:
            kept[-1] *= 2
            made += kept[-1]
            waiting = 0
        else:
            kept.append(tile)
            waiting = tile
    return (*kept, *(0 for _ in range(len(row) - len(kept)))), made


def slide(board: Board, direction: str) -> tuple[Board, int]:
    """The board pushed to a side, before a new tile comes, and the sum of the tiles made."""
    lines = board if direction in ("left", "right") else tuple(zip(*board, strict=True))
    back = direction in ("right", "down")
    moved = [merge_left(line[::-1] if back else line) for line in lines]
    result = tuple(line[::-1] if back else line for line, _ in moved)
    return (result if direction in ("left", "right") else tuple(zip(*result, strict=True))), sum(made for _, made in moved)


def _spawned(board: Board, rng: int) -> tuple[Board, int]:
    free = [(r, c) for r in range(SIZE) for c in range(SIZE) if not board[r][c]]
    rng, which = draw_below(rng, len(free))
    rng, kind = draw_below(rng, FOURS)
    return _with(board, *free[which], 4 if kind == 0 else 2), rng


def _with(board: Board, row: int, column: int, tile: int) -> Board:
    line = board[row]
    return (*board[:row], (*line[:column], tile, *line[column + 1 :]), *board[row + 1 :])


def start(seed: int, level: int = 0) -> State:
    """An empty board with two tiles."""
    board: Board = ((0,) * SIZE,) * SIZE
    board, rng = _spawned(board, first_rng("slide-merge", seed))
    board, rng = _spawned(board, rng)
    return State(board, 0, rng)


def play(state: State, action: Action) -> State:
    """Pushes the board and adds a tile."""
    direction = action.arguments["direction"]
    board, made = slide(state.board, direction)
    if board == state.board:
        raise IllegalError(f"no tile can move {direction}")
    board, rng = _spawned(board, state.rng)
    return State(board, state.score + made, rng)


def legal(state: State) -> list[Action]:
    """The sides to which something can move."""
    return [Action("move", {"direction": way}) for way in DIRECTIONS if slide(state.board, way)[0] != state.board]


def draw(state: State) -> str:
    """The board with dots for empty cells."""
    board = table([[tile or "." for tile in row] for row in state.board], labels=False)
    return f"Score {state.score}\n\n{board}"


def oracle(state: State) -> Action:
    """The best of the moves by expected value, some moves ahead, of the score made and the order of the board."""
    moves = legal(state)
    return max(moves, key=lambda move: _after(state.board, move.arguments["direction"], AHEAD)) if moves else Action("move")


def _after(board: Board, direction: str, ahead: int) -> float:
    pushed, made = slide(board, direction)
    free = [(r, c) for r in range(SIZE) for c in range(SIZE) if not pushed[r][c]]
    if ahead == 1 or not free:
        return made + _worth(pushed)
    chosen = free[:: max(1, len(free) // 4)]  # a few of the cells where the next tile may come
    return made + sum(_best(_with(pushed, r, c, 2), ahead - 1) for r, c in chosen) / len(chosen)


def _best(board: Board, ahead: int) -> float:
    values = [_after(board, way, ahead) for way in DIRECTIONS if slide(board, way)[0] != board]
    return max(values, default=-10000.0)


def _worth(board: Board) -> float:
    return sum(_line_worth(line) for line in board) + sum(_line_worth(line) for line in zip(*board, strict=True))


@functools.lru_cache(maxsize=1 << 16)
def _line_worth(line: tuple[int, ...]) -> float:
    ranks = [tile.bit_length() for tile in line]
    up = sum(max(0, b**3 - a**3) for a, b in itertools.pairwise(ranks))
    down = sum(max(0, a**3 - b**3) for a, b in itertools.pairwise(ranks))
    return 12.0 * line.count(0) - 0.1 * min(up, down)


GAME = Game(
    name="slide-merge",
    title="Slide and merge",
    goal="Push the tiles so that equal ones meet: two become one of twice the value, which is added to the score. "
    "A new tile, 2 or sometimes 4, comes after each move. The game ends when nothing can move.",
    legend="Numbers are tiles, dots are empty cells. move(direction) pushes all tiles up, down, left or right.",
    actions=(dataclasses.replace(MOVE, about="pushes all tiles to that side; equal tiles that meet merge"),),
    success=1000.0,
    state=State,
    start=start,
    play=play,
    legal=legal,
    score=lambda state: float(state.score),
    over=lambda state: not legal(state),
    draw=draw,
    oracle=oracle,
    levels=False,
)

"""Gem rise: equal gems that touch melt into one of the next rank, up to rank 11, while new gems rise from below."""

import dataclasses
import functools
from collections.abc import Iterator

from envs.api import Action, ActionSpec
from envs.games.core import Game, IllegalError, draw_below, first_rng, table
from envs.games.loop_rotate import CELL

ROWS, COLUMNS = 7, 5
FILLED = 2  # rows of gems at the start
LAST = 11  # the rank that ends the game
RANKS = (1, 1, 1, 2, 2, 3)  # of new gems, each as likely as the next
AHEAD = 2  # melts that the oracle looks beyond the next one
Board = tuple[tuple[int, ...], ...]  # columns from the left, each from the bottom up, without empty cells
Cell = tuple[int, int]  # column, height


@dataclasses.dataclass(frozen=True)
class State:
    """The gems, and what is to come."""

    board: Board
    next: int  # rank of the gem that rises after the next melt
    best: int  # the highest rank that was made; 0 before the first melt
    full: bool  # whether gems rose over the edge
    rng: int


def group(board: Board, cell: Cell) -> frozenset[Cell]:
    """The gems of one rank that hang together with this one."""
    rank, found, todo = board[cell[0]][cell[1]], {cell}, [cell]
    while todo:
        column, height = todo.pop()
        for near in ((column - 1, height), (column + 1, height), (column, height - 1), (column, height + 1)):
            c, h = near
            if near not in found and 0 <= c < COLUMNS and 0 <= h < len(board[c]) and board[c][h] == rank:
                found.add(near)
                todo.append(near)
    return frozenset(found)


def melt(board: Board, cell: Cell, together: frozenset[Cell]) -> Board:
    """The group becomes one gem of the next rank at the cell; what lies above falls."""
    rank = board[cell[0]][cell[1]]
    return tuple(
        tuple(rank + 1 if (c, h) == cell else gem for h, gem in enumerate(column) if (c, h) == cell or (c, h) not in together)
        for c, column in enumerate(board)
    )


def raised(board: Board, column: int, gem: int) -> Board:
    """The board with a gem that came from below."""
    return (*board[:column], (gem, *board[column]), *board[column + 1 :])


def _drawn(rng: int) -> tuple[int, int]:
    rng, which = draw_below(rng, len(RANKS))
    return rng, RANKS[which]


def _row(state: State) -> State:
    """A new gem in each column."""
    board, rng = state.board, state.rng
    for column in range(COLUMNS):
        rng, gem = _drawn(rng)
        board = raised(board, column, gem)
    return _cut(dataclasses.replace(state, board=board, rng=rng))


def _cut(state: State) -> State:
    """What rose over the edge is gone, and the game over."""
    full = any(len(column) > ROWS for column in state.board)
    return dataclasses.replace(state, board=tuple(column[:ROWS] for column in state.board), full=full)


def start(seed: int, level: int = 0) -> State:
    """A board with a few rows."""
    rng, gem = _drawn(first_rng("gem-rise", seed))
    state = State(((),) * COLUMNS, gem, 0, False, rng)
    for _ in range(FILLED):
        state = _row(state)
    return state


def play(state: State, action: Action) -> State:
    """Melts a group, after which the next gem rises in the melt's column; or lets a whole row rise."""
    if over(state):
        raise IllegalError("the game is over")
    if action.name == "rise":
        return _row(state)
    row, column = action.arguments["row"], action.arguments["column"]
    c, h = column - 1, ROWS - row
    if not (0 <= c < COLUMNS and 0 <= h < len(state.board[c])):
        raise IllegalError(f"there is no gem at row {row}, column {column}")
    together = group(state.board, (c, h))
    if len(together) < 2:
        raise IllegalError(f"the gem at row {row}, column {column} touches none of its rank")
    board = raised(melt(state.board, (c, h), together), c, state.next)
    rng, gem = _drawn(state.rng)
    return _cut(State(board, gem, max(state.best, state.board[c][h] + 1), False, rng))


def legal(state: State) -> list[Action]:
    """The gems that touch one of their rank, and a rise."""
    if over(state):
        return []
    cells = [(c, h) for h in range(ROWS - 1, -1, -1) for c in range(COLUMNS) if h < len(state.board[c])]
    found = [(c, h) for c, h in cells if len(group(state.board, (c, h))) > 1]
    return [*(Action("melt", {"row": ROWS - h, "column": c + 1}) for c, h in found), Action("rise", {})]


def score(state: State) -> float:
    """The highest rank that was made."""
    return float(state.best)


def over(state: State) -> bool:
    """Whether gems rose over the edge, or one of the last rank was made."""
    return state.full or state.best >= LAST


def rows(board: Board) -> list[list[int]]:
    """The board as rows from the top, 0 where there is no gem."""
    return [[column[h] if h < len(column) else 0 for column in board] for h in range(ROWS - 1, -1, -1)]


def draw(state: State) -> str:
    """The gems by rank, dots above them."""
    board = table([[gem or "." for gem in row] for row in rows(state.board)])
    return f"Highest rank made {state.best or 'none yet'}, next gem {state.next}\n\n{board}"


def oracle(state: State) -> Action:
    """The melt after which the board is worth most, some melts beyond it without what rises meanwhile; else a rise."""
    ways = [
        (_best(raised(melt(state.board, cell, together), cell[0], state.next), AHEAD), cell)
        for cell, together in _melts(state.board)
    ]
    if not ways:
        return Action("rise", {})
    _, (c, h) = max(ways)
    return Action("melt", {"row": ROWS - h, "column": c + 1})


def _melts(board: Board) -> Iterator[tuple[Cell, frozenset[Cell]]]:
    """Every cell that can melt, with its group."""
    seen: set[Cell] = set()
    for c, column in enumerate(board):
        for h in range(len(column)):
            if (c, h) not in seen:
                together = group(board, (c, h))
                seen |= together
                if len(together) > 1:
                    yield from ((cell, together) for cell in sorted(together))


def _best(board: Board, ahead: int) -> float:
    values = [_worth(board)]
    if ahead:
        values += [_best(melt(board, cell, together), ahead - 1) for cell, together in _melts(board)]
    return max(values)


@functools.lru_cache(maxsize=1 << 14)
def _worth(board: Board) -> float:
    """High ranks, close to their like; low stacks, and none over the edge."""
    value = -1000.0 * any(len(column) > ROWS for column in board)
    for c, column in enumerate(board):
        value -= 1.5 * max(0, len(column) - 3) ** 2
        for h, gem in enumerate(column):
            value += 1.9**gem
            near = [column[h + 1]] if h + 1 < len(column) else []
            if c + 1 < COLUMNS and h < len(board[c + 1]):
                near.append(board[c + 1][h])
            value -= sum(0.8 * abs(gem - other) for other in near)
    return value


GAME = Game(
    name="gem-rise",
    title="Gem rise",
    goal="Melt gems of one rank that touch into a gem of the next rank. The next gem then rises from below in that column. The "
    "game ends when gems rise over the edge, or with a gem of rank 11. The score is the highest rank made.",
    legend="Numbers are ranks, dots are empty cells. melt(row, column) melts the gem there with all of its rank that it hangs "
    "together with, into that cell; rise() lets a whole row rise. Rows count from 1 at the top, columns from 1 at the left.",
    actions=(
        ActionSpec("melt", CELL, "melts the gem in this cell with all of its rank that it hangs together with"),
        ActionSpec("rise", (), "lets a whole row of new gems rise from below"),
    ),
    success=6.0,
    state=State,
    start=start,
    play=play,
    legal=legal,
    score=score,
    over=over,
    draw=draw,
    oracle=oracle,
    levels=False,
)

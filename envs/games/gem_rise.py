"""Gem rise: equal gems that touch melt into one of the next rank, while new gems rise from below, up to rank 11."""

import dataclasses
import functools

from envs.api import Action, ActionSpec
from envs.games.core import Game, IllegalError, draw_below, first_rng, table
from envs.games.loop_rotate import CELL

ROWS, COLUMNS = 7, 5
FILLED = 2  # rows of gems at the start
RISING = 1  # columns that get a gem from below after each melt
LAST = 11  # the rank that ends the game
RANKS = (1, 1, 1, 2, 2, 3)  # of new gems, each as likely as the next
AHEAD = 2  # melts that the oracle looks ahead
Board = tuple[tuple[int, ...], ...]  # columns from the left, each from the bottom up, without empty cells
Cell = tuple[int, int]  # column, height


@dataclasses.dataclass(frozen=True)
class State:
    """The gems, the highest rank that was made, whether they rose over the edge, and the random state of those to come."""

    board: Board
    best: int  # 0 before the first melt
    full: bool
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


def _risen(board: Board, columns: list[int], best: int, rng: int) -> State:
    """A new gem from below in each of these columns."""
    result = list(board)
    for column in columns:
        rng, which = draw_below(rng, len(RANKS))
        result[column] = (RANKS[which], *result[column])
    full = any(len(column) > ROWS for column in result)
    return State(tuple(column[:ROWS] for column in result), best, full, rng)


def start(seed: int, level: int = 0) -> State:
    """A board filled halfway."""
    state = State(((),) * COLUMNS, 0, False, first_rng("gem-rise", seed))
    for _ in range(FILLED):
        state = _risen(state.board, list(range(COLUMNS)), 0, state.rng)
    return state


def play(state: State, action: Action) -> State:
    """Melts a group, after which some gems rise; or lets a whole row rise."""
    if over(state):
        raise IllegalError("the game is over")
    if action.name == "rise":
        return _risen(state.board, list(range(COLUMNS)), state.best, state.rng)
    row, column = action.arguments["row"], action.arguments["column"]
    c, h = column - 1, ROWS - row
    if not (0 <= c < COLUMNS and 0 <= h < len(state.board[c])):
        raise IllegalError(f"there is no gem at row {row}, column {column}")
    together = group(state.board, (c, h))
    if len(together) < 2:
        raise IllegalError(f"the gem at row {row}, column {column} touches none of its rank")
    board, rng, columns = melt(state.board, (c, h), together), state.rng, list(range(COLUMNS))
    for _ in range(RISING):
        rng, which = draw_below(rng, len(columns))
        columns.pop(which)
    best = max(state.best, state.board[c][h] + 1)
    return _risen(board, sorted(set(range(COLUMNS)) - set(columns)), best, rng)


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
    return f"Highest rank made {state.best or 'none yet'}\n\n{board}"


def oracle(state: State) -> Action:
    """The melt after which the board is worth most, some melts ahead without what rises meanwhile; else a rise."""
    ways = [move for move in legal(state) if move.name == "melt"]
    if not ways:
        return Action("rise", {})

    def value(move: Action) -> float:
        cell = (move.arguments["column"] - 1, ROWS - move.arguments["row"])
        return _best(melt(state.board, cell, group(state.board, cell)), AHEAD - 1)

    return max(ways, key=value)


def _best(board: Board, ahead: int) -> float:
    values = [_worth(board)]
    if ahead:
        seen: set[Cell] = set()
        for c, column in enumerate(board):
            for h in range(len(column)):
                together = group(board, (c, h))
                if len(together) > 1 and (c, h) not in seen:
                    values += [_best(melt(board, cell, together), ahead - 1) for cell in together]
                    seen |= together
    return max(values)


@functools.lru_cache(maxsize=1 << 14)
def _worth(board: Board) -> float:
    """High ranks, close to their like; low stacks."""
    value = 0.0
    for c, column in enumerate(board):
        value -= 1.5 * max(0, len(column) - 3) ** 2
        for h, gem in enumerate(column):
            value += 1.9**gem
            near = [column[h + 1]] if h + 1 < len(column) else []
            if c + 1 < COLUMNS and h < len(board[c + 1]):
                near.append(board[c + 1][h])
            value -= sum(0.3 * abs(gem - other) for other in near)
    return value


GAME = Game(
    name="gem-rise",
    title="Gem rise",
    goal="Melt gems of one rank that touch into a gem of the next rank. New gems rise from below after each melt; the game "
    "ends when they rise over the edge, or with a gem of rank 11. The score is the highest rank made.",
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

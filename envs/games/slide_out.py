"""Slide out: bars in a yard move only lengthwise; clear the way so that the key bar leaves through the gate on the right."""

import dataclasses
import functools

from envs.api import Action, ActionSpec, Argument
from envs.games.core import Chance, Game, IllegalError
from envs.games.yards import (
    FEWEST,
    GATE,
    HARDEST,
    KEY,
    SIZE,
    Board,
    distances,
    key_of,
    parse,
    slid,
    slides,
    starts,
    stored,
    written,
)


@dataclasses.dataclass(frozen=True)
class State:
    """A level and its yard: letters are bars, K the key bar, dots free cells."""

    seed: int
    level: int  # levels solved so far
    board: Board
    start: int  # column where the key bar stood first


@functools.lru_cache(maxsize=512)
def level(seed: int, number: int) -> tuple[Board, int]:
    """The yard of a level, and the fewest slides that solve it: one more with each level, from `FEWEST` to `HARDEST`."""
    wanted = min(FEWEST + number, HARDEST)
    chance = Chance("slide-out", seed, number)
    _, _, board = chance.choice(stored())
    return written(parse(board)[0], chance.choice(starts(board, wanted))), wanted


def start(seed: int, first: int = 0) -> State:
    """The first level."""
    board, _ = level(seed, first)
    return State(seed, first, board, board[GATE].index(KEY))


def play(state: State, action: Action) -> State:
    """Slides a bar along its line."""
    piece, cells = action.arguments["piece"].upper(), action.arguments["cells"]
    bars, places = parse(state.board)
    which = next((index for index, bar in enumerate(bars) if bar[0] == piece), None)
    if which is None:
        raise IllegalError(f"there is no bar {piece[:8]!r}; there are {', '.join(bar[0] for bar in bars)}")
    to = places[which] + cells
    if (which, to) not in slides(bars, places):
        raise IllegalError(f"{piece} can't slide {cells} cells: {'something is in the way' if cells else 'that is no move'}")
    places = slid(places, (which, to))
    if piece == KEY and to + bars[which][3] == SIZE:
        return start(state.seed, state.level + 1)
    return dataclasses.replace(state, board=written(bars, places))


def legal(state: State) -> list[Action]:
    """Every slide."""
    bars, places = parse(state.board)
    return [Action("slide", {"piece": bars[which][0], "cells": to - places[which]}) for which, to in slides(bars, places)]


def score(state: State) -> float:
    """Levels solved, and the share of the key bar's way in this one."""
    done = state.board[GATE].index(KEY) - state.start
    return state.level + max(0.0, done / (SIZE - state.board[GATE].count(KEY) - state.start))


def draw(state: State) -> str:
    """The yard in a fence, with the gate."""
    rows = [f"# {' '.join(row)} {'>' if r == GATE else '#'}" for r, row in enumerate(state.board)]
    fence = "#" * (2 * SIZE + 3)
    return "\n".join([f"Level {state.level + 1}", "", fence, *rows, fence])


def oracle(state: State) -> Action:
    """A slide of a shortest solution."""
    bars, places = parse(state.board)
    far, key = distances(*parse(level(state.seed, state.level)[0])), key_of(bars)
    best = min(slides(bars, places), key=lambda slide: (far[slid(places, slide)], slide[0] != key))
    return Action("slide", {"piece": bars[best[0]][0], "cells": best[1] - places[best[0]]})


GAME = Game(
    name="slide-out",
    title="Slide out",
    goal="Slide the bars out of the way so that the key bar K reaches the gate on the right. Then the next level begins.",
    legend="Letters are bars, K is the key bar, dots are free cells, > is the gate. slide(piece, cells) moves a bar along its "
    "length: right or down for a positive number of cells, left or up for a negative one.",
    actions=(
        ActionSpec(
            "slide",
            (Argument("piece", "text"), Argument("cells", "int", low=-SIZE, high=SIZE)),
            "moves a bar along its length: right or down for a positive number of cells, left or up for a negative one",
        ),
    ),
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

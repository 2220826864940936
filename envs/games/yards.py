"""The yards of slide-out: bars in a square, every position they can reach, and how far each is from the way out.

Most random yards are too easy or too large. Those worth playing are in ``yards.txt``, one a line: the number of the draw, the
most slides that a position of it needs, and its six rows. ``python -m envs.games.yards 200`` prints the file anew.
"""

import functools
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from envs.games.core import Chance

SIZE = 6
GATE = 2  # the row of the key bar and the gate
KEY = "K"
NAMES = "ABCDEFGHIJLMNOP"  # of the other bars
REACHED = 800  # positions of a yard at most
FEWEST = 4  # slides from which on positions are starts
HARDEST = 9  # slides from which on a yard is kept
BARS = (9, 10, 11, 12)  # beside the key bar, at most
Board = tuple[str, ...]
Bars = tuple[tuple[str, bool, int, int], ...]  # name, lies across, line that it moves along, length
Places = tuple[int, ...]  # of each bar along its line


def parse(board: Board) -> tuple[Bars, Places]:
    """The bars of a yard, in order of their names, and where they stand."""
    cells: dict[str, list[tuple[int, int]]] = {}
    for r, row in enumerate(board):
        for c, name in enumerate(row):
            if name != ".":
                cells.setdefault(name, []).append((r, c))
    bars, places = [], []
    for name, covered in sorted(cells.items()):
        across = covered[0][0] == covered[-1][0]
        bars.append((name, across, covered[0][0 if across else 1], len(covered)))
        places.append(covered[0][1 if across else 0])
    return tuple(bars), tuple(places)


def written(bars: Bars, places: Places) -> Board:
    """The yard with the bars at their places."""
    rows = [["."] * SIZE for _ in range(SIZE)]
    for (name, across, line, length), place in zip(bars, places, strict=True):
        for at in range(place, place + length):
            rows[line if across else at][at if across else line] = name
    return tuple("".join(row) for row in rows)


@functools.lru_cache(maxsize=256)
def _masks(bars: Bars) -> list[list[int]]:
    """For each bar and place, its cells as bits."""
    return [
        [
            sum(1 << (line * SIZE + at if across else at * SIZE + line) for at in range(place, place + length))
            for place in range(SIZE - length + 1)
        ]
        for _, across, line, length in bars
    ]


def slides(bars: Bars, places: Places) -> list[tuple[int, int]]:
    """Every slide: which bar, to which place."""
    masks, full = _masks(bars), 0
    for mask, place in zip(masks, places, strict=True):
        full |= mask[place]
    found = []
    for which, (mask, place) in enumerate(zip(masks, places, strict=True)):
        rest = full & ~mask[place]
        for way in (-1, 1):
            to = place + way
            while 0 <= to < len(mask) and not mask[to] & rest:
                found.append((which, to))
                to += way
    return found


def slid(places: Places, slide: tuple[int, int]) -> Places:
    """The places after a slide."""
    return (*places[: slide[0]], slide[1], *places[slide[0] + 1 :])


@functools.lru_cache(maxsize=16)
def distances(bars: Bars, places: Places) -> dict[Places, int]:
    """For every position that can be reached, the fewest slides that bring the key bar to the gate.

    Empty where there are more than `REACHED` positions, or no way out. Slides can be undone: one search finds the positions,
    another, from all that are at the gate, the distances.
    """
    key = key_of(bars)
    nexts: dict[Places, list[Places]] = {}
    todo = [places]
    while todo:
        here = todo.pop()
        if here in nexts:
            continue
        nexts[here] = [slid(here, slide) for slide in slides(bars, here)]
        if len(nexts) > REACHED:
            return {}
        todo += (there for there in nexts[here] if there not in nexts)
    layer = sorted(here for here in nexts if here[key] == SIZE - bars[key][3])
    far = dict.fromkeys(layer, 0)
    while layer:
        following = []
        for here in layer:
            for there in nexts[here]:
                if there not in far:
                    far[there] = far[here] + 1
                    following.append(there)
        layer = following
    return far


def key_of(bars: Bars) -> int:
    """Which bar is the key bar."""
    return next(index for index, bar in enumerate(bars) if bar[0] == KEY)


def starts(board: Board, wanted: int) -> list[Places]:
    """The positions of a yard that need so many slides, with the key bar in the left half."""
    bars, places = parse(board)
    key = key_of(bars)
    return sorted(here for here, far in distances(bars, places).items() if far == wanted and here[key] <= 2)


def drawn(number: int) -> Board:
    """A random yard. No other bar lies across in the key bar's row: it could never be passed."""
    chance = Chance("yard", number)
    count = chance.choice(BARS)
    board = [["."] * SIZE for _ in range(SIZE)]
    board[GATE][:2] = [KEY, KEY]
    names = iter(NAMES)
    for _ in range(4 * count):
        across, length = chance.below(2) == 0, 2 if chance.below(3) else 3
        line, place = chance.below(SIZE), chance.below(SIZE - length + 1)
        cells = [(line, at) if across else (at, line) for at in range(place, place + length)]
        if (across and line == GATE) or any(board[r][c] != "." for r, c in cells):
            continue
        name = next(names)
        for r, c in cells:
            board[r][c] = name
        count -= 1
        if not count:
            break
    return tuple("".join(row) for row in board)


def kept(first: int = 0) -> Iterator[tuple[int, int, Board]]:
    """The yards worth playing from a draw on, as number of the draw, slides of its hardest position, and rows; without end."""
    for number in itertools.count(first):
        board = drawn(number)
        far = distances(*parse(board))
        hardest = max(far.values(), default=0)
        if hardest >= HARDEST and all(starts(board, wanted) for wanted in range(FEWEST, HARDEST + 1)):
            yield number, hardest, board


@functools.cache
def stored() -> tuple[tuple[int, int, Board], ...]:
    """What `kept` found, read from the file."""
    lines = Path(__file__).with_name("yards.txt").read_text().split("\n")
    rows = [line.split() for line in lines if line]
    return tuple((int(row[0]), int(row[1]), tuple(row[2:])) for row in rows)


if __name__ == "__main__":
    for number, hardest, board in itertools.islice(kept(), int(sys.argv[1])):
        print(number, hardest, *board, flush=True)

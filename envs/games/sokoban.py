"""Sokoban: push every box onto a target. Levels grow from backward moves, so that a shortest solution is known."""

import dataclasses
import functools

from envs.api import Action, ActionSpec
from envs.games.core import DIRECTIONS, MOVE, Chance, Game, IllegalError

Cell = tuple[int, int]
Board = tuple[str, ...]
Node = tuple[Cell, frozenset[Cell]]  # the player and the boxes
# Level -> rows and columns with walls, boxes, and moves of its shortest solution at most. The last one goes on for ever.
LEVELS = ((6, 6, 1, 6), (6, 6, 1, 9), (6, 6, 2, 12), (7, 7, 2, 15), (7, 7, 2, 19), (7, 7, 3, 22), (7, 8, 3, 26))
REACHED = 12000  # states that a generator looks at before it takes the furthest
SEARCHED = 200000  # states that the solver looks at before it gives up
MARKS = {(False, False): " ", (True, False): ".", (False, True): "$", (True, True): "*"}  # (target, box)


@dataclasses.dataclass(frozen=True)
class State:
    """A level and its board: # wall, @ player, $ box, . target, * box on a target, + player on a target."""

    seed: int
    level: int  # levels solved so far
    board: Board


@dataclasses.dataclass(frozen=True)
class Level:
    """A board and the moves that solve it in the fewest steps."""

    board: Board
    solution: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Room:
    """What does not move."""

    floor: frozenset[Cell]
    targets: frozenset[Cell]
    size: tuple[int, int]


def parse(board: Board) -> tuple[Room, Cell, frozenset[Cell]]:
    """The room, the player's cell and the boxes' cells."""
    cells = {(r, c): mark for r, row in enumerate(board) for c, mark in enumerate(row)}
    room = Room(
        frozenset(cell for cell, mark in cells.items() if mark != "#"),
        frozenset(cell for cell, mark in cells.items() if mark in ".*+"),
        (len(board), len(board[0])),
    )
    player = next(cell for cell, mark in cells.items() if mark in "@+")
    return room, player, frozenset(cell for cell, mark in cells.items() if mark in "$*")


def written(room: Room, player: Cell, boxes: frozenset[Cell]) -> Board:
    """The board of these positions."""
    rows, columns = room.size

    def mark(cell: Cell) -> str:
        if cell not in room.floor:
            return "#"
        if cell == player:
            return "+" if cell in room.targets else "@"
        return MARKS[cell in room.targets, cell in boxes]

    return tuple("".join(mark((r, c)) for c in range(columns)) for r in range(rows))


def push(room: Room, player: Cell, boxes: frozenset[Cell], direction: str) -> tuple[Cell, frozenset[Cell]] | None:
    """Player and boxes after a step, or None where a wall or a second box is in the way."""
    dr, dc = DIRECTIONS[direction]
    ahead, beyond = (player[0] + dr, player[1] + dc), (player[0] + 2 * dr, player[1] + 2 * dc)
    if ahead not in room.floor:
        return None
    if ahead not in boxes:
        return ahead, boxes
    if beyond not in room.floor or beyond in boxes:
        return None
    return ahead, boxes - {ahead} | {beyond}


@functools.lru_cache(maxsize=512)
def level(seed: int, number: int) -> Level:
    """The level of a seed, with its shortest solution."""
    rows, columns, count, longest = LEVELS[min(number, len(LEVELS) - 1)]
    for attempt in range(1000):
        chance = Chance("sokoban", seed, number, attempt)
        floor = _carved(chance, rows, columns)
        inner = sorted(floor)
        if len(inner) < 4 * count + 5:
            continue
        room = Room(frozenset(floor), frozenset(chance.shuffled(inner)[:count]), (rows, columns))
        if found := _furthest(room, longest, chance):
            return found
    raise AssertionError(f"no level for seed {seed}, number {number}")


def _carved(chance: Chance, rows: int, columns: int) -> set[Cell]:
    """Floor cut by a walk that opens little rooms where it turns."""
    r, c = rows // 2, columns // 2
    floor = {(r, c)}
    for _ in range(rows * columns // 4):
        dr, dc = chance.choice(list(DIRECTIONS.values()))
        for _ in range(1 + chance.below(2)):
            r, c = min(max(r + dr, 1), rows - 2), min(max(c + dc, 1), columns - 2)
            floor |= {(r, c), (min(r + 1, rows - 2), c)}
    return floor


def _furthest(room: Room, longest: int, chance: Chance) -> Level | None:
    """Goes backward from the solved room, all ways at once; a start furthest from it within the limit, with no box at home."""
    ends: list[Node] = [(cell, room.targets) for cell in sorted(room.floor - room.targets)]
    came: dict[Node, tuple[str, Node] | None] = dict.fromkeys(ends)
    layer: list[Node] = ends
    candidates: list[Node] = []
    for _ in range(longest):
        following: list[Node] = []
        for player, boxes in layer:
            for direction, (dr, dc) in DIRECTIONS.items():
                behind, ahead = (player[0] - dr, player[1] - dc), (player[0] + dr, player[1] + dc)
                if behind not in room.floor or behind in boxes:
                    continue
                befores = [(behind, boxes)] + ([(behind, boxes - {ahead} | {player})] if ahead in boxes else [])
                for before in befores:
                    if before not in came:
                        came[before] = (direction, (player, boxes))
                        following.append(before)
        if not following or len(came) > REACHED:
            break
        layer = following
        candidates = [node for node in layer if not node[1] & room.targets] or candidates
    if not candidates:
        return None
    node = chance.choice(candidates)
    board, solution = written(room, *node), []
    while step := came[node]:
        solution.append(step[0])
        node = step[1]
    return Level(board, tuple(solution)) if len(solution) >= longest // 2 else None


def solve(board: Board) -> tuple[str, ...] | None:
    """The fewest moves that solve a board; None where none do, or where the search grows too large."""
    room, player, boxes = parse(board)
    first = (player, boxes)
    came: dict[Node, tuple[str, Node] | None] = {first: None}
    layer = [first]
    while layer and len(came) < SEARCHED:
        following = []
        for node in layer:
            if node[1] == room.targets:
                moves = []
                while step := came[node]:
                    moves.append(step[0])
                    node = step[1]
                return tuple(reversed(moves))
            for direction in DIRECTIONS:
                after = push(room, *node, direction)
                if after and after not in came and not _stuck(room, after[1] - node[1]):
                    came[after] = (direction, node)
                    following.append(after)
        layer = following
    return None


def _stuck(room: Room, moved: frozenset[Cell]) -> bool:
    """Whether a box that was just pushed sits in a corner that is no target."""
    for r, c in moved - room.targets:
        upright = (r - 1, c) not in room.floor or (r + 1, c) not in room.floor
        if upright and ((r, c - 1) not in room.floor or (r, c + 1) not in room.floor):
            return True
    return False


def start(seed: int, first: int = 0) -> State:
    """The first level."""
    return State(seed, first, level(seed, first).board)


def play(state: State, action: Action) -> State:
    """A step or a push; or the level from its start."""
    if action.name == "restart":
        return State(state.seed, state.level, level(state.seed, state.level).board)
    direction = action.arguments["direction"]
    room, player, boxes = parse(state.board)
    after = push(room, player, boxes, direction)
    if after is None:
        raise IllegalError(f"the way {direction} is blocked")
    if after[1] == room.targets:
        return start(state.seed, state.level + 1)
    return State(state.seed, state.level, written(room, *after))


def legal(state: State) -> list[Action]:
    """The steps that are possible, and a restart."""
    room, player, boxes = parse(state.board)
    steps = [Action("move", {"direction": way}) for way in DIRECTIONS if push(room, player, boxes, way)]
    return [*steps, Action("restart", {})]


def score(state: State) -> float:
    """Levels solved, and the share of boxes on targets in this one."""
    text = "".join(state.board)
    return state.level + text.count("*") / (text.count("*") + text.count("$"))


def draw(state: State) -> str:
    """The board."""
    return f"Level {state.level + 1}\n\n" + "\n".join(state.board)


def oracle(state: State) -> Action:
    """The next move of a shortest solution; a restart where there is none any more."""
    known = level(state.seed, state.level)
    moves = known.solution if state.board == known.board else _rest(known, state.board)
    if moves is None:
        moves = solve(state.board)
    return Action("move", {"direction": moves[0]}) if moves else Action("restart", {})


def _rest(known: Level, board: Board) -> tuple[str, ...] | None:
    """What is left of the stored solution, where the board lies on its way."""
    room, player, boxes = parse(known.board)
    for done, direction in enumerate(known.solution):
        if written(room, player, boxes) == board:
            return known.solution[done:]
        step = push(room, player, boxes, direction)
        if step is None:
            return None
        player, boxes = step
    return None


GAME = Game(
    name="sokoban",
    title="Sokoban",
    goal="Push every box onto a target. Boxes can be pushed, one at a time, and never pulled. Then the next level begins.",
    legend="# wall, @ you, $ box, . target, * box on a target, + you on a target. move(direction) steps up, down, left or "
    "right and pushes the box there; restart() begins the level again.",
    actions=(
        dataclasses.replace(MOVE, about="a step to that side, which pushes a box"),
        ActionSpec("restart", (), "begins the level again"),
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

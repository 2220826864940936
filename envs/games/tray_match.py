"""Tray match: pick tiles from a pile into a tray of seven; three of a kind vanish, and a full tray ends the game."""

import dataclasses
import functools

from envs.api import Action, ActionSpec, Argument
from envs.games.core import Chance, Game, IllegalError

TRAY = 7
SET = 3  # of a kind that vanish
KINDS = "ABCDEFGHIJ"
TILES = (9, 12, 15, 18, 21, 24, 27)  # by level; the last one goes on for ever
HELD = (3, 4, 5, 5, 6, 6, 6)  # tiles in the tray at most along the stored solution, by level
COLUMNS, ROWS = 4, 4  # tiles side by side in the lowest layer
Tile = tuple[int, int, int, int, str]  # number, x, y (in half tiles), layer (0 lowest), kind


@dataclasses.dataclass(frozen=True)
class State:
    """A level, the tiles still in the pile, and the tray."""

    seed: int
    level: int  # levels solved so far
    tiles: tuple[Tile, ...]
    tray: tuple[str, ...]  # kinds, in order of the picks


def covers(upper: Tile, lower: Tile) -> bool:
    """Whether a tile lies on another."""
    return upper[3] > lower[3] and abs(upper[1] - lower[1]) < 2 and abs(upper[2] - lower[2]) < 2


def free(tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """The tiles that nothing covers."""
    return tuple(tile for tile in tiles if not any(covers(other, tile) for other in tiles))


@functools.lru_cache(maxsize=512)
def level(seed: int, number: int) -> tuple[tuple[Tile, ...], tuple[int, ...]]:
    """The pile of a level, and numbers of tiles in an order of picks that clears it.

    The order comes first, the kinds follow from it: each pick either completes a kind in the tray or opens one, so that the
    tray never holds more than the level's limit.
    """
    chance = Chance("tray-match", seed, number)
    count, held = TILES[min(number, len(TILES) - 1)], HELD[min(number, len(HELD) - 1)]
    pile: tuple[Tile, ...] = tuple((at, x, y, z, "") for at, (x, y, z) in enumerate(_places(chance, count)))
    order, rest = [], pile
    while rest:
        pick = chance.choice(free(rest))
        order.append(pick[0])
        rest = tuple(tile for tile in rest if tile != pick)
    kinds = dict(zip(order, _kinds(chance, count, held), strict=True))
    return tuple((at, x, y, z, kinds[at]) for at, x, y, z, _ in pile), tuple(order)


def _places(chance: Chance, count: int) -> list[tuple[int, int, int]]:
    """Places in layers that shrink upward, each half a tile aside of the one below; lowest first, row by row."""
    places: list[tuple[int, int, int]] = []
    layer = 0
    while len(places) < count:
        shift = layer % 2
        spots = [(2 * c + shift, 2 * r + shift, layer) for r in range(ROWS - shift) for c in range(COLUMNS - shift)]
        share = min(len(spots), max(3, (count - len(places)) // 2), count - len(places))
        places += sorted(chance.shuffled(spots)[:share], key=lambda spot: (spot[1], spot[0]))
        layer += 1
    return places


def _kinds(chance: Chance, count: int, held: int) -> list[str]:
    """Kinds in the order of the picks; at most `held` tiles wait in the tray after any pick."""
    bag = [KINDS[at % len(KINDS)] for at in range(count // SET)]  # one entry for three tiles
    bag = chance.shuffled(bag)
    tray: dict[str, int] = {}
    result = []
    for _ in range(count):
        waiting = sum(tray.values())
        closable = [kind for kind, number in tray.items() if number == SET - 1]
        continued = [*tray] if waiting < held else closable
        opened = [bag[-1]] if bag and bag[-1] not in tray and waiting + SET - 1 <= held else []
        kind = chance.choice([*opened, *opened, *continued] or [bag[-1]])
        if kind not in tray:
            tray[kind] = 0
            bag.pop()
        tray[kind] += 1
        if tray[kind] == SET:
            del tray[kind]
        result.append(kind)
    return result


def start(seed: int, first: int = 0) -> State:
    """The first level."""
    return State(seed, first, level(seed, first)[0], ())


def play(state: State, action: Action) -> State:
    """Picks a tile."""
    number = action.arguments["tile"]
    tile = next((tile for tile in state.tiles if tile[0] == number), None)
    if tile is None:
        raise IllegalError(f"there is no tile {number} in the pile")
    if above := [other[0] for other in state.tiles if covers(other, tile)]:
        raise IllegalError(f"tile {number} lies under {', '.join(map(str, above))}")
    tiles, tray = tuple(other for other in state.tiles if other != tile), (*state.tray, tile[4])
    if tray.count(tile[4]) == SET:
        tray = tuple(kind for kind in tray if kind != tile[4])
    if not tiles and not tray:
        return start(state.seed, state.level + 1)
    return dataclasses.replace(state, tiles=tiles, tray=tray)


def legal(state: State) -> list[Action]:
    """The tiles that can be picked."""
    return [] if over(state) else [Action("pick", {"tile": tile[0]}) for tile in free(state.tiles)]


def over(state: State) -> bool:
    """Whether the tray is full."""
    return len(state.tray) >= TRAY


def score(state: State) -> float:
    """Levels solved, and the share of the tiles of this one that vanished."""
    count = len(level(state.seed, state.level)[0])
    return state.level + (count - len(state.tiles) - len(state.tray)) / count


def draw(state: State) -> str:
    """The free tiles, what lies under them, and the tray."""
    top = free(state.tiles)
    names = "  ".join(f"{tile[0]}:{tile[4]}" for tile in top)
    lines = [f"Level {state.level + 1}, {len(state.tiles)} tiles in the pile", "", f"Free: {names}", "Covered:"]
    for tile in state.tiles:
        if tile not in top:
            above = ", ".join(str(other[0]) for other in state.tiles if covers(other, tile))
            lines.append(f"  {tile[0]}:{tile[4]} under {above}")
    if lines[-1] == "Covered:":
        lines[-1] += " none"
    slots = [*state.tray, *"." * (TRAY - len(state.tray))]
    return "\n".join([*lines, f"Tray: {' '.join(slots)}"])


def oracle(state: State) -> Action:
    """The next pick of the stored solution; off its way, one of the kind that needs the fewest picks to be complete."""
    tiles, order = level(state.seed, state.level)
    left = {tile[0] for tile in state.tiles}
    done = len(tiles) - len(left)
    if left == set(order[done:]):
        return Action("pick", {"tile": order[done]})
    return Action("pick", {"tile": _cheapest(state)})


def _cheapest(state: State) -> int:
    """The first pick towards the kind whose set takes the fewest picks, those of covering tiles included."""
    ways = []
    for kind in sorted({tile[4] for tile in state.tiles}):
        rest, picks = state.tiles, []
        for _ in range(SET - state.tray.count(kind)):
            under = [_cover(rest, tile) for tile in rest if tile[4] == kind]
            if under:
                chain = min(under, key=len)
                picks += chain
                rest = tuple(tile for tile in rest if tile not in chain)
        ways.append((len(picks), picks[0][0]))
    return min(ways)[1]


def _cover(tiles: tuple[Tile, ...], tile: Tile) -> list[Tile]:
    """A tile and all that must be picked before it, from the top down."""
    found = [tile]
    for lower in found:
        found += [other for other in tiles if covers(other, lower) and other not in found]
    return sorted(found, key=lambda one: (-one[3], one[0]))


GAME = Game(
    name="tray-match",
    title="Tray match",
    goal="Pick tiles into the tray, which has room for seven. Three of a kind vanish from it. Clear the pile and the next "
    "level begins; a full tray ends the game.",
    legend="A tile is number:kind; a covered one can't be picked. pick(tile) takes a free tile by its number into the tray.",
    actions=(ActionSpec("pick", (Argument("tile", "int", low=0),), "puts a free tile into the tray, by its number"),),
    success=4.0,
    state=State,
    start=start,
    play=play,
    legal=legal,
    score=score,
    over=over,
    draw=draw,
    oracle=oracle,
)

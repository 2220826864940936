"""What a page shows of a game's state, and what the player's keys, clicks and drags mean: no rule of a game is in its page."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from envs.actions import check_against
from envs.api import Action, Obs
from envs.base import decode as decode_action
from envs.games import gem_rise, loop_rotate, slide_out, tray_match
from envs.games.core import DIRECTIONS, Game, State
from envs.games.yards import GATE, parse
from jaxllm.errors import UserError

PITCH = 60  # pixels of a cell of slide-out
ARROWS = {f"Arrow{name.capitalize()}": name for name in DIRECTIONS}  # as the browser names these keys


@dataclasses.dataclass(frozen=True)
class Controls:
    """How a game is played on its page."""

    hint: str  # for the line at the bottom
    view: Callable[[State], dict[str, Any]]  # what the page draws
    figures: Callable[[State], list[tuple[str, str]]] = lambda state: []  # for the header, beside level and score
    buttons: tuple[tuple[str, str], ...] = ()  # an action without arguments, and the button's text
    arrows: bool = False  # whether the arrow keys are the action `move`
    letters: Mapping[str, str] = dataclasses.field(default_factory=dict)  # key -> an action without arguments


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What an event of the page means: a move of the game, another bar that is selected, or neither."""

    move: Action | None = None
    selected: str | None = None


def _yard(state: slide_out.State) -> dict[str, Any]:
    bars, places = parse(state.board)
    return {
        "pitch": PITCH,
        "gate": GATE,
        "bars": [
            {"name": name, "across": across, "length": length, "row": line if across else at, "column": at if across else line}
            for (name, across, line, length), at in zip(bars, places, strict=True)
        ],
    }


def _pile(state: tray_match.State) -> dict[str, Any]:
    free = tray_match.free(state.tiles)
    tiles = sorted(state.tiles, key=lambda tile: (tile[3], tile[2], tile[1]))
    return {
        "room": tray_match.TRAY,
        "tray": list(state.tray),
        "tiles": [
            {"number": tile[0], "x": tile[1], "y": tile[2], "layer": tile[3], "kind": tile[4], "free": tile in free}
            for tile in tiles
        ],
    }


def _pipes(state: loop_rotate.State) -> dict[str, Any]:
    return {"board": state.board, "open": loop_rotate.open_sides(state.board)}


CONTROLS = {
    "gem-rise": Controls(
        "Click a gem that touches one of its rank: they melt into it, and the next gem rises in its column.",
        lambda state: {"board": gem_rise.rows(state.board)},
        lambda state: [("Next", str(state.next))],
        (("rise", "Rise"),),
        letters={" ": "rise"},
    ),
    "loop-rotate": Controls("Click a piece to turn it. Join all the ends: red dots are open.", _pipes),
    "slide-merge": Controls("Arrow keys push all tiles. Equal tiles merge.", lambda state: {"board": state.board}, arrows=True),
    "slide-out": Controls("Drag bars along their length, or click one and press arrow keys. Bring the key to the gate.", _yard),
    "sokoban": Controls(
        "Arrow keys walk and push. Bring each box to a target. R: restart.",
        lambda state: {"board": state.board},
        buttons=(("restart", "Restart"),),
        arrows=True,
        letters={"r": "restart", "R": "restart"},
    ),
    "tray-match": Controls("Click free tiles. Three of a kind vanish from the tray; keep it from filling up.", _pile),
}


def view(game: Game, state: State, selected: str, refused: str) -> dict[str, Any]:
    """What the page is given to draw: JSON, without anything that the player may not know."""
    controls = CONTROLS[game.name]
    figures: list[tuple[str, str]] = [("Level", str(state.level + 1))] if game.levels else []
    score = game.score(state)
    figures += controls.figures(state)
    figures.append(("Score", f"{score:.2f}" if game.levels else f"{score:.0f}"))
    note = refused or ("Game over" if game.over(state) else controls.hint)
    return {
        "figures": figures,
        "note": note[:1].upper() + note[1:],
        "refused": bool(refused),
        "buttons": controls.buttons,
        "selected": selected,
        **controls.view(state),
    }


def meaning(game: Game, state: State, selected: str, event: Mapping[str, Any]) -> Meaning:
    """What an event of the page means. Events without a meaning are ignored."""
    controls = CONTROLS[game.name]
    if "key" in event:
        key = event["key"]
        if controls.arrows and key in ARROWS:
            return Meaning(Action("move", {"direction": ARROWS[key]}))
        if game.name == "slide-out" and key in ARROWS and selected:
            return Meaning(_pushed(state, selected, *DIRECTIONS[ARROWS[key]]))
        return Meaning(Action(controls.letters[key]) if key in controls.letters else None)
    try:
        action = decode_action(event["action"])
    except UserError:
        return Meaning()
    if game.name == "slide-out" and isinstance(action, Action):
        piece = str(action.arguments.get("piece", ""))
        down, right = (round(event[side] / PITCH) for side in ("dy", "dx"))
        return Meaning(_pushed(state, piece, down, right), piece) if down or right else Meaning(None, piece)
    if not event["same"] or not isinstance(action, Action):
        return Meaning()
    checked = check_against(action, game.actions)
    return Meaning(checked if isinstance(checked, Action) else None)


def _pushed(state: slide_out.State, piece: str, down: int, right: int) -> Action | None:
    """A slide so far as the bar's own direction and the others let it; one cell where nothing does, for the rules to refuse."""
    bar = next((bar for bar in parse(state.board)[0] if bar[0] == piece), None)
    cells = (right if bar[1] else down) if bar else 0
    if not cells:
        return None
    way = 1 if cells > 0 else -1
    possible = [
        move.arguments["cells"]
        for move in slide_out.legal(state)
        if move.arguments["piece"] == piece and 0 < move.arguments["cells"] * way <= abs(cells)
    ]
    return Action("slide", {"piece": piece, "cells": max(possible, key=abs, default=way)})


def played(move: Action, obs: Obs) -> Action:
    """The key, click or drag that does a move of the game on the page that is seen. Raises UserError where it is not shown."""
    arguments = move.arguments
    if move.name == "move":
        return Action("hotkey", {"key": arguments["direction"]})
    where = {"slide": "bar-{piece}", "pick": "tile-{tile}", "rotate": "cell-{row}-{column}", "melt": "cell-{row}-{column}"}
    wanted = where.get(move.name, move.name).format(**arguments)
    element = next((one for one in obs.elements if one.attributes.get("id") == wanted), None)
    if element is None:
        raise UserError(f"the page does not show {wanted}, which the move {move.name} needs")
    x1, y1, x2, y2 = element.box
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    if move.name != "slide":
        return Action("click", {"point": (x, y)})
    far = arguments["cells"] * PITCH
    across = x2 - x1 > y2 - y1
    return Action("drag", {"start_point": (x, y), "end_point": (x + far, y) if across else (x, y + far)})

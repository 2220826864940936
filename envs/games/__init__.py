"""Six puzzles with one core of rules each, in text (``games/sokoban``) or as a page in a browser (``games/sokoban-page``)."""

from collections.abc import Mapping
from typing import Any

from envs.api import Action, Env, EnvSpec, Obs, Policy
from envs.games import env, gem_rise, loop_rotate, slide_merge, slide_out, sokoban, tray_match, views
from envs.games.core import Game, decode
from jaxllm.errors import UserError

GAMES: dict[str, Game] = {
    module.GAME.name: module.GAME for module in (gem_rise, loop_rotate, slide_merge, slide_out, sokoban, tray_match)
}


PAGE = "-page"  # ending of the name of a page's environment
OPTIONS = ("backend", "screenshot")  # of pages


def names() -> list[str]:
    """Every game, as text and as a page."""
    return sorted([*GAMES, *(name + PAGE for name in GAMES)])


def describe(name: str, **options: Any) -> EnvSpec:
    """See `envs.api.Family`. Options are those of `make`."""
    known = OPTIONS if name.endswith(PAGE) else ()
    if wrong := sorted(set(options) - set(known)):
        raise UserError(f"games/{name} takes {' and '.join(known) or 'no options'}, not {', '.join(map(repr, wrong))}")
    game = _game(name)
    if not name.endswith(PAGE):
        return env.spec(game)
    from envs.games import page

    return page.spec(game)


def make(name: str, **options: Any) -> Env:
    """See `envs.api.Family`. Pages take ``backend`` (of the browser) and ``screenshot`` (false leaves the picture out)."""
    spec = describe(name, **options)
    if not name.endswith(PAGE):
        return env.GameEnv(_game(name), spec, options)
    from envs import browser
    from envs.games import page

    if lacking := browser.missing():
        raise UserError(f"games/{name} can't be made here: {lacking}")
    return page.GamePageEnv(_game(name), spec, options)


def oracle(name: str, seed: int = 0) -> Policy:
    """Plays the stored solutions; in games without, the best of the moves some steps ahead."""
    game, shown = _game(name), name.endswith(PAGE)

    def policy(state: Mapping[str, Any], obs: Obs) -> Action:
        move = game.oracle(decode(game.state, state))
        return views.played(move, obs) if shown else move

    return policy


def missing() -> str | None:
    """Nothing: the text views need no more than Python, and a page says what it lacks when it is made."""
    return None


def _game(name: str) -> Game:
    game = GAMES.get(name.removesuffix(PAGE))
    if game is None:
        raise UserError(f"there is no game {name!r}; there are {', '.join(GAMES)}, each also with {PAGE} at its end")
    return game

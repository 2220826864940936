"""Six puzzles, each with one core of rules, as text (``games/sokoban``) or as a page in the browser (``games/sokoban-page``)."""

from collections.abc import Mapping
from typing import Any

from envs.api import Action, Env, EnvSpec, Obs, Policy
from envs.games import env, gem_rise, loop_rotate, slide_merge, slide_out, sokoban, tray_match
from envs.games.core import Game, decode
from jaxllm.errors import UserError

GAMES: dict[str, Game] = {
    module.GAME.name: module.GAME for module in (gem_rise, loop_rotate, slide_merge, slide_out, sokoban, tray_match)
}


def names() -> list[str]:
    """Every game."""
    return sorted(GAMES)


def describe(name: str, **options: Any) -> EnvSpec:
    """See `envs.api.Family`."""
    if options:
        raise UserError(f"games/{name} takes no options, not {', '.join(map(repr, sorted(options)))}")
    return env.spec(_game(name))


def make(name: str, **options: Any) -> Env:
    """See `envs.api.Family`."""
    return env.GameEnv(_game(name), describe(name, **options), options)


def oracle(name: str, seed: int = 0) -> Policy:
    """Plays the stored solutions; in games without, the best of the moves some steps ahead."""
    game = _game(name)

    def policy(state: Mapping[str, Any], obs: Obs) -> Action:
        return game.oracle(decode(game.state, state))

    return policy


def missing() -> str | None:
    """The text views need nothing."""
    return None


def _game(name: str) -> Game:
    if name not in GAMES:
        raise UserError(f"there is no game {name!r}; there are {', '.join(names())}")
    return GAMES[name]

"""What chance and the oracle score at each game: the two ends of its oracle-normalised scale.

``python -m envs.games.baselines`` measures them anew, to be copied here after a change of levels, rules or oracle.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import envs
from envs.api import Action, Obs, Policy
from envs.digest import digest
from envs.games import GAMES, oracle
from envs.games.core import BUDGET, Chance, decode, encode
from envs.scoring import Reference

SEEDS = range(30)  # that the references were measured with
REFERENCES = {
    "gem-rise": Reference("56625fe7dea9", BUDGET, random=4.767, oracle=6.667),
    "loop-rotate": Reference("b08fb559e135", BUDGET, random=0.261, oracle=6.471),
    "slide-merge": Reference("9a1aca35f1d5", BUDGET, random=830.4, oracle=1086.8),
    "slide-out": Reference("b9a05b310288", BUDGET, random=0.5, oracle=12.083),
    "sokoban": Reference("3b33cc118398", BUDGET, random=0.1, oracle=6.733),
    "tray-match": Reference("dbe2021c75e3", BUDGET, random=2.074, oracle=6.0),
}


@functools.cache
def level_set(name: str) -> str:
    """A name for a game's levels that changes with them: a digest of the first ones of some seeds."""
    game = GAMES[name]
    numbers = range(3) if game.levels else range(1)
    return digest({f"{seed}/{number}": encode(game.start(seed, number)) for seed in range(5) for number in numbers})[:12]


def chance(name: str, seed: int = 0) -> Policy:
    """A policy that draws one of the moves that the rules allow."""
    game, draws = GAMES[name], Chance("random policy", name, seed)

    def policy(state: Mapping[str, Any], obs: Obs) -> Action:
        return draws.choice(game.legal(decode(game.state, state)))

    return policy


def score(name: str, policy: Policy, seed: int) -> float:
    """The score of one episode of a game's text view."""
    env = envs.make(f"games/{name}")
    obs, rewards = env.reset(seed=seed), []
    while True:
        result = env.step(policy(env.state(), obs))
        obs = result.obs
        rewards.append(result.reward)
        if result.terminated or result.truncated:
            return math.fsum(rewards)


def measure(name: str, seeds: Iterable[int] = SEEDS) -> Reference:
    """Plays a game by both policies, an episode for each seed."""
    seeds = list(seeds)
    oracles = [score(name, oracle(name), seed) for seed in seeds]
    randoms = [score(name, chance(name, seed), seed) for seed in seeds]
    return Reference(
        level_set(name), BUDGET, random=round(statistics.fmean(randoms), 3), oracle=round(statistics.fmean(oracles), 3)
    )


if __name__ == "__main__":
    for name in GAMES:
        found = measure(name)
        print(f'    "{name}": Reference("{found.levels}", BUDGET, random={found.random}, oracle={found.oracle}),', flush=True)

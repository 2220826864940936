"""envpool through our vector against envpool itself: the same id, sizes and actions, each in its own batches."""

import time
from typing import Any

import numpy as np

from envs import make_vec

from .common import Scale, alternate, medians, rounded, verdict

GAMES = ("CartPole-v1", "Sokoban-v0", "Pong-v5")  # from cheap to costly
SIZES = (64, 256)
SECONDS = 0.5  # of one side in one round, about
TARGET = 0.9


def run(scale: Scale) -> dict[str, Any]:
    """Every game at every size."""
    import envpool
    import gymnasium

    gymnasium.logger.min_level = gymnasium.logger.ERROR  # it warns of envpool's bounds
    print("envpool: steps/s of all environments together")
    ratios: dict[str, float] = {}
    rates: dict[str, dict[str, float]] = {}
    for game in GAMES:
        for N in SIZES:
            raw = envpool.make_gymnasium(game, num_envs=N)
            actions = np.random.default_rng(0).integers(0, raw.action_space.n, (16, N)).astype(np.int32)
            raw.reset()
            with make_vec(f"envpool/{game}", N) as vector:
                vector.reset()
                turns = max(4, int(SECONDS * scale.size * theirs(raw, actions, 4) / N))
                sides = {
                    "raw": lambda raw=raw, actions=actions, turns=turns: theirs(raw, actions, turns),
                    "ours": lambda vector=vector, actions=actions, turns=turns: ours(vector, actions, turns),
                    "ours, explicit resets": lambda v=vector, actions=actions, turns=turns: resets(v, actions, turns),
                }
                print(f" {game}, {N} environments:")
                values = medians(alternate(sides, scale.rounds), "steps/s", "ours")
                rates[f"{game} {N}"] = rounded(values, 0)
                ratios[f"{game} {N}"] = values["ours"] / values["raw"]
    met = verdict(ratios, dict.fromkeys(ratios, TARGET))
    return {"steps_per_second": rates, "ratios": rounded(ratios), "targets": {"over_raw": TARGET}, "met": met}


def theirs(raw: Any, actions: np.ndarray, turns: int) -> float:
    """envpool resets by itself: the step after an end starts the next episode."""
    begun = time.perf_counter()
    for turn in range(turns):
        raw.step(actions[turn % len(actions)])
    return turns * actions.shape[1] / (time.perf_counter() - begun)


def ours(vector: Any, actions: np.ndarray, turns: int) -> float:
    """The same by `restart`, with the arrays looked at."""
    begun = time.perf_counter()
    for turn in range(turns):
        batch = vector.step(actions[turn % len(actions)], restart=True)
        assert batch.arrays
    return turns * actions.shape[1] / (time.perf_counter() - begun)


def resets(vector: Any, actions: np.ndarray, turns: int) -> float:
    """As any vector is used: what is over is reset before the next step."""
    vector.reset()
    begun = time.perf_counter()
    for turn in range(turns):
        batch = vector.step(actions[turn % len(actions)])
        if (over := batch.terminated | batch.truncated).any():
            vector.reset(batch.ids[over])
    return turns * actions.shape[1] / (time.perf_counter() - begun)

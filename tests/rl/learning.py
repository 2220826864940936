"""Runs on a task of two turns whose best score is known. The start, a model that imitates, is made once for all algorithms."""

import dataclasses
import functools
from pathlib import Path

import pytest

from rl import models
from rl.config import PRESETS, with_algorithm
from rl.trainer import Trainer

ENOUGH = 0.9  # of the optimum, which is 1
KEYS = PRESETS["toy-keys"]
CONFIG = dataclasses.replace(
    KEYS,
    updates=18,
    eval_every=0,
    eval_episodes=128,
    checkpoint_every=0,
    optim=dataclasses.replace(KEYS.optim, actor_lr=1e-3, critic_lr=1e-3, decay=0),
    imitate=dataclasses.replace(KEYS.imitate, steps=60, lr=3e-3),
)
SMALL = dataclasses.replace(
    models.TINY, hidden_size=64, intermediate_size=256, num_attention_heads=2, num_key_value_heads=2, head_dim=32
)
seeds = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])


@functools.cache
def start(seed: int, parent: Path) -> str:
    """The folder of a model that knows the format of answers, and little else."""
    folder = parent / f"imitated{seed}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "TINY", SMALL)
        run = Trainer(dataclasses.replace(with_algorithm(CONFIG, "grpo"), seed=seed, updates=0), folder)
        assert list(run.run()) == []
    return str(folder / "model")


def score(name: str, seed: int, folder: Path, trainer: type[Trainer] = Trainer) -> float:
    """Mean outcome on tasks that training never saw, after the last update."""
    config = dataclasses.replace(CONFIG, model=start(seed, folder.parent), imitate=dataclasses.replace(CONFIG.imitate, steps=0))
    run = trainer(dataclasses.replace(with_algorithm(config, name), seed=seed), folder)
    list(run.run())
    return run.evaluate()["reward/outcome"]

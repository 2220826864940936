"""A run that lasts seconds: the toys, a model of 30,000 parameters, and every part of a checkpoint in use."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from rl import models
from rl.config import TINY, Algo, Imitate, Optim, Rollout, TrainConfig
from rl.trainer import Trainer

UPDATES = 4
CFG = dataclasses.replace(TINY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8)
CONFIG = TrainConfig(
    updates=UPDATES,
    eval_every=0,
    eval_episodes=8,
    checkpoint_every=1,
    keep=9,
    algo=Algo(alpha=1.0, value_pretrain=1, kl=0.05),
    rollout=Rollout(groups=4, group_size=2, slots=6, max_turns=4),
    optim=Optim(actor_lr=3e-3, critic_lr=3e-3, warmup=3, mini_epochs=2, mini_batches=2, micro_batches=2),
    imitate=Imitate(policy="random", episodes=64, steps=100, batch=16, lr=1e-2),
)


def prepare() -> None:
    """Makes the model small and its programs quick to compile, in this process."""
    models.TINY = CFG
    jax.config.update("jax_disable_most_optimizations", True)


def make(folder: Path, mesh: Mesh | None = None, **settings: Any) -> Trainer:
    """A trainer of `CONFIG` with other settings."""
    return Trainer(dataclasses.replace(CONFIG, **settings), folder, mesh=mesh)


def train(trainer: Trainer, said: Callable[[str], None] = lambda _: None) -> list[dict[str, float]]:
    """The figures of all its updates but for the times."""
    return [timeless(figures) for figures in trainer.run(said)]


def timeless(figures: dict[str, float]) -> dict[str, float]:
    """Without what a clock says."""
    return {name: value for name, value in figures.items() if not name.startswith("seconds/")}


def leaves(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """All that a run holds, by name."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(trainer.state):
        yield jax.tree_util.keystr(path), jax.device_get(leaf)
    yield "counters", dataclasses.asdict(trainer.counters)

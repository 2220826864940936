"""Each algorithm learns a task of two turns whose best score is known, from three seeds; from shuffled rewards none would."""

import dataclasses

import pytest

import rl.models
from benchmarks.rl_ablation import SMALL, Shuffled
from rl.config import PRESETS, RECIPES, with_algorithm
from rl.trainer import Trainer

UPDATES, ENOUGH = 14, 0.9
KEYS = PRESETS["toy-keys"]
CONFIG = dataclasses.replace(
    KEYS,
    updates=UPDATES,
    eval_every=0,
    eval_episodes=128,
    checkpoint_every=0,
    optim=dataclasses.replace(KEYS.optim, actor_lr=1e-3, critic_lr=1e-3, decay=0),
    imitate=dataclasses.replace(KEYS.imitate, steps=60, lr=3e-3),
)


def score(folder, name, seed, trainer=Trainer):
    """Mean outcome on tasks that training never saw, after the last update; and how the imitation left it."""
    run = trainer(dataclasses.replace(with_algorithm(CONFIG, name), seed=seed), folder)
    list(run.run())
    return run.evaluate()["reward/outcome"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(rl.models, "TINY", SMALL)


@pytest.mark.parametrize("name", ["ppo", "grpo", "gigpo", "dapo", "vapo"])
def test_reaches_nine_tenths_of_the_optimum(name, tmp_path):
    scores = [score(tmp_path / str(seed), name, seed) for seed in range(3)]
    assert min(scores) >= ENOUGH, scores


def test_shuffled_rewards_teach_nothing(tmp_path):
    assert score(tmp_path, "ppo", 0, Shuffled) < 0.7


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_leaves_nothing_of_another(name):
    for before in RECIPES:
        assert with_algorithm(with_algorithm(CONFIG, before), name) == with_algorithm(CONFIG, name)

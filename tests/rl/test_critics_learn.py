"""Algorithms with a critic learn a task of two turns whose best score is known; from shuffled rewards none would."""

import pytest
from learning import ENOUGH, score, seeds

from benchmarks.rl_ablation import Shuffled

pytestmark = pytest.mark.usefixtures("compiled_in_full")


@seeds
@pytest.mark.parametrize("name", ["ppo", "vapo"])
def test_reaches_nine_tenths_of_the_optimum(name, seed, tmp_path):
    assert score(name, seed, tmp_path) >= ENOUGH


def test_shuffled_rewards_teach_nothing(tmp_path):
    assert score("ppo", 0, tmp_path, Shuffled) < 0.7

"""Algorithms that compare the episodes of a group learn the task of `test_critics_learn`."""

import pytest
from learning import ENOUGH, score, seeds

pytestmark = pytest.mark.usefixtures("compiled_in_full")


@seeds
@pytest.mark.parametrize("name", ["grpo", "gigpo", "dapo"])
def test_reaches_nine_tenths_of_the_optimum(name, seed, tmp_path):
    assert score(name, seed, tmp_path) >= ENOUGH

"""The page on the published code shows what the code gives today."""

from pathlib import Path

import rewards
from benchmarks.release_differences import picture, table

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def test_the_table_of_the_page_is_the_computed_one():
    assert "\n".join(table()) in PAGE


def test_the_page_lists_every_reward():
    for name in rewards.names():
        reward = rewards.get(name)
        arrays = ", ".join(f"`{array}`" for array in reward.arrays)
        assert f"| `{name}` | {reward.summary.rstrip('.')} | {arrays} |" in PAGE


def test_the_picture_is_drawn(tmp_path: Path):
    picture(tmp_path / "release.png")
    assert 20_000 < (tmp_path / "release.png").stat().st_size < 250_000

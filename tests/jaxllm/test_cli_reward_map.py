"""The command that draws rewards over a screen, as a user meets it."""

import json
from pathlib import Path

import pytest

from jaxllm import cli
from jaxllm.cli import runtime

SMALL = ["--target", "100,100,200,150", "--image", "480x270"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)


def test_it_writes_a_picture_and_tells_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["reward-map", *SMALL, "--out", "here.png"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("gui_g2", "binary_hit", "se_gui", "gui_g1", "3 widths off", "here.png"):
        assert text in out
    # Middle of an edge of GUI-G²: e^-1/2 + e^-1/8.
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["gui_g2"]]
    assert row[1:3] == ["2", "1.489"]
    assert [path.name for path in tmp_path.iterdir()] == ["here.png"]
    assert (tmp_path / "here.png").read_bytes().startswith(b"\x89PNG")


def test_json(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["reward-map", *SMALL, "--rewards", "binary_hit,gui_g2:alpha=2", "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert [one["reward"] for one in facts["rewards"]] == ["binary_hit", "gui_g2:alpha=2"]
    assert facts["rewards"][0]["at"]["border"] == 1
    assert facts["rewards"][0]["signal_share"] == pytest.approx(101 * 51 / (480 * 270))
    assert "reward-map.png" in err


def test_a_screenshot_gives_the_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["reward-map", *SMALL, "--rewards", "binary_hit", "--out", "shot.png"]) == 0
    shot = tmp_path / "shot.png"
    assert cli.main(["reward-map", "--target", "10,10,60,40", "--screenshot", "shot.png", "--rewards", "gui_g2"]) == 0
    assert cli.main(["reward-map", *SMALL, "--screenshot", "shot.png"]) == 1
    assert shot.is_file()
    assert "said to be 480x270" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "100,100,200", "--image", "480x270"], "four numbers"),
        (["--target", "a,b,c,d", "--image", "480x270"], "four numbers"),
        (["--target", "100,100,900,150", "--image", "480x270"], "leaves the image"),
        (["--target", "100,100,200,150", "--image", "480"], "width and height"),
        (["--target", "100,100,200,150"], "--image"),
        ([*SMALL, "--rewards", "gui_g7"], "known are"),
        ([*SMALL, "--rewards", ","], "1 to 8"),
        ([*SMALL, "--rewards", "gui_g2", "--out", "no/such/folder.png"], "cannot be written"),
        ([*SMALL, "--rewards", "gui_g2", "--out", "."], "cannot be written"),
        ([*SMALL, "--screenshot", "none.png"], "none.png"),
    ],
)
def test_mistakes_are_told_in_one_message(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["reward-map", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in " ".join(err.split())
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []

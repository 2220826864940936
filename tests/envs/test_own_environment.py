"""The code of docs/own-environment.md runs as it stands there."""

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

import envs
from envs.server import Server

PAGE = Path(__file__).parents[2] / "docs" / "own-environment.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
GUESS, *STEPS, SERVED = BLOCKS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the reader has written guess.py."""
    (tmp_path / "guess.py").write_text(GUESS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "guess", raising=False)
    return tmp_path


def run(*blocks: str) -> str:
    """What the blocks print, one after another in one namespace."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec("\n".join(blocks), {"__name__": "__main__"})  # the page's own code
    return out.getvalue()


def test_it_takes_about_twenty_lines():
    assert len([line for line in GUESS.splitlines() if line.strip()]) <= 20


def test_the_steps_say_what_the_page_says(folder: Path):
    printed = run(*STEPS).splitlines()
    expected = [line.split("  # ")[1] for line in "\n".join(STEPS).splitlines() if "print(" in line and "  # " in line]
    assert len(expected) == 3
    assert [line for line in printed if line in expected] == expected
    assert "Right!" in "\n".join(printed)


def test_it_is_what_it_says_it_is(folder: Path):
    env, other = envs.make("guess:Guess"), envs.make("guess:Guess")
    env.reset(seed=7)
    env.step(envs.Action("guess", {"n": 50}))
    other.restore(env.save())
    assert other.state() == env.state()


def test_many_at_once(folder: Path):
    printed = run(STEPS[0], SERVED).splitlines()[-4:]
    assert all(re.fullmatch(r"\d (More|Less|Right)[.!] [01]\.0 OK", line) for line in printed)
    assert len({line[0] for line in printed}) == 4


def test_a_server_that_stays(folder: Path):
    with (
        Server(["guess:Guess"], workers=1, bind="tcp://127.0.0.1:0") as server,
        envs.make_vec("guess:Guess", num_envs=2, address=server.address, token=server.token_file) as vector,
    ):
        assert [obs.text for obs in vector.reset().obs] == ["I think of a number from 1 to 100."] * 2

"""Recorded episodes are the trajectories that a scripted rollout gives, and what can't be imitated is told."""

import dataclasses
from pathlib import Path

import pytest

import envs
from envs.api import Action, Invalid, Obs, StepResult
from envs.episode import Turn
from envs.record import record
from envs.record_folder import Run, open_folder, parts
from jaxllm.errors import UserError
from rl.bytes import byte_tokenizer
from rl.codec import ChatCodec, PlainCodec
from rl.recorded import read
from rl.rollout import Episode, scripted
from rl.types import Stop

HIGHER = Obs(text="higher")
CODECS = {"plain": PlainCodec(byte_tokenizer()), "chat": ChatCodec(byte_tokenizer())}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "oracle"
    record(Run("toy/hilo", "oracle", seed=3), 6, folder)
    return folder


def handmade(folder: Path, *episodes: list[Turn]) -> Path:
    """A recording of turns that nobody played."""
    with open_folder(folder, Run("toy/hilo", "oracle"), envs.describe("toy/hilo")) as opened:
        for number, turns in enumerate(episodes):
            opened.add(number, turns)
    return folder


def turns(*actions: Action | Invalid, obs: Obs = HIGHER) -> list[Turn]:
    """One turn an action, each answered by the same observation."""
    results = [
        StepResult(obs, 0.0, i == len(actions) - 1, False, {"error": "bad"} if isinstance(action, Invalid) else {})
        for i, action in enumerate(actions)
    ]
    return [*(Turn(obs, "", *pair) for pair in zip(actions, results, strict=True)), Turn(obs, "", None, None)]


GUESS = Action("guess", {"n": 3})


@pytest.mark.parametrize("name", CODECS)
def test_a_recording_reads_as_what_was_played(name: str, oracle: Path):
    codec = CODECS[name]
    found = read(oracle, codec)
    env = envs.make("toy/hilo")
    for number, one in enumerate(found.trajectories):
        seed = Run("toy/hilo", "oracle", seed=3).episode_seed(number)
        played = scripted(env, envs.oracle("toy/hilo", seed), codec, Episode(number, seed))
        bare = tuple(dataclasses.replace(turn, state="") for turn in one.turns)
        assert dataclasses.replace(one, turns=bare, info={}) == played
        assert one.info == {"folder": str(oracle), "episode": number}
        assert all(turn.state for turn in one.turns)
    assert len(found.trajectories) == 6
    assert (found.unreadable, found.below) == (0, 0)


def test_episodes_that_earned_too_little_are_left_out(tmp_path: Path):
    folder = tmp_path / "random"
    record(Run("toy/hilo", "random"), 30, folder)
    everything, good = read(folder, CODECS["plain"]), read(folder, CODECS["plain"], min_reward=1.0)
    solved = [one.info["episode"] for one in everything.trajectories if one.success]
    assert 0 < len(solved) < 30
    assert [one.info["episode"] for one in good.trajectories] == solved
    assert good.below == 30 - len(solved)


def test_an_answer_without_words_leaves_its_episode_out(tmp_path: Path):
    folder = handmade(tmp_path / "mixed", turns(GUESS, GUESS), turns(GUESS, Invalid("no_action")), turns())
    found = read(folder, CODECS["plain"])
    assert [one.info["episode"] for one in found.trajectories] == [0]
    assert found.unreadable == 2


def test_an_episode_that_was_stopped_is_truncated(tmp_path: Path):
    folder = tmp_path / "short"
    record(Run("toy/hilo", "oracle", max_steps=1), 8, folder)
    stops = {one.stop for one in read(folder, CODECS["plain"]).trajectories if not one.success}
    assert stops == {Stop.MAX_TURNS}


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (Obs(text="higher", screenshot=b"picture"), "episode 0, step 0: has a screenshot, which a model of text can't see"),
        (Obs(), "episode 0, step 0: has no text"),
    ],
)
def test_what_a_model_of_text_cannot_read_is_refused(obs: Obs, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        read(handmade(tmp_path / "seen", turns(GUESS, obs=obs)), CODECS["plain"])


def test_an_action_of_another_environment_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"episode 0, step 0: .* is no action of toy/hilo"):
        read(handmade(tmp_path / "other", turns(Action("click", {"point": [1, 2]}))), CODECS["plain"])


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"record\.json: cannot be read: .*; name a folder that `jaxllm envs record` wrote"):
        read(tmp_path, CODECS["plain"])


def test_a_damaged_file_is_refused(tmp_path: Path):
    folder = handmade(tmp_path / "cut", turns(GUESS))
    (part,) = parts(folder)
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        read(folder, CODECS["plain"])

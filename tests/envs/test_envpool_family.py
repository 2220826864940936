"""Any environment of envpool as one of ours: no autoreset, seeds that count, actions that are checked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import envpool
import numpy as np
import pytest

import envs
from envs import Action, Task, digest
from envs import envpool as envpool_family
from envs.envpool.layout import layout
from jaxllm.errors import UserError

# An id of most of envpool's groups, and an action that it takes.
EXAMPLES: list[tuple[str, Any]] = [
    ("FrozenLake-v1", 1),
    ("CartPole-v1", 1),
    ("Game2048-v1", 3),
    ("Jumanji/Minesweeper-v0", [2, 5]),
    ("MiniGrid-DoorKey-5x5-v0", 2),
    ("highway-v0", 1),
    ("IntersectionMultiAgent-v0", [1, 2]),
    ("TicTacToe-v1", 4),
    ("CarRacing-v3", [0.1, 0.2, 0.0]),
    ("AcrobotSwingup-v1", [0.5]),
    ("FetchReach-v4", [0.1, 0.2, 0.3, 0.0]),
    ("Pong-v5", 2),
]

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")  # of envpool's own spaces


def act(value: Any) -> Action:
    return Action("act", {"value": value})


def trajectory(name: str, value: Any, seed: int, steps: int = 4, **options: Any) -> list[str]:
    env = envs.make(f"envpool/{name}", **options)
    env.reset(seed=seed)
    digests = [digest(env.state())]
    for _ in range(steps):
        env.step(act(value))
        digests.append(digest(env.state()))
    env.close()
    return digests


@pytest.mark.parametrize(("name", "value"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_id_of_each_group_plays_and_repeats_itself(name: str, value: Any) -> None:
    first = trajectory(name, value, 5)
    assert first == trajectory(name, value, 5)
    assert len(set(first)) > 1
    spec = envs.describe(f"envpool/{name}")
    assert spec.name == f"envpool/{name}"
    assert spec.actions[0].name == "act"


def test_names_are_envpools_ids_but_those_that_cannot_be_made_here() -> None:
    names, every = envpool_family.names(), set(envpool.list_all_envs())
    assert names == sorted(names)
    assert set(names) < every
    closed = {group for group, reason in envpool_family.groups().items() if reason}
    left_out = every - set(names)
    procgen = {name for name in every if envpool.registration.registry.specs[name][0] == "envpool.procgen"}
    assert {"Cig-v1", "MultiDuel-v1", "VizdoomCustom-v1"} <= left_out
    assert ("procgen" in closed) == (procgen <= left_out)
    assert len(left_out) == 3 + len(procgen) * ("procgen" in closed) + 4 * ("sudoku" in closed)
    assert envpool_family.missing() is None
    assert next(envs.names("envpool/FrozenLake-*")) == "envpool/FrozenLake-v1"


def test_what_cannot_be_made_says_why() -> None:
    with pytest.raises(UserError, match=r"no environment 'Nope-v0'.*envs list"):
        envs.make("envpool/Nope-v0")
    with pytest.raises(UserError, match="crashes the process"):
        envs.make("envpool/Cig-v1")
    with pytest.raises(UserError, match=r"options.*not understood"):
        envs.make("envpool/FrozenLake-v1", colour="blue")
    with pytest.raises(UserError, match="num_envs is no option"):
        envs.make("envpool/FrozenLake-v1", num_envs=3)
    for name, group in (("Sudoku-v0", "sudoku"), ("BigfishEasy-v0", "procgen")):
        if envpool_family.groups()[group]:
            with pytest.raises(UserError, match=f"{name} can't be made here"):
                envs.describe(f"envpool/{name}")
    with pytest.raises(UserError, match="seed of 4294967296"):
        envs.make("envpool/FrozenLake-v1").reset(seed=2**32)
    with pytest.raises(UserError, match="no tasks"):
        envs.make("envpool/FrozenLake-v1").reset(Task("x", "y", {"z": 1}))


def test_seeds_count() -> None:
    """envpool ignores a seed given to its reset; the default seed of every pool is 42."""
    starts = {}
    for seed in (0, 1, 42):
        env = envs.make("envpool/SlidingTilePuzzle-v0")
        starts[seed] = env.reset(seed=seed).arrays["puzzle"].tolist()
        env.reset(seed=99)
        assert env.reset(seed=seed).arrays["puzzle"].tolist() == starts[seed]
    assert len({str(start) for start in starts.values()}) == 3
    raw = envpool.make_gymnasium("SlidingTilePuzzle-v0", num_envs=1, seed=0)
    assert raw.reset()[0]["puzzle"][0].tolist() == starts[0]


def test_an_episode_is_envpools_own_up_to_its_end_and_does_not_go_on() -> None:
    """Negative control: envpool itself answers the call after the end with a new episode's first observation."""
    raw = envpool.make_gymnasium("CartPole-v1", num_envs=1, seed=7)
    env = envs.make("envpool/CartPole-v1")
    seen, expected = env.reset(seed=7).arrays["obs"], raw.reset()[0][0]
    over = False
    while not over:
        np.testing.assert_array_equal(seen, expected)
        result = env.step(act(1))
        obs, reward, terminated, truncated, _ = raw.step(np.ones(1, np.int32))
        seen, expected, over = result.obs.arrays["obs"], obs[0], result.terminated
        assert (result.reward, result.terminated, result.truncated) == (reward[0], terminated[0], truncated[0])
    np.testing.assert_array_equal(seen, expected)
    assert abs(seen[2]) > 12 * np.pi / 180  # the pole's angle: the last observation, not the next first one
    again = env.step(act(1))
    assert again.info["error"] == "episode_over"
    np.testing.assert_array_equal(again.obs.arrays["obs"], seen)
    assert not np.array_equal(raw.step(np.ones(1, np.int32))[0][0], expected)


def test_a_limit_of_steps_truncates() -> None:
    env = envs.make("envpool/CliffWalking-v1", max_episode_steps=3)
    assert env.spec.max_steps == 3
    env.reset()
    ends = [(result.terminated, result.truncated) for result in (env.step(act(0)) for _ in range(3))]
    assert ends == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FrozenLake-v1", 4),
        ("FrozenLake-v1", -1),
        ("FrozenLake-v1", 1.5),
        ("FrozenLake-v1", "1"),
        ("FrozenLake-v1", [1]),
        ("Minesweeper-v0", 3),
        ("Minesweeper-v0", [1, 2, 3]),
        ("Minesweeper-v0", [[1], [2, 3]]),
        ("Minesweeper-v0", [10, 0]),
        ("Minesweeper-v0", [0.5, 1]),
        ("Minesweeper-v0", [True, False]),
        ("RubiksCube-v0", [0, 1, 0]),  # the middle bound of (5, 0, 2): each number has its own
        ("CarRacing-v3", [0.0, -0.5, 0.0]),  # bounds (-1, 0, 0) to (1, 1, 1)
        ("CarRacing-v3", [float("nan"), 0.0, 0.0]),
    ],
)
def test_a_wrong_action_is_refused_and_changes_nothing(name: str, value: Any) -> None:
    """Negative control: envpool itself takes an action out of range without a word."""
    env = envs.make(f"envpool/{name}")
    first = env.reset(seed=3)
    result = env.step(act(value))
    assert result.info["error"] == "bad_argument"
    assert result.info["message"]
    assert result.info["effect"] == "unchanged"
    assert result.reward == 0
    for key, array in first.arrays.items():
        np.testing.assert_array_equal(array, result.obs.arrays[key])
    env.close()


def test_envpool_takes_an_action_out_of_range() -> None:
    raw = envpool.make_gymnasium("FrozenLake-v1", num_envs=1, seed=3)
    raw.reset()
    raw.step(np.full(1, 9, np.int32))


def test_bounds_that_envpool_does_not_have_are_none() -> None:
    """VizDoom's bounds are the least and the largest positive float64: its word for none."""
    assert layout("D1Basic-v1", {}).low.tolist() == [-np.inf] * 3
    (argument,) = envs.describe("envpool/D1Basic-v1").actions[0].arguments
    assert (argument.kind, argument.low, argument.high) == ("json", None, None)


def test_a_save_goes_on_elsewhere() -> None:
    env = envs.make("envpool/Game2048-v1")
    env.reset(seed=11)
    for move in (0, 1, 2, 3, 0):
        env.step(act(move))
    blob, then = env.save(), env.step(act(1))
    other = envs.make("envpool/Game2048-v1")
    other.restore(blob)
    result = other.step(act(1))
    np.testing.assert_array_equal(result.obs.arrays["board"], then.obs.arrays["board"])
    assert digest(other.state()) == digest(env.state())


def test_the_player_who_moves_earns() -> None:
    env = envs.make("envpool/TicTacToe-v1")
    env.reset(seed=1)
    for cell in (0, 3, 1, 4):
        assert env.step(act(cell)).reward == 0
    won = env.step(act(2))  # 0, 1, 2: the first player's row
    assert (won.reward, won.terminated, sorted(won.info["rewards"])) == (1.0, True, [-1.0, 1.0])
    env.reset(seed=1)
    env.step(act(0))
    lost = env.step(act(0))  # a cell that is taken
    assert (lost.reward, lost.terminated) == (-1.0, True)


def test_cards_that_the_players_must_not_see_are_not_shown() -> None:
    env = envs.make("envpool/KuhnPoker-v1")
    arrays = env.reset(seed=0).arrays
    assert "info.cards" not in arrays
    assert "info.legal_action_mask" in arrays


def test_vizdoom_leaves_no_file_process_or_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: envpool alone leaves its settings in the folder where the process is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    threads = len(list(Path("/proc/self/task").iterdir()))
    env = envs.make("envpool/D1Basic-v1")
    assert env.reset(seed=1).arrays["obs"].shape == (4, 84, 84)
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    assert Path.cwd() == tmp_path
    env.close()
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert len(list(Path("/proc/self/task").iterdir())) <= threads
    raw = envpool.make_gymnasium("D1Basic-v1", num_envs=1)
    del raw
    assert (tmp_path / "_vizdoom").exists()


def test_envpool_brings_no_jax_into_a_process() -> None:
    code = """
import sys, envs
env = envs.make("envpool/Game2048-v1")
env.reset(seed=1)
print(env.step(envs.Action("act", {"value": 1})).obs.text)
assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib")], "JAX"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Possible:" in done.stdout
    assert "WARN" not in done.stderr

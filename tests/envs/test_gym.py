"""Gymnasium's environments as ours, and ours as Gymnasium's; the other implementation is Gymnasium itself."""

import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import toys
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from PIL import Image

import envs
from envs import Action, Invalid, Task, gym
from envs.gym import to_gymnasium
from envs.gym.spaces import act, in_space, require_known
from jaxllm.errors import UserError

STAGE = spaces.Dict(
    {
        "board": spaces.Box(0, 9, (2, 2), np.int8),
        "where": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Text(20))),
    }
)


class Stage(gymnasium.Env):
    """Shows every kind of space in one buffer that it uses again, renders pictures, and has infos of all sorts."""

    metadata: ClassVar = {"render_modes": ["rgb_array", "human"], "render_fps": 4}
    observation_space = STAGE
    action_space = spaces.Dict({"move": spaces.MultiDiscrete([3, 2]), "say": spaces.Text(5), "on": spaces.MultiBinary(2)})
    closed = 0

    def __init__(self, render_mode: str | None = None, wrong: str = ""):
        self.render_mode, self.wrong = render_mode, wrong
        self.board = np.zeros((2, 2), np.int8)

    def _obs(self) -> dict[str, Any]:
        return {"board": self.board[:1] if self.wrong == "shape" else self.board, "where": (1, "here")}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.board[:] = self.np_random.integers(0, 9, (2, 2))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.board[:] = (self.board + 1) % 10
        info = {"mask": np.array([1, 0]), "thing": object(), "effect": "none", "lives": np.int64(3)}
        reward = np.float32("nan") if self.wrong == "reward" else np.float32(0.5)
        return self._obs(), reward, np.bool_(action["say"] == "end"), False, info

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.board[0, 0], np.uint8)

    def close(self) -> None:
        Stage.closed += 1


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    name = "test_stage/Stage-v0"
    gymnasium.register(name, Stage, max_episode_steps=7, reward_threshold=2.0)
    gymnasium.register("test_stage/Graph-v0", Graph)
    gymnasium.register("test_stage/Random-v0", Stage, nondeterministic=True)
    yield
    for known in [known for known in gymnasium.registry if known.startswith("test_stage/")]:
        del gymnasium.registry[known]


class Graph(Stage):
    action_space = spaces.Graph(spaces.Discrete(2), None)


def act_on(value: Any) -> Action:
    return Action("act", {"value": value})


# Gymnasium's as ours


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("CartPole-v1", lambda step: step % 2),
        ("Pendulum-v1", lambda step: np.array([0.5], np.float32)),
        ("Taxi-v4", lambda step: step % 6),
        ("MountainCarContinuous-v0", lambda step: np.array([1.0], np.float32)),
    ],
)
def test_the_same_episode_as_gymnasium(name: str, policy: Any):
    peer = gymnasium.make(name)
    env = envs.make(f"gym/{name}")
    obs = env.reset(seed=3)
    found, _ = peer.reset(seed=3)
    for step in range(1000):
        np.testing.assert_array_equal(obs.arrays["obs"], found)
        result = env.step(act_on(policy(step)))
        found, reward, terminated, truncated, _ = peer.step(policy(step))
        obs = result.obs
        assert (result.reward, result.terminated, result.truncated) == (float(reward), terminated, truncated)
        if terminated or truncated:
            break
    assert terminated or truncated
    np.testing.assert_array_equal(obs.arrays["obs"], found)  # the last observation, not that of another episode
    assert env.step(act_on(policy(0))).info["error"] == "episode_over"
    env.close()
    peer.close()


def test_the_spec_of_an_id():
    cartpole = envs.describe("gym/CartPole-v1")
    assert (cartpole.name, cartpole.max_steps, cartpole.success, cartpole.screen_wh) == ("gym/CartPole-v1", 500, 475.0, None)
    assert cartpole.supports == {"save", "clock", "deterministic"}
    (argument,) = cartpole.action("act").arguments
    assert (argument.kind, argument.low, argument.high) == ("int", 0, 1)
    (argument,) = envs.describe("gym/Pendulum-v1").action("act").arguments
    assert (argument.kind, argument.low, argument.high, argument.shape) == ("json", -2, 2, (1,))
    assert envs.describe("gym/test_stage/Random-v0").supports == {"clock"}
    assert list(envs.names("gym/*")) == []
    assert envs.oracle("gym/CartPole-v1") is None


@pytest.mark.parametrize("value", [2, -1, 0.5, True, "1", None, [0]])
def test_actions_outside_the_space_are_refused(value: Any):
    env = envs.make("gym/CartPole-v1")
    before = env.reset(seed=0).arrays["obs"]
    result = env.step(act_on(value))
    assert result.info["error"] == "bad_argument"
    np.testing.assert_array_equal(result.obs.arrays["obs"], before)
    env.close()


def test_seeds():
    def first(seed: int) -> list[float]:
        env = envs.make("gym/CartPole-v1")
        obs = env.reset(seed=seed)
        env.close()
        return obs.arrays["obs"].tolist()

    assert first(0) == first(0)
    assert len({tuple(first(seed)) for seed in range(4)}) == 4


def test_text_of_a_toy():
    env = envs.make("gym/FrozenLake-v1", is_slippery=False)
    lines = env.reset(seed=0).text.splitlines()
    assert [len(line) for line in lines[2:]] == [4, 4, 4]  # the first row has the marked place
    moved = [env.step(act_on(move)) for move in (1, 1, 2, 2, 1, 2)]  # down, down, right, right, down, right
    assert (moved[-1].reward, moved[-1].terminated, moved[-1].info["success"]) == (1.0, True, True)
    env.close()


def test_spaces_of_every_kind():
    env = envs.make("gym/test_stage/Stage-v0")
    obs = env.reset(seed=5)
    assert obs.arrays["board"].dtype == np.int8
    assert obs.arrays["where.0"].item() == 1
    assert obs.text == "where.1: here"
    assert env.spec.screen_wh == (6, 4)
    with Image.open(io.BytesIO(obs.screenshot)) as picture:
        assert (picture.size, np.asarray(picture)[0, 0, 0]) == ((6, 4), obs.arrays["board"][0, 0])
    before = obs.arrays["board"].copy()
    result = env.step(act_on({"move": [2, 1], "say": "hi", "on": [0, 1]}))
    assert result.info["mask"] == [1, 0]
    assert (result.info["lives"], result.info["effect"], result.reward) == (3, "changed", 0.5)
    assert "thing" not in result.info
    np.testing.assert_array_equal(obs.arrays["board"], before)  # although the environment used its buffer again
    assert (result.obs.arrays["board"] != before).all()
    refused = [
        {"move": [3, 1], "say": "hi", "on": [0, 1]},
        {"move": [2, 1], "say": "too long", "on": [0, 1]},
        {"move": [2, 1], "say": "hi", "on": [0, 2]},
        {"move": [2, 1], "say": "hi"},
    ]
    assert [env.step(act_on(value)).info["error"] for value in refused[:2]] == ["bad_argument"] * 2
    assert env.step(act_on({"move": [2, 1], "say": "end", "on": [0, 1]})).terminated
    env.reset(seed=5)
    assert [env.step(act_on(value)).info["error"] for value in refused[2:]] == ["bad_argument"] * 2
    closed = Stage.closed
    env.close()
    assert Stage.closed == closed + 1


def test_saves_by_replay():
    env, other = (envs.make("gym/test_stage/Stage-v0") for _ in range(2))
    env.reset(seed=9)
    env.step(act_on({"move": [0, 0], "say": "go", "on": [1, 1]}))
    obs = other.restore(env.save())
    assert (obs.arrays["board"] == env.step(Invalid("none")).obs.arrays["board"]).all()
    assert envs.digest(other.state()) != envs.digest(env.state())  # a step ahead
    assert other.state()["shows"] == env.state()["shows"]
    for one in (env, other):
        one.close()


def test_wrong_shapes_and_rewards_stop_the_episode():
    env = envs.make("gym/test_stage/Stage-v0", wrong="shape")
    with pytest.raises(ValueError, match=r"board of shape \(1, 2\)"):
        env.reset()
    env.close()
    env = envs.make("gym/test_stage/Stage-v0", wrong="reward")
    env.reset()
    with pytest.raises(ValueError, match="a reward of nan"):
        env.step(act_on({"move": [0, 0], "say": "go", "on": [1, 1]}))
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Nope-v0", {}, "Nope"),
        ("CartPole-v99", {}, "v99"),
        ("no_such_module:Foo-v0", {}, "no_such_module"),
        ("CartPole-v1", {"gravity": 3}, "gravity"),
        ("CartPole-v1", {"render_mode": "ansi"}, "there is no render_mode 'ansi'; there is rgb_array"),
        ("test_stage/Stage-v0", {"render_mode": "human"}, "there is no render_mode 'human'"),
        ("test_stage/Graph-v0", {}, "neither numbers nor text"),
    ],
)
def test_what_cannot_be_made(name: str, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        envs.make(f"gym/{name}", **options)


def test_pictures_that_need_a_package_say_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)  # as where it is not installed
    with pytest.raises(UserError, match=r"gym/CartPole-v1 can't render rgb_array: .*pygame"):
        envs.make("gym/CartPole-v1", render_mode="rgb_array")
    env = envs.make("gym/CartPole-v1")
    assert (env.spec.screen_wh, env.reset().screenshot) == (None, None)
    env.close()


def test_without_gymnasium_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(gym.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'jaxllm\[envs\]'"):
        envs.make("gym/CartPole-v1")
    with pytest.raises(UserError, match=r"pip install 'jaxllm\[envs\]'"):
        to_gymnasium(toys.make("count"))


def test_a_task_with_data_is_refused():
    env = envs.make("gym/CartPole-v1")
    assert env.reset(Task("any", "balance it"), 1).step == 0
    with pytest.raises(UserError, match="has no tasks to choose from"):
        env.reset(Task("any", "balance it", {"level": 3}))
    env.close()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(-5, 5, (), np.int16),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiBinary([2, 2]),
        spaces.Text(8),
        spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (1,), np.float64))),
        STAGE,
    ],
    ids=str,
)
def test_samples_of_a_space_pass_as_json(space: spaces.Space, seed: int):
    space.seed(seed)
    sample = space.sample()
    spec = act(space)
    action = envs.actions.check_against(act_on(_json(sample)), (spec,))
    assert isinstance(action, Action), action
    (value,) = in_space(action.arguments["value"], space)
    assert space.contains(value)
    assert str(value) == str(sample)


def _json(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {name: _json(part) for name, part in sample.items()}
    return [_json(part) for part in sample] if isinstance(sample, tuple) else sample


@pytest.mark.parametrize("value", [[[1.0]], [1.5, 0], [0, "1"], [[0], [0, 1]], "ab", None, [True, False], {"a": 1}])
def test_values_outside_a_space(value: Any):
    for space in (spaces.MultiDiscrete([2, 5]), spaces.Box(0, 1, (2,), np.float32), spaces.Tuple((spaces.Discrete(2),) * 2)):
        assert in_space(value, space) is None
    assert in_space(value, STAGE) is None


def test_unknown_spaces_inside_others_are_found():
    with pytest.raises(UserError, match="Sequence"):
        require_known(spaces.Dict({"a": spaces.Tuple((spaces.Sequence(spaces.Discrete(2)),))}))


# Ours as Gymnasium's


@pytest.mark.parametrize("name", ["arrays", "count", "screen"])
def test_gymnasiums_own_checker_passes(name: str):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*(not having a spec|infinity|fps)", UserWarning)
        check_env(to_gymnasium(toys.make(name)))


def test_there_and_back_is_the_same_episode():
    peer, env = gymnasium.make("CartPole-v1"), to_gymnasium(envs.make("gym/CartPole-v1"))
    assert env.action_space == spaces.Discrete(2)
    found, _ = peer.reset(seed=4)
    obs, _ = env.reset(seed=4)
    np.testing.assert_array_equal(obs["obs"], found)
    for step in range(500):
        found, *expected, _ = peer.step(step % 2)
        obs, *rest, _ = env.step(np.int64(step % 2))
        np.testing.assert_array_equal(obs["obs"], found)
        assert rest == expected
        if expected[1]:
            break
    assert expected[1]
    env.close()
    peer.close()


def test_actions_as_text_objects_and_actions():
    env = to_gymnasium(toys.make("count"))
    env.reset(seed=0)
    written = ["Thought: more\nAction: add(n=2)", {"name": "add", "arguments": {"n": 2}}, Action("add", {"n": 2})]
    assert [env.step(action)[0]["text"].split()[0] for action in written] == ["2", "4", "6"]
    errors = [env.step(action)[4]["error"] for action in ("jump()", 7)]
    assert errors == ["unknown_action", "bad_action"]
    *_, truncated, info = env.step("what?")
    assert (truncated, info["status"], info["error"]) == (True, "FAILED_TASK", "no_action")


def test_points_and_pictures():
    env = to_gymnasium(toys.make("screen"))
    obs, info = env.reset(seed=0)
    assert obs["screenshot"].shape == (64, 96, 3)
    assert info["elements"][0]["text"] == "it"
    assert (env.render() == obs["screenshot"]).all()
    obs, reward, terminated, truncated, info = env.step("Action: click(point='(40, 40)')")
    assert (reward, terminated, truncated, info["t_virtual"]) == (1.0, True, False, pytest.approx(0.15))
    assert tuple(obs["screenshot"][40, 40]) == (0, 128, 0)  # green
    after = env.step("Action: wait()")
    assert (after[1:4], after[4]["error"]) == ((0.0, True, False), "episode_over")  # a loop until the end does not run on


def test_tasks_by_option_and_seeds_that_are_drawn():
    env = to_gymnasium(toys.make("count"))
    env.reset(seed=1)
    first = [env.reset()[0]["text"] for _ in range(8)]
    env.reset(seed=1)
    assert [env.reset()[0]["text"] for _ in range(8)] == first
    assert len(set(first)) > 1
    env.reset(options={"task": {"id": "a", "instruction": "count"}})
    env.reset(options={"task": Task("a", "count")})
    with pytest.raises(UserError, match="a task has id, instruction and data"):
        env.reset(options={"task": {"name": "a"}})


def test_in_a_vector_of_gymnasium():
    vector = gymnasium.vector.SyncVectorEnv([lambda: to_gymnasium(toys.make("count")) for _ in range(2)])
    obs, _ = vector.reset(seed=[1, 2])
    assert len(obs["text"]) == 2
    obs, *_ = vector.step(("add(n=3)", "add(n=4)"))
    assert [text.split()[0] for text in obs["text"]] == ["3", "4"]
    vector.close()

"""The bookkeeping that environments have in common, shown on an environment of a counter."""

import dataclasses
import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import Action, ActionSpec, Argument, BaseEnv, EnvSpec, Invalid, LostError, Obs, StepResult, Task, digest, session_seed
from envs.actions import CALL_USER, FINISHED
from envs.base import decode, encode
from jaxllm.errors import UserError

SPEC = EnvSpec(
    "test/counter",
    "count to the goal",
    (
        ActionSpec("add", (Argument("n", "int", low=-9, high=9),)),
        ActionSpec("type", (Argument("content", "text"),)),
        FINISHED,
        CALL_USER,
    ),
    max_steps=6,
    supports=frozenset({"save", "clock", "deterministic"}),
)


class Counter(BaseEnv):
    """Counts; at the goal the task is solved. ``rewards`` replaces what a step earns."""

    def __init__(self, spec: EnvSpec = SPEC, options: dict[str, Any] | None = None, rewards: float | None = None):
        super().__init__(spec, options)
        self.rewards = rewards
        self.acted = 0  # how often `_act` was called, over all episodes

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self.goal = task.data["goal"] if task else 5 + seed % 3
        self.value, self.typed = 0, ""
        return Obs(text="0")

    def _act(self, action: Action) -> StepResult:
        self.acted += 1
        self.value += action.arguments.get("n", 0)
        self.typed += action.arguments.get("content", "")
        if self.typed == "break":
            raise RuntimeError("broken")
        done = self.value == self.goal
        earned = float(done) if self.rewards is None else self.rewards
        return StepResult(Obs(text=str(self.value)), earned, done, False, {"typed": self.typed})

    def _state(self) -> dict[str, Any]:
        return {"value": self.value, "goal": self.goal, "typed": self.typed}


def add(n: Any) -> Action:
    return Action("add", {"n": n})


def begun(**options: Any) -> Counter:
    env = Counter(**options)
    env.reset(Task("t", "count", {"goal": 9}))
    return env


def test_an_episode():
    env = Counter()
    obs = env.reset(seed=1)
    assert (obs.step, obs.text, env.state()) == (0, "0", {"value": 0, "goal": 6, "typed": "", "step": 0})
    first = env.step(add(2))
    assert (first.obs.step, first.obs.text, first.reward, first.terminated, first.truncated) == (1, "2", 0.0, False, False)
    assert first.info["effect"] == "changed"
    assert 0 <= first.info["latency"] < 60
    last = env.step(add(4))
    assert (last.reward, last.terminated, last.truncated, last.info["success"]) == (1.0, True, False, True)


def test_a_step_after_the_end_changes_nothing():
    env = begun()
    end = env.step(add(9))
    state, acted = env.state(), env.acted
    after = env.step(add(1))
    assert after.info["error"] == "episode_over"
    assert (after.reward, after.obs, env.state(), env.acted) == (0.0, end.obs, state, acted)
    assert env.reset(seed=0).step == 0
    assert env.step(add(1)).info.get("error") is None


def test_a_step_before_the_first_reset_is_refused():
    assert Counter().step(add(1)).info["error"] == "episode_over"


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (Action("jump"), "unknown_action"),
        (Action("add"), "missing_argument"),
        (add(10), "bad_argument"),
        (add("1"), "bad_argument"),
        (add(math.nan), "bad_argument"),
        (Invalid("no_action", "write Action:"), "no_action"),
        ("add 1", "bad_action"),
        (None, "bad_action"),
    ],
)
def test_a_refused_action_takes_a_step_and_changes_nothing_else(action: Any, error: str):
    env = begun()
    state = env.state()
    result = env.step(action)
    assert result.info["error"] == error
    assert result.info["message"]
    assert (result.info["effect"], result.reward, result.obs.step, env.acted) == ("unchanged", 0.0, 1, 0)
    assert env.state() == {**state, "step": 1}


def test_three_refused_actions_in_a_row_end_the_episode():
    env = begun()
    results = [env.step(Action("jump")) for _ in range(3)]
    assert [result.truncated for result in results] == [False, False, True]
    assert (results[2].info["status"], results[2].info["success"]) == ("FAILED_TASK", False)
    env = begun()
    actions = [Action("jump"), Action("jump"), add(1), Action("jump"), Action("jump")]  # never three in a row
    assert not any(env.step(action).truncated for action in actions)


def test_the_limit_of_steps_truncates():
    env = begun()
    results = [env.step(add(0)) for _ in range(6)]
    assert [result.truncated for result in results] == [False] * 5 + [True]
    assert (results[-1].info["status"], results[-1].terminated, results[-1].info["success"]) == ("MAX_STEPS", False, False)
    assert env.step(add(0)).info["error"] == "episode_over"


def test_the_end_at_the_last_step_is_no_truncation():
    env = begun()
    for _ in range(5):
        env.step(add(1))
    last = env.step(add(4))
    assert (last.terminated, last.truncated, last.info["success"]) == (True, False, True)
    assert "status" not in last.info


def test_finished_and_call_user_end_it():
    for action in (Action("finished", {"content": "9"}), Action("call_user")):
        result = begun().step(action)
        assert (result.terminated, result.reward, result.info["success"]) == (True, 0.0, False)


def test_repetitions_without_effect_are_counted():
    env = begun()
    counts = [env.step(add(n)).info["stuck_steps"] for n in (0, 0, 0, 1, 1)]
    assert counts == [0, 1, 2, 0, 0]


def test_typing_nothing_does_nothing():
    env = begun()
    result = env.step(Action("type", {"content": ""}))
    assert (result.info["empty_type"], result.info["effect"], env.acted, result.obs.step) == (True, "unchanged", 0, 1)
    assert env.step(Action("type", {"content": " "})).info["typed"] == " "


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_a_bug_of_the_environment(reward: float):
    env = begun(rewards=reward)
    with pytest.raises(ValueError, match="test/counter: a reward of"):
        env.step(add(1))


def test_after_an_exception_the_episode_is_over():
    env = begun()
    with pytest.raises(RuntimeError, match="broken"):
        env.step(Action("type", {"content": "break"}))
    assert env.step(add(1)).info["error"] == "episode_over"
    env.reset()
    assert env.step(add(1)).reward == 0.0


def test_numpy_numbers_are_plain_afterwards():
    env = begun(rewards=np.float32(0.5))
    result = env.step(add(np.int64(3)))
    assert type(result.reward) is float
    json.dumps(env.state())
    env.save()


# Saves


@settings(max_examples=50, deadline=None)
@given(
    before=st.lists(st.integers(-6, 12), max_size=8),
    after=st.lists(st.integers(-6, 12), min_size=20, max_size=20),
    seed=st.integers(0, 9),
)
def test_a_restored_episode_goes_on_in_the_same_way(before: list[int], after: list[int], seed: int):
    spec = dataclasses.replace(SPEC, max_steps=20)
    one, other = Counter(spec), Counter(spec)
    one.reset(seed=seed)
    for n in before:
        one.step(add(n))
    obs = other.restore(one.save())
    assert (obs.text, obs.step, digest(other.state())) == (str(one.value), len(before[: obs.step]), digest(one.state()))
    for n in after:
        results = [env.step(add(n)) for env in (one, other)]
        assert len({(r.obs.text, r.obs.step, r.reward, r.terminated, r.truncated) for r in results}) == 1
        assert len({json.dumps({k: v for k, v in r.info.items() if k != "latency"}) for r in results}) == 1
        assert one.state() == other.state()


def test_forks_share_nothing():
    env = begun()
    env.step(add(2))
    blob = env.save()
    forks = [Counter() for _ in range(3)]
    for fork in forks:
        fork.restore(blob)
    for n, fork in enumerate(forks):
        fork.step(add(n))
    assert [fork.state()["value"] for fork in forks] == [2, 3, 4]
    assert env.state()["value"] == 2


def test_refused_actions_are_part_of_a_save():
    env = begun()
    for action in (Action("jump"), Invalid("bad_point", "no")):
        env.step(action)
    other = Counter()
    other.restore(env.save())
    assert other.step(Action("jump")).info["status"] == "FAILED_TASK"


def test_a_save_goes_to_another_process():
    script = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from test_base import Counter, add
        env = Counter()
        env.restore(sys.stdin.buffer.read())
        print(env.state(), env.step(add(7)).reward)
    """
    env = begun()
    env.step(add(2))
    command = [sys.executable, "-c", textwrap.dedent(script), str(Path(__file__).parent)]
    done = subprocess.run(command, input=env.save(), capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"{env.state()} 1.0"


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"version": 1}',
        b"[" * 100000,
        b'{"version":1,"name":"test/counter","options":{},"task":{},"seed":0,"actions":[],"digest":""}',
        b'{"version":1,"name":"test/counter","options":{},"task":null,"seed":"0","actions":[],"digest":""}',
        b'{"version":1,"name":"test/counter","options":{},"task":null,"seed":0,"actions":[5],"digest":""}',
    ],
)
def test_what_is_no_save(blob: bytes):
    with pytest.raises(UserError):
        begun().restore(blob)


def test_saves_of_another_kind_are_refused():
    blob = begun().save()
    with pytest.raises(UserError, match=r"can't be restored in test/other"):
        Counter(dataclasses.replace(SPEC, name="test/other")).restore(blob)
    with pytest.raises(UserError, match=r"options \{\}.*options \{'level': 2\}"):
        Counter(options={"level": 2}).restore(blob)
    old = json.loads(blob) | {"version": 0}
    with pytest.raises(UserError, match="version 0"):
        begun().restore(json.dumps(old).encode())


def test_a_replay_that_goes_another_way_is_lost():
    saved = json.loads(begun().save()) | {"actions": [encode(add(1))]}
    env = Counter()
    with pytest.raises(LostError, match="after 1 actions gives"):
        env.restore(json.dumps(saved).encode())
    assert env.step(add(1)).info["error"] == "episode_over"


def test_what_cannot_be_saved_says_so():
    with pytest.raises(UserError, match="before the first reset"):
        Counter().save()
    with pytest.raises(UserError, match="can't be saved"):
        begun(spec=dataclasses.replace(SPEC, supports=frozenset())).save()
    with pytest.raises(UserError, match="no plain JSON"):
        begun(options={"check": print}).save()


def test_options_with_tuples_can_be_restored():
    one, other = (Counter(options={"sizes": (1, 2)}) for _ in range(2))
    one.reset()
    other.restore(one.save())


@pytest.mark.parametrize("data", [[], "add", {"name": 3}, {"name": "add", "arguments": []}, {}, None])
def test_what_is_no_action(data: Any):
    with pytest.raises(UserError, match="an action is an object"):
        decode(data)


@pytest.mark.parametrize("action", [add(3), Action("finished"), Invalid("no_action", "why")])
def test_actions_as_json(action: Action | Invalid):
    assert decode(json.loads(json.dumps(encode(action)))) == action


# Digests and seeds


def test_digests():
    # echo -n '{"a":[1,2.5,"x"],"b":null}' | sha256sum
    assert digest({"b": None, "a": [1, 2.5, "x"]}) == "ebeb83367f9695ff5ceeebf14323134c890fc30c03843f006fdfd18fcb15957f"
    assert digest({"a": 1}) != digest({"a": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"a": math.nan})
    with pytest.raises(TypeError):
        digest({"a": {1}})


def test_session_seeds_differ_by_run_task_and_attempt():
    seeds = [session_seed(run, task, attempt) for run in range(3) for task in ("a", "b", "a/1") for attempt in range(3)]
    assert len(set(seeds)) == 27
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [session_seed(run, task, attempt) for run in range(3) for task in ("a", "b", "a/1") for attempt in range(3)]

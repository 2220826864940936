"""Many environments at once."""

import collections
import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from server_help import do, lives, move, until

from envs import Action, Invalid, Task, make_vec, session_seed
from envs.server import Server
from envs.vector import Vector
from jaxllm.errors import UserError

WALK, PLAIN, SLEEPER = "server_envs:Walk", "server_envs:Plain", "server_envs:Sleeper"
SAY = Action("say")


@pytest.fixture(scope="module")
def server():
    with Server(["server_envs:*"], workers=2, heavy=8, restarts=100, max_sessions=256) as server:
        yield server


@pytest.fixture
def make(server):
    made: list[Vector] = []

    def make(name: str | list[str], num_envs: int, batch_size: int | None = None, **settings) -> Vector:
        made.append(make_vec(name, num_envs, batch_size, address=server.address, token=server.token, **settings))
        return made[-1]

    yield make
    for vector in made:
        vector.close()


def at(batch) -> list[int]:
    return [int(obs.text.split(",")[0].removeprefix("at ")) for obs in batch.obs]


def test_a_batch_has_a_row_for_each_environment(make):
    vector = make(WALK, 3)
    batch = vector.reset()
    assert (vector.num_envs, vector.batch_size, len(batch)) == (3, 3, 3)
    assert [spec.name for spec in vector.specs] == ["walk"] * 3
    batch = vector.step([move(1), move(10), Invalid("no_action")])
    assert batch.ids.tolist() == [0, 1, 2]
    assert batch.ids.dtype == np.int64
    assert (batch.reward.dtype, batch.terminated.dtype, batch.truncated.dtype) == (np.float64, np.bool_, np.bool_)
    assert batch.status == ["OK", "PARSE_ERROR", "PARSE_ERROR"]
    assert batch.info[2]["error"] == "no_action"
    assert [obs.step for obs in batch.obs] == [1, 1, 1]


def test_rows_come_in_the_order_of_the_ids(make):
    vector = make(WALK, 4)
    vector.reset()
    assert vector.step([move(0), move(1), do("sleep 0.1")], [3, 0, 2]).ids.tolist() == [3, 0, 2]
    assert vector.reset(np.array([2, 1])).ids.tolist() == [2, 1]
    assert [state["step"] for state in vector.state([3, 1])] == [1, 0]


def test_recv_gives_what_is_ready_first(make, tmp_path):
    vector = make(WALK, 3, 1)
    vector.reset()
    vector.send([do(f"wait {tmp_path / 'late'}"), do(f"wait {tmp_path / 'soon'}"), move(1)])
    assert vector.recv().ids.tolist() == [2]
    for name, id in (("soon", 1), ("late", 0)):
        (tmp_path / name).touch()
        assert vector.recv().ids.tolist() == [id]


def test_recv_is_at_least_one_at_most_k_within_t(make, tmp_path):
    vector = make(WALK, 5, 3)
    vector.reset()
    vector.send([move(1), move(1), do(f"wait {tmp_path / 'gate'}"), move(1), move(1)])
    first = vector.recv()
    assert len(first) == 3
    second = vector.recv(timeout=1.0)  # the fourth is there, the fifth not
    assert len(second) == 1
    with pytest.raises(TimeoutError):
        vector.recv(timeout=0.05)
    (tmp_path / "gate").touch()
    assert vector.recv(min_items=3).ids.tolist() == [2]  # all that are on their way
    with pytest.raises(UserError, match="nothing is on its way"):
        vector.recv()


def test_a_part_may_be_sent_and_nothing_blocks(make):
    vector = make(WALK, 4)
    vector.reset()
    vector.send([move(1)], [2])
    assert vector.recv().ids.tolist() == [2]
    with pytest.raises(UserError, match="3 actions for 4"):
        vector.send([move(1)] * 3)
    vector.send([do("sleep 0.3")], [1])
    with pytest.raises(UserError, match=r"\[1\] are on their way"):
        vector.send([move(1)], [1])
    assert vector.step([move(1)], [0]).ids.tolist() == [0]  # the others need not wait
    assert vector.recv().ids.tolist() == [1]


@pytest.mark.parametrize("ids", [[4], [-1], [0, 0]])
def test_ids_are_those_of_the_environments(make, ids):
    with pytest.raises(UserError, match=r"ids|twice"):
        make(WALK, 4).reset(ids)


def test_an_action_is_an_action(make):
    vector = make(WALK, 1)
    vector.reset()
    with pytest.raises(UserError, match="not str"):
        vector.step(["move"])
    with pytest.raises(UserError, match="plain data"):
        vector.step([Action("say", {"text": object()})])
    assert vector.step([SAY]).status == ["OK"]


def test_what_a_crash_takes_comes_back_after_a_reset(make):
    vector = make(WALK, 3, options={"weight": "heavy"})
    vector.reset()
    batch = vector.step([move(1), do("kill"), move(1)])
    assert batch.status == ["OK", "CRASHED", "OK"]
    assert batch.truncated.tolist() == [False, True, False]
    assert batch.obs[1].text is None
    assert vector.step([move(1)] * 3).status == ["OK", "LOST", "OK"]
    assert vector.state()[1] is None
    begun = time.monotonic()
    assert vector.reset([1]).status == ["OK"]
    assert time.monotonic() - begun < 60  # 5 s on a machine that has nothing else to do
    assert vector.step([move(1)] * 3).status == ["OK"] * 3


def test_a_step_that_hangs_ends_its_session_and_a_reset_replaces_it(make):
    heavy = {"weight": "heavy"}
    vector = make([WALK] * 2, 2, options=[heavy, {**heavy, "deadlines": {"step": 0.5}}])
    pids = [obs.text.split()[-1] for obs in vector.reset().obs]
    batch = vector.step([do("sleep 0.1"), do("hang")])
    assert (batch.status[1], batch.truncated[1], batch.reward[1]) == ("TIMEOUT", True, 0.0)
    assert batch.status[0] == "OK"
    again = vector.reset([1])
    assert (again.status, again.info[0]["episode"]) == (["OK"], 1)
    assert again.obs[0].text.split()[-1] not in pids


def test_an_episode_has_the_same_seed_in_any_order_and_on_any_worker(make):
    def walks(order: list[int], **options) -> dict[int, list[int]]:
        vector = make(WALK, 3, seed=5, options=options)
        found: dict[int, list[int]] = collections.defaultdict(list)
        for id in order:
            vector.reset([id])
            found[id] += [at(vector.step([move(1)], [id]))[0] for _ in range(4)]
        return found

    first = walks([0, 1, 2, 0])
    assert walks([2, 0, 0, 1]) == first
    assert walks([1, 0, 2, 0], weight="heavy") == first
    assert len({tuple(walk) for walk in first.values()}) == 3
    vector = make(WALK, 2, seed=5)
    assert [info["seed"] for info in vector.reset().info] == [session_seed(5, f"{WALK} {id}", 0) for id in (0, 1)]
    assert [info["seed"] for info in vector.reset().info] == [session_seed(5, f"{WALK} {id}", 1) for id in (0, 1)]
    assert [info["seed"] for info in make(WALK, 2, seed=6).reset().info] != [
        session_seed(5, f"{WALK} {id}", 0) for id in (0, 1)
    ]


def test_seeds_of_ones_own_are_taken_as_they_are(make):
    vector = make(WALK, 3)
    assert [info["seed"] for info in vector.reset(seeds=[0, 0, 7]).info] == [0, 0, 7]
    walks = np.array([at(vector.step([move(1)] * 3)) for _ in range(5)])
    assert (walks[:, 0] == walks[:, 1]).all()
    assert (walks[:, 0] != walks[:, 2]).any()


def test_terminal_rewards_are_neither_lost_nor_doubled(make):
    vector = make(PLAIN, 4, 2, options={"steps": 3, "size": 4})  # a reward of 1 for each of three steps
    rewards, ends = np.zeros(4), np.zeros(4, int)
    seen = [[] for _ in range(4)]
    vector.send_reset()
    for _ in range(60):
        batch = vector.recv()
        rewards[batch.ids] += batch.reward
        for id, obs, end in zip(batch.ids, batch.obs, batch.terminated, strict=True):
            seen[id].append(obs.step)
            assert end == (obs.step == 3)  # the sight of the end comes with its reward
            ends[id] += end
            if end:
                vector.send_reset([id])
            else:
                vector.send([SAY], [id])
    for id in range(4):
        assert seen[id] == [i % 4 for i in range(len(seen[id]))]  # 0 1 2 3 0 1 2 3 ...
        assert rewards[id] == len(seen[id]) - seen[id].count(0)
        assert ends[id] == seen[id].count(3) > 0


def test_different_environments_take_turns(make):
    vector = make([WALK, PLAIN], 4, options=[{}, {"size": 7}])
    assert [spec.name for spec in vector.specs] == ["walk", "plain"] * 2
    assert [obs.text for obs in vector.reset().obs][1::2] == ["x" * 7] * 2


def test_saves_are_restored_elsewhere(make):
    vector = make(WALK, 3)
    vector.reset()
    vector.step([move(1)] * 3)
    blobs = vector.save([0, 1])
    after = at(vector.step([move(2)] * 2, [0, 1]))
    vector.step([do("raise oh")], [2])  # gone
    batch = vector.restore([1, 2], [blobs[1], blobs[0]])
    assert batch.status == ["OK", "OK"]
    assert at(vector.step([move(2)] * 2, [1, 2])) == after[::-1]


def test_a_save_that_fails_is_a_warning_and_the_episode_goes_on(make):
    vector = make(PLAIN, 2)
    vector.reset()
    with pytest.warns(UserWarning, match="No space left on device"):
        assert vector.save() == [None, None]
    assert vector.step([SAY] * 2).status == ["OK", "OK"]


def test_a_slow_reset_delays_only_its_session(make, tmp_path):
    vector = make(WALK, 4, 1)
    slow = make(WALK, 1, options={"gate": str(tmp_path / "gate")})
    vector.reset()
    slow.send_reset()
    for _ in range(10):
        assert vector.step([move(0)] * 4).status == ["OK"] * 4
    with pytest.raises(TimeoutError):
        slow.recv(timeout=0.05)
    (tmp_path / "gate").touch()
    assert slow.recv().status == ["OK"]


def test_a_reset_ahead_steps_in_where_an_episode_ends(make, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    vector = make(WALK, 2, ahead=2, seed=3, options={"gate": str(gate)})
    first = vector.reset()
    until(lambda: vector._pump(0.05) or all(spare.ready for spare in vector._spares))
    gate.unlink()  # a reset that begins now does not end
    second = vector.reset()
    gate.touch()
    plain = make(WALK, 2, seed=3)
    assert [info["seed"] for info in first.info] == [info["seed"] for info in plain.reset().info]
    assert [info["seed"] for info in second.info] == [info["seed"] for info in plain.reset().info]
    assert at(vector.step([move(1)] * 2)) == at(plain.step([move(1)] * 2))  # the very episodes
    third = vector.reset()  # whether the spare ones are ready or not
    assert [info["episode"] for info in third.info] == [2, 2]


def test_failing_resets_do_not_favour_a_task(make):
    vector = make(WALK, 4)
    task = Task("fail sometimes", "start")
    failures = np.zeros(4, int)
    for _ in range(12):
        waiting = np.arange(4)
        while len(waiting):
            batch = vector.reset(waiting, tasks=[task] * len(waiting))
            failed = np.array([status != "OK" for status in batch.status])
            failures[batch.ids[failed]] += 1
            waiting = batch.ids[failed]
    assert failures.sum() > 0
    assert [place.episode for place in vector._places] == [12] * 4  # each as often, however often it failed


def test_an_episode_whose_reset_failed_comes_again(make):
    vector = make(WALK, 1)
    failed = vector.reset(tasks=[Task("raise", "")])
    assert failed.status == ["CRASHED"]
    assert vector.reset().info[0]["episode"] == 0


def test_one_episode_a_hundred_times_as_long_holds_up_no_other(make, tmp_path):
    vector = make(WALK, 4, 1, options={"max_steps": 1000})
    vector.reset()
    vector.send([do(f"wait {tmp_path / 'gate'}")], [0])
    counts = collections.Counter()
    vector.send([move(0)] * 3, [1, 2, 3])
    while min(counts[id] for id in (1, 2, 3)) < 100:
        batch = vector.recv()
        assert batch.status == ["OK"]
        counts.update(batch.ids.tolist())
        vector.send([move(0)], batch.ids)
    assert counts[0] == 0
    (tmp_path / "gate").touch()
    until(lambda: 0 in vector.recv().ids)


def test_own_server_starts_and_ends_with_the_vector():
    with make_vec(WALK, 2, workers=1, deadlines={"step": 20}) as vector:
        vector.reset()
        assert vector.step([move(1)] * 2).status == ["OK"] * 2
        pids = [vector._server.pid, *vector.stats()[0]["pids"]]
        assert all(map(lives, pids))
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: not vector._server.alive())
        assert vector.step([move(1)] * 2).status == ["LOST"] * 2
        assert vector.reset().status == ["OK"] * 2  # on a new server
        pids += [vector._server.pid, *vector.stats()[0]["pids"]]
    until(lambda: not any(map(lives, pids)))
    with pytest.raises(UserError, match="closed"):
        vector.reset()


def test_several_servers_share_the_environments_and_one_may_die(server):
    with Server(["server_envs:*"], workers=1) as other:
        addresses, tokens = [server.address, other.address], [server.token, other.token]
        with contextlib.closing(make_vec(WALK, 4, address=addresses, token=tokens)) as vector:
            vector.reset()
            assert [stats["sessions"]["idle"] for stats in vector.stats()] == [2, 2]
            vector.send([move(1)] * 4)
            assert sorted(vector.recv().ids) == [0, 1, 2, 3]
            os.kill(other.pid, signal.SIGKILL)
            vector._clients[1]._patience = 0.5
            assert vector.step([move(1)] * 4).status == ["OK", "LOST", "OK", "LOST"]
            assert vector.reset([1, 3]).status == ["OK"] * 2  # on the server that is left
            assert vector.step([move(1)] * 4).status == ["OK"] * 4


def test_a_wrong_name_is_one_message():
    with pytest.raises(UserError, match="no family 'nothing'"):
        make_vec("nothing/at-all", 2, workers=1)
    for wrong in ({"num_envs": 0}, {"num_envs": 2, "batch_size": 3}):
        with pytest.raises(UserError):
            make_vec(WALK, **wrong)
    with pytest.raises(UserError, match="runs already"):
        make_vec(WALK, 1, address="ipc:///tmp/x", workers=2)


def test_streaming_keeps_log_normal_environments_busy(make):
    """Utilisation at least 0.75 and three times the barrier's throughput (agent-environments 8.3), in the best of three tries:
    the machine may be busy with other things."""
    sleepers = {"name": [SLEEPER] * 32, "num_envs": 32, "options": [{"seed": seed} for seed in range(32)]}
    streaming, lockstep = make(**sleepers, batch_size=8), make(**sleepers)
    streaming.reset()
    streaming.send([SAY] * 32)
    for _ in range(8):  # warm: which environments are slow is learned
        batch = streaming.recv()
        streaming.send([SAY] * len(batch), batch.ids)
    lockstep.reset()
    lockstep.step([SAY] * 32)
    found = []
    for _ in range(3):
        busy, steps, begun = 0.0, 0, time.perf_counter()
        while time.perf_counter() - begun < 1.5:
            batch = streaming.recv()
            busy += sum(info["slept"] for info in batch.info)
            steps += len(batch)
            streaming.send([SAY] * len(batch), batch.ids)
        wall = time.perf_counter() - begun
        left = 32
        while left:  # nothing goes on beside the other
            left -= len(streaming.recv())
        begun = time.perf_counter()
        for _ in range(3):
            lockstep.step([SAY] * 32)
        barrier = 3 * 32 / (time.perf_counter() - begun)
        streaming.send([SAY] * 32)
        found.append((busy / (32 * wall), steps / wall / barrier))
        if found[-1][0] >= 0.75 and found[-1][1] >= 3:
            return
    pytest.fail(f"utilisation, and times lock-step: {found}")


def test_the_pool_starts_after_jax_was_used_and_nothing_forks(recwarn):
    import jax

    assert int(jax.jit(lambda x: x + 1)(1)) == 2
    with make_vec(WALK, 1, workers=1) as vector:
        assert vector.reset().status == ["OK"]
        for pid in vector.stats()[0]["pids"]:
            assert "jaxlib" not in Path(f"/proc/{pid}/maps").read_text()
    assert not [warning for warning in recwarn if "fork" in str(warning.message)]
    assert int(jax.jit(lambda x: x + 2)(1)) == 3

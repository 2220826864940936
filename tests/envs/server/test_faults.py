"""What goes wrong in one session stays there (agent-environments 8.4, step-servers 8)."""

import itertools
import os
import re
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from server_help import Raw, do, lives, move, until

from envs import Action, Invalid, Task
from envs.server import Client, Server, wire

WALK, PLAIN = "server_envs:Walk", "server_envs:Plain"
SEEDS = itertools.count()  # a task each, so that no test puts another's in quarantine
HEAVY = {"weight": "heavy"}


@pytest.fixture(scope="module")
def server():
    with Server(["server_envs:*"], workers=1, heavy=4, max_sessions=64, restarts=100) as server:
        yield server


@pytest.fixture
def client(server):
    """That of the server's own process, which gives its sessions back."""
    yield server.client
    for session in list(server.client._handles):
        server.client.close(session)


def begin(client: Client, name: str = WALK, **options) -> int:
    session, _ = client.create(name, options)
    assert client.reset(session, seed=next(SEEDS)).status == "OK"
    return session


def test_a_killed_worker_takes_one_session_with_it(client):
    healthy, victim = begin(client, **HEAVY), begin(client, **HEAVY)
    steps = [(victim, "step", wire.pack_action(do("kill"))), (healthy, "step", wire.pack_action(move(1)))]
    client.post(steps)
    replies = {}
    until(lambda: replies.update({reply.session: reply for reply in client.poll(0.1)}) or len(replies) == 2)
    assert replies[victim].status == "CRASHED"
    assert "signal 9" in replies[victim].info["message"]
    assert replies[victim].truncated
    assert replies[healthy].status == "OK"
    assert client.step(victim, move(1)).status == "LOST"  # never silently continued
    begun = time.monotonic()
    again = begin(client, **HEAVY)
    assert client.step(again, move(1)).status == "OK"
    assert time.monotonic() - begun < 60  # 5 s on a machine that has nothing else to do
    for session in (healthy, victim, again):
        client.close(session)


def test_a_worker_that_dies_idle_leaves_its_session_lost(client):
    session = begin(client, **HEAVY)
    pid = int(client.step(session, move(0)).obs.text.split()[-1])
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid))
    until(lambda: pid not in client.stats()["pids"])
    assert client.step(session, move(1)).status == "LOST"


def test_an_exception_is_one_sessions_alone(client):
    raises, neighbour = begin(client), begin(client)  # in one process
    reply = client.step(raises, do("raise oh"))
    assert reply.status == "CRASHED"
    assert reply.info == {"error": "exception", "message": "RuntimeError: oh"}
    assert reply.obs.text is None
    assert client.step(neighbour, move(1)).status == "OK"
    assert client.step(raises, move(1)).status == "LOST"
    leaves = begin(client)
    assert client.step(leaves, do("leave")).info["message"] == "SystemExit: 4"
    assert client.step(neighbour, move(1)).status == "OK"


@pytest.mark.parametrize("what", ["hang", "loop"])
def test_a_step_that_never_ends_is_a_timeout_and_its_process_is_ended(client, what):
    session, _ = client.create(WALK, {**HEAVY, "deadlines": {"step": 0.5}})
    pid = int(client.reset(session, seed=next(SEEDS)).obs.text.split()[-1])
    begun = time.monotonic()
    reply = client.step(session, do(what))
    seconds = time.monotonic() - begun
    assert reply.status == "TIMEOUT"
    assert seconds >= 0.5
    assert 500 <= reply.ms < 10_000  # 0.55 s on a machine that has nothing else to do
    assert client.step(session, move(1)).status == "LOST"
    until(lambda: not lives(pid))
    client.close(session)


def test_a_request_may_shorten_the_deadline(client):
    session = begin(client, **HEAVY)
    reply = client.step(session, do("sleep 30"), timeout=0.2)
    assert reply.status == "TIMEOUT"
    assert "0.2 s" in reply.info["message"]


def test_a_late_result_goes_nowhere(client):
    session = begin(client, **HEAVY)
    before = client.stats()["late"]
    assert client.step(session, do("sleep 0.6"), timeout=0.3).status == "TIMEOUT"
    other = begin(client, **HEAVY)
    assert client.step(other, move(1)).obs.step == 1
    assert client.poll(0.5) == []
    assert client.stats()["late"] in (before, before + 1)  # it was ended before it was done, or dropped


def test_a_session_that_waits_holds_up_no_other_in_its_process(client, tmp_path):
    slow, quick = begin(client), begin(client)
    gate = tmp_path / "gate"
    client.post([(slow, "step", wire.pack_action(do(f"wait {gate}"))), (quick, "step", wire.pack_action(move(1)))])
    first = until(lambda: client.poll(0.1))
    assert [reply.session for reply in first] == [quick]
    gate.touch()
    assert until(lambda: client.poll(0.1))[0].session == slow


def test_what_shared_a_process_with_a_hung_session_is_lost_not_continued(client):
    hung, neighbour = begin(client, deadlines={"step": 0.5}), begin(client, deadlines={"step": 60})
    assert client.step(hung, do("hang")).status == "TIMEOUT"
    reply = client.step(neighbour, move(1))
    assert reply.status == "LOST"
    assert "another session" in reply.info["message"]
    assert client.step(begin(client), move(1)).status == "OK"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("info", "plain data: set"),
        ("nan", "x holds NaN"),
        ("shape", r"x float64\[3\], where the first observation had x float64\[2\]"),
        ("reward", "reward of nan"),
    ],
)
def test_what_is_no_observation_stops_at_the_worker(client, bad, message):
    session = begin(client, PLAIN, bad=bad)
    reply = client.step(session, Action("say"))
    assert reply.status == "CRASHED"
    assert reply.info["error"] == "bad_observation"
    np.testing.assert_equal(reply.obs.arrays, {})
    assert re.search(message, reply.info["message"])


def test_an_action_out_of_range_is_a_parse_error_and_a_step(client):
    session = begin(client)
    for action in (move(10), Action("fly"), Invalid("no_action", "nothing was found")):
        reply = client.step(session, action)
        assert reply.status == "PARSE_ERROR"
        assert not reply.terminated
    assert reply.truncated  # three in a row
    assert client.step(session, move(1)).status == "EPISODE_OVER"


def test_an_environment_that_uses_its_buffer_again_does_not_change_what_was_seen(client):
    for frame in ([300, 300, 3], [10, 10]):  # in shared memory, and in the message
        session = begin(client, PLAIN, frame=frame, reuse=True)
        seen = [client.step(session, Action("say")).obs.arrays["frame"] for _ in range(6)]
        assert [int(array[0, 0]) if array.ndim == 2 else int(array[0, 0, 0]) for array in seen] == [1, 2, 3, 4, 5, 6]
        assert all((array == array.flat[0]).all() for array in seen)
        client.close(session)
    assert [int(array.flat[-1]) for array in seen] == [1, 2, 3, 4, 5, 6]


def test_memory_that_is_shared_is_used_and_removed(client, server):
    prefix = Path(server.address.removeprefix("ipc://")).parent.name
    session = begin(client, PLAIN, frame=[300, 300])
    held = [client.step(session, Action("say")).obs.arrays["frame"] for _ in range(2)]
    assert len(list(Path("/dev/shm").glob(prefix + "*"))) == 1
    assert held[1].base is not None
    client.close(session)
    until(lambda: not list(Path("/dev/shm").glob(prefix + "*")))
    assert (held[1] == 2).all()


def test_a_heavy_session_has_the_main_thread_of_its_process(client):
    session = begin(client, **HEAVY)
    assert client.step(session, do("thread")).info["error"] == "exception"
    other = begin(client, **HEAVY)
    assert "MainThread" in client.step(other, do("thread")).info["message"]


def test_a_save_that_fails_does_not_end_the_episode(client):
    session = begin(client, PLAIN)
    reply = client.save(session)
    assert (reply.status, reply.info["message"]) == ("BAD_REQUEST", "OSError: [Errno 28] No space left on device")
    assert client.step(session, Action("say")).obs.step == 1


def test_what_an_environment_started_ends_with_its_process(client, tmp_path):
    session = begin(client, **HEAVY)
    note = tmp_path / "pid"
    client.step(session, do(f"child {note}"))
    child = int(note.read_text())
    assert lives(child)
    client.step(session, do("kill"))
    until(lambda: not lives(child))


def test_a_task_that_took_three_workers_is_in_quarantine(client):
    task = Task("kill", "die")
    for _ in range(3):
        session, _ = client.create(WALK, HEAVY)
        reply = client.reset(session, task)
        if reply.status == "LOST":  # a worker that died before it began has nothing to do with the task
            continue
        assert reply.status == "CRASHED"
        client.close(session)
    session, _ = client.create(WALK, HEAVY)
    reply = client.reset(session, task)
    assert (reply.status, reply.info["error"]) == ("BAD_REQUEST", "quarantined")
    assert client.reset(session, Task("another", "live")).status == "OK"
    assert f"{WALK} kill" in client.stats()["quarantined"]


def test_a_restart_loop_is_bounded():
    with Server(["server_envs:*"], workers=1, restarts=2, window=300) as server, Client(server.address, server.token) as client:
        ends = []
        for seed in range(8):
            number = client.open()
            reply = client.call(number, "create", wire.pack([WALK, {}]))
            waits = 0
            while reply.status == "CAPACITY" and reply.info["retry_after_ms"] < 10_000 and waits < 1000:
                waits += 1
                time.sleep(reply.info["retry_after_ms"] / 1e3)  # as the server asks: its back-off
                reply = client.call(number, "create", wire.pack([WALK, {}]))
            ends.append(reply.status)
            if reply.status != "OK":
                break
            client.reset(number, seed=seed)
            client.step(number, do("exit"))
        assert ends == ["OK", "OK", "OK", "CAPACITY"]  # the first worker, two restarts, no more
        assert "died 3 times within 300 s" in reply.info["message"]
        assert client.stats()["workers"]["out"] == 1


def test_a_thousand_sessions_leave_nothing_behind(client, server):
    prefix = Path(server.address.removeprefix("ipc://")).parent.name
    begin(client)

    def kilobytes(pid: int) -> int:
        return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)

    def measure() -> dict[str, int]:
        pids = client.stats()["pids"]
        return {
            "processes": len(pids),
            "descriptors": sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (server.pid, *pids)),
            "segments": len(list(Path("/dev/shm").glob(prefix + "*"))),
            "files": len(list(Path(server.address.removeprefix("ipc://")).parent.rglob("*"))),
            "memory": kilobytes(server.pid) + sum(map(kilobytes, pids)),
        }

    def cycles(count: int) -> None:
        for i in range(count // 10):
            options = {"frame": [300, 300]} if i % 10 == 0 else {}
            sessions = [client.open() for _ in range(10)]
            for op, payload in (
                ("create", wire.pack([PLAIN, options])),
                ("reset", wire.pack_reset(None, 0)),
                ("step", wire.pack_action(Action("say"))),
            ):
                client.post([(session, op, payload) for session in sessions])
                while client.waiting:
                    assert all(reply.status == "OK" for reply in client.poll(0.5))
            for session in sessions:
                client.close(session)

    cycles(100)
    before = measure()
    cycles(1000)
    after = until(lambda: (found := measure())["segments"] == before["segments"] and found)
    assert (after["processes"], after["files"]) == (before["processes"], before["files"])
    assert after["descriptors"] <= before["descriptors"] + 2
    assert after["memory"] <= before["memory"] * 1.1


def test_a_clock_that_jumps_back_changes_nothing(tmp_path, monkeypatch):
    """In the router, in its workers and here: each look at the wall clock is an hour earlier than the one before."""
    (tmp_path / "sitecustomize.py").write_text(
        "import itertools, time\n"
        "count = itertools.count()\n"
        "time.time = lambda: 2e9 - 3600 * next(count)\n"
        "time.time_ns = lambda: int(time.time() * 1e9)\n"
    )
    hours = itertools.count()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(time, "time", lambda: 2e9 - 3600 * next(hours))
    with Server(["server_envs:*"], workers=1, lease=1.0) as server, Client(server.address, server.token) as client:
        session = begin(client)
        assert client.step(session, do("clock")).status == "OK"
        replies = [client.step(session, do("sleep 0.2")) for _ in range(6)]  # longer than the lease
        assert [reply.status for reply in replies] == ["OK"] * 6
        assert all(200 <= reply.ms < 60_000 and 0.2 <= reply.info["latency"] < 60 for reply in replies)
        assert client.step(begin(client), do("sleep 30"), timeout=0.2).status == "TIMEOUT"
        stats = client.stats()
        assert "LEASE" not in stats["errors"]
        assert 0 <= stats["latency_ms"]["step"]["p50"] <= stats["latency_ms"]["step"]["p99"] < 60_000
        with Raw(server.address, server.token) as silent:
            silent.create(1, WALK)
            until(lambda: client.stats()["errors"].get("LEASE"))  # and a lease that is not renewed does run out


def test_without_room_in_shared_memory_observations_go_by_message(capfd):
    """A limit on the size of files stands in for a full file system: the router's claim of memory fails in the same place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        server = Server(["server_envs:*"], workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with server, Client(server.address, server.token) as client:
        session = begin(client, PLAIN, frame=[300, 300])
        frames = [client.step(session, Action("say")).obs.arrays["frame"] for _ in range(4)]
        assert [(frame.shape, int(frame[0, 0]), int(frame[-1, -1])) for frame in frames] == [
            ((300, 300), number, number) for number in range(1, 5)
        ]
        assert client.stats()["segments"] == 0
    assert "no shared memory for results of 92" in capfd.readouterr().err


def test_two_servers_on_one_host_do_not_clash(client, server):
    with Server(["server_envs:*"], workers=1) as other, Client(other.address, other.token) as its:
        assert other.address != server.address
        mine, theirs = begin(client), begin(its)
        assert client.step(mine, move(1)).status == its.step(theirs, move(1)).status == "OK"
        with pytest.raises(Exception, match="refuses this token"):
            Client(other.address, server.token)
    assert client.step(mine, move(1)).status == "OK"


def test_a_server_that_comes_back_is_found_again_without_its_sessions(tmp_path):
    bind, token = f"ipc://{tmp_path}/front", "ab" * 32
    options = {"workers": 1, "bind": bind, "token": token}
    with Server(["server_envs:*"], **options) as first:
        client = Client(bind, token)
        session = begin(client)
        blob = client.save(session).value
        trace = tmp_path / "trace"
        client.step(session, do(f"append {trace}"))
        client.post([(session, "step", wire.pack_action(do("sleep 30")))])
        os.kill(first.pid, signal.SIGKILL)
        with Server(["server_envs:*"], **options), client:
            reply = until(lambda: client.poll(0.2))[0]
            assert reply.status == "LOST"
            again, _ = client.create(WALK)
            assert client.restore(again, blob).status == "OK"
            assert client.step(again, move(1)).status == "OK"
        assert trace.read_text() == "x"


def test_encryption_and_a_token_let_other_hosts_in():
    with Server(["server_envs:*"], workers=1, bind="tcp://127.0.0.1:0", encrypt=True) as server:
        assert "." in server.token
        with Client(server.address, server.token) as client:
            assert client.step(begin(client), move(1)).status == "OK"
        with pytest.raises(ConnectionError, match="no step server answers"):
            Client(server.address, server.token.split(".")[0], patience=0.5)  # without the key, not a word
        with Raw(server.address, server.token) as raw:
            assert raw.request((1, 0, "ping", b"", -1))["items"][0][2] == "OK"

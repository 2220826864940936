"""What the protocol promises, message by message (agent-environments 8.1, step-servers 8)."""

import subprocess
import sys

import psutil
import pytest
import server_help
from server_help import Raw, Way, do, move, until

from envs import Action, EnvSpec, session_seed
from envs.server import Client, Server, wire
from envs.server.sessions import allowed
from jaxllm.errors import UserError

WALK, PLAIN = "server_envs:Walk", "server_envs:Plain"


@pytest.fixture(scope="module")
def server():
    with Server(["server_envs:*"], workers=1, heavy=3, max_sessions=12, bind="tcp://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def raw(server):
    with Raw(server.address, server.token) as raw:
        yield raw


@pytest.fixture
def client(server):
    with Client(server.address, server.token) as client:
        yield client


def step(session: int, number: int, action=None) -> tuple:
    return (session, number, "step", wire.pack_action(action or Action("say")), -1)


def reset(session: int, number: int = 1, seed: int = 0) -> tuple:
    return (session, number, "reset", wire.pack_reset(None, seed), -1)


def test_a_reply_has_the_items_of_its_request_in_their_order(raw):
    for number in (7, 3, 5):
        raw.create(number, WALK)
    raw.request(*(reset(number) for number in (3, 5, 7)))
    reply = raw.request(step(7, 2, do("sleep 0.3")), step(3, 2), step(99, 0), step(5, 9), step(5, 2), req=42)
    assert reply["req"] == 42
    assert [item[:3] for item in reply["items"]] == [
        [7, 2, "OK"], [3, 2, "OK"], [99, 0, "LOST"], [5, 9, "STALE_STEP"], [5, 2, "OK"]
    ]  # fmt: skip


def test_the_same_step_twice_is_done_once_and_answered_with_the_same_bytes(raw, tmp_path):
    raw.create(1, WALK)
    raw.request(reset(1))
    trace = tmp_path / "trace"
    first = raw.request(step(1, 2, do(f"append {trace}")))["items"]
    again = raw.request(step(1, 2, do(f"append {trace}")))["items"]
    other = raw.request(step(1, 2, do("raise never done")))["items"]
    assert first == again == other
    assert trace.read_text() == "x"


def test_a_step_that_is_asked_for_again_while_it_runs_is_done_once(raw, tmp_path):
    raw.create(1, WALK)
    raw.request(reset(1))
    trace = tmp_path / "trace"
    raw.request(step(1, 2, do(f"append {trace}")))
    item = list(step(1, 3, do(f"wait {tmp_path / 'gate'}")))
    for number in (11, 12):
        raw.send("request", {"req": number, "stream": False, "items": [item]})
    assert raw.request((1, 0, "ping", b"", -1))["items"][0][2] == "OK"  # by now both are there
    (tmp_path / "gate").touch()
    reply = wire.header(raw.frames()[0])  # the last one who asks gets the answer
    assert reply["req"] == 12
    assert reply["items"][0][:3] == [1, 3, "OK"]
    assert trace.read_text() == "x"


@pytest.mark.parametrize("number", [0, 1, 3, 100, -1])
def test_a_step_behind_or_ahead_is_stale(raw, number):
    raw.create(1, WALK)
    raw.request(reset(1))
    raw.request(step(1, 2))
    raw.request(step(1, 3))
    item = raw.request(step(1, number))["items"][0]
    if number == 3:
        assert item[2] == "OK"  # the last one: its reply again
    else:
        assert item[2] == "STALE_STEP"
        assert wire.unpack(item[4])[4]["next"] == 4
    assert raw.request(step(1, 4))["items"][0][2] == "OK"


def test_a_second_operation_while_one_runs_is_stale(raw, tmp_path):
    raw.create(1, WALK)
    raw.request(reset(1))
    raw.send("request", {"req": 1, "stream": True, "items": [list(step(1, 2, do(f"wait {tmp_path / 'gate'}")))]})
    assert raw.request(step(1, 3))["items"][0][2] == "STALE_STEP"
    (tmp_path / "gate").touch()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        wire.pack([1, 2]),
        wire.pack({"v": wire.VERSION + 1, "kind": "request", "items": []}),
        wire.pack({"v": str(wire.VERSION), "kind": "request", "items": []}),
        wire.pack({"v": wire.VERSION, "kind": "nonsense"}),
        wire.pack({"v": wire.VERSION, "kind": "request"}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": [[1, 2, 3]]}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": [[1, 0, "step", "text", -1]]}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": [[{}, 0, "step", b"", -1]]}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": [[1, 0, "step", b"", -1], [1, 0, "step", b""]]}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": [{1: 0, 2: 0, "step": 0, b"": 0, -1: 0}]}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": ["abcde"]}),
        wire.pack({"v": wire.VERSION, "kind": "request", "items": [], "deadline_ms": "soon"}),
    ],
    ids=[
        "empty",
        "no msgpack",
        "no map",
        "version",
        "version as text",
        "kind",
        "no items",
        "short",
        "text",
        "map",
        "lengths",
        "map as item",
        "text as item",
        "deadline",
    ],
)
def test_what_is_no_message_of_this_version_is_a_bad_request_at_once(raw, message):
    raw.socket.send(message)
    reply = wire.header(raw.frames(10)[0])
    assert reply["kind"] == "error"
    assert reply["code"] == "BAD_REQUEST"
    assert reply["message"]


def test_an_unknown_operation_is_a_bad_request(raw):
    item = raw.request((1, 0, "explode", b"", -1))["items"][0]
    assert item[2] == "BAD_REQUEST"
    assert "explode" in wire.unpack(item[4])[4]["message"]


def test_an_operation_with_a_payload_of_another_form_is_a_bad_request_and_the_session_lives(raw):
    assert raw.request((1, 0, "create", b"\xc1", -1))["items"][0][2] == "BAD_REQUEST"
    assert raw.request((1, 0, "create", wire.pack(["a"]), -1))["items"][0][2] == "BAD_REQUEST"
    raw.create(1, WALK)
    assert raw.request((1, 1, "reset", wire.pack("x"), -1))["items"][0][2] == "BAD_REQUEST"
    assert raw.request(reset(1))["items"][0][2] == "OK"
    assert raw.request((1, 2, "step", wire.pack("x"), -1))["items"][0][2] == "BAD_REQUEST"
    assert raw.request(step(1, 3))["items"][0][2] == "OK"


def test_a_wrong_token_opens_nothing(server):
    with Raw(server.address, server.token, hello=False) as raw:
        for token in ("0" * 64, "", None, 5):
            assert raw.ask("hello", {"token": token})["code"] == "token"
        reply = raw.ask("request", {"req": 1, "stream": False, "items": [[1, 0, "create", wire.pack([WALK, {}]), -1]]})
        assert reply["code"] == "hello"
    with pytest.raises(UserError, match="refuses this token"):
        Client(server.address, "0" * 64)
    assert (server.token_file.stat().st_mode & 0o777) == 0o600
    assert server.token_file.read_text().strip() == server.token


def test_a_session_is_its_clients_alone(raw, server):
    raw.create(1, WALK)
    with Raw(server.address, server.token) as other:
        assert other.request(reset(1))["items"][0][2] == "LOST"


def test_a_message_of_60_mib_passes_and_one_of_65_is_refused(raw, client):
    raw.create(1, PLAIN)
    assert raw.request((1, 1, "reset", wire.pack_reset(None, 0), -1))["items"][0][2] == "OK"
    large = Action("say", {"text": "x" * (60 << 20)})
    assert raw.request(step(1, 2, large))["items"][0][2] == "OK"
    raw.send("request", {"req": 5, "stream": False, "items": [list(step(1, 3, Action("say", {"text": "x" * (65 << 20)})))]})
    reply = wire.header(raw.frames()[0])
    assert reply["code"] == "BAD_REQUEST"
    assert "65.0 MiB; at most 64 MiB" in reply["message"]
    assert raw.request(step(1, 3))["items"][0][2] == "OK"
    session, _ = client.create(PLAIN)
    with pytest.raises(UserError, match="at most 64 MiB"):
        client.step(session, Action("say", {"text": "x" * (65 << 20)}))


def test_an_observation_of_60_mib_passes_and_one_of_65_is_stopped(client):
    for mib, status in ((60, "OK"), (65, "CRASHED")):
        session, _ = client.create(PLAIN, {"frame": [mib << 20], "size": 1})
        reply = client.reset(session)
        assert reply.status == status
        if status == "OK":
            assert reply.obs.arrays["frame"].nbytes == mib << 20
        else:
            assert "64 MiB" in reply.info["message"]
        client.close(session)


def test_a_ping_is_answered_while_every_worker_is_busy(raw, server, tmp_path):
    raw.create(1, WALK)
    raw.request(reset(1))
    raw.send("request", {"req": 9, "stream": True, "items": [list(step(1, 2, do(f"wait {tmp_path / 'gate'}")))]})
    with Client(server.address, server.token) as client:
        assert min(client.ping() for _ in range(9)) <= 0.1
        assert client.stats()["sessions"]["busy"] >= 1
        (tmp_path / "gate").touch()
    reply = wire.header(raw.frames()[0])
    assert reply["items"][0][:3] == [1, 2, "OK"]  # busy, not dead


def test_beyond_its_capacity_a_server_says_so_at_once(server):
    with Client(server.address, server.token) as client:
        until(lambda: not sum(client.stats()["sessions"].values()))
        sessions = [client.create(WALK)[0] for _ in range(12)]
        number = client.open()
        reply = client.call(number, "create", wire.pack([WALK, {}]))
        assert reply.status == "CAPACITY"
        assert reply.info["retry_after_ms"] > 0
        client.close(sessions[0])
        assert client.call(number, "create", wire.pack([WALK, {}])).status == "OK"  # the same session, asked for again


def test_heavy_sessions_have_a_process_each_as_long_as_there_is_one(server):
    with Client(server.address, server.token) as client:
        pids = set()
        sessions = []
        for _ in range(3):
            session, spec = client.create(WALK, {"weight": "heavy"})
            assert isinstance(spec, EnvSpec)
            pids.add(client.reset(session).obs.text.split()[-1])
            sessions.append(session)
        assert len(pids) == 3
        with pytest.raises(UserError, match=r"CAPACITY.*3 processes"):
            client.create(WALK, {"weight": "heavy"})
        client.close(sessions[1])
        session, _ = client.create(WALK, {"weight": "heavy"})
        assert client.reset(session).obs.text.split()[-1] in pids  # a process that is free again


@pytest.mark.parametrize("name", ["games/sokoban", "os:system", "server_envs_other:Walk", "server_envs"])
def test_only_what_the_patterns_name_is_made(client, name):
    with pytest.raises(UserError, match="does not make"):
        client.create(name)


@pytest.mark.parametrize(
    ("name", "patterns", "expected"),
    [
        ("games/sokoban", ["games/*"], True),
        ("games/sokoban", ["*"], True),
        ("miniwob/click-test", ["games/*", "miniwob/click-*"], True),
        ("shell/x", ["games/*"], False),
        ("os:system", ["*"], False),
        ("os:system", ["*:*"], False),
        ("os:system", ["o*:system"], False),
        ("mine:Env", ["mine:*"], True),
        ("mine:Env", ["mine:Other"], False),
        ("openenv/localhost:80", ["openenv/*"], True),
    ],
)
def test_a_star_is_no_leave_to_run_any_function(name, patterns, expected):
    assert allowed(name, patterns) is expected


def test_what_is_missing_or_wrong_is_said_in_one_message(client):
    with pytest.raises(UserError, match=r"server_envs:Nothing.*has no attribute"):
        client.create("server_envs:Nothing")
    with pytest.raises(UserError, match="unexpected keyword"):
        client.create(WALK, {"colour": "red"})


def test_seeds_alone_make_trajectories(client):
    def texts(seed, **options):
        session, _ = client.create(WALK, options)
        replies = [client.reset(session, seed=seed)] + [client.step(session, move(1)) for _ in range(5)]
        client.close(session)
        return [reply.obs.text.split(",")[0] for reply in replies]

    zero = texts(0)
    assert texts(1) != zero
    assert texts(0) == zero
    assert texts(0, weight="heavy") == zero  # another process


def test_seeds_of_episodes_follow_from_run_task_and_attempt():
    # The first four bytes of SHA-256 over the JSON, without the lowest bit: from `printf '[0, "t", 0]' | sha256sum`.
    assert session_seed(0, "t", 0) == 0x35DC828A >> 1
    assert len({session_seed(run, task, attempt) for run in range(5) for task in "ab" for attempt in range(5)}) == 50


def test_figures_tell_sessions_latencies_and_errors(client):
    session, _ = client.create(WALK)
    client.reset(session)
    client.step(session, move(99))
    stats = client.stats()
    assert stats["sessions"]["idle"] >= 1
    assert stats["operations"]["step"] >= 1
    assert stats["errors"]["PARSE_ERROR"] >= 1
    assert 0 <= stats["latency_ms"]["step"]["p50"] <= stats["latency_ms"]["step"]["p99"]
    assert server_help.lives(stats["pids"][0])


def test_a_save_goes_on_in_another_process(client):
    session, _ = client.create(WALK)
    client.reset(session, seed=4)
    client.step(session, move(2))
    blob = client.save(session).value
    after = client.step(session, move(3)).obs.text.split(",")[0]
    other, _ = client.create(WALK, {"weight": "light"})
    assert client.restore(other, blob).status == "OK"
    assert client.step(other, move(3)).obs.text.split(",")[0] == after
    assert client.state(other).value == client.state(session).value
    assert client.restore(other, b"nonsense").status == "BAD_REQUEST"
    assert client.restore(other, blob.replace(b'"seed": 4', b'"seed": 5')).status == "LOST"  # the replay goes another way


def test_a_step_after_the_end_changes_nothing(client):
    session, _ = client.create(PLAIN, {"steps": 2})
    assert client.step(session, Action("say")).status == "EPISODE_OVER"  # before the first reset
    client.reset(session)
    assert not client.step(session, Action("say")).terminated
    last = client.step(session, Action("say"))
    assert (last.terminated, last.reward, last.obs.step) == (True, 1.0, 2)  # reward and sight of the end in one reply
    for _ in range(2):
        over = client.step(session, Action("say"))
        assert (over.status, over.reward, over.obs.step) == ("EPISODE_OVER", 0.0, 2)
    assert client.reset(session).obs.step == 0
    assert client.step(session, Action("say")).reward == 1.0


def test_a_way_that_is_cut_in_a_step_costs_time_and_no_second_step(server, tmp_path):
    way = Way(server.address)
    trace = tmp_path / "trace"
    with Client(way.address, server.token) as client, Client(server.address, server.token) as direct:
        session, _ = client.create(WALK)
        client.reset(session)
        for marks in (1, 2):
            client.post([(session, "step", wire.pack_action(do(f"append {trace}")))])
            way.cut()  # before the step has arrived, while it is done, or while its reply is on the way
            replies = client.poll(0.1)  # of one that was quicker
            assert direct.ping() >= 0  # the server is there for others
            way.mend()
            (reply,) = replies or until(lambda: client.poll(0.1))
            assert (reply.status, reply.obs.step) == ("OK", marks)
            assert trace.read_text() == "x" * marks
    way.cut()


def test_a_learner_that_is_killed_in_mid_batch_frees_its_slots():
    learner = """if True:
        import sys, time
        from envs import Action
        from envs.server import Client, wire
        client = Client(*sys.argv[1:])
        sessions = [client.create("server_envs:Walk", {"weight": weight})[0] for weight in ("light", "light", "heavy")]
        for session in sessions:
            client.reset(session)
        action = wire.pack_action(Action("do", {"what": "sleep 0.5"}))
        client.post([(session, "step", action) for session in sessions])
        print("stepping", flush=True)
        time.sleep(600)
    """
    with Server(["server_envs:*"], workers=1, heavy=1, max_sessions=3, lease=1.0) as full:
        process = subprocess.Popen([sys.executable, "-c", learner, full.address, full.token], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "stepping\n"
        with Client(full.address, full.token) as other:
            with pytest.raises(UserError, match="CAPACITY"):
                other.create(WALK)
            process.kill()
            process.wait()
            process.stdout.close()
            until(lambda: not sum(other.stats()["sessions"].values()))
            for weight in ("light", "light", "heavy"):
                assert other.reset(other.create(WALK, {"weight": weight})[0]).status == "OK"
            assert "zombie" not in {child.status() for child in psutil.Process(full.pid).children(recursive=True)}


def test_time_to_think_costs_no_lease():
    with Server(["server_envs:*"], workers=1, lease=1.0) as short, Client(short.address, short.token) as patient:
        kept, _ = patient.create(WALK)
        with Raw(short.address, short.token) as silent:  # sends no heartbeats: to the server, a connection that is half open
            silent.create(1, WALK)
            silent.create(2, WALK)
            silent.request(reset(2))
            assert silent.request(step(2, 2, do("sleep 2")))["items"][0][2] == "OK"  # a long step is no silence
            until(lambda: sum(patient.stats()["sessions"].values()) == 1)
            assert patient.stats()["errors"]["LEASE"] == 2
            assert silent.ask("renew", {})["code"] == "hello"  # forgotten
        assert patient.reset(kept).status == "OK"

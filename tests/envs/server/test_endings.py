"""However a server, its client or a terminal ends: nothing is left."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest
from server_help import do, lives, move, until

from envs import Action
from envs.sandbox.processes import descendants
from envs.server import Client, Server, arena, prometheus, wire
from jaxllm.errors import UserError

WALK = "server_envs:Walk"
HERE = str(Path(__file__).parent)


def begin(client: Client, **options) -> int:
    session, _ = client.create(WALK, options)
    assert client.reset(session).status == "OK"
    return session


def family(server: Server, client: Client) -> tuple[list[int], str]:
    """The processes of a server, and the beginning of what it owns."""
    return [server.pid, *client.stats()["pids"]], Path(server.address.removeprefix("ipc://")).parent.name


def left(prefix: str) -> list[Path]:
    return [*arena.ROOT.glob(prefix + "*"), *Path(tempfile.gettempdir()).glob(prefix + "*")]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def control_groups(pid: int) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"**/jaxllm-{pid}-*") if path.is_dir()]


def test_killing_the_router_ends_everything(tmp_path):
    server = Server(["server_envs:*"], workers=1)
    client = Client(server.address, server.token, alive=server.alive)
    light, heavy, hung = begin(client), begin(client, weight="heavy"), begin(client, weight="heavy")
    frame, _ = client.create("server_envs:Plain", {"frame": [300, 300]})
    client.reset(frame)
    client.step(heavy, do(f"child {tmp_path / 'pid'}"))
    pids, prefix = family(server, client)
    pids.append(int((tmp_path / "pid").read_text()))
    assert left(prefix)
    client.post([(hung, "step", wire.pack_action(do("loop")))])
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not any(map(lives, pids)))  # 2 s on a machine that has nothing else to do
    until(lambda: not left(prefix))
    assert client.step(light, move(1)).status == "LOST"
    client.close_all()
    server.close()


def test_sigterm_ends_everything_in_order(tmp_path):
    server = Server(["server_envs:*"], workers=1)
    with Client(server.address, server.token, alive=server.alive) as client:
        begin(client)
        heavy = begin(client, weight="heavy")
        client.step(heavy, do(f"child {tmp_path / 'pid'}"))
        pids, prefix = family(server, client)
        pids.append(int((tmp_path / "pid").read_text()))
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: not server.alive())
        assert not any(map(lives, pids))
        assert not left(prefix)
    server.close()
    assert server._process.returncode == 0


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files whose path is short enough for sockets, and in which nothing may be left."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


def test_what_a_killed_worker_had_on_disk_goes_and_then_what_the_router_had(temporary):
    """Folders of sessions, their sandboxes and control groups: after SIGKILL of a worker, then of the router."""
    server = Server(["shell/*"], workers=1, heavy=2)
    with Client(server.address, server.token, alive=server.alive) as client:
        sessions = [client.create("shell/find", {"level": 1})[0] for _ in range(2)]
        for session in sessions:
            assert client.reset(session).status == "OK"
            assert client.step(session, Action("execute_bash", {"command": "mkdir x; chmod 000 x; sleep 600 &"})).status == "OK"
        workers = client.stats()["pids"]
        folders = list(temporary.glob("*/*/jaxllm-shell-*"))
        assert len(folders) == 2
        (first,) = (folder for folder in folders if f"-{workers[0]}-" in folder.name)
        inside = descendants(workers[0])
        assert [pid for pid in inside if "sleep" in command(pid)]
        groups = [path for pid in workers for path in control_groups(pid)]
        os.kill(workers[0], signal.SIGKILL)
        until(lambda: not first.parent.exists() and not any(map(lives, inside)))
        assert client.step(sessions[1], Action("execute_bash", {"command": "true"})).status in ("OK", "LOST")
        inside = {pid for worker in workers for pid in descendants(worker)}
        assert inside
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not list(temporary.iterdir()))
        until(lambda: not any(map(lives, [*workers, *inside])))
    server.close()
    until(lambda: not any(path.exists() for path in groups))


def test_a_client_that_is_killed_takes_the_server_that_it_started_with_it():
    code = f"""
import sys, json, time
sys.path.insert(0, {HERE!r})
import envs
vector = envs.make_vec({WALK!r}, 2, workers=1)
vector.reset()
print(json.dumps([vector._server.pid, *vector.stats()[0]["pids"]]), flush=True)
vector.send([envs.Action("do", {{"what": "sleep 60"}})], [0])
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = json.loads(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not any(map(lives, pids)))


def serve_here(*settings: str) -> subprocess.Popen:
    code = (
        f"import sys; sys.path.insert(0, {HERE!r}); from envs.server import serve;"
        f"sys.exit(serve(['server_envs:*'], workers=1, {', '.join(settings)}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_ctrl_c_and_sigterm_end_a_server_in_the_foreground(number, code, tmp_path):
    process = serve_here(f"token_file={str(tmp_path / 'token')!r}")
    address = process.stdout.readline().split(" at ")[1].strip()
    token_file = process.stdout.readline().split("token in ")[1].strip()
    assert token_file == str(tmp_path / "token")
    with Client(address, Path(token_file)) as client:
        session = begin(client, weight="heavy")
        client.step(session, do("print hello from inside"))
        pids = client.stats()["pids"]
        client.post([(session, "step", wire.pack_action(do("sleep 60")))])
        os.killpg(process.pid, number)  # as a terminal does: to the whole group
        out, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "[worker 1] hello from inside" in errors  # what environments print, with a prefix
    assert "Traceback" not in errors
    assert not any(map(lives, pids))


def test_a_successor_clears_what_a_dead_server_left(temporary):
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    segment = arena.ROOT / f"{arena.PREFIX}-{process.pid}-7-ab-1"
    segment.write_bytes(b"x")
    closed = temporary / f"{arena.PREFIX}-{process.pid}-7-ab" / "tmp-1" / f"jaxllm-shell-{process.pid}-7-x" / "closed"
    closed.mkdir(parents=True)
    closed.chmod(0)
    with Server(["server_envs:*"], workers=1) as server:
        assert not segment.exists()
        assert [path.name for path in temporary.iterdir()] == [Path(server.address.removeprefix("ipc://")).parent.name]


def test_figures_are_there_for_prometheus():
    with Server(["server_envs:*"], workers=1, metrics_port=0) as server, Client(server.address, server.token) as client:
        client.step(begin(client), move(1))
        text = prometheus(client.stats())
        with urllib.request.urlopen(server.metrics, timeout=30) as page:
            body = page.read().decode()
            assert page.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = text.splitlines()
    assert 'jaxllm_envs_sessions{state="idle"} 1' in lines
    assert 'jaxllm_envs_operations_total{op="step"} 1' in lines
    assert {line.split("{")[0].split(" ")[0] for line in body.splitlines() if line[0] != "#"} >= {
        "jaxllm_envs_sessions", "jaxllm_envs_errors_total", "jaxllm_envs_latency_milliseconds"
    } - ({"jaxllm_envs_errors_total"} if "errors_total{" not in body else set())  # fmt: skip
    for line in lines:  # the exposition format: a comment, or name, labels and a number
        if not line.startswith("# "):
            name, value = line.rsplit(" ", 1)
            assert name.startswith("jaxllm_envs_")
            float(value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bind": "tcp://0.0.0.0:0", "encrypt": False}, "both a token and encryption"),
        ({"bind": "nowhere"}, "bind to tcp"),
        ({"bind": "ipc:///nowhere/at/all"}, "No such file"),
        ({"workers": 0}, "above 0"),
        ({"deadlines": {"jump": 1}}, "jump"),
        ({"token": "short"}, "64 hexadecimal"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_one_message(settings, message):
    with pytest.raises(UserError, match=message):
        Server(["server_envs:*"], **settings)
    with pytest.raises(UserError, match="names of what it may make"):
        Server("server_envs:*")

"""Real browsers behind a step server: what dies or hangs in one costs its session, and the next begins as if nothing was."""

import os
import signal
from pathlib import Path

import pytest
from server_help import lives, until

from envs import Action
from envs.sandbox.processes import descendants
from envs.server import Client, Server

PAGE = """<title>Press</title><body style="margin:0"><button style="position:absolute;left:0;top:0;width:80px;height:30px"
onclick="REWARD = 1; n.textContent = Number(n.textContent) + 1">more</button><button
style="position:absolute;left:0;top:50px;width:80px;height:30px" onclick="for (;;);">spin</button><p id=n>0</p>"""
MORE, SPIN = Action("click", {"point": (40, 15)}), Action("click", {"point": (40, 65)})
SIZE = {"size": [200, 150], "screenshot": False}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pages") / "press.html"
    path.write_text(PAGE)
    return f"page/{path}"


@pytest.fixture(scope="module")
def server():
    with Server(["page/*"], workers=1, heavy=3, restarts=20) as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.address, server.token) as client:
        yield client


def begin(client: Client, page: str, **options) -> int:
    session, spec = client.create(page, {**SIZE, **options})
    assert spec.weight == "heavy"
    assert client.reset(session, seed=1).status == "OK"
    return session


def browsers(client: Client) -> dict[int, list[int]]:
    """Worker -> its browser's processes."""
    return {pid: list(descendants(pid)) for pid in client.stats()["pids"]}


def renderers(pids: list[int]) -> list[int]:
    return [pid for pid in pids if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_dead_renderer_ends_its_session_alone(client, page):
    victim = begin(client, page)
    family = next(pids for pids in browsers(client).values() if renderers(pids))
    healthy = begin(client, page)
    for pid in renderers(family):
        os.kill(pid, signal.SIGKILL)
    reply = until(lambda: (reply := client.step(victim, MORE)).status != "OK" and reply)
    assert (reply.status, reply.reward, reply.truncated) == ("CRASHED", 0.0, True)
    assert "died" in reply.info["message"]
    until(lambda: not any(map(lives, family)))
    assert client.step(healthy, MORE).status == "OK"
    assert client.step(begin(client, page), MORE).reward == 1.0


def test_an_endless_script_is_a_timeout_and_nothing_of_its_browser_is_left(client, server, page):
    before = set(client.stats()["pids"])
    session = begin(client, page)
    mine = next((pid for pid in browsers(client) if pid not in before), None) or next(
        pid for pid, pids in browsers(client).items() if renderers(pids)
    )
    family = browsers(client)[mine]
    assert renderers(family)
    folder = Path(server.address.removeprefix("ipc://")).parent
    (profile,) = folder.glob(f"tmp-*/jaxllm-browser-{mine}-*")
    assert client.step(session, SPIN, timeout=1.0).status == "TIMEOUT"
    until(lambda: not any(map(lives, [mine, *family])))
    until(lambda: not profile.exists())
    assert client.step(begin(client, page), MORE).reward == 1.0


def test_a_verifier_that_raises_is_named_and_is_no_reward_of_nothing(client, page):
    session = begin(client, page, verifier="server_envs:broken_judge")
    reply = client.step(session, MORE)
    assert (reply.status, reply.info["error"], reply.truncated) == ("CRASHED", "verifier_error", True)
    assert "KeyError: 'price'" in reply.info["message"]

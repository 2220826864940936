"""OpenEnv both ways, beside the package openenv: its client to our gateway, our client to its server, and ours to ours."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import envs
from envs import Action, LostError, Obs, Task, digest
from envs.api import Element
from envs.openenv import Gateway, codec, missing, names
from envs.openenv.remote import http_address
from jaxllm.errors import UserError

HERE = Path(__file__).parent
PATIENCE = 60.0  # seconds that the busiest machine may take


class Peer:
    """The process of `openenv_peer`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "openenv_peer.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = json.loads(self.process.stdout.readline())["port"]

    def call(self, who: str, what: str, argument: Any = None) -> Any:
        """The result of a call of its client ``who``. Raises RuntimeError with what it raises."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([who, what, argument or {}]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    before = os.environ.get("PYTHONPATH")
    sys.path.insert(0, str(HERE))
    try:
        with Gateway(["gateway_envs:Count"], workers=2, max_sessions=4, lease=20.0, deadlines={"step": 5.0}) as gateway:
            yield gateway
    finally:
        sys.path.remove(str(HERE))
        assert os.environ.get("PYTHONPATH") == before


def within(seconds: float, condition: Any) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.02)
    return True


def count(gateway: Gateway) -> str:
    return f"openenv/{gateway.address}"


def add(n: int) -> Action:
    return Action("add", {"n": n})


# Our client, their server.


def test_their_environment_as_ours(peer: Peer) -> None:
    env = envs.make(f"openenv/127.0.0.1:{peer.port}")
    (act,) = env.spec.actions
    assert [(a.name, a.kind, a.required, a.default) for a in act.arguments] == [
        ("amount", "int", True, None),
        ("how", "choice", False, "calm"),
        ("note", "text", False, None),
    ]
    assert env.reset(seed=3).text == '{\n "count": 3\n}'
    one = env.step(Action("act", {"amount": 2}))
    assert (one.reward, one.terminated, one.truncated, one.obs.text) == (0.5, False, False, '{\n "count": 5\n}')
    assert env.step(Action("act", {"amount": 1})).reward == 1.0  # their True
    none = env.step(Action("act", {"amount": 0}))
    assert (none.reward, none.info["no_reward"]) == (0.0, True)
    assert env.state()["step_count"] == 3
    assert env.state()["step"] == 3
    wrong = env.step(Action("act", {"amount": "many"}))
    assert wrong.info["error"] == "bad_argument"
    broken = env.step(Action("act", {"amount": 99}))
    assert (broken.info["error"], "too much" in broken.info["message"]) == ("execution_error", True)
    last = env.step(Action("act", {"amount": 5}))
    assert (last.terminated, last.truncated) == (True, False)
    assert env.step(Action("act", {"amount": 5})).info["error"] == "episode_over"
    env.reset(seed=0)
    cut = env.step(Action("act", {"amount": 25}))
    assert (cut.terminated, cut.truncated) == (False, True)  # their metadata say truncated
    with pytest.raises(UserError, match="can't be saved"):
        env.save()
    env.close()
    env.close()


def test_a_deadline_and_a_full_server(peer: Peer) -> None:
    address = f"openenv/http://127.0.0.1:{peer.port}"
    env = envs.make(address, step_seconds=0.3)
    assert within(PATIENCE, lambda: _resets(env))
    begun = time.monotonic()
    with pytest.raises(LostError, match=r"no answer within 0.3 s"):
        env.step(Action("act", {"amount": 1, "how": "hang"}))
    assert time.monotonic() - begun < 15  # it hangs for 20
    others = [envs.make(address) for _ in range(2)]
    assert within(PATIENCE, lambda: _resets(others[0]))
    with pytest.raises(UserError, match=r"is full"):  # the session that hangs holds one of their two places
        others[1].reset()
    for other in others:
        other.close()
    env.close()


# Their client, our gateway.


def test_their_client_on_our_environment(peer: Peer, gateway: Gateway) -> None:
    peer.call("a", "open", {"base_url": gateway.address})
    first = peer.call("a", "reset", {"seed": 4, "episode_id": "e1"})
    assert (first["done"], first["reward"], first["observation"]["text"]) == (False, None, "4")
    assert first["observation"]["metadata"]["seed"] == 4
    step = peer.call("a", "step", {"name": "add", "arguments": {"n": 3}})
    assert (step["reward"], step["done"], step["observation"]["text"]) == (0.25, False, "7")
    with pytest.raises(RuntimeError, match=r"unknown: colour.*VALIDATION_ERROR"):
        peer.call("a", "step", {"name": "add", "colour": "red"})
    refused = peer.call("a", "step", {"name": "add", "arguments": {"n": "x"}})
    assert refused["observation"]["metadata"]["status"] == "PARSE_ERROR"
    assert refused["observation"]["metadata"]["info"]["error"] == "bad_argument"
    assert peer.call("a", "state")["step_count"] == 2
    assert peer.call("a", "state")["episode_id"] == "e1"
    done = peer.call("a", "step", {"name": "add", "arguments": {"n": 9}})
    assert (done["done"], done["reward"], done["observation"]["metadata"]["truncated"]) == (True, 1.0, False)
    over = peer.call("a", "step", {"name": "add", "arguments": {"n": 1}})
    assert (over["done"], over["reward"], over["observation"]["metadata"]["status"]) == (True, 0.0, "EPISODE_OVER")
    peer.call("a", "close")
    assert within(PATIENCE, lambda: gateway.sessions() == 0)


def test_capacity_and_room_again(peer: Peer, gateway: Gateway) -> None:
    for who in "abcd":
        peer.call(who, "open", {"base_url": gateway.address})
        peer.call(who, "reset", {"seed": 1})
    peer.call("e", "open", {"base_url": gateway.address})
    with pytest.raises(RuntimeError, match=r"4 of 4 sessions.*CAPACITY_REACHED"):
        peer.call("e", "reset", {"seed": 1})
    for who in "abcde":
        peer.call(who, "close")
    assert within(PATIENCE, lambda: gateway.sessions() == 0)
    peer.call("e", "open", {"base_url": gateway.address})
    assert peer.call("e", "reset", {"seed": 2})["observation"]["text"] == "2"
    peer.call("e", "close")


def test_a_step_that_hangs_is_ended(peer: Peer, gateway: Gateway) -> None:
    peer.call("a", "open", {"base_url": gateway.address})
    peer.call("a", "reset", {"seed": 1})
    with pytest.raises(RuntimeError, match=r"TIMEOUT.*EXECUTION_ERROR"):
        peer.call("a", "step", {"name": "hang"})
    assert peer.call("a", "reset", {"seed": 5})["observation"]["text"] == "5"  # a fresh environment
    with pytest.raises(RuntimeError, match=r"CRASHED.*EXECUTION_ERROR"):
        peer.call("a", "step", {"name": "die"})
    assert peer.call("a", "reset", {"seed": 6})["observation"]["text"] == "6"
    peer.call("a", "close")


# Messages that are none; who may come in.


def exchange(address: str, *messages: str) -> list[dict[str, Any]]:
    with connect("ws" + address.removeprefix("http") + "/ws", proxy=None) as socket:
        answers = []
        for message in messages:
            socket.send(message)
            answers.append(json.loads(socket.recv(timeout=PATIENCE)))
        return answers


def test_each_mistake_has_its_code(gateway: Gateway) -> None:
    wrong = [
        ("{", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("7", "VALIDATION_ERROR"),
        ('{"type": "jump"}', "UNKNOWN_TYPE"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"arguments": {}}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": 3}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {}, "more": 1}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"name": "add", "arguments": {"n": 1}}}', "EXECUTION_ERROR"),  # before a reset
    ]
    answers = exchange(gateway.address, *(text for text, _ in wrong), '{"type": "reset", "data": {"seed": 8, "shade": 1}}')
    assert [answer["data"]["code"] for answer in answers[:-1]] == [code for _, code in wrong]
    assert {code for _, code in wrong} <= set(codec.CODES)
    assert answers[-1]["data"]["observation"]["text"] == "8"
    assert answers[-1]["data"]["observation"]["metadata"]["ignored"] == ["shade"]


def test_a_message_over_the_limit_ends_only_its_session(gateway: Gateway) -> None:
    assert gateway._max_message == 64 << 20
    with Gateway(["gateway_envs:Count"], max_message=1000, server=gateway._where[0], server_token=gateway._where[1]) as small:
        with connect("ws" + small.address.removeprefix("http") + "/ws", proxy=None) as socket:
            socket.send("x" * 2000)
            with pytest.raises(ConnectionClosed, match="1009"):
                socket.recv(timeout=PATIENCE)
        request = urllib.request.Request(small.address + "/reset", data=b" " * 2000)
        with pytest.raises(urllib.error.HTTPError, match="422") as caught:
            urllib.request.urlopen(request, timeout=PATIENCE)
        caught.value.close()
        assert exchange(small.address, '{"type": "reset", "data": {"seed": 3}}')[0]["type"] == "observation"


def get(url: str, data: dict[str, Any] | None = None, **headers: str) -> Any:
    body = None if data is None else json.dumps(data).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE) as reply:
        return json.loads(reply.read())


def test_http_without_a_session(gateway: Gateway) -> None:
    at = gateway.address
    assert get(f"{at}/health") == {"status": "healthy"}
    assert get(f"{at}/metadata")["description"] == "counts to ten"
    assert get(f"{at}/schema")["action"]["properties"]["name"]["enum"][0] == "add"
    assert get(f"{at}/reset", {"seed": 7})["observation"]["text"] == "7"
    assert get(f"{at}/step", {"action": {"name": "add", "arguments": {"n": 1}}})["reward"] == 1.0  # from any seed
    assert get(f"{at}/state")["step_count"] == 0
    with pytest.raises(urllib.error.HTTPError, match="422") as caught:
        get(f"{at}/step", {"name": "add"})
    caught.value.close()
    assert gateway.sessions() == 0
    assert get(f"{at}/gateway_envs:Count/reset", {"seed": 6})["observation"]["text"] == "6"


def test_a_token_and_other_sites(gateway: Gateway, tmp_path: Path) -> None:
    where, secret = gateway._where
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            get(f"{gateway.address}/state", None, **headers)
        caught.value.close()
    with pytest.raises(UserError, match=r"0.0.0.0:0: other hosts.*token"):
        Gateway(["games/sokoban"], bind="0.0.0.0:0")
    with pytest.raises(UserError, match="HOST:PORT"):
        Gateway(["games/sokoban"], bind="here")
    with pytest.raises(UserError, match="list of names"):
        Gateway("games/sokoban")
    with pytest.raises(UserError, match="no family"):
        Gateway(["nothing/at-all"])
    with Gateway(["gateway_envs:Count"], bind="127.0.0.1:0", token="open sesame", server=where, server_token=secret) as closed:
        (tmp_path / "wrong").write_text("close sesame")
        (tmp_path / "right").write_text("open sesame\n")
        assert get(f"{closed.address}/health") == {"status": "healthy"}
        for options in ({}, {"token_file": str(tmp_path / "wrong")}):
            with pytest.raises(UserError, match="token_file"):
                envs.make(f"openenv/{closed.address}", **options)
        with pytest.raises(InvalidStatus, match="403"), connect("ws" + closed.address[4:] + "/ws", proxy=None):
            pass
        env = envs.make(f"openenv/{closed.address}", token_file=str(tmp_path / "right"))
        assert env.reset(seed=9).text == "9"
        env.close()


# Ours to ours.


def test_ours_over_openenv_is_the_same_environment(gateway: Gateway) -> None:
    sys.path.insert(0, str(HERE))
    try:
        near = envs.make("gateway_envs:Count")
    finally:
        sys.path.remove(str(HERE))
    far = envs.make(count(gateway))
    assert far.spec.actions == near.spec.actions
    assert far.spec.max_steps == near.spec.max_steps
    task = Task("t", "count", {"goal": 30})
    for mine, other in (
        (near.reset(task, 5), far.reset(task, 5)),
        *((near.step(add(n)).obs, far.step(add(n)).obs) for n in (1, 7)),
    ):
        assert (mine.text, mine.screenshot, mine.elements, mine.step) == (
            other.text,
            other.screenshot,
            other.elements,
            other.step,
        )
        np.testing.assert_array_equal(mine.arrays["value"], other.arrays["value"])
        assert mine.arrays["value"].dtype == other.arrays["value"].dtype
    assert digest(far.state()["state"]) == digest(near.state())
    assert far.step(Action("fly")).info["error"] == "unknown_action"
    far.close()
    assert within(PATIENCE, lambda: gateway.sessions() == 0)


def test_a_broken_socket_costs_nothing_with_our_gateway(gateway: Gateway) -> None:
    """The step is done once, though it is sent twice: the first answer was lost."""
    env: Any = envs.make(count(gateway))
    env.reset(seed=1)
    env.step(add(1))
    env._socket.socket.shutdown(2)  # between two steps
    assert env.step(add(1)).obs.text == "3"
    receive = env._socket.recv

    def lost(timeout: float) -> None:
        receive(timeout)
        env._socket.socket.shutdown(2)
        raise ConnectionClosed(None, None)

    env._socket.recv = lost  # after the step, before its answer
    assert env.step(add(1)).obs.text == "4"
    assert env.state()["step_count"] == 3
    env.close()
    assert within(PATIENCE, lambda: gateway.sessions() == 0)


def test_a_broken_socket_is_lost_with_another_server(peer: Peer) -> None:
    env: Any = envs.make(f"openenv/127.0.0.1:{peer.port}")
    assert within(PATIENCE, lambda: _resets(env))
    env._socket.socket.shutdown(2)
    with pytest.raises(LostError, match="broke"):
        env.step(Action("act", {"amount": 1}))
    assert env.step(Action("act", {"amount": 1})).info["error"] == "episode_over"
    assert within(PATIENCE, lambda: _resets(env))  # a new session
    env.close()


def _resets(env: Any) -> bool:
    """Whether there is room: their server frees a place a little after its client went."""
    try:
        env.reset(seed=1)
    except UserError:
        return False
    return True


def test_pings_are_answered_in_a_step_and_a_client_that_dies_there_leaves_no_session(gateway: Gateway) -> None:
    with connect("ws" + gateway.address.removeprefix("http") + "/ws", proxy=None) as socket:
        socket.send('{"type": "reset", "data": {"seed": 1}}')
        socket.recv(timeout=PATIENCE)
        socket.send('{"type": "step", "data": {"name": "hang"}}')
        assert socket.ping().wait(PATIENCE)
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0)  # the step still hangs
        assert gateway.sessions() == 1
        socket.socket.shutdown(2)
        assert within(PATIENCE, lambda: gateway.sessions() == 0)


# Without a server.


def test_addresses() -> None:
    assert http_address("localhost:8000") == "http://localhost:8000"
    assert http_address("wss://a.example/b/") == "https://a.example/b"
    for wrong in (
        "ftp://a:1",
        "http://",
        "a:b",
        "http://u:p@a:1",
        "http://a:1?x=1",
        "a:99999",
        "no such thing",
        "a:1/b\n",
        "ä:1",
    ):
        with pytest.raises(UserError, match="address"):
            http_address(wrong)
    with pytest.raises(UserError, match=r"no OpenEnv server answers at http://127.0.0.1:9"):
        envs.make("openenv/127.0.0.1:9")
    with pytest.raises(UserError, match=r"unknown options colour; there are reset_seconds"):
        envs.make("openenv/127.0.0.1:9", colour=1)
    assert (names(), missing()) == ([], None)


def test_a_server_that_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(UserError, match=r"no OpenEnv server answers at .*220 mail"):
            envs.make(f"openenv/127.0.0.1:{other.getsockname()[1]}")
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", [1]])
def test_a_reward_that_is_none_is_no_reward(reward: Any) -> None:
    message = {"type": "observation", "data": {"observation": {"x": 1}, "reward": reward, "done": False}}
    with pytest.raises(codec.MessageError, match="finite number"):
        codec.read_result(message)


def test_results_of_old_and_new_servers() -> None:
    def read(**data: Any) -> Any:
        return codec.read_result({"type": "observation", "data": {"observation": {"x": 1}, **data}})[1:]

    assert read(reward=None, done=True) == (None, True, False, {})
    assert read(reward=True, done=False) == (1.0, False, False, {})
    assert read(reward=2, done=True, metadata={"truncated": True}) == (2.0, False, True, {"truncated": True})
    assert read(reward=2, done=False, metadata={"truncated": True}) == (2.0, False, False, {"truncated": True})
    for wrong in (
        [],
        {"type": "state"},
        {"type": "observation", "data": {}},
        {"type": "observation", "data": {"observation": 3}},
    ):
        with pytest.raises(codec.MessageError):
            codec.read_result(wrong)


def test_an_observation_goes_there_and_back() -> None:
    arrays = {"a": np.arange(6, dtype=">i2").reshape(2, 3), "b": np.float32(1.5), "c": np.zeros((0, 2), bool)}
    obs = Obs("t", b"\x89PNG\x00", (Element(1, "button", "Go", (1.0, 2.0, 3.5, 4.0), {"on": True}),), arrays, 1.5, 7)
    back = codec.read_observation(json.loads(json.dumps(codec.observation(obs, {}))), own=True)
    assert (back.text, back.screenshot, back.elements, back.t_virtual, back.step) == (
        obs.text,
        obs.screenshot,
        obs.elements,
        obs.t_virtual,
        obs.step,
    )
    for name, array in arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)
    with pytest.raises(codec.MessageError, match="jaxllm-envs/1"):
        codec.read_observation({"text": 1}, own=True)
    evil = {**codec.observation(Obs(), {}), "arrays": {"x": {"dtype": "|O", "shape": [1], "data": "AAAAAAAAAAA="}}}
    with pytest.raises(codec.MessageError, match="object"):
        codec.read_observation(evil, own=True)

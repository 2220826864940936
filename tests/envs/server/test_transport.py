"""The ways of a client to its server: a link for the process that started it, ZeroMQ for everyone."""

import os
import signal
import socket
import time

import pytest
from server_help import PATIENCE, Raw, do, move, until

from envs.server import Client, Server, ServerGoneError, transport, wire
from envs.server.front import OWNER, Front
from envs.server.link import CHUNK, HIGH_WATER, Link
from envs.server.transport import LinkTransport, ZmqTransport

WALK = "server_envs:Walk"


@pytest.fixture(scope="module")
def server():
    with Server(["server_envs:*"], workers=1, lease=1.0) as server:
        yield server


@pytest.fixture
def ends():
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
    ours, theirs = Link(pair[0]), Link(pair[1])
    yield LinkTransport(ours), theirs
    ours.close()
    theirs.close()


@pytest.fixture
def front(ends, tmp_path):
    """The router's side of both ways, with what reaches it: the owner by a link, somebody over ZeroMQ."""
    near, theirs = ends
    front = Front(f"ipc://{tmp_path}/front", None, theirs)
    far = ZmqTransport(front.address, None, b"somebody")
    yield front, near, far
    far.close(0)
    front.close()


def heard(front: Front, count: int) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}

    def all_there() -> bool:
        for identity, frames in front.receive(front.wait(0.05)):
            found.setdefault(identity, []).append(bytes(frames[0]))
        return sum(map(len, found.values())) == count

    until(all_there)
    return found


def test_both_ways_carry_the_same(front):
    front, near, far = front
    for way in (near, far):
        for message in (b"one", b"two"):
            way.send(message)
    assert heard(front, 4) == {OWNER: [b"one", b"two"], b"somebody": [b"one", b"two"]}
    for identity, way in ((OWNER, near), (b"somebody", far)):
        assert front.send(identity, [b"head", b"buffer"])
        (frames,) = until(lambda way=way: way.receive(0.1))
        assert [bytes(frame) for frame in frames] == [b"head", b"buffer"]
        assert way.receive(0.0) == []
        assert way.fileno() >= 0
    assert not front.send(b"nobody", [b"lost"])


def test_who_does_not_read_blocks_nobody_and_gets_the_first_thousand(front):
    front, near, _ = front
    sent = 0
    while front.send(OWNER, [b"%d" % sent, bytes(1000)]):
        sent += 1
        assert sent < 10 * HIGH_WATER
    near.send(b"here")
    assert heard(front, 1) == {OWNER: [b"here"]}  # it is heard meanwhile

    found: list[bytes] = []

    def all_there() -> bool:
        list(front.receive(front.wait(0.01)))
        found.extend(frames[0] for frames in near.receive(0.0))
        return len(found) == sent

    until(all_there)
    assert found == [b"%d" % number for number in range(sent)]
    assert front.send(OWNER, [b"more"])


def test_a_message_that_a_busy_server_takes_late_goes_on_while_one_receives(ends, monkeypatch):
    monkeypatch.setattr(transport, "TAKEN", 0.01)
    near, theirs = ends
    message = bytes(range(256)) * (CHUNK // 16)
    near.send(message)
    near.send(b"second")
    assert near.link.waiting == 2
    found: list[list[bytes]] = []
    until(lambda: near.receive(0.0) or found.extend(theirs.receive()) or len(found) == 2)
    assert found == [[message], [b"second"]]
    assert near.link.waiting == 0


def test_a_server_that_takes_nothing_is_not_sent_without_end(ends, monkeypatch):
    monkeypatch.setattr(transport, "TAKEN", 0.01)
    near, _ = ends
    for _ in range(2 * HIGH_WATER):
        near.send(bytes(CHUNK // 16))
    assert near.link.waiting == HIGH_WATER


def test_a_message_in_pieces_is_waited_for_and_an_end_is_told_at_once(ends):
    near, theirs = ends
    message = [b"head", bytes(5 * CHUNK)]
    assert not theirs.send(message)
    found: list[list[bytes]] = []
    until(lambda: theirs.flush() or found.extend(near.receive(0.0)))
    found += near.receive(PATIENCE)
    assert found == [message]
    theirs.close()
    begun = time.monotonic()
    assert near.receive(PATIENCE) == []
    assert near.receive(PATIENCE) == []
    assert near.link.ended
    assert time.monotonic() - begun < PATIENCE


def test_the_owner_needs_no_token_and_no_heartbeat(server):
    owner = server.client
    session, _ = owner.create(WALK)
    assert owner.reset(session).status == "OK"
    assert owner._heart is None
    with Client(server.address, server.token) as other, Raw(server.address, server.token) as silent:
        assert other._heart is not None
        silent.create(1, WALK)
        until(lambda: other.stats()["errors"].get("LEASE"))  # so long a silence costs a session over ZeroMQ ...
    assert owner.step(session, move(1)).status == "OK"  # ... and none of the owner, who lives as long as its link
    owner.close(session)


def test_an_answer_that_is_lost_is_given_again_and_the_step_is_done_once(server, tmp_path, monkeypatch):
    client = server.client
    session, _ = client.create(WALK)
    client.reset(session)
    trace, receive, lost = tmp_path / "trace", client._transport.receive, []

    def lossy(seconds: float) -> list[list[bytes]]:
        messages = receive(seconds)
        if lost or not messages:
            return messages
        lost.extend(messages)
        client._resend_at = 0.0  # as if two seconds had passed
        return []

    monkeypatch.setattr(client._transport, "receive", lossy)
    reply = client.step(session, do(f"append {trace}"))
    assert (reply.status, reply.obs.step) == ("OK", 1)
    assert lost
    assert trace.read_text() == "x"
    client.close(session)


def test_an_encrypted_server_elsewhere_has_the_same_short_way():
    with Server(["server_envs:*"], workers=1, bind="tcp://127.0.0.1:0", encrypt=True) as server:
        session, _ = server.client.create(WALK)
        assert server.client.reset(session).status == "OK"
        assert server.client.stats()["clients"] == 1


def test_what_waits_for_a_server_that_dies_is_lost_at_once():
    with Server(["server_envs:*"], workers=1) as server:
        client = server.client
        session, _ = client.create(WALK)
        client.reset(session)
        client.post([(session, "step", wire.pack_action(do("sleep 60")))])
        os.kill(server.pid, signal.SIGKILL)
        (reply,) = until(lambda: client.poll(PATIENCE))
        assert reply.status == "LOST"
        assert not server.alive()
        with pytest.raises(ServerGoneError):
            client.ping(PATIENCE)
    assert client.step(session, move(1)).status == "LOST"
    client.close_all()

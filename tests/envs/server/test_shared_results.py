"""Results of some size go through shared memory, where client and server share it."""

import numpy as np
import pytest
from server_help import Raw, until

from envs import Action
from envs.server import Client, Server, arena, auth, wire
from envs.server.router import BOOT

PLAIN = "server_envs:Plain"
SAY = wire.pack_action(Action("say"))


@pytest.fixture(scope="module")
def server():
    with Server(["server_envs:*"], workers=2, check_memory=True) as server:
        yield server


@pytest.fixture
def near(server):
    with Raw(server.address, server.token, hello=False) as raw:
        hello = {"token": auth.split(server.token)[0], "boot": BOOT.read_text().strip()}
        assert raw.ask("hello", hello)["kind"] == "welcome"
        yield raw


def begin(raw: Raw, **options) -> dict:
    raw.create(1, PLAIN, **options)
    return raw.request((1, 1, "reset", wire.pack_reset(None, 0), -1))


def step(raw: Raw, number: int, slot: int) -> list:
    (item,) = raw.request((1, number, "step", SAY, slot))["items"]
    assert item[:3] == [1, number, "OK"]
    return item


def test_after_its_first_text_a_session_has_two_slots(near):
    reply = begin(near, size=2000)
    ((session, *room),) = reply["arenas"]
    assert session == 1
    assert wire.unpack(reply["items"][0][4])[0][0] == "x" * 2000  # the first one comes by message
    slots = arena.Slots(*room)
    for number, slot in ((2, 0), (3, 1), (4, 0)):
        _, _, _, _, result, buffers, where, generation = step(near, number, slot)
        assert (result, buffers, where) == (b"", 0, slot)
        result, arrays = slots.read(slot, generation)
        assert arrays is None
        assert wire.unpack(result)[0] == ["x" * 2000, None, [], None, 0.0, number - 1]
    assert step(near, 4, 1) == step(near, 4, -1)  # asked for again: the same answer, in its old place
    inline = step(near, 5, -1)  # a client that offers no slot
    assert wire.unpack(inline[4])[0][0] == "x" * 2000


def test_small_results_and_clients_of_other_hosts_have_none(near, server):
    assert not begin(near, size=100)["arenas"]
    assert step(near, 2, 0)[6] == -1
    with Raw(server.address, server.token) as far:
        assert not begin(far, size=2000)["arenas"]
        assert step(far, 2, 0)[6] == -1


def test_a_text_that_outgrows_its_room_gets_a_larger_one(server):
    with Client(server.address, server.token) as client:
        session, _ = client.create(PLAIN, {"size": 700, "grow": True})
        lengths = [len(client.reset(session).obs.text)]
        lengths += [len(client.step(session, Action("say")).obs.text) for _ in range(40)]
        assert lengths == [700 * number for number in range(1, 42)]
        slots = client._handles[session].slots
        assert slots.slot_bytes >= 700 * 41
        assert client.stats()["segments"] <= 2  # rooms are small parts of one
        client.close(session)
        until(lambda: client.stats()["segments"] == 0)


def test_texts_and_arrays_share_a_slot(server):
    with Client(server.address, server.token) as client:
        session, _ = client.create(PLAIN, {"size": 3000, "frame": [300, 300]})
        client.reset(session)
        held = [client.step(session, Action("say")).obs for _ in range(5)]  # more than slots: the others come by message
        for number, obs in enumerate(held, 1):
            assert obs.text == "x" * 3000
            np.testing.assert_array_equal(obs.arrays["frame"], np.full((300, 300), number, np.uint8))


def test_sessions_of_two_workers_write_to_one_segment(server):
    with Client(server.address, server.token) as client:
        sessions = [client.create(PLAIN, {"size": 1000 + number})[0] for number in range(20)]
        for session in sessions:
            client.reset(session)
        for _ in range(3):
            client.post([(session, "step", SAY) for session in sessions])
            replies = []
            until(lambda replies=replies: replies.extend(client.poll(0.1)) or len(replies) == 20)
            assert {reply.session: len(reply.obs.text) for reply in replies} == dict(
                zip(sessions, range(1000, 1020), strict=True)
            )
        assert client.stats()["segments"] == 1

"""The way between a router and a worker."""

import random
import socket
import struct
import threading

import numpy as np
import pytest

from envs.server.link import CHUNK, FRAMES, Link
from envs.server.wire import HARD_LIMIT


@pytest.fixture
def ends():
    ours, its = socket.socketpair()
    ours.setblocking(False)
    router, worker = Link(ours), Link(its)
    yield router, worker
    router.close()
    worker.close()


def take(link: Link, count: int) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    while len(messages) < count:
        messages += link.receive()
        assert not link.ended
    return messages


def test_messages_come_whole_and_in_order(ends):
    router, worker = ends
    sent = [[b"one"], [b"", b"two", b""], [bytes(range(256)) * 9]]
    for frames in sent:
        assert router.send(frames)
    assert take(worker, 3) == sent
    assert router.receive() == []  # nothing there, and no waiting


def test_what_a_worker_does_not_take_waits_and_nothing_is_blocked(ends):
    router, worker = ends
    sent = [[bytes([number]) * (3 * CHUNK + number)] for number in range(4)]
    assert not [router.send(frames) for frames in sent][-1]
    found = []
    while len(found) < 4:
        found += worker.receive()
        router.flush()
    assert found == sent
    assert router.flush()


def test_frames_of_arrays_are_copied_as_bytes(ends):
    router, worker = ends
    array = np.arange(300_000).reshape(3, -1)
    reader = threading.Thread(target=worker.send, args=([b"head", array],))  # waits until all is taken
    reader.start()
    ((head, data),) = take(router, 1)
    reader.join()
    assert head == b"head"
    np.testing.assert_array_equal(np.frombuffer(data, array.dtype), array.reshape(-1))


def test_pieces_of_any_size_make_the_same_messages(ends):
    router, worker = ends
    sent = [[b"a" * 1000, b"b"], [], [b"c" * 77]]
    for frames in sent:
        router.send(frames)
    data = worker._end.recv(1 << 16)
    random_sizes = random.Random(0)
    found = []
    while data:
        size = random_sizes.randint(1, 300)
        router._end.sendall(data[:size])
        data = data[size:]
        found += worker.receive()
    assert found == sent


def test_the_end_is_told_after_all_that_was_sent(ends):
    router, worker = ends
    worker.send([b"last words"])
    worker.close()
    assert router.receive() == [[b"last words"]]
    assert not router.ended
    assert router.receive() == []
    assert router.ended
    assert router.send([b"to nobody"])  # lost, and no exception


@pytest.mark.parametrize(
    "claim", [struct.pack("<I", FRAMES + 1), struct.pack("<IQ", 1, HARD_LIMIT + 1)], ids=["frames", "bytes"]
)
def test_a_worker_that_announces_too_much_is_heard_no_more(ends, claim):
    router, worker = ends
    worker.send([b"good"])
    worker._end.send(claim)
    assert router.receive() == [[b"good"]]
    assert router.ended

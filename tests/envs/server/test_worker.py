"""Who leads in a worker, and what holds up nobody; without a router."""

import socket
import threading

import pytest
from server_help import PATIENCE, do, move

from envs import Action
from envs.server import wire
from envs.server.link import Link
from envs.server.worker import SLOW, Worker

RESET = wire.pack_reset(None, 0)


class Ends:
    """Stands in for a router."""

    def __init__(self, folder):
        ours, its = socket.socketpair()
        ours.settimeout(PATIENCE)
        self.link = Link(ours)
        self.records: list[list] = []
        self.worker = Worker(str(folder), 1, its)

    def give(self, *items) -> None:
        self.link.send([wire.pack({"heavy": False, "arenas": [], "items": [list(item) for item in items]})])

    def take(self) -> list:
        while not self.records:
            for (head,) in self.link.receive():
                self.records += wire.unpack(head)
            assert not self.link.ended, "no answer"
        return self.records.pop(0)

    def ask(self, key: int, step: int, op: str, payload: bytes) -> list:
        self.give((key, step, op, payload, -1))
        record = self.take()
        assert record[:3] == [key, step, "OK"]
        return record


@pytest.fixture
def ends(tmp_path):
    (tmp_path / "now-1").write_bytes(bytes(512))
    ends = Ends(tmp_path)
    # `_work` without `_watch`: nobody takes the lead from a session that turns out to be slow, so it has to be known.
    threading.Thread(target=ends.worker._work, args=(0,), daemon=True).start()
    for key in (1, 2):
        ends.ask(key, 0, "create", wire.pack(["server_envs:Walk", {"max_steps": 1000}]))
        ends.ask(key, 1, "reset", RESET)
    return ends


def test_a_session_that_is_known_to_be_slow_holds_up_nobody(ends, tmp_path):
    ends.ask(1, 2, "step", wire.pack_action(do("sleep 0.05")))
    ends.ask(1, 3, "reset", RESET)  # says nothing about steps
    ends.ask(1, 4, "step", wire.pack_action(move(0)))  # nor does one quick step
    gate = tmp_path / "gate"
    slow = (1, 5, "step", wire.pack_action(do(f"wait {gate}")), -1)
    ends.give(slow, (2, 2, "step", wire.pack_action(move(1)), -1))
    assert ends.take()[:3] == [2, 2, "OK"]
    gate.touch()
    assert ends.take()[:3] == [1, 5, "OK"]


def test_a_session_that_was_slow_once_is_quick_again_in_time(ends):
    ends.ask(1, 2, "step", wire.pack_action(do("sleep 0.05")))
    usual = ends.worker.sessions[1].usual
    assert usual["step"] > SLOW
    numbers = iter(range(3, 500))
    while usual["step"] > SLOW:
        ends.ask(1, next(numbers), "step", wire.pack_action(Action("say")))

"""The learner's end of a step server: sends operations, takes replies in the order in which they become ready.

Every session takes one operation at a time, and each has a number; what is not answered is asked for again, and the server does
it once. So a lost connection, a late reply or a server that comes back costs time and nothing else; a server that comes back
without its sessions answers LOST.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.api import Action, EnvSpec, Invalid, Obs, Task
from envs.server import wire
from envs.server.arena import Slots
from envs.server.connection import PATIENCE, Connection
from envs.server.transport import LinkTransport
from jaxllm.errors import UserError

LONGEST_PAYLOAD = wire.LIMIT - 4096
_REFUSED = frozenset({"STALE_STEP", "CAPACITY", "BAD_REQUEST"})  # where the server says which number comes next


@dataclasses.dataclass(eq=False, slots=True)
class Reply:
    """What became of one operation."""

    session: int
    step: int  # the operation's number within its session
    status: str  # one of `envs.server.wire.STATUSES`
    obs: Obs  # empty where there is none
    reward: float
    terminated: bool
    truncated: bool  # also where the session is gone
    info: dict[str, Any]
    ms: float  # that it took in the worker
    value: Any = None  # of save (bytes), state (JSON), stats (JSON), create (an EnvSpec)


@dataclasses.dataclass(eq=False, slots=True)
class Handle:
    """A session as its client knows it."""

    number: int
    next: int = 0  # number of the next operation
    pending: tuple[int, str, bytes, int] | None = None  # step, op, payload, request of what is not answered yet
    slots: Slots | None = None


class Client(Connection):
    """A connection to a server. Used from one thread; a second one keeps the leases.

    Args:
      address: as the server prints it: ``ipc://...`` or ``tcp://host:port``.
      token: the token, or the path of its file; by default from the environment variable `auth.VARIABLE`.
      patience: seconds without a word from the server, after which its sessions count as lost.
      heartbeat: keep the leases while this process lives, however long it thinks.
      alive: says whether the server's process lives, where somebody knows.
      transport: in place of the token, for the process that started the server (`envs.server.Server.client`).

    Raises UserError for a wrong token, `ServerGoneError` if nobody answers.
    """

    def __init__(
        self,
        address: str,
        token: str | Path | None = None,
        *,
        patience: float = PATIENCE,
        heartbeat: bool = True,
        alive: Callable[[], bool] = lambda: True,
        transport: LinkTransport | None = None,
    ):
        self._handles: dict[int, Handle] = {}
        self._sessions = 0
        self._requests = 0
        self._ready: deque[Reply] = deque()
        self._controls: dict[int, Reply] = {}  # of ping and stats
        super().__init__(address, token, patience=patience, heartbeat=heartbeat, alive=alive, transport=transport)

    # One operation at a time.

    def create(self, name: str, options: Mapping[str, Any] | None = None, timeout: float | None = None) -> tuple[int, EnvSpec]:
        """Makes an environment; returns its session and its spec. Raises UserError if the server refuses, with its reason."""
        session = self.open()
        reply = self.call(session, "create", wire.pack([name, dict(options or {})]), timeout)
        if reply.status != "OK":
            self._handles.pop(session, None)
            raise UserError(f"{name} on {self.address}: {reply.status}: {reply.info.get('message', '')}")
        return session, reply.value

    def reset(self, session: int, task: Task | None = None, seed: int = 0, timeout: float | None = None) -> Reply:
        """Starts an episode."""
        return self.call(session, "reset", wire.pack_reset(task, seed), timeout)

    def step(self, session: int, action: Action | Invalid, timeout: float | None = None) -> Reply:
        """Does one action."""
        return self.call(session, "step", wire.pack_action(action), timeout)

    def save(self, session: int, timeout: float | None = None) -> Reply:
        """The episode so far, as bytes in `value`."""
        return self.call(session, "save", b"", timeout)

    def restore(self, session: int, blob: bytes, timeout: float | None = None) -> Reply:
        """Goes on from a save."""
        return self.call(session, "restore", wire.pack(blob), timeout)

    def state(self, session: int, timeout: float | None = None) -> Reply:
        """The verifier's view, in `value`."""
        return self.call(session, "state", b"", timeout)

    def close(self, session: int) -> None:
        """Ends a session, whatever it is doing; may be called twice."""
        handle = self._handles.pop(session, None)
        if handle is not None:
            if handle.pending is not None:
                self._waiting -= 1
            self._send("request", {"req": 0, "stream": True, "items": [[session, handle.next, "close", b"", -1]]})

    def ping(self, timeout: float = 5.0) -> float:
        """Seconds until the server answers. Raises `ServerGoneError`."""
        begun = time.perf_counter()
        self._control("ping", timeout)
        return time.perf_counter() - begun

    def stats(self, timeout: float = 5.0) -> dict[str, Any]:
        """The server's figures: sessions by state, steps/s, latencies, restarts, errors by kind. Raises `ServerGoneError`."""
        return self._control("stats", timeout).value

    def call(self, session: int, op: str, payload: bytes, timeout: float | None = None) -> Reply:
        """One operation and its reply; `timeout` in seconds can only shorten the server's own deadline.

        Raises UserError for a session that is none, or is busy, and for a payload over the limit.
        """
        step = self.post([(session, op, payload)], timeout)[0]
        found: Reply | None = None

        def there() -> bool:
            nonlocal found
            for reply in self._ready:
                if reply.session == session and reply.step == step:
                    found = reply
                    self._ready.remove(reply)
                    return True
            return False

        self._wait_until(there, None, "")
        assert found is not None
        return found

    def _control(self, op: str, timeout: float) -> Reply:
        self._requests += 1
        number = -self._requests
        self._send("request", {"req": 0, "stream": True, "items": [[number, 0, op, b"", -1]]})
        self._wait_until(lambda: number in self._controls, timeout, f"{self.address}: no answer within {timeout:g} s")
        return self._controls.pop(number)

    # Many at a time.

    def open(self) -> int:
        """A number for a new session, for `post` with op ``create``."""
        self._sessions += 1
        self._handles[self._sessions] = Handle(self._sessions)
        return self._sessions

    @property
    def waiting(self) -> int:
        """How many operations have no answer yet."""
        return self._waiting

    def post(self, items: Sequence[tuple[int, str, bytes]], timeout: float | None = None) -> list[int]:
        """Sends operations: session, op, payload; returns their numbers. The replies come by `poll`.

        Raises UserError for a session that is none or is busy, and for payloads over the limit.
        """
        self._requests += 1
        request, handles = self._requests, self._handles
        out: list[list[Any]] = []
        size = 0
        for session, op, payload in items:
            handle = handles.get(session)
            if handle is None or handle.pending is not None:
                raise UserError(f"session {session} {'is busy' if handle else 'is none, or closed'}")
            if len(payload) > LONGEST_PAYLOAD:
                raise UserError(f"{op} with {len(payload) / 2**20:.1f} MiB; a message holds at most {wire.LIMIT >> 20} MiB")
            size += len(payload)
            out.append([session, handle.next, op, payload, -1 if handle.slots is None else handle.slots.free()])
        for session, step, op, payload, _ in out:
            handles[session].pending = (step, op, payload, request)
        if not self._waiting:
            self._heard_word()
        self._waiting += len(out)
        deadline_ms = 0 if timeout is None else max(1, int(timeout * 1e3))
        if size < wire.LIMIT // 2 or len(out) == 1:
            self._send("request", {"req": self._requests, "stream": True, "deadline_ms": deadline_ms, "items": out})
        else:
            for item in out:
                self._send("request", {"req": self._requests, "stream": True, "deadline_ms": deadline_ms, "items": [item]})
        return [int(item[1]) for item in out]

    def poll(self, timeout: float = 0.0) -> list[Reply]:
        """The replies that are there; waits up to `timeout` seconds for the first."""
        if not self._ready:
            self._receive(timeout)
        replies = list(self._ready)
        self._ready.clear()
        return replies

    # Messages.

    def _on_message(self, frames: list[Any]) -> None:
        head = wire.header(frames[0])
        kind = head["kind"]
        if kind == "reply":
            for session, *room in head["arenas"]:
                if handle := self._handles.get(session):
                    with contextlib.suppress(OSError):
                        handle.slots = Slots(*room)
            at = 1
            for record in head["items"]:
                count = record[5]
                self._on_record(record, frames[at : at + count] if count else ())
                at += count
        elif kind == "welcome":
            if self._run not in (None, head["run"]):
                self._lose("the server is a new one: what ran on the old one is gone")
            self._run, self.lease = head["run"], head["lease"]
            self._again()
        elif kind == "error":
            self._on_error(head)

    def _on_error(self, head: dict[str, Any]) -> None:
        code, text = head["code"], head["message"]
        if code == "hello":
            self._hello()
        elif code == "token":
            raise UserError(f"{self.address}: the server refuses this token; it prints where its own is")
        else:
            for handle in self._handles.values():
                if handle.pending is not None and handle.pending[3] == head["req"]:
                    self._settle(handle, "BAD_REQUEST", text)

    def _on_record(self, record: list[Any], frames: Sequence[Any]) -> None:
        session, step, status, ms, result, _, slot, generation = record
        if session < 0:
            value = wire.unpack(result)[5]
            self._controls[session] = Reply(session, 0, status, Obs(), 0.0, False, False, {}, ms, value)
            return
        handle = self._handles.get(session)
        pending = handle.pending if handle is not None else None
        if handle is None or pending is None or pending[0] != step:
            return  # a reply that nobody waits for any more
        data = None
        if slot >= 0:
            found = handle.slots.read(slot, generation) if handle.slots else None
            if found is None:
                self._settle(handle, "LOST", "the result in shared memory was overwritten")
                return
            result, data = found
        obs, reward, terminated, truncated, info, value = wire.unpack(result)
        seen = Obs() if obs is None else wire.unpack_obs(obs, frames, data)
        if pending[1] == "create" and status == "OK":
            value = wire.unpack_spec(value)
        handle.pending = None
        handle.next = info.get("next", step + 1) if status in _REFUSED else step + 1
        self._waiting -= 1
        self._ready.append(Reply(session, step, status, seen, reward, terminated, truncated, info, ms, value))

    def _settle(self, handle: Handle, status: str, text: str) -> None:
        assert handle.pending is not None
        step = handle.pending[0]
        handle.pending = None
        self._waiting -= 1
        info = {"error": status.lower(), "message": text}
        self._ready.append(Reply(handle.number, step, status, Obs(), 0.0, False, status in wire.GONE, info, 0.0))

    def _lose(self, text: str) -> None:
        for handle in self._handles.values():
            if handle.pending is not None:
                self._settle(handle, "LOST", text)

    def abandon(self) -> list[Reply]:
        """Gives up what waits; returns LOST for it, and what else is there."""
        self._lose("the server's process has ended")
        replies = list(self._ready)
        self._ready.clear()
        return replies

    def _again(self) -> None:
        """Asks again for everything that has no answer; what is done already is not done twice."""
        items = [
            [handle.number, handle.pending[0], handle.pending[1], handle.pending[2], -1]
            for handle in self._handles.values()
            if handle.pending is not None
        ]
        for item in items:
            self._send("request", {"req": 0, "stream": True, "items": [item]})
        self._send("request", {"req": 0, "stream": True, "items": [[0, 0, "ping", b"", -1]]})

"""The sessions of a step server: made, given a process, ended, watched. The router does the talking."""

import abc
import contextlib
import fnmatch
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from envs.api import DEADLINES, EnvSpec
from envs.server import wire
from envs.server.arena import Arena
from envs.server.supervise import Pool, Process, Refused
from envs.server.table import Client, Figures, Pending, Request, Session

RETRY_MS = 200  # after which a client may ask again for room
CRASHES = 3  # workers that a task may take with it
TICK = 0.25  # seconds between looks at what is not urgent
SPECS = 4096  # that are remembered
GROWTH = 2  # times its size that a result has room to grow in shared memory, until it has to move
_SIGHTS = frozenset({"reset", "step", "restore"})  # operations whose results hold observations
OK = wire.pack([None, 0.0, False, False, {}, None])  # the result of an operation that has none


class Sessions(abc.ABC):
    """Which session lives where, and what becomes of it. `_emit` sends a result."""

    address = ""

    def __init__(
        self,
        prefix: str,
        patterns: list[str],
        pool: Pool,
        max_sessions: int,
        lease: float,
        deadlines: Mapping[str, float],
        log: Callable[[str], None],
    ):
        self.prefix, self.patterns, self.pool, self.max_sessions, self.lease = prefix, patterns, pool, max_sessions, lease
        self.figures = Figures()
        self.arena = Arena(prefix)
        self._deadlines, self._log = dict(deadlines), log
        self._clients: dict[bytes, Client] = {}
        self._sessions: dict[int, Session] = {}  # those with an environment, or about to have one
        self._closing: dict[int, tuple[Process, float]] = {}  # sessions being closed -> where, until when
        self._specs: dict[bytes, EnvSpec] = {}
        self._describing: dict[bytes, tuple[int, list[Session]]] = {}  # payload -> key of the look-up, who waits for it
        self._lookups: dict[int, bytes] = {}  # key of a look-up -> payload
        self._crashes: Counter[str] = Counter()  # by task
        self._work_for: dict[int, list[Any]] = {}  # process -> items to be sent
        self._next_key = 0
        self._next_look = 0.0  # when a deadline has to be looked at
        self._next_tick = 0.0

    @abc.abstractmethod
    def _emit(self, client: Client, request: Request | None, index: int, record: list[Any], frames: list[Any]) -> None:
        """Sends a result."""

    def _begin(self, seconds: float, limit: float, op: str, request: Request | None, index: int, now: float) -> Pending:
        deadline = now + (min(seconds, limit) if limit else seconds)
        self._next_look = min(self._next_look, deadline)
        return Pending(op, deadline, now, request, index)

    def _create(
        self,
        client: Client,
        number: int,
        payload: bytes,
        limit: float,
        request: Request | None,
        index: int,
        now: float,
        refuse: Callable[..., None],
    ) -> None:
        try:
            match wire.unpack(payload):
                case [str(name), dict()]:
                    pass
                case _:
                    raise wire.WireError("the payload of a create is a name and a map of options")
        except wire.WireError as error:
            refuse("BAD_REQUEST", str(error))
            return
        if not allowed(name, self.patterns):
            refuse("BAD_REQUEST", f"this server does not make {name}; it makes {', '.join(self.patterns)}", "not_served")
        elif self._crashes[name] >= CRASHES:
            refuse("BAD_REQUEST", f"{name} is in quarantine: it took {CRASHES} workers with it", "quarantined")
        elif len(self._sessions) >= self.max_sessions:
            refuse("CAPACITY", f"all {self.max_sessions} sessions are taken", retry_after_ms=RETRY_MS)
        else:
            self._next_key += 1
            session = Session(self._next_key, number, client, name, now, task=name, payload=payload)
            session.roomless = not client.same_host
            seconds = self._deadlines.get("create", DEADLINES["create"])
            session.pending = self._begin(seconds, limit, "create", request, index, now)
            client.sessions[number] = self._sessions[session.key] = session
            if payload in self._specs:
                self._place(session)
            elif payload in self._describing:
                self._describing[payload][1].append(session)
            else:
                process = self.pool.spare()
                if isinstance(process, Refused):
                    self._no_room(session, process)
                    return
                self._next_key += 1
                self._describing[payload] = (self._next_key, [session])
                self._lookups[self._next_key] = payload
                process.keys.add(self._next_key)
                session.process = process
                self._hand(process, [self._next_key, 0, "describe", payload, -1])

    def _place(self, session: Session) -> None:
        spec = self._specs[session.payload]
        place = self.pool.place(spec.weight)
        if isinstance(place, Refused):
            self._no_room(session, place)
            return
        session.deadlines = {**DEADLINES, **spec.deadlines, **self._deadlines}
        session.process = place
        place.keys.add(session.key)
        self._hand(place, [session.key, 0, "create", session.payload, -1])
        session.payload = b""

    def _no_room(self, session: Session, refused: Refused) -> None:
        """A create that can't be done now: as if it had never come, so that it may come again."""
        pending = session.pending
        assert pending is not None
        self._forget(session)
        self.figures.errors["CAPACITY"] += 1
        result = wire.refusal("CAPACITY", refused.message, next=0, retry_after_ms=max(RETRY_MS, int(refused.retry_after * 1e3)))
        record = [session.number, 0, "CAPACITY", 0.0, result, 0, -1, 0]
        self._emit(session.client, pending.request, pending.index, record, [])

    def _described(self, key: int, status: str, result: bytes) -> None:
        payload = self._lookups.pop(key)
        _, waiting = self._describing.pop(payload)
        spec = None
        with contextlib.suppress(wire.WireError, ValueError, TypeError):
            spec = wire.unpack_spec(wire.unpack(result)[5]) if status == "OK" else None
        if spec is not None:
            if len(self._specs) >= SPECS:
                del self._specs[next(iter(self._specs))]
            self._specs[payload] = spec
        for session in waiting:
            if session.pending is None:
                continue
            session.process = None
            if spec is not None:
                self._place(session)
            else:
                self._finish(session, [session.key, 0, status, 0.0, result, 0, -1, 0], [], time.monotonic())
                self._forget(session)

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session.key, None)
        session.client.sessions.pop(session.number, None)
        self._release(session)

    def _release(self, session: Session) -> None:
        """Takes a session from its process and removes its memory; a reader keeps what it has mapped."""
        self._sessions.pop(session.key, None)
        if session.process is not None:
            session.process.keys.discard(session.key)
            session.process = None
        if session.room is not None:
            self.arena.free(session.client, session.room)
            session.room = None

    def _close(self, session: Session, now: float) -> None:
        session.client.sessions.pop(session.number, None)
        if session.pending is not None:
            session.closing = True  # its process must not be asked for two things at once
            return
        process = session.process
        self._release(session)
        if process is not None and not process.ended:
            deadline = now + session.deadlines.get("close", DEADLINES["close"])
            self._closing[session.key] = (process, deadline)
            self._next_look = min(self._next_look, deadline)
            self._hand(process, [session.key, session.next, "close", b"", -1])

    def _hand(self, process: Process, item: list[Any]) -> None:
        if process.ready:
            self._work_for.setdefault(process.number, []).append(item)
        else:
            process.queue.append(item)

    def _finish(self, session: Session, record: list[Any], frames: list[Any], now: float) -> None:
        """An operation is done: stores and sends the reply."""
        pending = session.pending
        assert pending is not None
        session.pending = None
        session.touched = now
        session.next += 1
        status = record[2]
        record[0] = session.number
        session.last = (record, frames)
        self.figures.done(pending.op, status, now - pending.begun, now)
        if record[6] < 0 and status == "OK" and not session.roomless and pending.op in _SIGHTS:
            self._make_room(session, record, frames)
        self._emit(session.client, pending.request, pending.index, record, frames)
        if pending.op == "create" and status != "OK":
            self._forget(session)  # a create that failed may come again
        elif pending.op == "create":
            self._crashes.pop(session.name, None)  # only what fails each time is in quarantine
        elif status in wire.GONE:
            self._release(session)
            session.gone = session.gone or "the session ended with an error"
        if session.closing:
            self._close(session, now)

    def _make_room(self, session: Session, record: list[Any], frames: list[Any]) -> None:
        """Gives a session shared memory for its next results, if one like this should go there and has no room yet."""
        arrays, result = wire.places([len(frame) for frame in frames])[-1], len(record[4])
        if not frames and result < wire.SHARED:
            return
        if session.room is not None:
            if wire.ALIGN + arrays + result <= session.room.slot_bytes:
                return  # its reader holds both slots
            self.arena.free(session.client, session.room)
            session.room = None
        try:
            room = session.room = self.arena.take(session.client, arrays + GROWTH * result)
        except OSError as error:
            session.roomless = True
            why = f"no shared memory for results of {arrays + result} bytes ({error.strerror})"
            self._log(f"{why}: they go by message, more slowly")
            return
        assert session.process is not None
        session.client.arenas.append([session.number, *room])
        session.process.arenas.append([session.key, *room])

    def _on_death(self, process: Process) -> None:
        """A worker is gone: so are its sessions. Those that it was in the midst of are CRASHED, the others LOST."""
        working = self.pool.working_on(process)
        now = time.monotonic()
        code = process.popen.returncode
        if not process.ended:
            self._log(f"worker {process.number} died ({f'signal {-code}' if code < 0 else f'exit code {code}'})")
            self.pool.died(process, self.pool.budget(process))
        self._end_sessions(process, working, f"its worker died ({f'signal {-code}' if code < 0 else f'exit code {code}'})", now)

    def _end_sessions(self, process: Process, working: set[int], why: str, now: float) -> None:
        self._work_for.pop(process.number, None)
        for key in list(process.keys):
            session = self._sessions.get(key)
            if session is None:
                if key in self._lookups:
                    self._described(key, "CRASHED", wire.refusal("CRASHED", why))
                continue
            session.gone = why
            if session.pending is None:
                self._release(session)
                continue
            status = "CRASHED" if key in working else "LOST"
            if status == "CRASHED":
                self._blame(session)
            self._finish(session, [key, session.next, status, 0.0, wire.refusal(status, why), 0, -1, 0], [], now)
        for key, (where, _) in list(self._closing.items()):
            if where is process:
                del self._closing[key]

    def _blame(self, session: Session) -> None:
        self._crashes[session.task] += 1
        if self._crashes[session.task] == CRASHES:
            self._log(f"{session.task} is in quarantine: it took {CRASHES} workers with it")

    def _look_at_deadlines(self, now: float) -> None:
        late: dict[int, list[Session]] = {}
        self._next_look = now + 3600
        for session in list(self._sessions.values()):
            pending = session.pending
            if pending is None:
                continue
            if pending.deadline > now:
                self._next_look = min(self._next_look, pending.deadline)
                continue
            process = session.process
            seconds = pending.deadline - pending.begun
            why = f"{pending.op} was not done within {seconds:g} s"
            session.gone = why
            self._blame(session)
            self._finish(
                session, [session.key, session.next, "TIMEOUT", seconds * 1e3, wire.refusal("TIMEOUT", why), 0, -1, 0], [], now
            )
            if process is not None:
                late.setdefault(process.number, []).append(session)
        for key, (process, deadline) in list(self._closing.items()):
            if deadline > now:
                self._next_look = min(self._next_look, deadline)
            else:
                del self._closing[key]
                late.setdefault(process.number, [])
        for number in late:
            process = self.pool.processes.get(number)
            if process is not None and not process.ended:
                self._log(f"worker {number} is ended: something in it was not done in time")
                self.pool.died(process, self.pool.budget(process))
                self.pool.end(process)
                self._end_sessions(process, set(), "its worker was ended: another session in it was not done in time", now)

    def _tick(self, now: float) -> None:
        self._next_tick = now + min(TICK, self.lease / 4)
        self.pool.tick(now)
        for client in list(self._clients.values()):
            for session in list(client.sessions.values()):
                if session.pending is None and now - max(session.touched, client.seen) > self.lease:
                    self.figures.errors["LEASE"] += 1
                    self._close(session, now)
            if not client.sessions and now - client.seen > self.lease:
                del self._clients[client.identity]

    def stats(self) -> dict[str, Any]:
        """The figures of this moment, as plain data."""
        busy = sum(session.pending is not None for session in self._sessions.values())
        starting = sum(session.pending is not None and session.pending.op == "create" for session in self._sessions.values())
        processes = list(self.pool.processes.values())
        return {
            **self.figures.summary(),
            "address": self.address,
            "patterns": self.patterns,
            "clients": len(self._clients),
            "max_sessions": self.max_sessions,
            "sessions": {"idle": len(self._sessions) - busy, "busy": busy - starting, "starting": starting},
            "names": dict(Counter(session.name for session in self._sessions.values())),
            "workers": {
                "light": sum(lane.process is not None for lane in self.pool.light),
                "heavy": sum(lane.process is not None for lane in self.pool.heavy),
                "all": len(processes),
                "out": sum(lane.out for lane in (*self.pool.light, *self.pool.heavy)),
            },
            "pids": [process.popen.pid for process in processes],
            "restarts": self.pool.restarts,
            "quarantined": sorted(task for task, count in self._crashes.items() if count >= CRASHES),
            "segments": len(self.arena),
        }


def allowed(name: str, patterns: list[str]) -> bool:
    """Whether a server with these patterns makes an environment.

    ``module:factory`` runs whatever it names, so only a pattern with that module allows it: ``mine:*`` does, ``*`` does not.
    """
    if ":" in name.split("/")[0]:
        patterns = [pattern for pattern in patterns if pattern.partition(":")[0] == name.partition(":")[0]]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

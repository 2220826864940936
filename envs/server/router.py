"""The middle of a step server: takes requests, hands them to workers, watches deadlines and leases. Runs no environment code.

One thread and one loop, so it answers a ping while every worker is busy. It alone knows who may do what when: a session takes
one operation at a time, numbered; the number that comes next is done, the last one again gets the stored reply, any other is
STALE_STEP. A worker's death or a deadline ends its sessions and nothing else.
"""

import contextlib
import fnmatch
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

from envs.api import DEADLINES, EnvSpec
from envs.server import arena, auth, wire
from envs.server.supervise import Pool, Process, Refused
from envs.server.table import Client, Figures, Pending, Request, Session

MESSAGES = 64  # taken from a socket before the others have their turn
HIGH_WATER = 1000  # messages to one peer that wait; more are dropped, and asked for again by a client that lives
RETRY_MS = 200  # after which a client may ask again for room
CRASHES = 3  # workers that a task may take with it
TICK = 0.25  # seconds between looks at what is not urgent
SPECS = 4096  # that are remembered
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Router:
    """A server's sockets, sessions and loop. `run` returns when `stop` is called or the liveness descriptor ends."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        bind: str,
        token: str,
        patterns: list[str],
        pool: Pool,
        *,
        secret_key: bytes | None = None,
        max_sessions: int = 256,
        lease: float = 600.0,
        deadlines: Mapping[str, float] | None = None,
        inline: int = wire.INLINE,
        log: Callable[[str], None] = print,
    ):
        self.run_id = prefix
        self.patterns, self.pool, self.lease, self.max_sessions = patterns, pool, lease, max_sessions
        self.figures = Figures()
        self._token = auth.split(token)[0]
        self._prefix, self._log = prefix, log
        self._deadlines = dict(deadlines or {})
        self._inline = inline
        self._boot = BOOT.read_text().strip() if BOOT.exists() else ""
        self._context = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self._front.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._front.setsockopt(zmq.MAXMSGSIZE, wire.HARD_LIMIT)
        self._front.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        self._front.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if secret_key:
            self._front.setsockopt(zmq.CURVE_SERVER, 1)
            self._front.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
        self._work = self._socket(zmq.ROUTER)
        self._done = self._socket(zmq.PULL)
        self._front.bind(bind)
        self.address = self._front.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self._work.bind(f"ipc://{folder}/work")
        self._done.bind(f"ipc://{folder}/done")
        self._clients: dict[bytes, Client] = {}
        self._sessions: dict[int, Session] = {}  # those with an environment, or about to have one
        self._closing: dict[int, tuple[Process, float]] = {}  # sessions being closed -> where, until when
        self._specs: dict[bytes, EnvSpec] = {}
        self._describing: dict[bytes, tuple[int, list[Session]]] = {}  # payload -> key of the look-up, who waits for it
        self._lookups: dict[int, bytes] = {}  # key of a look-up -> payload
        self._crashes: Counter[str] = Counter()  # by task
        self._work_for: dict[int, list[Any]] = {}  # process -> items to be sent
        self._replies: dict[Client, None] = {}  # clients to whom something is to be sent
        self._next_key = 0
        self._next_look = 0.0  # when a deadline has to be looked at
        self._next_tick = 0.0
        self._stopping = False

    def _socket(self, kind: int) -> zmq.Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.set_hwm(HIGH_WATER)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        return socket

    def stop(self) -> None:
        """Lets `run` return; may be called from a signal handler."""
        self._stopping = True

    def run(self, liveness: int | None = None) -> None:
        """Serves until `stop`, or until the descriptor `liveness` is readable: its other end is closed."""
        poller = zmq.Poller()
        for source in (
            self._done,
            self._front,
            self._work,
            self.pool.epoll.fileno(),
            *([] if liveness is None else [liveness]),
        ):
            poller.register(source, zmq.POLLIN)
        while not self._stopping:
            now = time.monotonic()
            wait = max(0.0, min(self._next_look, self._next_tick) - now)
            ready = dict(poller.poll(wait * 1e3 + 1))
            if liveness is not None and liveness in ready:
                return
            if self._done in ready:
                self._drain(self._done, self._on_done)
            if self._front in ready:
                self._drain(self._front, self._on_client)
            if self._work in ready:
                self._drain(self._work, self._on_ready)
            if self.pool.epoll.fileno() in ready:
                for process in self.pool.events():
                    self._on_death(process)
            now = time.monotonic()
            if now >= self._next_look:
                self._look_at_deadlines(now)
            if now >= self._next_tick:
                self._tick(now)
            self._flush()

    def close(self) -> None:
        """Ends the workers, closes the sockets, removes the shared memory."""
        for session in self._sessions.values():
            if session.segment:
                arena.remove(session.segment)
        self.pool.close()
        self._context.destroy(linger=200)
        for path in arena.ROOT.glob(self._prefix + "*"):
            path.unlink(missing_ok=True)

    def _drain(self, socket: zmq.Socket, handle: Callable[[list[zmq.Frame]], None]) -> None:
        for _ in range(MESSAGES):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            handle(frames)

    # Clients.

    def _on_client(self, frames: list[zmq.Frame]) -> None:
        identity = frames[0].bytes
        now = time.monotonic()
        request = 0
        try:
            size = sum(len(frame) for frame in frames[1:])
            if len(frames) != 2:
                raise wire.WireError(f"a message has one frame, not {len(frames) - 1}")
            if size > wire.LIMIT:
                raise wire.WireError(f"a message of {size / 2**20:.1f} MiB; at most {wire.LIMIT >> 20} MiB")
            head = wire.header(frames[1].buffer)
            kind = head["kind"]
            number = head.get("req", 0)
            request = number if isinstance(number, int) else 0
            if kind == "hello":
                self._hello(identity, head, now)
                return
            client = self._clients.get(identity)
            if client is None:
                self._send_front(identity, "error", {"code": "hello", "message": "say hello with the token first"})
                return
            client.seen = now
            if kind == "renew" and (other := self._clients.get(head.get("client", identity))) is not None:
                other.seen = now
            if kind == "request":
                self._request(client, request, head, now)
            elif kind == "bye":
                for session in list(client.sessions.values()):
                    self._close(session, now)
                del self._clients[identity]
                self._replies.pop(client, None)
            elif kind != "renew":
                raise wire.WireError(f"no kind of message: {kind!r}")
        except wire.WireError as error:
            self.figures.errors["BAD_REQUEST"] += 1
            fields = {"code": "BAD_REQUEST", "req": request, "message": str(error)}
            self._send_front(identity, "error", fields)

    def _hello(self, identity: bytes, head: dict[str, Any], now: float) -> None:
        if not auth.same(head.get("token"), self._token):
            self.figures.errors["BAD_TOKEN"] += 1
            self._send_front(identity, "error", {"code": "token", "message": "wrong token"})
            return
        client = self._clients.get(identity)
        if client is None:
            client = self._clients[identity] = Client(identity, bool(self._boot) and head.get("boot") == self._boot, now)
        client.seen = now
        self._send_front(identity, "welcome", {"run": self.run_id, "lease": self.lease, "sessions": len(client.sessions)})

    def _request(self, client: Client, number: int, head: dict[str, Any], now: float) -> None:
        items, stream, limit = head.get("items"), head.get("stream"), head.get("deadline_ms") or 0
        if not isinstance(items, list) or not isinstance(limit, (int, float)):
            raise wire.WireError("a request has a list of items and a deadline in ms")
        for item in items:
            if type(item) is not list or tuple(map(type, item)) != _ITEM:
                raise wire.WireError("an item is [session, step, op, payload, slot]")
        request = None if stream else Request(client, number, [None] * len(items), [[]] * len(items), len(items))
        if not items and request is not None:
            self._answer(request)
        limit /= 1e3
        sessions, work_for = client.sessions, self._work_for
        for index, item in enumerate(items):
            number, step, op, _, _ = item
            session = sessions.get(number)
            if (
                op != "step" or session is None or step != session.next or session.pending is not None
                or (process := session.process) is None or not process.ready
            ):  # fmt: skip
                self._item(client, item, limit, request, index, now)
                continue
            # The way that nearly every item takes.
            deadline = now + session.deadlines["step"]
            if limit:
                deadline = min(deadline, now + limit)
            if deadline < self._next_look:
                self._next_look = deadline
            session.pending = Pending(step, op, deadline, now, request, index)
            session.touched = now
            item[0] = session.key
            work = work_for.get(process.number)
            if work is None:
                work_for[process.number] = [item]
            else:
                work.append(item)

    def _item(self, client: Client, item: list[Any], limit: float, request: Request | None, index: int, now: float) -> None:
        number, step, op, payload, _ = item
        session = client.sessions.get(number)

        def refuse(status: str, message: str, error: str | None = None, **info: Any) -> None:
            self.figures.errors[status] += 1
            info["next"] = session.next if session is not None else 0
            record = [number, step, status, 0.0, wire.refusal(status, message, error, **info), 0, -1, 0]
            self._emit(client, request, index, record, [])

        if op == "ping":
            self._emit(client, request, index, [number, step, "OK", 0.0, _OK, 0, -1, 0], [])
        elif op == "stats":
            data = wire.pack([None, 0.0, False, False, {}, self.stats()])
            self._emit(client, request, index, [number, step, "OK", 0.0, data, 0, -1, 0], [])
        elif op not in wire.OPS or op == "describe":
            refuse("BAD_REQUEST", f"there is no operation {op!r}; there are {', '.join(wire.OPS)}")
        elif session is None and op == "close":
            self._emit(client, request, index, [number, step, "OK", 0.0, _OK, 0, -1, 0], [])
        elif session is None and op == "create" and step == 0:
            self._create(client, number, payload, limit, request, index, now, refuse)
        elif session is None:
            refuse(
                "LOST",
                "there is no such session: it was closed, or its lease ran out, or the server is a new one",
                "no_session",
            )
        elif op == "close":
            self._close(session, now)
            self._emit(client, request, index, [number, step, "OK", 0.0, _OK, 0, -1, 0], [])
        elif session.pending is not None and session.pending.step == step:
            session.pending.request, session.pending.index = request, index  # asked again: the answer goes there
        elif session.last is not None and session.last[0] == step:
            self._emit(client, request, index, session.last[1], session.last[2])
        elif step != session.next or session.pending is not None:
            busy = f"step {session.pending.step} is not done yet" if session.pending else f"step {session.next} comes next"
            refuse("STALE_STEP", f"step {step}: {busy}")
        elif session.gone:
            session.next += 1
            record = [number, step, "LOST", 0.0, wire.refusal("LOST", session.gone), 0, -1, 0]
            session.last = (step, record, [])
            self.figures.errors["LOST"] += 1
            self._emit(client, request, index, record, [])
        else:
            self._operate(session, item, limit, request, index, now, refuse)

    def _operate(
        self,
        session: Session,
        item: list[Any],
        limit: float,
        request: Request | None,
        index: int,
        now: float,
        refuse: Callable[..., None],
    ) -> None:
        _, step, op, payload, slot = item
        if op == "create":
            refuse("STALE_STEP", "the session is there already")
            return
        if op == "reset":
            try:
                task, seed = wire.unpack_reset(payload)
            except wire.WireError as error:
                refuse("BAD_REQUEST", str(error))
                return
            session.task = f"{session.name} {task.id if task else f'seed {seed}'}"
            if self._crashes[session.task] >= CRASHES:
                refuse("BAD_REQUEST", f"{session.task} is in quarantine: it took {CRASHES} workers with it", "quarantined")
                return
        session.pending = self._begin(session.deadlines[op], limit, step, op, request, index, now)
        session.touched = now
        assert session.process is not None
        self._hand(session.process, [session.key, step, op, payload, slot])

    def _begin(
        self, seconds: float, limit: float, step: int, op: str, request: Request | None, index: int, now: float
    ) -> Pending:
        deadline = now + (min(seconds, limit) if limit else seconds)
        self._next_look = min(self._next_look, deadline)
        return Pending(step, op, deadline, now, request, index)

    # Sessions come and go.

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
            session.pending = self._begin(
                self._deadlines.get("create", DEADLINES["create"]), limit, 0, "create", request, index, now
            )
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
        if session.segment:
            arena.remove(session.segment)
        session.segment = None

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

    # Workers.

    def _hand(self, process: Process, item: list[Any]) -> None:
        if process.ready:
            self._work_for.setdefault(process.number, []).append(item)
        else:
            process.queue.append(item)

    def _on_ready(self, frames: list[zmq.Frame]) -> None:
        _, number, _ = wire.unpack(frames[1].buffer)
        process = self.pool.processes.get(number)
        if process is not None:
            process.ready = True
            self._work_for.setdefault(number, []).extend(process.queue)
            process.queue = []

    def _on_done(self, frames: list[zmq.Frame]) -> None:
        number, records = wire.unpack(frames[0].buffer)
        now = time.monotonic()
        at = 1
        steps = 0
        sessions, latencies = self._sessions, self.figures.latencies["step"]
        for record in records:
            key, step, status, _, _, buffers, _, _ = record
            session = sessions.get(key)
            pending = session.pending if session is not None else None
            if (
                session is not None and pending is not None and not buffers and status == "OK"
                and pending.step == step and pending.op == "step" and pending.request is None and not session.closing
            ):  # fmt: skip
                # `_finish`, for the way that nearly every item takes.
                steps += 1
                session.pending = None
                session.touched = now
                session.next = step + 1
                record[0] = session.number
                session.last = (step, record, [])
                latencies.append((now - pending.begun) * 1e3)
                client = session.client
                client.records.append(record)
                self._replies[client] = None
                continue
            carried = frames[at : at + buffers] if buffers else []
            at += buffers
            if session is not None and pending is not None and pending.step == step:
                self._finish(session, record, carried, now)
            elif key in self._closing:
                del self._closing[key]
            elif key in self._lookups:
                process = self.pool.processes.get(number)
                if process is not None:
                    process.keys.discard(key)
                self._described(key, status, record[4])
            else:
                self.figures.late += 1
        if steps:
            self.figures.stepped(steps, now)
            self.figures.operations["step"] += steps

    def _finish(self, session: Session, record: list[Any], frames: list[Any], now: float) -> None:
        """An operation is done: stores and sends the reply."""
        pending = session.pending
        assert pending is not None
        session.pending = None
        session.touched = now
        session.next = pending.step + 1
        status = record[2]
        record[0] = session.number
        session.last = (pending.step, record, frames)
        self.figures.done(pending.op, status, now - pending.begun, now)
        if frames and session.segment is None and session.client.same_host:
            self._make_segment(session, frames)
        self._emit(session.client, pending.request, pending.index, record, frames)
        if pending.op == "create" and status != "OK":
            self._forget(session)  # a create that failed may come again
        elif status in wire.GONE:
            self._release(session)
            session.gone = session.gone or "the session ended with an error"
        if session.closing:
            self._close(session, now)

    def _make_segment(self, session: Session, frames: list[Any]) -> None:
        size = wire.places([len(frame) for frame in frames])[-1]
        name = f"{self._prefix}-{session.key}"
        try:
            slot_bytes = arena.create(name, size)
        except OSError as error:
            session.segment = ""
            self._log(f"no shared memory for observations of {size} bytes ({error.strerror}): they go by message, more slowly")
            return
        session.segment = name
        session.client.arenas.append([session.number, name, slot_bytes])
        assert session.process is not None
        session.process.arenas.append([session.key, name, slot_bytes])

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
            self._finish(session, [key, session.pending.step, status, 0.0, wire.refusal(status, why), 0, -1, 0], [], now)
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
                session, [session.key, pending.step, "TIMEOUT", seconds * 1e3, wire.refusal("TIMEOUT", why), 0, -1, 0], [], now
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

    # Messages out.

    def _emit(self, client: Client, request: Request | None, index: int, record: list[Any], frames: list[Any]) -> None:
        if request is None:
            client.records.append(record)
            client.frames += frames
            self._replies[client] = None
        elif request.records[index] is None:
            request.records[index], request.frames[index] = record, frames
            request.missing -= 1
            if not request.missing:
                self._answer(request)

    def _answer(self, request: Request) -> None:
        client = request.client
        fields = {"req": request.number, "items": request.records, "arenas": client.arenas}
        client.arenas = []
        self._send_front(client.identity, "reply", fields, [frame for frames in request.frames for frame in frames])

    def _flush(self) -> None:
        for client in self._replies:
            fields = {"req": 0, "items": client.records, "arenas": client.arenas}
            frames = client.frames
            client.records, client.frames, client.arenas = [], [], []
            self._send_front(client.identity, "reply", fields, frames)
        self._replies.clear()
        for number, items in self._work_for.items():
            process = self.pool.processes.get(number)
            if process is None:
                continue
            head = wire.pack({"heavy": process.heavy, "arenas": process.arenas, "items": items})
            process.arenas = []
            with contextlib.suppress(zmq.ZMQError):  # it is dying; its end is told by its pidfd
                self._work.send_multipart([str(number).encode(), head], zmq.NOBLOCK)
        self._work_for.clear()

    def _send_front(self, identity: bytes, kind: str, fields: Mapping[str, Any], frames: list[Any] | None = None) -> None:
        try:
            self._front.send_multipart([identity, wire.message(kind, fields), *(frames or ())], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.figures.errors["UNDELIVERED"] += 1  # gone, or not reading: it asks again if it lives

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
            "segments": sum(bool(session.segment) for session in self._sessions.values()),
        }


_ITEM = (int, int, str, bytes, int)  # types of an item
_OK = wire.pack([None, 0.0, False, False, {}, None])


def allowed(name: str, patterns: list[str]) -> bool:
    """Whether a server with these patterns makes an environment.

    ``module:factory`` runs whatever it names, so only a pattern with that module allows it: ``mine:*`` does, ``*`` does not.
    """
    if ":" in name.split("/")[0]:
        patterns = [pattern for pattern in patterns if pattern.partition(":")[0] == name.partition(":")[0]]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

"""The middle of a step server: takes requests, hands them to workers, watches deadlines and leases. Runs no environment code.

One thread and one loop, so it answers a ping while every worker is busy. It alone knows who may do what when: a session takes
one operation at a time, numbered; the number that comes next is done, the last one again gets the stored reply, any other is
STALE_STEP. A worker's death or a deadline ends its sessions and nothing else.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.server import arena, auth, wire
from envs.server.front import OWNER, Front
from envs.server.link import Link
from envs.server.sessions import CRASHES, OK, Sessions
from envs.server.supervise import Pool, Process
from envs.server.table import Client, Pending, Request, Session

BOOT = Path("/proc/sys/kernel/random/boot_id")


class Router(Sessions):
    """A server's sockets, sessions and loop. `run` returns when `stop` is called or the owner's link ends."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        bind: str,
        token: str,
        patterns: list[str],
        pool: Pool,
        owner: Link | None = None,
        *,
        secret_key: bytes | None = None,
        max_sessions: int = 256,
        lease: float = 600.0,
        deadlines: Mapping[str, float] | None = None,
        log: Callable[[str], None] = print,
    ):
        super().__init__(prefix, patterns, pool, max_sessions, lease, deadlines or {}, log)
        self._token = auth.split(token)[0]
        self._boot = BOOT.read_text().strip() if BOOT.exists() else ""
        self._front = Front(bind, secret_key, owner)
        self.address = self._front.address
        self._replies: dict[Client, None] = {}  # clients to whom something is to be sent
        self._stopping = False

    def stop(self) -> None:
        """Lets `run` return; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serves until `stop`, or until the owner is gone."""
        workers = self.pool.epoll.fileno()
        self._front.watch(workers)
        while not (self._stopping or self._front.ended):
            wait = max(0.0, min(self._next_look, self._next_tick) - time.monotonic())
            ready = self._front.wait(wait)
            if workers in ready:
                talking, dead = self.pool.events()
                for process in talking:
                    self._hear(process)
                for process in dead:
                    while not process.link.ended and self._hear(process):
                        pass
                    process.link.close()
                    self._on_death(process)
            for identity, frames in self._front.receive(ready):
                self._on_client(identity, frames)
            now = time.monotonic()
            if now >= self._next_look:
                self._look_at_deadlines(now)
            if now >= self._next_tick:
                self._tick(now)
            self._flush()

    def close(self) -> None:
        """Ends the workers, closes the sockets, removes the shared memory."""
        self.pool.close()
        self._front.close()
        for path in arena.ROOT.glob(self.prefix + "*"):
            path.unlink(missing_ok=True)

    # Clients.

    def _on_client(self, identity: bytes, frames: list[Any]) -> None:
        now = time.monotonic()
        request = 0
        try:
            if len(frames) != 1:
                raise wire.WireError(f"a message has one frame, not {len(frames)}")
            if (size := len(frames[0])) > wire.LIMIT:
                raise wire.WireError(f"a message of {size / 2**20:.1f} MiB; at most {wire.LIMIT >> 20} MiB")
            head = wire.header(frames[0])
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
        if identity != OWNER and not auth.same(head.get("token"), self._token):
            self.figures.errors["BAD_TOKEN"] += 1
            self._send_front(identity, "error", {"code": "token", "message": "wrong token"})
            return
        client = self._clients.get(identity)
        if client is None:
            same_host = identity == OWNER or (bool(self._boot) and head.get("boot") == self._boot)
            client = self._clients[identity] = Client(identity, same_host, now)
        client.seen = now
        self._send_front(identity, "welcome", {"run": self.prefix, "lease": self.lease, "sessions": len(client.sessions)})

    def _request(self, client: Client, number: int, head: dict[str, Any], now: float) -> None:
        items, stream, limit = head.get("items"), head.get("stream"), head.get("deadline_ms") or 0
        if not isinstance(items, list) or not isinstance(limit, (int, float)):
            raise wire.WireError("a request has a list of items and a deadline in ms")
        if items:
            try:
                columns = list(zip(*items, strict=True)) if set(map(type, items)) == {list} else []
            except ValueError:
                columns = []
            if [set(map(type, column)) for column in columns] != _ITEM:
                raise wire.WireError("an item is [session, step, op, payload, slot]")
        request = None if stream else Request(client, number, [None] * len(items), [[]] * len(items), len(items))
        if not items and request is not None:
            self._answer(request)
        limit /= 1e3
        sessions, work_for = client.sessions, self._work_for
        begun: dict[float, Pending] = {}  # by the seconds that a step may take
        for index, item in enumerate(items):
            number, step, op, _, _ = item
            session = sessions.get(number)
            if (
                op != "step" or session is None or step != session.next or session.pending is not None or not stream
                or (process := session.process) is None or not process.ready
            ):  # fmt: skip
                self._item(client, item, limit, request, index, now)
                continue
            # The way that nearly every item takes.
            seconds = session.deadlines["step"]
            pending = begun.get(seconds)
            if pending is None:
                pending = begun[seconds] = self._begin(seconds, limit, "step", None, 0, now)
            session.pending = pending
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
            self._emit(client, request, index, [number, step, "OK", 0.0, OK, 0, -1, 0], [])
        elif op == "stats":
            data = wire.pack([None, 0.0, False, False, {}, self.stats()])
            self._emit(client, request, index, [number, step, "OK", 0.0, data, 0, -1, 0], [])
        elif op not in wire.OPS or op == "describe":
            refuse("BAD_REQUEST", f"there is no operation {op!r}; there are {', '.join(wire.OPS)}")
        elif session is None and op == "close":
            self._emit(client, request, index, [number, step, "OK", 0.0, OK, 0, -1, 0], [])
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
            self._emit(client, request, index, [number, step, "OK", 0.0, OK, 0, -1, 0], [])
        elif session.pending is not None and session.next == step:  # asked again: the answer goes there
            session.pending = dataclasses.replace(session.pending, request=request, index=index)
        elif session.last is not None and session.last[0][1] == step:
            self._emit(client, request, index, *session.last)
        elif step != session.next or session.pending is not None:
            busy = f"step {session.next} is not done yet" if session.pending else f"step {session.next} comes next"
            refuse("STALE_STEP", f"step {step}: {busy}")
        elif session.gone:
            session.next += 1
            record = [number, step, "LOST", 0.0, wire.refusal("LOST", session.gone), 0, -1, 0]
            session.last = (record, ())
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
        session.pending = self._begin(session.deadlines[op], limit, op, request, index, now)
        session.touched = now
        assert session.process is not None
        self._hand(session.process, [session.key, step, op, payload, slot])

    def _tick(self, now: float) -> None:
        if (owner := self._clients.get(OWNER)) is not None:
            owner.seen = now  # it lives, for its link is open
        super()._tick(now)

    # Workers.

    def _hear(self, process: Process) -> int:
        """Takes in what a worker sent; returns how many messages."""
        messages = process.link.receive()
        for head, *frames in messages:
            records = wire.unpack(head)
            if records is not None:
                self._on_done(process, records, frames)
                continue
            process.ready = True
            self._work_for.setdefault(process.number, []).extend(process.queue)
            process.queue = []
        if process.link.ended:
            self.pool.deaf(process)
        return len(messages)

    def _on_done(self, process: Process, records: list[list[Any]], frames: list[bytes]) -> None:
        now = time.monotonic()
        at = steps = 0
        sessions, latencies = self._sessions, self.figures.latencies["step"]
        for record in records:
            key, step, status, _, result, buffers, slot, _ = record
            session = sessions.get(key)
            pending = session.pending if session is not None else None
            if (
                session is not None and pending is not None and status == "OK" and step == session.next
                and (slot >= 0 or (not buffers and len(result) < wire.SHARED)) and pending.op == "step"
                and pending.request is None and not session.closing
            ):  # fmt: skip
                # `_finish`, for the way that nearly every item takes.
                steps += 1
                session.pending = None
                session.touched = now
                session.next = step + 1
                record[0] = session.number
                session.last = (record, ())
                latencies.append((now - pending.begun) * 1e3)
                client = session.client
                client.records.append(record)
                self._replies[client] = None
                continue
            carried = frames[at : at + buffers] if buffers else []
            at += buffers
            if session is not None and pending is not None and step == session.next:
                self._finish(session, record, carried, now)
            elif key in self._closing:
                del self._closing[key]
            elif key in self._lookups:
                process.keys.discard(key)
                self._described(key, status, record[4])
            else:
                self.figures.late += 1
        if steps:
            self.figures.stepped(steps, now)
            self.figures.operations["step"] += steps

    # Messages out.

    def _emit(self, client: Client, request: Request | None, index: int, record: list[Any], frames: Sequence[Any]) -> None:
        if request is None:
            client.records.append(record)
            client.frames += frames
            self._replies[client] = None
        elif request.records[index] is None:
            request.records[index], request.frames[index] = record, list(frames)
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
            head = wire.pack({"heavy": process.alone, "arenas": process.arenas, "items": items})
            process.arenas = []
            self.pool.send(process, head)
        self._work_for.clear()

    def _send_front(self, identity: bytes, kind: str, fields: Mapping[str, Any], frames: list[Any] | None = None) -> None:
        if not self._front.send(identity, [wire.message(kind, fields), *(frames or ())]):
            self.figures.errors["UNDELIVERED"] += 1  # gone, or not reading: it asks again if it lives


_ITEM = [{int}, {int}, {str}, {bytes}, {int}]  # types of the parts of items

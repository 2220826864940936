"""A process that runs environments for the router: ``python -m envs.server.worker``.

Light sessions share a process. One thread leads: it waits for work, and does it item by item without handing anything over.
While a session takes its time (it is seen to, or it usually does), another thread takes the lead, so that a session that
sleeps or waits holds up nobody. So a light environment is stepped by one thread at a time, but not always by the same; a heavy
one has the process and its main thread for itself.

What an environment returns is checked here: a reward that is no finite number, a NaN, an array of another name, type or shape
than in the session's first observation never reach the learner.
"""

import contextlib
import ctypes
import dataclasses
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from envs import registry
from envs.api import Env, EnvSpec, Invalid, LostError, Obs, StepResult
from envs.server import checks, wire
from envs.server.arena import Slots
from envs.server.checks import BadObservationError, Shapes
from envs.server.link import Link
from jaxllm.errors import UserError

SLOW = 0.002  # seconds that an operation usually takes from which on the session is given a thread of its own
FORGET = 0.2  # share of the last time in what is usual
STALL = 0.01  # seconds after which somebody else takes the lead
FLUSH = 0.001  # seconds that a finished result waits for others
BATCH = 4 << 20  # bytes of results that are sent without waiting for others
GRACE = 1.5  # seconds that closing everything may take after SIGTERM
THREADS = 64  # at once, in a process
PR_SET_PDEATHSIG = 1
# Codes by which `envs.actions.check` and a parser refuse an action.
REFUSED = frozenset(
    {
        "bad_action",
        "bad_argument",
        "bad_point",
        "extra_argument",
        "missing_argument",
        "no_action",
        "too_many_keys",
        "unknown_action",
        "unknown_key",
    }
)


class Stop(BaseException):
    """The router wants this process to end."""


@dataclasses.dataclass(eq=False)
class Session:
    """One environment, and what is known of it."""

    env: Env
    spec: EnvSpec
    shapes: Shapes | None = None  # of the first observation
    last: Obs | None = None
    over: bool = True  # before the first reset, and after the end
    usual: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds, by operation
    slots: Slots | None = None


class Worker:
    """The sessions of this process, and the threads that step them."""

    def __init__(self, folder: str, number: int, end: socket.socket, crc: bool = False):
        self.crc = crc
        self.sessions: dict[int, Session] = {}
        self.heavy = True  # nobody else takes the lead: until light sessions come
        self._link = Link(end)
        self._sending = threading.Lock()
        self._queue: deque[list[Any]] = deque()
        self._results: deque[tuple[list[Any], list[np.ndarray]]] = deque()  # not sent yet
        self._size = 0  # of theirs, in bytes, roughly
        self._lead = threading.Lock()  # over what follows
        self._leader = 0  # which lead this is; a thread whose number is another has lost it
        self._busy: tuple[int, float] | None = None  # the lead of who began with an item, and when; None if nobody did
        self._idle = 0  # threads that wait for the lead
        self._threads = 1
        self._wanted = threading.Semaphore(0)
        # What each thread works on, for the router to read when this process has died.
        with (Path(folder) / f"now-{number}").open("r+b") as file:
            self._now = memoryview(mmap.mmap(file.fileno(), 8 * THREADS)).cast("q")

    def run(self) -> None:
        """Works until `Stop` comes as a signal."""
        threading.Thread(target=self._watch, daemon=True).start()
        self._link.send([wire.pack(None)])  # ready
        self._work(0)

    # Who leads.

    def _work(self, place: int) -> None:
        mine = self._take_lead()
        while True:
            with self._lead:
                leads = self._leader == mine
                if leads:
                    self._busy = None  # from here on nobody takes the lead away: two threads must not be at one socket
                else:
                    self._idle += 1
            if not leads:
                self._wanted.acquire()
                mine = self._take_lead()
            if not self._queue:
                self._receive()
            self._batch(place, mine)

    def _take_lead(self) -> int:
        with self._lead:
            self._leader += 1
            self._busy = None
            return self._leader

    def _give_lead(self, mine: int) -> None:
        """Lets another thread lead in place of `mine`, which is about to be busy or has been for long."""
        with self._lead:
            if self.heavy or self._leader != mine or self._busy is None:
                return
            if self._idle:
                self._leader += 1
                self._idle -= 1
                self._wanted.release()
                return
            if self._threads >= THREADS:
                return
            self._leader += 1
            place, self._threads = self._threads, self._threads + 1
        threading.Thread(target=self._work, args=(place,), daemon=True).start()

    def _watch(self) -> None:
        seen = None
        while True:
            time.sleep(STALL)
            busy = self._busy
            if busy is not None and busy == seen:
                self._give_lead(busy[0])
                if self._results:
                    self._send()
            seen = busy

    # Work.

    def _receive(self) -> None:
        for (data,) in self._link.receive():
            head = wire.unpack(data)
            self.heavy = head["heavy"]
            for key, *room in head["arenas"]:
                if session := self.sessions.get(key):
                    with contextlib.suppress(OSError):
                        session.slots = Slots(*room, writable=True)
            self._queue.extend(head["items"])
        if self._link.ended:
            threading.Event().wait()  # the router is gone: the signal of its death is on the way

    def _batch(self, place: int, mine: int) -> None:
        """Works on the queue while it has the lead; sends results as they come, several at a time where they come fast."""
        queue, sessions, now, results = self._queue, self.sessions, self._now, self._results
        begun = oldest = time.perf_counter()
        while self._leader == mine:
            try:
                item = queue.popleft()
            except IndexError:
                break
            key, op = item[0], item[2]
            session = sessions.get(key)
            usual = 0.0 if session is None else session.usual.get(op, 0.0)
            self._busy = (mine, begun)
            if usual > SLOW or session is None:
                if results:
                    self._send()
                if session is not None:
                    self._give_lead(mine)
            now[place] = key
            record, buffers = self._do(item, session)
            ended = time.perf_counter()
            record[3] = (ended - begun) * 1e3
            if session is not None:
                session.usual[op] = usual + FORGET * (ended - begun - usual)
            results.append((record, buffers))
            self._size += len(record[4])
            if buffers:
                self._size += _nbytes(buffers)
            if len(results) == 1:
                oldest = ended
            elif ended - oldest > FLUSH or self._size > BATCH:
                self._send()
                ended = time.perf_counter()
            begun = ended
        now[place] = 0
        if results:
            self._send()

    def _send(self) -> None:
        """Sends all results that are there, whichever thread they are from."""
        with self._sending:
            records: list[Any] = []
            frames: list[Any] = []
            self._size = 0
            while self._results:
                record, buffers = self._results.popleft()
                records.append(record)
                frames += buffers
            if records:
                self._link.send([wire.pack(records), *frames])

    def _do(self, item: list[Any], session: Session | None) -> tuple[list[Any], list[np.ndarray]]:
        """One operation, isolated: whatever goes wrong in it concerns this session alone."""
        key, step, op, payload, slot = item
        buffers: list[np.ndarray] = []
        try:
            if op == "step" and session is not None:
                status, result = self._step(session, payload, buffers)
            else:
                status, result = self._operate(key, op, payload, session, buffers)
            if len(result) > wire.LIMIT or (buffers and len(result) + _nbytes(buffers) > wire.LIMIT):
                raise BadObservationError(f"an observation of more than {wire.LIMIT >> 20} MiB")
        except (UserError, wire.WireError) as error:
            buffers, status = [], "BAD_REQUEST"
            result = wire.refusal(status, str(error), "bad_request")
        except LostError as error:
            buffers, status = [], "LOST"
            result = wire.refusal(status, str(error), "lost")
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}"[:2000]
            buffers, status = [], "CRASHED"
            if op in ("save", "state"):
                status = "BAD_REQUEST"  # the episode goes on
            code = "bad_observation" if isinstance(error, BadObservationError) else getattr(error, "code", "exception")
            result = wire.refusal(status, text, str(code))
        if status != "OK" and (status in wire.GONE or op == "create"):
            self._close(key)
        if session is not None and session.slots is not None and (buffers or len(result) >= wire.SHARED):
            generation = session.slots.write(slot, buffers, result, self.crc)
            if generation is not None:
                return [key, step, status, 0.0, b"", 0, slot, generation], []
        return [key, step, status, 0.0, result, len(buffers), -1, 0], buffers

    def _operate(
        self, key: int, op: str, payload: bytes, session: Session | None, buffers: list[np.ndarray]
    ) -> tuple[str, bytes]:
        if op == "describe":
            name, options = wire.unpack(payload)
            return "OK", wire.pack([None, 0.0, False, False, {}, wire.pack_spec(registry.describe(name, **options))])
        if op == "create":
            name, options = wire.unpack(payload)
            env = registry.make(name, **options)
            self.sessions[key] = Session(env, env.spec)
            return "OK", wire.pack([None, 0.0, False, False, {}, wire.pack_spec(env.spec)])
        if op == "close":
            self._close(key)
            return "OK", wire.pack([None, 0.0, False, False, {}, None])
        if session is None:
            return "LOST", wire.refusal("LOST", "there is no such session in this process")
        env = session.env
        if op == "reset":
            task, seed = wire.unpack_reset(payload)
            obs = env.reset(task, seed)
            session.over = False
            return "OK", self._pack(session, StepResult(obs, 0.0, False, False, {}), buffers)
        if op == "restore":
            obs = env.restore(wire.unpack(payload))
            session.over = False
            return "OK", self._pack(session, StepResult(obs, 0.0, False, False, {}), buffers)
        value = env.save() if op == "save" else env.state()
        return "OK", wire.pack([None, 0.0, False, False, {}, value])

    def _step(self, session: Session, payload: bytes, buffers: list[np.ndarray]) -> tuple[str, bytes]:
        if session.over:
            if session.last is None:
                return "EPISODE_OVER", wire.refusal("EPISODE_OVER", "reset first")
            info = {"error": "episode_over", "message": "the episode has ended; reset first"}
            return "EPISODE_OVER", self._pack(session, StepResult(session.last, 0.0, False, False, info), buffers)
        action = wire.unpack_action(payload)
        result = session.env.step(action)
        data = self._pack(session, result, buffers)
        session.over = result.terminated or result.truncated
        error = result.info.get("error")
        if error == "episode_over":
            return "EPISODE_OVER", data
        if error is not None and (type(action) is Invalid or error in REFUSED):
            return "PARSE_ERROR", data
        return "OK", data

    def _pack(self, session: Session, result: StepResult, buffers: list[np.ndarray]) -> bytes:
        reward = checks.reward(result.reward)
        obs = result.obs
        session.shapes = checks.arrays(obs, session.shapes)
        session.last = obs
        info = result.info
        info = info if type(info) is dict else dict(info)
        try:
            return wire.pack([wire.pack_obs(obs, buffers), reward, bool(result.terminated), bool(result.truncated), info, None])
        except wire.WireError as error:
            raise BadObservationError(str(error)) from error

    def _close(self, key: int) -> None:
        if session := self.sessions.pop(key, None):
            with contextlib.suppress(Exception):
                session.env.close()

    def close(self) -> None:
        """Closes every environment."""
        for key in list(self.sessions):
            self._close(key)


def _nbytes(buffers: list[np.ndarray]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def main(folder: str, number: str, descriptor: str, parent: str, crc: str) -> None:
    """Runs until the router ends it, or is gone."""

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stop

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return
    os.set_inheritable(int(descriptor), False)
    worker = None
    code = 1
    try:
        worker = Worker(folder, int(number), socket.socket(fileno=int(descriptor)), crc == "crc")
        worker.run()
    except Stop:
        # Whatever an environment is in the midst of ends with the process.
        timer = threading.Timer(GRACE, os._exit, (1,))
        timer.daemon = True
        timer.start()
        if worker is not None:
            worker.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads that are in the midst of a step


if __name__ == "__main__":
    main(*sys.argv[1:])

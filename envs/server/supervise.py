"""The processes of a step server: started when they are wanted, watched, ended in time, and started again within a budget.

A process belongs to a lane: one of the few that light sessions share, or one that a heavy session has for itself. A lane that
has used up its restarts is out for as long as they count, and says so.
"""

import contextlib
import dataclasses
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envs.server.link import Link

GRACE = 2.0  # seconds from SIGTERM to SIGKILL
BACK_OFF = 0.1  # seconds until the second restart; then twice as long each time
LONGEST_BACK_OFF = 5.0
NOW_BYTES = 512  # of the file in which a worker notes what it works on
LINE = 8192  # bytes of a worker's output that are taken as one line


@dataclasses.dataclass(eq=False)
class Lane:
    """A place for one process."""

    kind: str  # "light" or "heavy"
    process: "Process | None" = None
    deaths: deque[float] = dataclasses.field(default_factory=deque)  # when its processes died, within the window
    not_before: float = 0.0  # when the next may start
    out: bool = False


@dataclasses.dataclass(eq=False)
class Process:
    """A worker."""

    number: int
    popen: subprocess.Popen
    pidfd: int
    link: Link
    lane: Lane | None = None  # None: nothing but `describe` so far
    ready: bool = False
    queue: list[Any] = dataclasses.field(default_factory=list)  # items until it is ready
    arenas: list[Any] = dataclasses.field(default_factory=list)  # segments that it does not know of yet
    keys: set[int] = dataclasses.field(default_factory=set)  # sessions that live here
    ended: bool = False  # we ended it
    kill_at: float | None = None  # when SIGKILL follows
    text: bytes = b""  # the beginning of a line of its output

    @property
    def alone(self) -> bool:
        """Whether one session has it and its main thread for itself, or may have it yet."""
        return self.lane is None or self.lane.kind == "heavy"


@dataclasses.dataclass(frozen=True)
class Refused:
    """No process can be had now."""

    message: str
    retry_after: float  # seconds


class Pool:
    """All workers of a server. `epoll` becomes readable when `events` has something to do."""

    def __init__(
        self,
        folder: Path,
        guard: Any,
        *,
        workers: int,
        heavy: int,
        restarts: int,
        window: float,
        crc: bool,
        log: Callable[[str], None],
    ):
        self._folder, self._guard, self._crc, self._log = folder, guard, crc, log
        self.restarts_allowed, self.window = restarts, window
        self.light = [Lane("light") for _ in range(workers)]
        self.heavy = [Lane("heavy") for _ in range(heavy)]
        self.processes: dict[int, Process] = {}
        self.restarts = 0
        self.epoll = select.epoll()
        self._files: dict[int, Process] = {}  # descriptor -> whose
        self._next = 0
        self._spare_lane = Lane("light")  # of processes that only describe

    # Places for sessions.

    def spare(self) -> Process | Refused:
        """A process in which a spec can be looked up: one without a lane, or a light one without sessions."""
        for process in self.processes.values():
            if process.lane is None and not process.ended:
                return process
        return self._start(None) if (refused := self._ready(self._spare_lane)) is None else refused

    def place(self, weight: str) -> Process | Refused:
        """The process for a new session."""
        now = time.monotonic()
        if weight == "heavy":
            taken = [lane for lane in self.heavy if lane.process is not None and lane.process.keys]
            free = [lane for lane in self.heavy if lane.process is None or not lane.process.keys]
            if not free:
                return Refused(f"all {len(taken)} processes for heavy sessions are in use", 1.0)
            free.sort(key=lambda lane: lane.process is None)
            return self._any(free, now)
        empty = [lane for lane in self.light if lane.process is None]
        live = sorted((lane for lane in self.light if lane.process is not None), key=lambda lane: len(_process(lane).keys))
        if live and (not _process(live[0]).keys or not empty):
            return _process(live[0])
        chosen = self._any(empty, now)
        return _process(live[0]) if isinstance(chosen, Refused) and live else chosen

    def _any(self, lanes: list[Lane], now: float) -> Process | Refused:
        refusals = []
        for lane in lanes:
            if lane.process is not None:
                return lane.process
            refused = self._ready(lane)
            if refused is None:
                spare = next(
                    (process for process in self.processes.values() if process.lane is None and not process.ended), None
                )
                process = spare or self._start(lane)
                process.lane, lane.process = lane, process
                return process
            refusals.append(refused)
        return min(refusals, key=lambda refused: refused.retry_after)

    def _ready(self, lane: Lane) -> Refused | None:
        now = time.monotonic()
        while lane.deaths and now - lane.deaths[0] > self.window:
            lane.deaths.popleft()
            lane.out = len(lane.deaths) > self.restarts_allowed
        if lane.out:
            return Refused(
                f"out of use: its worker died {len(lane.deaths)} times within {self.window:g} s (see the server's log)",
                lane.deaths[0] + self.window - now,
            )
        return Refused("its worker died; the next starts soon", lane.not_before - now) if lane.not_before > now else None

    # Processes.

    def _start(self, lane: Lane | None) -> Process:
        self._next += 1
        now_file = self._folder / f"now-{self._next}"
        now_file.write_bytes(bytes(NOW_BYTES))
        temporary = self._folder / f"tmp-{self._next}"  # of its sessions, profiles ...: removed with it, however it ends
        temporary.mkdir(mode=0o700)
        ours, its = socket.socketpair()
        popen = subprocess.Popen(
            [
                sys.executable, "-m", "envs.server.worker",
                str(self._folder), str(self._next), str(its.fileno()), str(os.getpid()), "crc" if self._crc else "",
            ],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                "TMPDIR": str(temporary),
            },
        )  # fmt: skip
        its.close()
        ours.setblocking(False)
        assert popen.stdout is not None
        os.set_blocking(popen.stdout.fileno(), False)
        process = Process(self._next, popen, os.pidfd_open(popen.pid), Link(ours), lane)
        self.processes[process.number] = process
        for descriptor in (process.pidfd, process.link.fileno(), popen.stdout.fileno()):
            self._files[descriptor] = process
            self.epoll.register(descriptor, select.EPOLLIN)
        self._guard(f"+{popen.pid}")
        return process

    def end(self, process: Process, now: bool = False) -> None:
        """Ends a process: SIGTERM, and `GRACE` seconds later SIGKILL for its group. Its lane is free at once."""
        if process.ended and not now:
            return
        if not process.ended and process.lane is not None:
            process.lane.process = None
        process.ended = True
        process.kill_at = time.monotonic() + (0 if now else GRACE)
        with contextlib.suppress(ProcessLookupError):
            process.popen.send_signal(signal.SIGKILL if now else signal.SIGTERM)

    def died(self, process: Process, lane: Lane) -> None:
        """Counts a death that a lane has to answer for."""
        now = time.monotonic()
        lane.deaths.append(now)
        self._ready(lane)
        lane.not_before = now + (min(BACK_OFF * 2 ** (len(lane.deaths) - 2), LONGEST_BACK_OFF) if len(lane.deaths) > 1 else 0.0)
        self.restarts += 1
        if len(lane.deaths) > self.restarts_allowed and not lane.out:
            lane.out = True
            self._log(
                f"a {lane.kind} worker is out of use: it died {len(lane.deaths)} times within {self.window:g} s; "
                f"the last was worker {process.number}"
            )

    def events(self) -> tuple[list[Process], list[Process]]:
        """Takes in what the workers print; returns those that sent something, and the dead, reaped, with an open link."""
        talking, dead = [], []
        for descriptor, event in self.epoll.poll(0):
            process = self._files[descriptor]
            if descriptor == process.pidfd:
                dead.append(process)
            elif descriptor != process.link.fileno():
                self._read(process, descriptor)
            else:
                if event & select.EPOLLOUT and process.link.flush():
                    self.epoll.modify(descriptor, select.EPOLLIN)
                if event & ~select.EPOLLOUT:
                    talking.append(process)
        for process in dead:
            self._reap(process)
        return talking, dead

    def send(self, process: Process, head: bytes) -> None:
        """Sends a message to a worker, now or as soon as it takes it."""
        if not process.link.send([head]):
            self.epoll.modify(process.link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def deaf(self, process: Process) -> None:
        """Looks no longer at a link whose other end is closed."""
        if self._files.pop(process.link.fileno(), None) is not None:
            self.epoll.unregister(process.link.fileno())

    def _read(self, process: Process, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return False
        if not data:
            self.epoll.unregister(descriptor)
            del self._files[descriptor]
        *lines, process.text = (process.text + data).split(b"\n")
        if len(process.text) > LINE or (not data and process.text):
            lines, process.text = [*lines, process.text], b""
        for line in lines:
            self._log(f"[worker {process.number}] {line.decode('utf-8', 'replace')}")
        return bool(data)

    def _reap(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.popen.pid, signal.SIGKILL)  # what it started; before its number is free
        process.popen.wait()
        self._guard(f"-{process.popen.pid}")
        self._guard(f"~tmp-{process.number}")
        assert process.popen.stdout is not None
        descriptor = process.popen.stdout.fileno()
        for _ in range(64):
            if descriptor not in self._files or not self._read(process, descriptor):
                break
        for number in (process.pidfd, process.link.fileno(), descriptor):
            if number in self._files:
                self.epoll.unregister(number)
                del self._files[number]
        os.close(process.pidfd)
        process.popen.stdout.close()
        del self.processes[process.number]
        if process.lane is not None and process.lane.process is process:
            process.lane.process = None

    def working_on(self, process: Process) -> set[int]:
        """The sessions that a dead process was in the midst of."""
        path = self._folder / f"now-{process.number}"
        data = path.read_bytes()
        path.unlink()
        return {key for (key,) in struct.iter_unpack("<q", data) if key}

    def tick(self, now: float) -> None:
        """Kills what did not end in time."""
        for process in self.processes.values():
            if process.kill_at is not None and now >= process.kill_at:
                process.kill_at = None
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.popen.pid, signal.SIGKILL)

    def budget(self, process: Process) -> Lane:
        """The lane that answers for a process."""
        return process.lane or self._spare_lane

    def close(self) -> None:
        """Ends every worker: returns when all are reaped."""
        for process in self.processes.values():
            self.end(process)
        while self.processes:
            self.tick(time.monotonic())
            self.epoll.poll(0.02)
            for process in self.events()[1]:
                process.link.close()
        self.epoll.close()


def _process(lane: Lane) -> Process:
    assert lane.process is not None
    return lane.process

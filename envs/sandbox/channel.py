"""A program that lives in a sandbox and runs one request at a time: requests go in by a pipe, output and reports come out.

Everything read is bounded: what is kept of one request's output, what is read of it, what is read in a second and in a session.
"""

import contextlib
import dataclasses
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable

from envs.sandbox import bubblewrap, processes
from envs.sandbox.bubblewrap import Sandbox

KEPT = 16 << 10  # bytes of one request's output that are kept: the first and the last half
PER_REQUEST = 16 << 20  # bytes of output after which a request is killed
PER_SECOND = 8 << 20  # bytes read in a second; a program that writes more waits
PER_SESSION = 256 << 20  # bytes of output after which the sandbox is ended
REPORT = 1 << 20  # bytes of one report
RUNNING = -1  # the exit code of a request that has not ended
FIRST_DESCRIPTOR = 50  # passed descriptors are numbered from here on, clear of what scripts use


@dataclasses.dataclass(frozen=True)
class Output:
    """What a request printed, standard output and error together, and how it ended."""

    text: str  # at most `KEPT` bytes and a marker; U+FFFD for what is not UTF-8
    exit_code: int  # `RUNNING` if it has not ended
    omitted: int = 0  # bytes left out of the middle
    note: str = ""  # what else to know: "no command is running", why it was killed; "" for nothing
    seconds: float = 0.0  # that this call took


class Clip:
    """Bytes of which the first and the last `KEPT` / 2 are kept."""

    def __init__(self) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Appends."""
        self.total += len(data)
        room = KEPT // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        del self._tail[: max(0, len(self._tail) - KEPT // 2)]

    @property
    def omitted(self) -> int:
        """Bytes left out."""
        return self.total - len(self._head) - len(self._tail)

    def text(self) -> str:
        """The whole as text, with a marker where something is left out; no character is cut in two."""
        if not self.omitted:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = bytes(self._head), bytes(self._tail)
        for cut in range(1, 4):  # a character that began within the last three bytes of the head
            if len(head) >= cut and head[-cut] >= 0xC0:
                lead = head[-cut]
                if cut < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4):
                    head = head[:-cut]
                break
        start = next((i for i in range(min(4, len(tail))) if tail[i] & 0xC0 != 0x80), 0)
        left_out = self.total - len(head) - (len(tail) - start)
        return f"{head.decode(errors='replace')}\n[... {left_out} bytes left out ...]\n{tail[start:].decode(errors='replace')}"


class Channel:
    """One long-living program and its pipes.

    Descriptors inside: 0 the requests, 1 output; ``idle`` is a pipe on which nothing ever comes (standard input of programs
    that must wait for it), ``reports`` is where the program tells that a request has ended: ``fields`` parts, each ended by a
    NUL.
    """

    def __init__(self, sandbox: Sandbox, argv: Callable[[int, int], list[str]], fields: int, cwd: str):
        """``argv`` makes the command line from the numbers of ``idle`` and ``reports``."""
        self.sandbox = sandbox
        self.fields = fields
        self._owned: list[int] = []
        self._window = (0.0, 0)  # its begin, and the bytes read in it
        self._partial = bytearray()  # of a report
        self._pending = memoryview(b"")  # of a request
        requests, self._requests = self._pipe()
        idle, self._idle = self._pipe()
        self._output, output = self._pipe()
        self._reports, reports = self._pipe()
        inner = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR) for descriptor in (idle, reports)]
        try:
            self.child = sandbox.popen(
                argv(*inner), stdin=requests, stdout=output, stderr=subprocess.DEVNULL, pass_fds=inner, cwd=cwd
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for descriptor in inner:
                os.close(descriptor)
        for descriptor in (requests, idle, output, reports):
            self._owned.remove(descriptor)
            os.close(descriptor)
        self._ended = os.pidfd_open(self.child.pid)
        self._owned.append(self._ended)

    def send(self, request: bytes) -> None:
        """Hands over a request; it is written as the program reads it, during `collect`."""
        self._pending = memoryview(bytes(self._pending) + request)

    def collect(self, clip: Clip, timeout: float) -> list[bytes] | None:
        """Reads output until a report comes, the program ends, ``timeout`` seconds pass, or too much was printed.

        Returns the report's fields, or None. `alive` tells whether the program has ended.
        """
        until = time.monotonic() + timeout
        while True:
            if report := self._report():
                self.drain(clip)
                return report
            now = time.monotonic()
            if now - self._window[0] >= 1.0:
                self._window = (now, 0)
            left = until - now
            if left <= 0 or clip.total > PER_REQUEST or self.sandbox.printed > PER_SESSION:
                return None
            wanted = [self._reports, self._ended]
            if self._window[1] < PER_SECOND:
                wanted.append(self._output)
            else:
                left = min(left, max(0.0, self._window[0] + 1.0 - now))
            ready, writable, _ = select.select(wanted, [self._requests] if self._pending else [], [], left)
            if writable:
                self._write()
            taken = self._take_report() if self._reports in ready else 0
            taken += self._take(clip) if self._output in ready else 0
            if self._ended in ready and not taken:
                self.child.wait()
                return self._report()

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self.child.poll() is None

    @property
    def flooded(self) -> bool:
        """Whether the session has printed more than `PER_SESSION` bytes."""
        return self.sandbox.printed > PER_SESSION

    def program(self) -> int | None:
        """The host's number of the program itself; None once it has ended. Below it are the processes that it started."""
        below = processes.descendants(self.child.pid)
        return next((pid for pid in below if processes.inner_pid(pid) == 2), None)

    def others(self) -> set[int]:
        """The host's numbers of everything else that lives in its namespace: what requests left running."""
        below = processes.descendants(self.child.pid)
        return {pid for pid in below if processes.inner_pid(pid) > 2}

    def interrupt(self) -> None:
        """Sends SIGINT to the program's process group, as a terminal does."""
        if pid := self.program():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGINT)  # the namespace's first process is in it too, and ignores it

    def close(self) -> None:
        """Ends the program and all that it started; closes the pipes. May be called twice."""
        if self._owned:
            bubblewrap.end(self.child)
            self._close_pipes()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._owned += ends
        return ends

    def _close_pipes(self) -> None:
        while self._owned:
            os.close(self._owned.pop())

    def _take_report(self) -> int:
        data = os.read(self._reports, 1 << 16)
        self._partial += data
        if len(self._partial) > REPORT:
            self._partial.clear()  # not one of ours
        return len(data)

    def _take(self, clip: Clip) -> int:
        data = os.read(self._output, 1 << 16)
        clip.add(data)
        self.sandbox.printed += len(data)
        self._window = (self._window[0], self._window[1] + len(data))
        return len(data)

    def drain(self, clip: Clip) -> None:
        """Takes what was printed before the report."""
        for _ in range(64):  # a pipe holds no more; what still prints in the background comes with the next request
            if not select.select([self._output], [], [], 0)[0] or not self._take(clip):
                return

    def _write(self) -> None:
        try:
            self._pending = self._pending[os.write(self._requests, self._pending[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            self._pending = memoryview(b"")

    @staticmethod
    def status(field: bytes) -> int:
        """An exit code from a report, which the session may have forged: 0 to 255, else 0."""
        return int(field) % 256 if field.isdigit() and len(field) <= 3 else 0

    def _report(self) -> list[bytes] | None:
        parts = bytes(self._partial).split(b"\0", self.fields)
        if len(parts) <= self.fields:
            return None
        self._partial[:] = parts[self.fields]
        return parts[: self.fields]

"""A browser process and the debugging protocol over its pipe."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from envs.browser.errors import CrashedError

MAX_MESSAGE = 256 << 20  # bytes of one message from the browser
_LAUNCH = '"$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null'  # the browser reads from descriptor 3 and writes to 4
_GRACE = 3.0  # seconds that a browser has to end by itself

Message = dict[str, Any]


class RefusedError(Exception):
    """The browser refused a call; the text is its own."""


class Pipe:
    """Sends calls and takes replies and events, in one thread. Nothing here blocks longer than its deadline.

    The browser ends by itself as soon as its pipe closes, so it never outlives this process.

    Attributes:
      pid: the process group.
      handlers: event -> what is called with its parameters, in order of arrival. A handler sends, but never waits.
      session: the page that calls go to; "" for the browser itself.
    """

    def __init__(self, command: list[str], environment: dict[str, str]):
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _LAUNCH, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self.pid = self._process.pid
        self.handlers: dict[str, Callable[[Message], None]] = {}
        self.session = ""
        self._ids = 0
        self._parts: list[bytes] = []  # of the message that is arriving
        self._size = 0
        self._outgoing = bytearray()
        self._replies: dict[int, Message] = {}
        self._then: dict[int, Callable[[Message], None]] = {}
        self._ignored: set[int] = set()

    def send(self, method: str, /, **parameters: Any) -> int:
        """Starts a call to the page; returns its id, for `reply`."""
        return self._send(method, self.session, parameters)

    def post(self, method: str, /, *, then: Callable[[Message], None] | None = None, **parameters: Any) -> None:
        """A call whose reply goes to ``then``, or to nobody."""
        number = self._send(method, self.session, parameters)
        if then is None:
            self._ignored.add(number)
        else:
            self._then[number] = then

    def call(self, method: str, timeout: float, /, *, browser: bool = False, **parameters: Any) -> Message:
        """A call and its result. Raises TimeoutError, `RefusedError`, or `CrashedError`."""
        number = self._send(method, "" if browser else self.session, parameters)
        if not self.wait(lambda: number in self._replies, timeout):
            self._ignored.add(number)
            raise TimeoutError(method)
        return self.reply(number)

    def arrived(self, number: int) -> bool:
        """Whether the reply to a call is here."""
        return number in self._replies

    def reply(self, number: int) -> Message:
        """The result of a call that arrived. Raises `RefusedError`."""
        message = self._replies.pop(number)
        if "error" in message:
            raise RefusedError(str(message["error"].get("message")))
        return message["result"]

    def wait(self, until: Callable[[], bool], timeout: float) -> bool:
        """Takes messages until something holds; False if it does not within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.take(left)
        return True

    def take(self, timeout: float) -> None:
        """Takes what has arrived, waiting at most ``timeout`` seconds for something. Raises CrashedError at the pipe's end."""
        readable, writable, _ = select.select([self._from], [self._to] if self._outgoing else [], [], max(0.0, timeout))
        if writable:
            self._flush()
        if not readable:
            return
        try:
            data = os.read(self._from, 1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise CrashedError("the browser has ended")
        *whole, rest = data.split(b"\0")
        for piece in whole:
            self._parts.append(piece)
            message = b"".join(self._parts)
            self._parts, self._size = [], 0
            self._arrive(json.loads(message))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > MAX_MESSAGE:
                raise CrashedError(f"the browser sent a message of more than {MAX_MESSAGE >> 20} MiB")

    def close(self) -> None:
        """Ends the browser with all its processes, and reaps it. May be called twice."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        self._process.stdin.close()
        self._drain(_GRACE)
        self._end()

    def kill(self) -> None:
        """Like `close`, for a browser that does not answer: without waiting for it to end by itself."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
            self._end()

    def _end(self) -> None:
        """Kills what is left of the group. Its id can't have been given to others, as its leader is not reaped yet."""
        assert self._process.stdout is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._drain(_GRACE)
        self._process.stdout.close()
        self._process.wait(_GRACE)

    def _drain(self, timeout: float) -> None:
        """Reads on until nobody holds the other end of the pipe: all processes have ended."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            readable, _, _ = select.select([self._from], [], [], left)
            with contextlib.suppress(BlockingIOError):
                if readable and not os.read(self._from, 1 << 20):
                    return

    def _send(self, method: str, session: str, parameters: dict[str, Any]) -> int:
        self._ids += 1
        message = {"id": self._ids, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._outgoing += json.dumps(message).encode() + b"\0"
        self._flush()
        return self._ids

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._to, self._outgoing)]
        except BlockingIOError:
            return  # the rest goes out with the next `take`
        except (BrokenPipeError, ValueError) as error:
            raise CrashedError("the browser has ended") from error

    def _arrive(self, message: Message) -> None:
        number = message.get("id")
        if number is None:
            handler = self.handlers.get(message["method"])
            if handler is not None:
                handler(message["params"])
        elif number in self._ignored:
            self._ignored.discard(number)
        elif number in self._then:
            self._then.pop(number)(message)
        else:
            self._replies[number] = message

"""A connection to a step server: the token, the leases, and what silence means."""

import abc
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import zmq

from envs.server import auth, wire
from envs.server.router import BOOT
from envs.server.transport import LinkTransport, Transport, ZmqTransport

RESEND = 2.0  # seconds without a word, after which the server is asked again; then twice as long each time
LONGEST_RESEND = 16.0
PATIENCE = 60.0  # seconds without a word, after which a server counts as gone
LINGER = 0.2  # seconds that what was sent may take when a connection ends


class ServerGoneError(ConnectionError):
    """The server does not answer."""


class Connection(abc.ABC):
    """What a client needs to be one, without its operations. A second thread keeps the leases."""

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
        self.address = address
        self._patience, self._alive = patience, alive
        self._token, key = auth.split(auth.read(token)) if transport is None else ("", None)
        self._transport: Transport = transport or ZmqTransport(address, key, b"c" + os.urandom(16))
        self._waiting = 0  # operations without an answer
        self._heard_word()
        self._run: str | None = None  # the server's, once it has said welcome
        self.lease = 600.0
        self._closed = False
        self._over = threading.Event()
        self._heart: threading.Thread | None = None
        try:
            self._hello()
            self._wait_until(lambda: self._run is not None, patience, f"{address}: no step server answers here")
        except BaseException:
            self._transport.close(0)
            raise
        if heartbeat and isinstance(self._transport, ZmqTransport):  # over a link none is needed
            self._heart = threading.Thread(target=self._beat, args=(self._transport,), daemon=True, name="step-server-leases")
            self._heart.start()

    @abc.abstractmethod
    def _on_message(self, frames: list[Any]) -> None:
        """Takes in a message."""

    @abc.abstractmethod
    def _lose(self, text: str) -> None:
        """Gives up what waits, for a reason."""

    @abc.abstractmethod
    def _again(self) -> None:
        """Asks again for what waits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def fileno(self) -> int:
        """A descriptor that becomes readable when a message may be there. Call `poll` after each `post` as well."""
        return self._transport.fileno()

    def _send(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._transport.send(wire.message(kind, fields))  # or not, if nobody takes our messages: they are sent again

    def _hello(self) -> None:
        boot = BOOT.read_text().strip() if BOOT.exists() else ""
        self._send("hello", {"token": self._token, "boot": boot})

    def _wait_until(self, there: Callable[[], bool], timeout: float | None, message: str) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not there():
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0 or (deadline is not None and not self._alive()):
                raise ServerGoneError(message)
            self._receive(min(left, 0.2))

    def _receive(self, timeout: float) -> None:
        messages = self._transport.receive(timeout)
        if messages:
            self._heard_word()
            for frames in messages:
                self._on_message(frames)
        elif self._waiting or self._run is None:
            self._on_silence(time.monotonic())

    def _heard_word(self) -> None:
        """Silence begins anew."""
        self._heard = time.monotonic()
        self._resend_at, self._resend = self._heard + RESEND, RESEND

    def _on_silence(self, now: float) -> None:
        if not self._alive():
            self._lose("the server's process has ended")
        elif now - self._heard > self._patience:
            self._lose(f"{self.address} has not answered for {self._patience:g} s")
        elif now >= self._resend_at:
            self._resend = min(2 * self._resend, LONGEST_RESEND)
            self._resend_at = now + self._resend
            if self._run is None:
                self._hello()
            else:
                self._again()

    def _beat(self, transport: ZmqTransport) -> None:
        """Keeps the leases, from a thread and a socket of its own."""
        own = transport.twin(b"h" + os.urandom(16))
        try:
            while not self._over.wait(self.lease / 4):
                own.send(wire.message("hello", {"token": self._token}))
                own.send(wire.message("renew", {"client": transport.identity}))
                own.receive(0.0)
        finally:
            own.close(0)

    def close_all(self) -> None:
        """Ends every session and the connection; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._over.set()
        if self._heart is not None:
            self._heart.join()
        self._send("bye", {})
        self._transport.close(LINGER)


def wait_any(clients: Sequence[Connection], timeout: float) -> None:
    """Waits until one of several connections has a message, at most `timeout` seconds."""
    poller = zmq.Poller()
    for client in clients:
        poller.register(client._transport.source, zmq.POLLIN)
    poller.poll(math.ceil(timeout * 1e3))

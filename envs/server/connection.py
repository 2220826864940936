"""A connection to a step server: the socket, the token, the leases, and what silence means."""

import abc
import contextlib
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
from jaxllm.errors import UserError

RESEND = 2.0  # seconds without a word, after which the server is asked again; then twice as long each time
LONGEST_RESEND = 16.0
PATIENCE = 60.0  # seconds without a word, after which a server counts as gone
RECONNECT_MS = 50  # until the first attempt to connect again; then twice as long each time
LONGEST_RECONNECT_MS = 2000
MESSAGES = 1000  # taken from the socket at once
_READABLE = int(zmq.POLLIN)


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
    ):
        self.address = address
        self._token, self._server_key = auth.split(auth.read(token))
        self._patience, self._alive = patience, alive
        self._identity = b"c" + os.urandom(16)
        self._context = zmq.Context()
        self._socket = self._open_socket(self._identity)
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
            self._context.destroy(linger=0)
            raise
        if heartbeat:
            self._heart = threading.Thread(target=self._beat, daemon=True, name="step-server-leases")
            self._heart.start()

    @abc.abstractmethod
    def _on_message(self, frames: list[zmq.Frame]) -> None:
        """Takes in a message."""

    @abc.abstractmethod
    def _lose(self, text: str) -> None:
        """Gives up what waits, for a reason."""

    @abc.abstractmethod
    def _again(self) -> None:
        """Asks again for what waits."""

    def _open_socket(self, identity: bytes) -> zmq.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 200
        socket.routing_id = identity
        socket.set_hwm(1000)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if self._server_key:
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._server_key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            raise UserError(f"{self.address}: {error}; a server prints its address, such as tcp://127.0.0.1:5555") from error
        return socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def fileno(self) -> int:
        """A descriptor that becomes readable when a message may be there: see ZMQ_FD. Call `poll` after each `post` as well."""
        return int(self._socket.getsockopt(zmq.FD))

    def _send(self, kind: str, fields: Mapping[str, Any]) -> None:
        with contextlib.suppress(zmq.Again):  # nobody takes our messages: they are sent again
            self._socket.send(wire.message(kind, fields), zmq.NOBLOCK)

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
        if self._socket.poll(math.ceil(timeout * 1e3)):
            with contextlib.suppress(zmq.Again):
                for _ in range(MESSAGES):
                    frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                    self._heard_word()
                    self._on_message(frames)
                    if not int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
                        return  # in a tenth of the time that the exception takes
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

    def _beat(self) -> None:
        """Keeps the leases, from a thread and a socket of its own."""
        socket = self._open_socket(b"h" + os.urandom(16))
        try:
            while not self._over.wait(self.lease / 4):
                with contextlib.suppress(zmq.ZMQError):
                    socket.send(wire.message("hello", {"token": self._token}), zmq.NOBLOCK)
                    socket.send(wire.message("renew", {"client": self._identity}), zmq.NOBLOCK)
                    while True:
                        socket.recv(zmq.NOBLOCK)
        finally:
            socket.close(linger=0)

    def close_all(self) -> None:
        """Ends every session and the connection; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._over.set()
        if self._heart is not None:
            self._heart.join()
        self._send("bye", {})
        self._context.destroy(linger=200)


def wait_any(clients: Sequence[Connection], timeout: float) -> None:
    """Waits until one of several connections has a message, at most `timeout` seconds."""
    poller = zmq.Poller()
    for client in clients:
        poller.register(client._socket, zmq.POLLIN)
    poller.poll(math.ceil(timeout * 1e3))

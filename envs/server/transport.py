"""How a client reaches its server: over ZeroMQ, or over the link to a server that its own process started.

Either carries the same messages, may lose one that the other side does not take, and says so by silence.
"""

import contextlib
import math
import select
import time
from typing import Any, Protocol

import zmq

from envs.server.link import HIGH_WATER, Link
from jaxllm.errors import UserError

RECONNECT_MS = 50  # until the first attempt to connect again; then twice as long each time
LONGEST_RECONNECT_MS = 2000
MESSAGES = 1000  # taken from the socket at once
TAKEN = 1.0  # seconds that `send` waits for a server that is slow to take a long message; the rest goes with `receive`
READABLE = int(zmq.POLLIN)


class Transport(Protocol):
    """What a connection needs of its way."""

    @property
    def source(self) -> Any:
        """What `zmq.Poller` can wait for: a socket of ZeroMQ or a descriptor."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when a message may be there."""

    def send(self, message: bytes) -> None:
        """Sends a message, or drops it where the server has not taken many others."""

    def receive(self, seconds: float) -> list[list[Any]]:
        """The messages that are there, each a list of frames; waits up to `seconds` for the first."""

    def close(self, linger: float) -> None:
        """Ends it; what was sent has up to `linger` seconds to go."""


class ZmqTransport:
    """Over ZeroMQ, to a server anywhere. Raises UserError for what is no address."""

    def __init__(self, address: str, server_key: bytes | None, identity: bytes, context: zmq.Context | None = None):
        self.identity = identity
        self._to = address, server_key
        self._own = zmq.Context() if context is None else None
        self._context = context or self._own
        assert self._context is not None
        self.source = socket = self._context.socket(zmq.DEALER)
        socket.linger = 200
        socket.routing_id = identity
        socket.set_hwm(HIGH_WATER)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if server_key:
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            self.close(0)
            raise UserError(f"{address}: {error}; a server prints its address, such as tcp://127.0.0.1:5555") from error

    def twin(self, identity: bytes) -> "ZmqTransport":
        """Another to the same server, for another thread; to be closed before this one."""
        return ZmqTransport(*self._to, identity, self._context)

    def fileno(self) -> int:
        """See ZMQ_FD: what comes while one sends does not show."""
        return int(self.source.getsockopt(zmq.FD))

    def send(self, message: bytes) -> None:
        """See `Transport`."""
        with contextlib.suppress(zmq.Again):
            self.source.send(message, zmq.NOBLOCK)

    def receive(self, seconds: float) -> list[list[Any]]:
        """See `Transport`."""
        messages: list[list[Any]] = []
        if self.source.poll(math.ceil(seconds * 1e3)):
            with contextlib.suppress(zmq.Again):
                while len(messages) < MESSAGES:
                    messages.append([frame.buffer for frame in self.source.recv_multipart(zmq.NOBLOCK, copy=False)])
                    if not int(self.source.getsockopt(zmq.EVENTS)) & READABLE:
                        break  # in a tenth of the time that the exception takes
        return messages

    def close(self, linger: float) -> None:
        """See `Transport`."""
        self.source.close(int(linger * 1e3))
        if self._own is not None:
            self._own.destroy(int(linger * 1e3))


class LinkTransport:
    """Over the link to a server that this process started; its end is the server's."""

    def __init__(self, link: Link):
        self.link = link
        self._poll = select.poll()
        self._poll.register(link)

    @property
    def source(self) -> int:
        """The descriptor."""
        return self.link.fileno()

    def fileno(self) -> int:
        """See `Transport`."""
        return self.link.fileno()

    def send(self, message: bytes) -> None:
        """See `Transport`."""
        link, behind = self.link, self.link.waiting
        if behind < HIGH_WATER and not link.send([message]) and not behind:
            deadline = time.monotonic() + TAKEN
            self._poll.modify(link, select.POLLOUT)
            while not link.flush() and (left := deadline - time.monotonic()) > 0:
                self._poll.poll(left * 1e3)

    def receive(self, seconds: float) -> list[list[Any]]:
        """See `Transport`. Does not wait when the link has ended."""
        link, deadline, left = self.link, time.monotonic() + seconds, seconds
        while not link.ended and left >= 0:
            self._poll.modify(link, select.POLLIN | select.POLLOUT if link.waiting else select.POLLIN)
            if self._poll.poll(math.ceil(left * 1e3)):
                link.flush()
                if messages := link.receive():
                    return messages
            left = deadline - time.monotonic()
        return []

    def close(self, linger: float) -> None:
        """Nothing: `envs.server.Server.close` closes the link, by which the server ends."""

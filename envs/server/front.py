"""The router's way to clients: ZeroMQ for everyone, and a link to the process that started the server, if one did."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import zmq

from envs.server import wire
from envs.server.link import HIGH_WATER, Link
from envs.server.transport import READABLE

MESSAGES = 64  # taken from a socket before the others have their turn
OWNER = b""  # identity of the process that started the server: ZeroMQ gives nobody an empty one


class Front:
    """Takes and gives messages by the identities of clients; never blocks but in `wait`."""

    def __init__(self, bind: str, secret_key: bytes | None, owner: Link | None):
        """Binds an address. Raises `zmq.ZMQError`."""
        self._owner = owner
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.set_hwm(HIGH_WATER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.HARD_LIMIT)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if secret_key:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
        socket.bind(bind)
        self.address = socket.get_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        if owner is not None:
            self._poller.register(owner.fileno(), zmq.POLLIN)

    @property
    def ended(self) -> bool:
        """Whether the process that started the server is gone."""
        return self._owner is not None and self._owner.ended

    def watch(self, descriptor: int) -> None:
        """Lets `wait` wait for a descriptor too."""
        self._poller.register(descriptor, zmq.POLLIN)

    def wait(self, seconds: float) -> dict[Any, int]:
        """Waits until there is something to do, or so long; what is ready, descriptors among it."""
        return dict(self._poller.poll(int(seconds * 1e3) + 1))

    def receive(self, ready: Mapping[Any, int]) -> Iterator[tuple[bytes, list[Any]]]:
        """What has come, after `wait` said what is ready: identity and frames of each message."""
        owner = self._owner
        if owner is not None and owner.fileno() in ready:
            if owner.waiting and owner.flush():
                self._poller.register(owner.fileno(), zmq.POLLIN)
            for message in owner.receive():
                yield OWNER, message
        if self._socket in ready:
            with contextlib.suppress(zmq.Again):
                for _ in range(MESSAGES):
                    identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                    yield identity.bytes, [frame.buffer for frame in frames]
                    if not int(self._socket.getsockopt(zmq.EVENTS)) & READABLE:
                        break  # in a tenth of the time that the exception takes

    def send(self, identity: bytes, frames: Sequence[Any]) -> bool:
        """Sends a message; False if it is dropped: the client is gone, or has left too many."""
        if identity == OWNER:
            owner = self._owner
            if owner is None or owner.waiting >= HIGH_WATER:
                return False
            if not owner.send(frames):
                self._poller.register(owner.fileno(), zmq.POLLIN | zmq.POLLOUT)
            return True
        try:
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Closes all of it."""
        self._context.destroy(linger=200)
        if self._owner is not None:
            self._owner.close()

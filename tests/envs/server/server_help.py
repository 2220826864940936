"""A client of the wire's own making, and waiting with a deadline, for the tests of the step server."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from envs import Action
from envs.server import auth, wire

PATIENCE = 60.0  # seconds that anything may take on a machine that is busy with other things


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What a condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)
    return value


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def do(what: str) -> Action:
    """The action of `server_envs.Walk` that makes trouble."""
    return Action("do", {"what": what})


def move(by: int = 1) -> Action:
    return Action("move", {"by": by})


class Way:
    """A way to a server over TCP that can be cut and mended."""

    def __init__(self, address: str):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._at = self._listener.getsockname()
        self.address = f"tcp://127.0.0.1:{self._at[1]}"
        self._listen()

    def cut(self) -> None:
        """Ends what is connected, and lets nobody connect."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._thread.join(PATIENCE)
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._listener = socket.create_server(self._at)
        self._listen()

    def _listen(self) -> None:
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                ends = [listener.accept()[0], socket.create_connection(self._to)]
                self._open.update(ends)
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()


class Raw:
    """Speaks the protocol message by message."""

    def __init__(self, address: str, token: str, hello: bool = True):
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.routing_id = b"raw" + os.urandom(8)
        secret, key = auth.split(token)
        if key:
            public, private = zmq.curve_keypair()
            self.socket.curve_serverkey, self.socket.curve_publickey, self.socket.curve_secretkey = key, public, private
        self.socket.connect(address)
        if hello:
            assert self.ask("hello", {"token": secret})["kind"] == "welcome"

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        self.socket.send(wire.message(kind, fields))

    def frames(self, seconds: float = PATIENCE) -> list[bytes]:
        assert self.socket.poll(seconds * 1e3), "no answer"
        return self.socket.recv_multipart()

    def ask(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.send(kind, fields)
        return wire.header(self.frames()[0])

    def request(self, *items: tuple, req: int = 1, deadline_ms: float = 0) -> dict[str, Any]:
        """One reply for all items, in their order."""
        return self.ask("request", {"req": req, "deadline_ms": deadline_ms, "stream": False, "items": list(items)})

    def create(self, number: int, name: str, **options: Any) -> None:
        reply = self.request((number, 0, "create", wire.pack([name, options]), -1))
        assert reply["items"][0][2] == "OK", wire.unpack(reply["items"][0][4])

    def close(self) -> None:
        self.send("bye", {})
        self._context.destroy(linger=1000)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Runs the explorer on an address of this machine until it is interrupted."""

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from interp.explore.app import create_app
from interp.explore.explorer import Explorer
from interp.explore.guard import Door
from jaxllm.errors import UserError

MAX_PORT = 65535
KEEP_ALIVE = 5  # seconds
SHUTDOWN = 1  # seconds that open answers get when the server ends
MAX_CONNECTIONS = 64


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError when the address cannot be had."""
    if not 0 <= port <= MAX_PORT:
        raise UserError(f"--port {port}: cannot listen there; ports are 0 to {MAX_PORT}, and 0 takes any free one")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        remedy = (
            "choose another --port, or 0 for any free one" if error.errno == errno.EADDRINUSE else "check --host and --port"
        )
        raise UserError(f"{host} port {port}: cannot listen there ({error}); {remedy}") from None
    return sock


def address(sock: socket.socket, host: str) -> str:
    """The address to open in a browser."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{sock.getsockname()[1]}/"


def make_server(explorer: Explorer, door: Door) -> uvicorn.Server:
    """The server, not yet running; it logs no requests, so that no secret of one lands in a log."""
    config = uvicorn.Config(
        create_app(explorer, door),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN,
        limit_concurrency=MAX_CONNECTIONS,
        proxy_headers=False,
        log_config=None,
    )
    return uvicorn.Server(config)


def run(explorer: Explorer, door: Door, sock: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serves until Ctrl-C; ``ready`` is called in a thread once requests are answered."""
    server = make_server(explorer, door)
    threading.Thread(target=_when_started, args=(server, ready), daemon=True).start()
    server.run(sockets=[sock])


def _when_started(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    import time

    while not server.started and not server.should_exit:
        time.sleep(0.02)
    if server.started:
        ready()


@contextlib.contextmanager
def serving(explorer: Explorer, door: Door) -> Iterator[str]:
    """The explorer on a free port, in a thread; yields its address. For notebooks and tests."""
    sock = listen(door.host, 0)
    server = make_server(explorer, door)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        _when_started(server, lambda: None)
        yield address(sock, door.host)
    finally:
        server.should_exit = True
        thread.join()

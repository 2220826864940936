"""Starting a step server: as a process of its own behind a context manager (`Server`), or here until it is ended (`serve`)."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.server import arena, auth, discover, settings
from envs.server.link import Link
from envs.server.transport import LinkTransport
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from envs.server.client import Client

START_SECONDS = 60.0  # that a server may take until it serves
STOP_SECONDS = 10.0  # that it may take to end its workers
LONGEST_PATH = 80  # bytes of a folder in which sockets can be made; the system allows 107 with their names


class Server:
    """A step server in a process of its own, which ends with this one, or with the context.

        with Server(["games/*"], workers=2) as server:
            session, spec = server.client.create("games/sokoban")

    Args:
      patterns: names that it may make; ``mine:*`` for factories of your own module.
      workers: processes that light sessions share; by default one a core, at most 8.
      bind: address; by default a socket in a private folder. ``tcp://127.0.0.1:0`` takes any free port.
      heavy: processes for heavy sessions, at most.
      max_sessions: at once; more get CAPACITY.
      lease: seconds after which a session is ended whose client is silent.
      deadlines: seconds by operation, in place of the environments' own.
      encrypt: with CURVE; by default where other hosts can reach it.
      token_file: where the token is written too, for other processes; mode 0600.
      metrics_port: of a page for Prometheus on the loopback, http://127.0.0.1:PORT/metrics.
      restarts, window: how often a worker may be started again within how many seconds.
      check_memory: checksums of what lies in shared memory.

    Raises UserError for a wrong setting, or if the server does not start.
    """

    def __init__(self, patterns: Sequence[str], **given: Any):
        options = settings.checked(patterns, **given)
        self.address = self.token = ""
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "envs.server.launch"],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the server in order
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        self._transport = _transport(ours)
        try:
            self._transport.send(json.dumps(options).encode())
            started = self._first_word()
            if "error" in started:
                raise UserError(started["error"])
            self.address, self.token, self.token_file = started["address"], started["token"], Path(started["token_file"])
            self.metrics: str | None = started["metrics"]  # where Prometheus finds the figures
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._process.pid

    @cached_property
    def client(self) -> "Client":
        """The client of this process: no other has so short a way to the server. One for all of its life."""
        from envs.server.client import Client

        return Client(self.address, alive=self.alive, transport=self._transport)

    def alive(self) -> bool:
        """Whether the server's process lives."""
        return not self._transport.link.ended and self._process.poll() is None

    def close(self) -> None:
        """Ends the server and all that it started; may be called twice."""
        self._transport.link.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _first_word(self) -> dict[str, Any]:
        messages = self._transport.receive(START_SECONDS)
        if messages:
            return json.loads(messages[0][0])
        if self._transport.link.ended:
            raise UserError(f"the step server ended while it started, with exit code {self._process.wait()}; its log says why")
        raise UserError(f"the step server did not start within {START_SECONDS:g} s")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _transport(end: socket.socket) -> LinkTransport:
    end.setblocking(False)
    return LinkTransport(Link(end))


def serve(patterns: Sequence[str], **given: Any) -> int:
    """Serves here, in the main thread, until SIGTERM or Ctrl-C; prints the address and where the token is.

    Settings as of `Server`. Returns the exit code: 0 after SIGTERM, 130 after Ctrl-C. Raises UserError for a wrong setting.
    """

    def started(address: str, token_file: Path, token: str, metrics: str | None) -> None:
        print(f"serving {', '.join(patterns)} at {address}\ntoken in {token_file}", flush=True)
        if metrics:
            print(f"figures at {metrics}", flush=True)

    return _run(settings.checked(patterns, **given), started, None)


def main() -> None:
    """The process of a `Server`: its input is the link, whose first message holds the settings, and whose end is the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    transport = _transport(socket.socket(fileno=sys.stdin.fileno()))
    options = transport.receive(START_SECONDS)
    if not options:
        sys.exit(1)  # nobody is there any more

    def tell(word: dict[str, Any]) -> None:
        transport.send(json.dumps(word).encode())

    def started(address: str, token_file: Path, token: str, metrics: str | None) -> None:
        tell({"address": address, "token_file": str(token_file), "token": token, "metrics": metrics})

    try:
        code = _run(json.loads(options[0][0]), started, transport.link)
    except UserError as error:
        tell({"error": str(error)})
        code = 1
    sys.exit(code)


def _log(text: str) -> None:
    print(f"step server: {text}", file=sys.stderr, flush=True)


def _folder() -> Path:
    """A private folder for sockets and the token, named after this process; those of dead servers are removed."""
    from envs.sandbox.tree import remove

    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > LONGEST_PATH - 40:
        base = Path("/tmp")
    for path in arena.sweep(base):
        remove(path)  # sessions may have closed folders of theirs
    for path in arena.sweep(arena.ROOT):
        path.unlink(missing_ok=True)
    folder = base / f"{arena.owner_name(os.getpid())}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return folder


def _run(options: dict[str, Any], started: Callable[[str, Path, str, str | None], None], owner: Link | None) -> int:
    import zmq

    from envs.sandbox import cgroups
    from envs.server.router import Router
    from envs.server.supervise import Pool

    folder = _folder()
    prefix = folder.name
    groups: list[str] = []
    with contextlib.suppress(OSError):  # where there are no control groups
        groups = list(map(str, cgroups.parents()))
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(folder), prefix, *groups],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert guard.stdin is not None
    tell = guard.stdin

    def note(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            tell.write(line + "\n")
            tell.flush()

    code = 0
    router: Router | None = None
    pool: Pool | None = None
    page = None
    before: dict[int, Any] = {}
    try:
        public, secret = zmq.curve_keypair() if options["encrypt"] else (None, None)
        token = options["token"] or auth.new_token()
        token = auth.split(token)[0] + ("." + public.decode() if public else "")
        pool = Pool(
            folder,
            note,
            workers=options["workers"],
            heavy=options["heavy"],
            restarts=options["restarts"],
            window=options["window"],
            crc=options["check_memory"],
            log=_log,
        )
        bind = options["bind"] or f"ipc://{folder}/front"
        try:
            router = Router(
                folder,
                prefix,
                bind,
                token,
                options["patterns"],
                pool,
                owner,
                secret_key=secret,
                max_sessions=options["max_sessions"],
                lease=options["lease"],
                deadlines=options["deadlines"],
                log=_log,
            )
        except zmq.ZMQError as error:
            raise UserError(f"{bind}: {error.strerror}") from error
        token_file = Path(options["token_file"] or folder / "token")
        auth.write(token_file, token)
        discover.note(folder, router.address, token_file)
        running = router

        def stop(number: int, _: Any) -> None:
            nonlocal code
            code = 130 if number == signal.SIGINT else 0
            running.stop()

        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGTERM, *([signal.SIGINT] if owner is None else [])):
                before[name] = signal.signal(name, stop)
        if options["metrics_port"] is not None:
            from envs.server.metrics import start_page

            page = start_page(options["metrics_port"], router.address, token)
        figures = None if page is None else f"http://127.0.0.1:{page.server_port}/metrics"
        started(router.address, token_file, token, figures)
        router.run()
    finally:
        if page is not None:
            page.shutdown()
            page.server_close()
        if router is not None:
            router.close()
        elif pool is not None:
            pool.close()
        tell.close()
        guard.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    return code


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


if __name__ == "__main__":
    main()

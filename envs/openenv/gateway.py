"""Serves our environments to clients of OpenEnv: one WebSocket is one session, at ``/ws`` or ``/<family>/<name>/ws``.

The environments run in a step server, with its deadlines and its isolation; here are only messages. So pings are answered while
a step runs, and a client that is gone leaves nothing behind.
"""

import asyncio
import contextlib
import hmac
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import envs
from envs.openenv import codec
from envs.openenv.sessions import GatewayError, Link, Session
from envs.server import Client, Server
from envs.server.auth import is_local
from jaxllm.errors import UserError

PING_SECONDS = 30.0
PONG_SECONDS = 600.0  # a client that thinks in its event loop answers no ping meanwhile
START_SECONDS = 90.0
PENDING = 4  # messages of a client that wait while another is answered; more hold up its socket


class Gateway:
    """A gateway in a thread of this process; `address` is the ``base_url`` of OpenEnv's clients.

    Args:
      names: of the environments. With one, it is also at the root; each is at ``<address>/<family>/<name>``.
      bind: host and port; port 0 is any free one. Others than this machine only with a token.
      token: that clients send as ``Authorization: Bearer <token>``.
      tls: paths of a certificate and its key, for ``https``.
      server: address of a running step server; by default one is started and ended here.
      server_token: of that server, or the path of its file.
      options: of the environments.
      max_sessions: at once; more get CAPACITY_REACHED.
      lease: seconds that a session whose socket broke is kept for a client that knows how to come back.
      idle: seconds without a message after which a session is ended.
      max_message: bytes of one message.
      settings: of the step server that is started.

    Raises UserError for an unknown name, an address that can't be bound, or one that others can reach without a token.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        bind: str = "127.0.0.1:0",
        token: str | None = None,
        tls: tuple[str | Path, str | Path] | None = None,
        server: str | None = None,
        server_token: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        max_sessions: int = 64,
        lease: float = 60.0,
        idle: float = 3600.0,
        max_message: int = codec.LARGEST,
        **settings: Any,
    ):
        if isinstance(names, str) or not names:
            raise UserError("a gateway needs a list of names, such as ['games/sokoban']")
        self.names = tuple(dict.fromkeys(names))
        self._options = dict(options or {})
        self._specs = {name: envs.describe(name, **self._options) for name in self.names}
        host, port = _host_port(bind)
        if not is_local(f"tcp://{bind}") and not token:
            raise UserError(f"{bind}: other hosts can reach this; a gateway there needs a token")
        self._token, self._max_sessions, self._lease, self._idle = token, max_sessions, lease, idle
        self._sessions: dict[str, Session] = {}
        self._sockets: dict[str, WebSocket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._link: Link | None = None
        self._error: BaseException | None = None
        self._listener = _listen(host, port)
        self._own: Server | None = None
        try:
            if server is None:
                heavy = settings.pop("heavy", max_sessions)
                self._own = Server(list(self.names), max_sessions=max_sessions + 8, heavy=heavy, **settings)
            elif settings:
                raise UserError(f"{', '.join(settings)}: of a server that runs already; set it there")
            self._where = (server, server_token) if self._own is None else (self._own.address, self._own.token)
            self._config = uvicorn.Config(
                self._app(),
                ws="websockets-sansio",
                ws_max_size=max_message,
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=PONG_SECONDS,
                ws_per_message_deflate=False,
                log_level="warning",
                timeout_graceful_shutdown=2,
                ssl_certfile=None if tls is None else str(tls[0]),
                ssl_keyfile=None if tls is None else str(tls[1]),
            )
            self._max_message = max_message
            self._web = uvicorn.Server(self._config)
            at, port = self._listener.getsockname()[:2]
            self.address = f"{'http' if tls is None else 'https'}://{f'[{at}]' if ':' in at else at}:{port}"
            self._thread = threading.Thread(target=self._run, name="openenv-gateway", daemon=True)
            self._thread.start()
            deadline = time.monotonic() + START_SECONDS
            while not self._web.started and self._thread.is_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            if not self._web.started:
                raise self._error or UserError(f"the gateway at {self.address} did not start; its log says why")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all sessions and the server behind them; may be called twice."""
        if (web := getattr(self, "_web", None)) is not None:
            web.should_exit = True
        if (thread := getattr(self, "_thread", None)) is not None:
            thread.join(START_SECONDS)
        self._listener.close()
        if self._own is not None:
            self._own.close()

    def sessions(self) -> int:
        """How many there are now."""
        return len(self._sessions)

    def wait(self) -> None:
        """Serves until the thread ends, for a program that does nothing else."""
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._web.serve(sockets=[self._listener]))
        except BaseException as error:
            self._error = error

    # The application.

    def _app(self) -> Starlette:
        at = [("", self.names[0])] if len(self.names) == 1 else []
        routes: list[Any] = [Route("/health", self._health)]
        for path, name in [*at, *((f"/{name}", name) for name in self.names)]:
            spec = self._specs[name]
            routes += [
                WebSocketRoute(f"{path}/ws", _bound(self._ws, name)),
                *([Route(f"{path}/health", self._health)] if path else []),
                Route(f"{path}/schema", _fixed(self, _schema(spec))),
                Route(f"{path}/metadata", _fixed(self, {"name": spec.name, "description": spec.about, "version": "1"})),
                Route(f"{path}/reset", _bound(self._once, name, "reset"), methods=["POST"]),
                Route(f"{path}/step", _bound(self._once, name, "step"), methods=["POST"]),
                Route(f"{path}/state", _bound(self._once, name, "state")),
            ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        address, token = self._where
        try:
            self._link = Link(Client(str(address), token))
        except BaseException as error:
            self._error = error
            raise
        reaper = asyncio.create_task(self._reap())
        try:
            yield
        finally:
            reaper.cancel()
            self._link.close()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._lease / 4))
            now = time.monotonic()
            for session in list(self._sessions.values()):
                detached = session.detached_at is not None and now - session.detached_at > self._lease
                if detached or now - session.used_at > self._idle:
                    self._end(session)

    def _end(self, session: Session) -> None:
        session.close()
        self._sessions.pop(session.id, None)
        if (other := self._sockets.pop(session.id, None)) is not None:
            self._later(_hang_up(other, "the session has ended"))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open(self, name: str) -> Session:
        assert self._link is not None
        if len(self._sessions) >= self._max_sessions:
            raise GatewayError(
                "CAPACITY_REACHED",
                f"{len(self._sessions)} of {self._max_sessions} sessions are in use; try again later",
                active_sessions=len(self._sessions),
                max_sessions=self._max_sessions,
            )
        session = Session(self._link, name, self._options)
        self._sessions[session.id] = session
        return session

    def _refused(self, connection: HTTPConnection) -> str | None:
        """Why a connection is not let in: a page of another site, or no token."""
        host = connection.headers.get("host", "")
        origin = connection.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "a page of another site"
        if self._token is None:
            name = urlsplit(f"//{host}").hostname or ""
            return None if is_local(f"tcp://{name}:0") else "a name that is not this machine's"
        given = connection.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {self._token}".encode()):
            return "a wrong token, or none: Authorization: Bearer <token>"
        return None

    # HTTP: no session.

    async def _health(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "healthy"})

    async def _once(self, request: Request, name: str, op: str) -> JSONResponse:
        """An operation on an environment of its own, which is ended at once: OpenEnv's HTTP keeps no session."""
        if reason := self._refused(request):
            return JSONResponse({"detail": reason}, 401)
        try:
            body = await self._body(request) if op != "state" else {}
            session = self._open(name)
            try:
                if op == "step":
                    action = body.get("action")
                    if not isinstance(action, dict):
                        raise GatewayError("VALIDATION_ERROR", "the body has an action, which is an object")
                    await session.do("reset", {})
                    body = action
                answer = await session.do(op, body)
            finally:
                self._end(session)
        except GatewayError as error:
            codes = {"VALIDATION_ERROR": 422, "INVALID_JSON": 422, "CAPACITY_REACHED": 503}
            return JSONResponse({"detail": error.data}, codes.get(error.data["code"], 500))
        return JSONResponse(answer["data"])

    async def _body(self, request: Request) -> dict[str, Any]:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self._max_message:
                raise GatewayError("VALIDATION_ERROR", f"a body holds at most {self._max_message} bytes")
        return _object(data.decode("utf-8", "replace")) if data else {}

    # A WebSocket: a session.

    async def _ws(self, websocket: WebSocket, name: str) -> None:
        if self._refused(websocket):
            await websocket.close(1008)  # before it is accepted: 403
            return
        await websocket.accept()
        session: Session | None = None
        inbox: asyncio.Queue[str | None] = asyncio.Queue(PENDING)
        reader = asyncio.create_task(_receive(websocket, inbox))
        polite = False
        try:
            session = await self._session(websocket, name)
            while not polite:
                message = asyncio.ensure_future(inbox.get())
                text = await message
                if text is None:
                    break
                answer = asyncio.ensure_future(self._answer(session, text))
                await asyncio.wait({answer, reader}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    answer.cancel()
                    break
                reply = answer.result()
                if reply is None:
                    polite = True
                else:
                    await websocket.send_text(json.dumps(reply))
        except GatewayError as error:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await websocket.send_text(json.dumps({"type": "error", "data": error.data}))
        except (RuntimeError, WebSocketDisconnect):
            pass  # the client went away while it was answered
        finally:
            reader.cancel()
            if session is not None and self._sockets.get(session.id) is websocket:
                del self._sockets[session.id]
                if polite or not session.resumable:
                    self._end(session)
                else:
                    session.detached_at = time.monotonic()
            await _hang_up(websocket, "")

    async def _session(self, websocket: WebSocket, name: str) -> Session:
        """A new session, or the one that the client names; its older socket is hung up."""
        wanted = websocket.query_params.get("session_id")
        if wanted is None:
            session = self._open(name)
            session.resumable = websocket.query_params.get("resume") == "1"
        else:
            session = self._sessions.get(wanted)  # type: ignore[assignment]
            if session is None or session.name != name:
                raise GatewayError("SESSION_ERROR", "there is no such session, or not any more")
            if (older := self._sockets.pop(wanted, None)) is not None:
                self._later(_hang_up(older, "another connection took the session over"))
            session.detached_at = None
        self._sockets[session.id] = websocket
        if wanted is None:
            try:
                await session.make()
            except BaseException:
                self._sockets.pop(session.id, None)
                self._end(session)
                raise
        return session

    async def _answer(self, session: Session, text: str) -> dict[str, Any] | None:
        """The answer to a message; None for the client's goodbye."""
        try:
            message = _object(text)
            kind, data = message.get("type"), message.get("data", {})
            if kind == "close":
                return None
            if kind not in ("reset", "step", "state"):
                raise GatewayError(
                    "UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:80]}; there are reset, step, state, close"
                )
            if unknown := sorted(set(message) - {"type", "data"}):
                raise GatewayError("VALIDATION_ERROR", f"a message has type and data; unknown: {', '.join(unknown)[:200]}")
            if not isinstance(data, dict) or (kind == "step" and "data" not in message):
                raise GatewayError("VALIDATION_ERROR", f"the data of {kind} are an object")
            return await session.do(kind, data)
        except GatewayError as error:
            return {"type": "error", "data": error.data}


async def _receive(websocket: WebSocket, inbox: "asyncio.Queue[str | None]") -> None:
    """Puts messages into the inbox, and None at the end: so a client's going away is seen while it is answered."""
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
            text = message.get("text")
            await inbox.put(text if text is not None else (message.get("bytes") or b"").decode("utf-8", "replace"))
    finally:
        with contextlib.suppress(asyncio.QueueFull):
            inbox.put_nowait(None)


async def _hang_up(websocket: WebSocket, reason: str) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await websocket.close(1000, reason)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GatewayError("INVALID_JSON", f"Invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise GatewayError("VALIDATION_ERROR", f"a message is an object, not {type(value).__name__}")
    return value


def _schema(spec: envs.EnvSpec) -> dict[str, Any]:
    return {"action": codec.action_schema(spec), "observation": codec.OBSERVATION_SCHEMA, "state": codec.STATE_SCHEMA}


def _bound(handler: Any, *arguments: str) -> Any:
    async def endpoint(connection: Any) -> Any:
        return await handler(connection, *arguments)

    return endpoint


def _fixed(gateway: Gateway, data: dict[str, Any]) -> Any:
    async def endpoint(request: Request) -> JSONResponse:
        if reason := gateway._refused(request):
            return JSONResponse({"detail": reason}, 401)
        return JSONResponse(data)

    return endpoint


def _host_port(bind: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT". Raises UserError."""
    host, _, port = bind.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{bind}: bind to HOST:PORT; port 0 is any free one")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(f"{host}:{port}: {error}; choose another port") from error
    return listener

"""An environment behind an OpenEnv server, over one WebSocket: one socket is one session.

A broken socket means that another server's session is gone: `LostError`. Our own gateway keeps a session for a while, and does
a step that it has done already not again: there the environment goes on.
"""

import contextlib
import dataclasses
import http.client
import ipaddress
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from envs.api import DEADLINES, Action, EnvSpec, LostError, Obs, StepResult, Task
from envs.base import BaseEnv
from envs.openenv import codec
from jaxllm.errors import UserError

CONNECT_SECONDS = 10.0
PING_SECONDS = 30.0  # how often a ping keeps the way open; no pong in time breaks nothing: each call has its own deadline
SCHEMA_BYTES = 4 << 20
MAX_STEPS = 1000  # of an episode, where the server does not say
OPTIONS = ("reset_seconds", "step_seconds", "connect_seconds", "max_message", "max_steps", "token_file", "reset")


def http_address(address: str) -> str:
    """The address with ``http://`` or ``https://`` before it and no slash after it. Raises UserError for another form."""
    if "://" not in address:
        address = "http://" + address
    scheme = {"ws": "http", "wss": "https"}.get(address.split("://")[0], address.split("://")[0])
    try:
        parts = urlsplit(f"{scheme}://{address.split('://', 1)[1]}")
        sound = scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.username
        sound = sound and (parts.port is None or parts.port > 0)
        sound = sound and address.isascii() and address.isprintable() and " " not in address
    except ValueError:
        sound = False
    if not sound:
        raise UserError(f"an OpenEnv server's address is HOST:PORT or http(s)://HOST:PORT/PATH, not {address!r}")
    return parts.geturl().rstrip("/")


def is_loopback(address: str) -> bool:
    """Whether an http address is this machine's own."""
    host = urlsplit(address).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nowhere: a token is for the address that the user named."""


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    path = options.get("token_file")
    if path is None:
        return {}
    try:
        with Path(path).open() as file:
            return {"Authorization": f"Bearer {file.read(4096).strip()}"}
    except (OSError, TypeError) as error:
        raise UserError(f"token_file {path}: {error}") from error


def fetch(address: str, path: str, options: Mapping[str, Any]) -> Any:
    """The JSON at a path of a server; None where it has nothing there. Raises UserError if the server can't be reached."""
    handlers: list[Any] = [_NoRedirect()]
    if is_loopback(address):
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(address + path, headers=_headers(options))
    try:
        with urllib.request.build_opener(*handlers).open(
            request, timeout=options.get("connect_seconds", CONNECT_SECONDS)
        ) as reply:
            data = reply.read(SCHEMA_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise UserError(f"{address} refuses us ({error.code}): give its token by the option token_file") from error
        return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error).strip() or type(error).__name__
        raise UserError(f"no OpenEnv server answers at {address}: {reason}; start it, or check the address") from error
    if len(data) > SCHEMA_BYTES:
        raise UserError(f"{address}{path} is larger than {SCHEMA_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except ValueError:
        return None


def describe(address: str, options: Mapping[str, Any]) -> EnvSpec:
    """What a server says of its environment. Raises UserError if it can't be reached."""
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise UserError(f"openenv: unknown options {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
    where = http_address(address)
    schema = fetch(where, "/schema", options)
    try:
        own = codec.own_spec(schema.get("action") if isinstance(schema, dict) else None)
    except codec.MessageError as error:
        raise UserError(f"{where}/schema: {error}") from error
    deadlines = {"reset": _seconds(options, "reset"), "step": _seconds(options, "step")}
    if own is not None:
        kept = own.supports - {"save", "oracle"}
        return dataclasses.replace(own, name=f"openenv/{address}", supports=kept, deadlines=deadlines, weight="light")
    about = fetch(where, "/metadata", options)
    told = about.get("description") or about.get("name") if isinstance(about, dict) else None
    return EnvSpec(
        name=f"openenv/{address}",
        about=str(told or f"the environment at {where}")[:200].split("\n")[0],
        actions=codec.foreign_actions(schema.get("action") if isinstance(schema, dict) else None),
        max_steps=int(options.get("max_steps", MAX_STEPS)),
        deadlines=deadlines,
    )


def _seconds(options: Mapping[str, Any], op: str) -> float:
    return float(options.get(f"{op}_seconds", DEADLINES[op]))


class RemoteEnv(BaseEnv):
    """One session of an OpenEnv server."""

    def __init__(self, address: str, options: Mapping[str, Any]):
        super().__init__(describe(address, options), options)
        self.address = http_address(address)
        self._socket: Any = None
        self._stack = contextlib.ExitStack()  # what ends the socket
        self._own = False  # whether the server is our gateway
        self._session: str | None = None  # by which our gateway knows a session that lost its socket
        self._now: dict[str, Any] = {}

    def close(self) -> None:
        """See `Env.close`: says goodbye, so that the session ends at once."""
        if self._socket is not None:
            with contextlib.suppress(Exception):
                self._socket.send('{"type": "close"}')
        self._drop()
        self._session = None

    def state(self) -> dict[str, Any]:
        """The server's own view of the state, and `step`. Raises LostError without an answer."""
        data = self._call({"type": "state"}, self.spec.deadlines["step"], "state")["data"]
        return {**(data if isinstance(data, dict) else {"state": data}), "step": self._steps}

    def _reset(self, task: Task | None, seed: int) -> Obs:
        if self._socket is None:
            self._session = None
        data: dict[str, Any] = {"seed": seed, **self.options.get("reset", {})}
        if task is not None:
            data["task"] = {"id": task.id, "instruction": task.instruction, "data": dict(task.data)}
        message = {"type": "reset", "data": data}
        seen, _, _, _, metadata = self._result(message, self.spec.deadlines["reset"])
        self._own = metadata.get("protocol") == codec.MARK
        self._session = str(metadata["session_id"]) if self._own and "session_id" in metadata else None
        self._now = {"observation": seen}
        return codec.read_observation(seen, self._own)

    def _act(self, action: Action) -> StepResult:
        if self._own:
            data: dict[str, Any] = {
                "name": action.name,
                "arguments": dict(action.arguments),
                "metadata": {"request_id": secrets.token_hex(8)},
            }
        else:
            data = {name: value for name, value in action.arguments.items() if value is not None}
            if set(data) == {"action"} and isinstance(data["action"], dict) and not self._fields():
                data = data["action"]
        try:
            seen, reward, terminated, truncated, metadata = self._result(
                {"type": "step", "data": data}, self.spec.deadlines["step"]
            )
        except RefusedError as error:
            self._failures += 1
            told = {"error": "bad_argument" if error.code == "VALIDATION_ERROR" else error.code.lower(), "message": str(error)}
            return StepResult(self._observe(), 0.0, False, False, told)
        info = dict(metadata.get("info", {})) if self._own else ({"metadata": metadata} if metadata else {})
        if reward is None:
            info["no_reward"] = True
        self._now = {"observation": seen, "reward": reward, "done": terminated or truncated}
        obs = codec.read_observation(seen, self._own)
        return StepResult(obs, reward or 0.0, terminated, truncated, info)

    def _fields(self) -> bool:
        return self.spec.actions[0].arguments != (codec.foreign_actions(None)[0].arguments)

    def _state(self) -> dict[str, Any]:
        """What was seen last: asking the server at each step would take as long as the step."""
        return self._now

    def _finish(self, action: Action) -> StepResult:
        return self._act(action)  # only our own servers have these actions, and they know what they earn

    # The socket.

    def _connect(self) -> Any:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        where = "ws" + self.address.removeprefix("http") + "/ws?resume=1"
        if self._session is not None:
            where += "&session_id=" + quote(self._session, safe="")
        try:
            opened = connect(
                where,
                open_timeout=self.options.get("connect_seconds", CONNECT_SECONDS),
                close_timeout=1.0,
                max_size=int(self.options.get("max_message", codec.LARGEST)),
                ping_interval=PING_SECONDS,
                ping_timeout=None,
                additional_headers=_headers(self.options),
                proxy=None if is_loopback(self.address) else True,
                compression=None,
            )
            return self._stack.enter_context(opened)
        except (OSError, WebSocketException) as error:
            raise LostError(f"{self.address}/ws can't be reached: {error}") from error

    def _drop(self) -> None:
        self._socket = None
        with contextlib.suppress(Exception):
            self._stack.close()

    def _result(self, message: Mapping[str, Any], seconds: float) -> Any:
        return self._read(codec.read_result, self._call(message, seconds, "observation"))

    def _read(self, read: Any, message: Any) -> Any:
        try:
            return read(message)
        except codec.MessageError as error:
            self._drop()
            raise ValueError(f"{self.address}: {error}") from error

    def _call(self, message: Mapping[str, Any], seconds: float, wanted: str) -> dict[str, Any]:
        """Sends a message and returns its answer. Raises LostError, or `RefusedError` where the server says no."""
        text = json.dumps(message)
        resumable = self._own and self._session is not None and (message["type"] != "reset")
        for attempt in (0, 1):
            try:
                if self._socket is None:
                    if attempt == 0 and message["type"] != "reset" and not resumable:
                        raise LostError(f"{self.address}: the session is gone")
                    self._socket = self._connect()
                return self._exchange(text, seconds, wanted)
            except LostError:
                self._drop()
                if attempt == 1 or not resumable:
                    raise
            except BaseException as error:
                if not isinstance(error, RefusedError):
                    self._drop()
                raise
        raise AssertionError("unreachable")

    def _exchange(self, text: str, seconds: float, wanted: str) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            with contextlib.suppress(ConnectionClosed):  # a full server says why, and hangs up before we speak
                self._socket.send(text)
            raw = self._socket.recv(timeout=seconds)
        except TimeoutError as error:
            self._drop()  # its answer may still come: nothing may read it as that of another call
            self._session = None
            raise LostError(f"{self.address}: no answer within {seconds:g} s") from error
        except ConnectionClosed as error:
            raise LostError(f"{self.address}: the connection broke: {error}") from error
        try:
            reply = json.loads(raw)
        except (ValueError, RecursionError) as error:
            self._drop()
            raise ValueError(f"{self.address}: the answer is no JSON: {str(raw)[:80]!r}") from error
        kind = reply.get("type") if isinstance(reply, dict) else None
        if kind == "error":
            data = reply.get("data") if isinstance(reply.get("data"), dict) else {}
            raise self._refusal(str(data.get("code")), str(data.get("message", ""))[:500], data)
        if kind != wanted or "data" not in reply:
            self._drop()
            raise ValueError(f"{self.address}: {wanted} was asked for; the answer is {json.dumps(reply)[:200]}")
        return reply

    def _refusal(self, code: str, message: str, data: Mapping[str, Any]) -> Exception:
        if data.get("status") in ("LOST", "CRASHED", "TIMEOUT"):
            self._session = None
            self._drop()
            return LostError(f"{self.address}: {data['status']}: {message}")
        if code in ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"):
            self._drop()
            what = {"CAPACITY_REACHED": "is full", "FACTORY_ERROR": "can't make the environment"}.get(
                code, "has no such session"
            )
            return (LostError if code == "SESSION_ERROR" else UserError)(f"{self.address} {what}: {message}")
        return RefusedError(code, f"{message}" + (f" {json.dumps(data['errors'])[:500]}" if data.get("errors") else ""))


class RefusedError(Exception):
    """The server's answer is an error; its session goes on."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code

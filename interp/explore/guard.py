"""Who may ask the explorer: the checks on every request, before any handler sees it, and the headers on every answer.

On a loopback address the ``Host`` header must name this machine, so that no foreign site can point its own name here. On any
other address every request for data needs the token, in the header ``Authorization: Bearer`` or in the cookie of a login.
"""

import dataclasses
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, Response

from jaxllm.errors import UserError

MAX_BODY = 64 << 10  # bytes
MIN_TOKEN = 16  # characters
COOKIE = "jaxllm_explorer"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Door:
    """Where the explorer listens and who may come in."""

    host: str  # as given
    token: str | None  # None: a loopback address, open to this machine's user
    session: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32))  # the cookie's value

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and self.token is None:
            raise UserError(
                f"--host {self.host} lets other machines in: give a secret with --token, or set JAXLLM_TOKEN "
                f"(at least {MIN_TOKEN} characters)"
            )
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise UserError(f"the token has {len(self.token)} characters; give at least {MIN_TOKEN}")

    def knows(self, offered: str) -> bool:
        """Whether a token is the right one, in a time that does not depend on where it differs."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def admits(self, headers: Headers) -> bool:
        """Whether a request may have data."""
        if self.token is None:
            return True
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.knows(offered.strip()):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(), self.session.encode())

    def is_own_host(self, value: str) -> bool:
        """Whether a ``Host`` header is this server's. With a token any name will do: a foreign site has no cookie for it."""
        return self.token is not None or is_loopback(_without_port(value))


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(value: str) -> str:
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.rpartition(":")[0] if ":" in value else value


class Guard:
    """The checks around an ASGI application. Requests under ``/api/`` need the token, if there is one; the page itself holds no
    data and does not.
    """

    def __init__(self, app: App, door: Door):
        self.app, self.door = app, door

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, _with_headers(send))
        return await self.app(scope, _limited(receive), _with_headers(send))

    def _refusal(self, scope: Any) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        host = headers.get("host", "")
        if not self.door.is_own_host(host):
            return refuse(403, "this server answers to its own address only")
        if method not in ("GET", "HEAD", "POST"):
            return refuse(405, "only GET and POST are answered")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and path.startswith("/api/"):
            return refuse(403, "requests from other sites are refused")
        if method == "POST":
            origin = headers.get("origin")
            if origin is not None and origin.partition("://")[2] != host:
                return refuse(403, "requests from other sites are refused")
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return refuse(415, "send application/json")
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > MAX_BODY:
                return refuse(413, f"a request may have {MAX_BODY} bytes")
        if path.startswith("/api/") and not self.door.admits(headers):
            return refuse(401, "the token is missing or wrong")
        return None


def refuse(status: int, why: str) -> Response:
    """An answer that says no."""
    return JSONResponse({"error": why}, status)


class TooLargeError(Exception):
    """A body without a length that turned out too long."""


def _limited(receive: Receive) -> Receive:
    total = 0

    async def limited() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY:
            raise TooLargeError
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers

"""What a page may reach: files of its folder, folders that pass for web sites, and URL prefixes. Everything else is refused.

The browser itself has no network. A request that is allowed is made here, by this process, and its answer handed to the page;
so a page reaches nothing that is not named, not even by a redirect, and web sockets reach nothing at all.
"""

import base64
import dataclasses
import http.client
import mimetypes
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from jaxllm.errors import UserError

MAX_BODY = 64 << 20  # bytes of an answer
_TIMEOUT = 5.0  # seconds to connect, for an answer to begin, and for all of it
_DROPPED = {"connection", "content-length", "host", "proxy-connection", "te", "transfer-encoding", "upgrade", "accept-encoding"}
_DECODED = {"connection", "content-length", "keep-alive", "transfer-encoding"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer to a request: either the browser goes on by itself, or it is refused, or it gets these."""

    error: str = ""  # the protocol's reason for a refusal
    go_on: bool = False  # the browser sees to it itself: a file, or something that the page made
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def fields(self) -> dict[str, Any]:
        """As parameters of ``Fetch.fulfillRequest``."""
        headers = [{"name": name, "value": value} for name, value in self.headers]
        return {"responseCode": self.status, "responseHeaders": headers, "body": base64.b64encode(self.body).decode()}


@dataclasses.dataclass(frozen=True)
class Reach:
    """What a page may reach.

    Raises UserError for a prefix that is no http or https URL with a host.
    """

    folders: tuple[Path, ...] = ()  # that file: pages may come from, resolved
    network: tuple[str, ...] = ()  # URL prefixes
    sites: Mapping[str, Path] = dataclasses.field(default_factory=dict)  # URL prefix -> the folder that answers for it

    def __post_init__(self) -> None:
        for prefix in (*self.network, *self.sites):
            parts = _split(prefix)
            if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
                raise UserError(f"{prefix!r} is no URL prefix; write it as http://host/path")

    def allows(self, url: str) -> bool:
        """Whether a page may be opened."""
        if url in ("about:blank", ""):
            return True
        parts = _split(url)
        if parts is None:
            return False
        if parts.scheme == "file":
            return self._file(parts)
        return any(_covers(prefix, parts) for prefix in (*self.network, *self.sites))

    def answer(self, request: Mapping[str, Any], cookies: str = "") -> Answer:
        """The answer to a request of the page, as the protocol describes it."""
        url = request["url"]
        if url.startswith(("blob:", "data:")):  # made by the page itself
            return Answer(go_on=True)
        parts = _split(url)
        if parts is None or not self.allows(url):
            return Answer(error="AccessDenied")
        if parts.scheme == "file":
            return Answer(go_on=True)
        for prefix, folder in self.sites.items():
            if _covers(prefix, parts):
                return _from_folder(folder, unquote(parts.path)[len(urlsplit(prefix).path) :])
        return _from_network(parts, request, cookies)

    def _file(self, parts: SplitResult) -> bool:
        if parts.netloc not in ("", "localhost"):
            return False
        try:
            path = Path(unquote(parts.path)).resolve()
        except (OSError, ValueError, RuntimeError):
            return False
        return any(path.is_relative_to(folder) for folder in self.folders)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _covers(prefix: str, parts: SplitResult) -> bool:
    """Whether a URL lies under a prefix: the same scheme, host and port, and a path that begins alike."""
    own = urlsplit(prefix)
    return (
        parts.username is None
        and (own.scheme, own.hostname, own.port or _port(own)) == (parts.scheme, parts.hostname, parts.port or _port(parts))
        and (parts.path or "/").startswith(own.path or "/")
    )


def _port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


def _from_folder(folder: Path, name: str) -> Answer:
    try:
        root = folder.resolve()
        path = (root / name.lstrip("/")).resolve()
        if path.is_dir():
            path /= "index.html"
        if not path.is_relative_to(root) or not path.is_file():
            return Answer(status=404, headers=(("Content-Type", "text/plain"),), body=b"not found")
        if path.stat().st_size > MAX_BODY:
            return Answer(error="Failed")
        body = path.read_bytes()
    except (OSError, ValueError, RuntimeError):
        return Answer(error="Failed")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Answer(headers=(("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind),), body=body)


def _from_network(parts: SplitResult, request: Mapping[str, Any], cookies: str) -> Answer:
    assert parts.hostname is not None
    headers = {name: value for name, value in request["headers"].items() if name.lower() not in _DROPPED}
    if cookies:
        headers["Cookie"] = cookies
    entries = request.get("postDataEntries") or []
    body = b"".join(base64.b64decode(entry.get("bytes", "")) for entry in entries)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(request["method"], target, body or None, headers)
        response = connection.getresponse()
        data, end = b"", time.monotonic() + _TIMEOUT
        while piece := response.read1(1 << 20):
            data += piece
            if len(data) > MAX_BODY or time.monotonic() > end:
                return Answer(error="Failed")
        kept = tuple((name, value) for name, value in response.getheaders() if name.lower() not in _DECODED)
        return Answer(status=response.status, headers=kept, body=data)
    except TimeoutError:
        return Answer(error="TimedOut")
    except (OSError, http.client.HTTPException, ValueError):
        return Answer(error="ConnectionFailed")
    finally:
        connection.close()

"""Who may use a server: a token of 256 bits, kept in a file that only its owner reads, and keys that encrypt between hosts.

One string is all that a client needs: the token in hexadecimal, and after a dot the server's public key where it has one.
"""

import hmac
import ipaddress
import os
import secrets
import stat
from pathlib import Path

from jaxllm.errors import UserError

VARIABLE = "JAXLLM_ENVS_TOKEN"  # environment variable with the token, or with the path of its file


def new_token(public_key: bytes | None = None) -> str:
    """A fresh token, with the server's public key if there is one."""
    return secrets.token_hex(32) + ("." + public_key.decode("ascii") if public_key else "")


def split(token: str) -> tuple[str, bytes | None]:
    """The secret and the server's public key, or None. Raises UserError for another form."""
    secret, dot, key = token.strip().partition(".")
    if len(secret) != 64 or set(secret) - set("0123456789abcdef") or (dot and len(key) != 40):
        raise UserError("a token is 64 hexadecimal digits, and after a dot the server's key: take the whole line of its file")
    return secret, key.encode("ascii", "replace") if dot else None


def same(given: object, expected: str) -> bool:
    """Whether a token is the right one, in a time that does not depend on where they differ."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def write(path: Path, token: str) -> None:
    """Writes a token's file with mode 0600. Raises UserError if there is one already that others can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(token + "\n")


def read(token: str | Path | None) -> str:
    """The token: given as it is, or as the path of its file, or in `VARIABLE`. Raises UserError."""
    token = token or os.environ.get(VARIABLE, "")
    if not token:
        raise UserError(f"a step server wants its token: give it, or the path of its file, or set {VARIABLE}")
    path = Path(token)
    if not isinstance(token, Path) and len(token) >= 64 and not token.startswith(("/", ".")):
        return token.strip()
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"{path}: others can read this token; chmod 600 it, and restart the server with a new one")
        with path.open() as file:
            return file.read(200).strip()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; a step server prints where its token is") from error


def is_local(address: str) -> bool:
    """Whether an address can't be reached from another host."""
    if address.startswith(("ipc://", "inproc://")):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(address: str, token: str | None, encrypted: bool) -> None:
    """Raises UserError for an address that is none, or that other hosts can reach without token and encryption."""
    if not address.startswith(("ipc://", "tcp://")) or (address.startswith("tcp://") and ":" not in address[6:]):
        raise UserError(f"{address}: bind to tcp://HOST:PORT (PORT 0 for any free one) or ipc://PATH")
    if not is_local(address) and not (token and encrypted):
        raise UserError(f"{address}: other hosts can reach this; it needs both a token and encryption")

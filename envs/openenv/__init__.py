"""OpenEnv, both ways: openenv/<address> is an environment behind any OpenEnv server, and `Gateway` serves ours to its clients.

    env = envs.make("openenv/localhost:8000")
    with Gateway(["games/sokoban"]) as gateway: ...  # gateway.address is the base_url of an OpenEnv client

Neither needs the package openenv: the messages are JSON over a WebSocket.
"""

from typing import TYPE_CHECKING, Any

from envs.api import Env, EnvSpec, Policy
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from envs.openenv.gateway import Gateway as Gateway

__all__ = ["Gateway", "describe", "make", "missing", "names", "oracle"]


def __getattr__(name: str) -> Any:
    """Loads the gateway when it is asked for: its web server takes a while to import."""
    if name != "Gateway":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if reason := missing():
        raise UserError(f"the gateway can't run here: {reason}")
    from envs.openenv.gateway import Gateway

    return Gateway


def names() -> list[str]:
    """None: the user names an address."""
    return []


def missing() -> str | None:
    """What this machine lacks, with the remedy."""
    from importlib.util import find_spec

    for package in ("websockets", "msgpack"):
        if find_spec(package) is None:
            return f"{package} is not installed: pip install 'jaxllm[envs]'"
    return None


def describe(name: str, **options: Any) -> EnvSpec:
    """See `Family.describe`: asks the server.

    Options: ``reset_seconds``, ``step_seconds``, ``connect_seconds`` (deadlines), ``max_message`` (bytes), ``max_steps`` (where
    the server does not say), ``token_file`` (sent as a bearer token), ``reset`` (fields that each reset sends as well).
    """
    from envs.openenv.remote import describe as ask

    if reason := missing():
        raise UserError(f"openenv/{name}: {reason}")
    return ask(name, options)


def make(name: str, **options: Any) -> Env:
    """See `Family.make` and, for options, `describe`. The session begins at the first reset."""
    from envs.openenv.remote import RemoteEnv

    if reason := missing():
        raise UserError(f"openenv/{name}: {reason}")
    return RemoteEnv(name, options)


def oracle(name: str, seed: int = 0) -> Policy | None:
    """None: a server has no solver."""
    return None

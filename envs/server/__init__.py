"""Step servers: environments in processes of their own, stepped in batches, that lose nothing when something dies.

    with Server(["games/*"]) as server:
        session, spec = server.client.create("games/sokoban")
        first = server.client.reset(session, seed=1)

`envs.make_vec` does this for many at once. See `envs.server.router` for what is promised.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.server.client import Client as Client
    from envs.server.client import Reply as Reply
    from envs.server.connection import ServerGoneError as ServerGoneError
    from envs.server.launch import Server as Server
    from envs.server.launch import serve as serve
    from envs.server.metrics import prometheus as prometheus

_HOMES = {
    "Client": "client", "Reply": "client", "ServerGoneError": "connection",
    "Server": "launch", "serve": "launch", "prometheus": "metrics",
}  # fmt: skip
__all__ = ["Client", "Reply", "Server", "ServerGoneError", "prometheus", "serve"]


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that `import envs` needs numpy alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"envs.server.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("zmq", "msgpack"):
            raise
        from jaxllm.errors import UserError

        raise UserError(f"step servers need {error.name}: pip install 'jaxllm[envs]'") from error
    return getattr(module, name)

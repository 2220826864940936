"""The package openenv in a process of its own: a server with a small environment, and a client, driven by lines of JSON.

What it imports for its web pages and its tool protocol is left out: it takes ten seconds, and nothing here uses it.
"""

import json
import os
import socket
import sys
import threading
from typing import Any, Literal
from unittest.mock import MagicMock

for left_out in ("gradio", "fastmcp", "fastmcp.client", "fastmcp.client.client", "mcp", "mcp.types"):
    sys.modules[left_out] = MagicMock()

import uvicorn  # noqa: E402
from openenv.core.env_client import EnvClient  # noqa: E402
from openenv.core.env_server.http_server import create_fastapi_app  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402


class CountAction(Action):
    amount: int
    how: Literal["calm", "hang"] = "calm"
    note: str | None = None


class CountObservation(Observation):
    count: int


class CountEnv(Environment):
    """Counts from the seed; 10 is the end, and 20 a limit."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self.count = State(), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> CountObservation:
        self.count, self._state = seed or 0, State(episode_id=episode_id, step_count=0)
        return CountObservation(count=self.count)

    def step(self, action: CountAction, timeout_s: float | None = None, **_: Any) -> CountObservation:
        if action.amount == 99:
            raise ValueError("too much")
        if action.how == "hang":
            threading.Event().wait(20)
        self.count += action.amount
        self._state.step_count += 1
        reward = None if action.amount == 0 else True if action.amount == 1 else 0.5
        return CountObservation(
            count=self.count,
            done=self.count >= 10,
            reward=reward,
            metadata={"truncated": True} if self.count >= 20 else {},
        )

    @property
    def state(self) -> State:
        return self._state


class Client(EnvClient):
    """Their client, with payloads as they are."""

    def _step_payload(self, action: Any) -> dict[str, Any]:
        return action

    def _parse_result(self, payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    def _parse_state(self, payload: dict[str, Any]) -> dict[str, Any]:
        return payload


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_fastapi_app(CountEnv, CountAction, CountObservation, max_concurrent_envs=2)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    clients: dict[str, Any] = {}
    for line in sys.stdin:
        who, call, argument = json.loads(line)
        try:
            if call == "open":
                clients[who] = Client(**argument).sync()
                clients[who].connect()
                found: Any = None
            elif call == "close":
                found = clients.pop(who).close()
            elif call == "step":
                found = clients[who].step(argument)
            elif call == "state":
                found = clients[who].state()
            else:
                found = clients[who].reset(**argument)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        else:
            print(json.dumps({"result": found}), flush=True)
    os._exit(0)  # a step may still hang


if __name__ == "__main__":
    main()

"""The peer of `noop.Noop` for OpenEnv: their server, or their clients, in a process of its own.

    python -m environments.openenv_peer server SESSIONS      prints its port
    python -m environments.openenv_peer client PORT SESSIONS prints how many sessions it has; a line with a number of steps is
                                                             answered with the seconds that so many in every session took

What the package imports for its web pages and its tool protocol is left out: it takes ten seconds, and nothing here uses it.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

TEXT = "x" * 2048


class Peer:
    """Both processes, for the benchmark."""

    def __init__(self, sessions: int):
        self._server = self._start("server", str(sessions))
        try:
            port = self._read(self._server)["port"]
            self._client = self._start("client", str(port), str(sessions))
            self.sessions = self._read(self._client)["sessions"]
        except BaseException:
            self.close()
            raise

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "environments.openenv_peer", *arguments]
        folder = Path(__file__).parent.parent
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _read(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the OpenEnv peer ended")
        return json.loads(line)

    def rate(self, steps: int) -> float:
        """Steps of all sessions a second."""
        assert self._client.stdin is not None
        self._client.stdin.write(f"{steps}\n")
        self._client.stdin.flush()
        return steps * self.sessions / self._read(self._client)["seconds"]

    def close(self) -> None:
        """Ends both."""
        for process in (getattr(self, "_client", None), self._server):
            if process is not None:
                process.kill()
                process.communicate()


def leave_out() -> None:
    """Modules of the package that nothing here uses."""
    for name in ("gradio", "fastmcp", "fastmcp.client", "fastmcp.client.client", "mcp", "mcp.types"):
        sys.modules[name] = MagicMock()


def serve(sessions: int) -> None:
    """A server that does nothing at each step, until the end of input."""
    import threading

    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Go(Action):
        amount: int = 0

    class Seen(Observation):
        text: str

    class Nothing(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
            return Seen(text=TEXT)

        def step(self, action: Go, timeout_s: float | None = None, **_: Any) -> Seen:
            return Seen(text=TEXT, reward=1.0)

        @property
        def state(self) -> State:
            return State()

    listener = socket.create_server(("127.0.0.1", 0))
    app = create_fastapi_app(Nothing, Go, Seen, max_concurrent_envs=sessions)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    sys.stdin.read()


async def drive(port: int, sessions: int) -> None:
    """As many of their clients as get a session, each with one socket, all in one loop."""
    from openenv.core.env_client import EnvClient

    class Client(EnvClient):
        def _step_payload(self, action: Any) -> dict[str, Any]:
            return action

        def _parse_result(self, payload: dict[str, Any]) -> Any:
            return payload

        def _parse_state(self, payload: dict[str, Any]) -> Any:
            return payload

    clients: list[Any] = []
    for _ in range(sessions):
        client = Client(base_url=f"http://127.0.0.1:{port}")
        try:
            await client.connect()
            await client.reset()
        except Exception as error:
            print(f"OpenEnv: session {len(clients) + 1} was refused: {error}", file=sys.stderr)
            break
        clients.append(client)
    print(json.dumps({"sessions": len(clients)}), flush=True)

    async def steps(client: Any, count: int) -> None:
        for _ in range(count):
            result = await client.step({"amount": 1})
            assert len(result["observation"]["text"]) == len(TEXT)

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        begun = time.perf_counter()
        await asyncio.gather(*(steps(client, int(line)) for client in clients))
        print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    leave_out()
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    else:
        asyncio.run(drive(int(sys.argv[2]), int(sys.argv[3])))

"""Sessions of a step server for the gateway: one connection, used from its event loop alone, which never waits for it."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

from envs.api import Action, EnvSpec, Invalid, Task
from envs.openenv import codec
from envs.server import wire
from envs.server.client import Client, Reply
from jaxllm.errors import UserError

TICK = 0.5  # seconds between looks at a silent connection


class GatewayError(Exception):
    """What a client is told: a code of OpenEnv and a message."""

    def __init__(self, code: str, message: str, **more: Any):
        super().__init__(message)
        self.data = {"message": message, "code": code, **more}


class Link:
    """A connection to a step server as awaitable calls."""

    def __init__(self, client: Client):
        self.client = client
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(client.fileno(), self._read)
        self._timer = self._loop.create_task(self._ticks())

    async def call(self, session: int, op: str, payload: bytes) -> Reply:
        """One operation; the server's deadlines hold. Raises GatewayError for what can't be sent."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[session] = future
        try:
            self.client.post([(session, op, payload)])
            self._loop.call_soon(self._read)  # what came while it was sent does not show at the descriptor
            return await future
        except UserError as error:
            raise GatewayError("VALIDATION_ERROR", str(error)) from error
        finally:
            if self._waiting.get(session) is future:
                del self._waiting[session]

    def end(self, session: int) -> None:
        """Ends a session, whatever it is doing."""
        self.client.close(session)
        if (future := self._waiting.pop(session, None)) is not None:
            future.cancel()

    def close(self) -> None:
        """Ends all sessions and the connection."""
        self._timer.cancel()
        self._loop.remove_reader(self.client.fileno())
        self.client.close_all()

    def _read(self) -> None:
        for reply in self.client.poll(0.0):
            future = self._waiting.get(reply.session)
            if future is not None and not future.done():
                future.set_result(reply)

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._read()


class Session:
    """One episode after another of one environment, for one client.

    An operation with the ``request_id`` of the last one is that one: it is not done again, and its answer is given once more.
    """

    def __init__(self, link: Link, name: str, options: Mapping[str, Any]):
        self.id = secrets.token_hex(16)
        self.name = name
        self.options = dict(options)
        self.resumable = False  # kept for a while when its socket breaks
        self.detached_at: float | None = None  # since when it has no socket
        self.used_at = time.monotonic()
        self.steps = 0
        self.spec: EnvSpec | None = None
        self._link = link
        self._number: int | None = None
        self._episode: str | None = None
        self._last: tuple[str, asyncio.Task[dict[str, Any]]] | None = None

    def close(self) -> None:
        """Ends the environment."""
        if self._number is not None:
            self._link.end(self._number)
            self._number = None

    async def do(self, op: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """An operation (reset, step, state) and its answer. Raises GatewayError."""
        self.used_at = time.monotonic()
        about = data.get("metadata") if op == "step" else data
        request = about.get("request_id") if isinstance(about, Mapping) else None
        if isinstance(request, str) and self._last is not None and self._last[0] == request:
            return await asyncio.shield(self._last[1])
        work = asyncio.ensure_future({"reset": self._reset, "step": self._step, "state": self._state}[op](data))
        self._last = (request, work) if isinstance(request, str) else None
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not self.resumable:
                work.cancel()
            raise
        finally:
            self.used_at = time.monotonic()
            work.add_done_callback(_seen)

    async def make(self) -> None:
        """Makes the environment. Raises GatewayError: no room, or it can't be made."""
        if self._number is not None:
            return
        number = self._link.client.open()
        reply = await self._link.call(number, "create", wire.pack([self.name, self.options]))
        if reply.status != "OK":
            self._link.end(number)
            code = "CAPACITY_REACHED" if reply.status == "CAPACITY" else "FACTORY_ERROR"
            raise GatewayError(code, f"{self.name}: {reply.info.get('message', reply.status)}", status=reply.status)
        self._number, self.spec = number, reply.value

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        seed, episode, task = data.get("seed"), data.get("episode_id"), data.get("task")
        if seed is None:
            seed = secrets.randbelow(2**31)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise GatewayError("VALIDATION_ERROR", f"a seed is a whole number from 0 on, not {str(seed)[:80]}")
        if episode is not None and not (isinstance(episode, str) and len(episode) <= 255):
            raise GatewayError("VALIDATION_ERROR", "an episode_id is a text of at most 255 characters")
        await self.make()
        assert self._number is not None
        reply = await self._link.call(self._number, "reset", wire.pack_reset(_task(task), seed))
        self._check(reply)
        self.steps, self._episode = 0, episode or secrets.token_hex(8)
        ignored = sorted(set(data) - {"seed", "episode_id", "task", "request_id"})
        return self._answer(reply, None, {"seed": seed, **({"ignored": ignored} if ignored else {})})

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(data) - {"name", "arguments", "metadata"}):
            raise GatewayError(
                "VALIDATION_ERROR", f"an action has name, arguments and metadata; unknown: {', '.join(unknown)[:200]}"
            )
        name, arguments = data.get("name"), data.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict) or not isinstance(data.get("metadata", {}), dict):
            raise GatewayError("VALIDATION_ERROR", "an action is an object with name (text), arguments and metadata (objects)")
        if self._number is None or self._episode is None:
            raise GatewayError("EXECUTION_ERROR", "there is no episode: reset first")
        action: Action | Invalid = Action(name, arguments)
        reply = await self._link.call(self._number, "step", wire.pack_action(action))
        self._check(reply)
        self.steps += reply.status != "EPISODE_OVER"
        return self._answer(reply, reply.reward, {})

    async def _state(self, data: Mapping[str, Any]) -> dict[str, Any]:
        state: Any = {}
        if self._number is not None and self._episode is not None:
            reply = await self._link.call(self._number, "state", b"")
            self._check(reply)
            state = reply.value
        found = {"episode_id": self._episode, "step_count": self.steps, "environment": self.name, "state": state}
        return {"type": "state", "data": found}

    def _check(self, reply: Reply) -> None:
        """Raises GatewayError for a reply without an observation; a session that is gone makes room."""
        if reply.status in ("OK", "PARSE_ERROR", "EPISODE_OVER"):
            return
        if reply.status in wire.GONE:
            self.close()
        text = f"{reply.info.get('message', 'no reason given')}; reset to go on"
        raise GatewayError("EXECUTION_ERROR", f"{reply.status}: {text}", status=reply.status)

    def _answer(self, reply: Reply, reward: float | None, more: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {
            "protocol": codec.MARK,
            "session_id": self.id,
            "episode_id": self._episode,
            "status": reply.status,
            "terminated": reply.terminated,
            "truncated": reply.truncated,
            "info": reply.info,
            **more,
        }
        done = reply.terminated or reply.truncated or reply.status == "EPISODE_OVER"
        return {
            "type": "observation",
            "data": {"observation": codec.observation(reply.obs, metadata), "reward": reward, "done": done},
        }


def _seen(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def _task(data: Any) -> Task | None:
    match data:
        case None:
            return None
        case {"id": str(id), "instruction": str(instruction), "data": dict(details)}:
            return Task(id, instruction, details)
        case {"id": str(id), "instruction": str(instruction)} if "data" not in data:
            return Task(id, instruction)
    raise GatewayError("VALIDATION_ERROR", "a task is an object with id and instruction (texts) and data (an object)")

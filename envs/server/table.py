"""What a router knows of its clients and their sessions, and the figures that it keeps."""

import dataclasses
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

from envs.server.arena import Room
from envs.server.supervise import Process

SAMPLES = 1024  # latencies that are kept of each operation
RATE_SECONDS = 10  # over which steps per second are counted


@dataclasses.dataclass(eq=False)
class Client:
    """Somebody who has shown the token."""

    identity: bytes
    same_host: bool  # whether it can map our segments
    seen: float  # monotonic time of its last message
    sessions: dict[int, "Session"] = dataclasses.field(default_factory=dict)  # by the number that the client gave
    records: list[Any] = dataclasses.field(default_factory=list)  # results to be sent
    frames: list[Any] = dataclasses.field(default_factory=list)
    arenas: list[Any] = dataclasses.field(default_factory=list)  # segments to be told of


@dataclasses.dataclass(eq=False)
class Request:
    """A request that is answered as a whole, in its order. Streamed ones have none."""

    client: Client
    number: int
    records: list[Any]  # None until it is there
    frames: list[list[Any]]
    missing: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Pending:
    """An operation that a session is busy with; steps that came together share one."""

    op: str
    deadline: float
    begun: float
    request: Request | None  # None for a streamed one
    index: int = 0  # in the request


@dataclasses.dataclass(eq=False, slots=True)
class Session:
    """One environment of a client."""

    key: int  # unique in this server
    number: int  # unique for the client
    client: Client
    name: str
    touched: float  # monotonic time of the last request
    process: Process | None = None  # None before it has a place, and when it is gone
    next: int = 0  # the step number that may come, or is being done
    pending: Pending | None = None
    last: tuple[list[Any], Sequence[Any]] | None = None  # record and frames of the last reply
    deadlines: dict[str, float] = dataclasses.field(default_factory=dict)
    task: str = ""  # what its episode is about, for the quarantine
    gone: str = ""  # why there is no environment any more
    closing: bool = False  # close when it is no longer busy
    room: Room | None = None  # its shared memory
    roomless: bool = False  # there is none for it
    payload: bytes = b""  # of the create, until it has a place


class Figures:
    """Counts for people: `jaxllm envs top`, Prometheus."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.errors: Counter[str] = Counter()  # by status
        self.operations: Counter[str] = Counter()
        self.latencies: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=SAMPLES))  # ms, by operation
        self.late = 0  # results that came when nobody waited any more
        self.per_second: deque[list[int]] = deque([[0, 0]], maxlen=RATE_SECONDS + 1)  # second, steps in it

    def done(self, op: str, status: str, seconds: float, now: float) -> None:
        """Counts an operation."""
        self.operations[op] += 1
        self.latencies[op].append(seconds * 1e3)
        if status != "OK":
            self.errors[status] += 1
        if op == "step":
            self.stepped(1, now)

    def stepped(self, count: int, now: float) -> None:
        """Counts steps for the rate."""
        second = int(now)
        if self.per_second[-1][0] != second:
            self.per_second.append([second, 0])
        self.per_second[-1][1] += count

    def summary(self) -> dict[str, Any]:
        """Everything as plain data."""
        now = time.monotonic()
        recent = [(second, count) for second, count in self.per_second if now - RATE_SECONDS <= second < int(now)]
        return {
            "uptime": now - self.started,
            "operations": dict(self.operations),
            "errors": dict(self.errors),
            "late": self.late,
            "steps_per_s": sum(count for _, count in recent) / RATE_SECONDS
            if now - self.started > RATE_SECONDS
            else sum(count for _, count in self.per_second) / max(now - self.started, 1e-9),
            "latency_ms": {op: _percentiles(values) for op, values in self.latencies.items() if values},
        }


def _percentiles(values: deque[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{q}": ordered[min(len(ordered) * q // 100, len(ordered) - 1)] for q in (50, 90, 99)}

"""Step servers on a Ray cluster: one a node, or as many as asked; when one dies another comes up.

    with Fleet(["games/*"]) as fleet, fleet.make_vec("games/sokoban", num_envs=256) as vector: ...

Ray only places the servers and tells when one is gone. Everything else goes over ZeroMQ, between hosts with a token and
encryption: see `envs.server`.
"""

import contextlib
import dataclasses
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.api import Json
from envs.vector import Vector
from jaxllm.errors import UserError

START_SECONDS = 180.0  # that a server may take until it serves, with the start of Ray's worker process
TICK = 0.5  # seconds between looks at the servers
PING_SECONDS = 15.0  # without an answer over ZeroMQ, after which a server counts as gone, whatever Ray says
RESTARTS, WINDOW = 5, 300.0  # of one server within so many seconds; then it is out


class Seat:
    """The Ray actor: a step server, which ends with it."""

    def __init__(self, patterns: Sequence[str], host: str | None, settings: Mapping[str, Any]):
        import ray

        from envs.server import Server

        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True, name="node").start()
        where = host or ray.util.get_node_ip_address()
        self._server = Server(patterns, bind=f"tcp://{where}:0", **settings)

    def about(self) -> tuple[str, str, int]:
        """Address and token of the server, and its process."""
        return self._server.address, self._server.token, self._server.pid

    def alive(self) -> bool:
        """Whether its process lives."""
        return self._server.alive()

    def close(self) -> None:
        """Ends the server in order."""
        self._server.close()


def _end_with(parent: int) -> None:
    """Ends this process, and with it the server, when the node's own process is gone: Ray itself may take long to see to it."""
    while os.getppid() == parent:
        time.sleep(TICK)
    os._exit(1)


@dataclasses.dataclass(eq=False)
class Placed:
    """One server of a fleet."""

    number: int
    state: str = "starting"  # starting, up, gone (another one is on its way), out (it died too often)
    node: str = ""  # Ray's id of the node
    address: str = ""  # as `envs.make_vec` takes it
    token: str = ""
    pid: int = 0
    restarts: int = 0
    error: str = ""  # why the last one ended, or the next one does not start
    actor: Any = None
    pending: Any = None  # Ray's promise of an answer
    asked_at: float = 0.0
    heard_at: float = 0.0
    began: "deque[float]" = dataclasses.field(default_factory=deque)  # when it was started again

    def __repr__(self) -> str:  # without the token
        return f"Placed({self.number}, {self.state}, node {self.node[:8]}, {self.address}, restarts {self.restarts})"


class Fleet:
    """Step servers on the nodes of a Ray cluster.

    Args:
      patterns: names that the servers may make, as of `envs.server.Server`.
      cluster: address of the Ray cluster; by default that of the environment (``RAY_ADDRESS``), or the one on this host.
      servers: how many; by default one a node. They go where the fewest are.
      host: address to bind to; by default that of the node in the cluster.
      cpus: that Ray sets aside for a server.
      settings: of the servers: ``workers``, ``heavy``, ``max_sessions`` ...

    Raises UserError without Ray, without a cluster, or if a server does not start.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        cluster: str | None = None,
        servers: int | None = None,
        host: str | None = None,
        cpus: float = 0.0,
        **settings: Any,
    ):
        ray = _ray()
        if servers is not None and servers < 1:
            raise UserError(f"a fleet has at least one server, not {servers}")
        self._patterns, self._host, self._cpus, self._settings = list(patterns), host, cpus, dict(settings)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None
        self._placed: list[Placed] = []
        self._connected = not ray.is_initialized()
        if self._connected:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(address=cluster or "auto", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                raise UserError(f"no Ray cluster at {cluster or 'this host'}: {error}. Start one: ray start --head") from error
        try:
            count = len(self._nodes()) if servers is None else servers
            self._placed = [Placed(number) for number in range(count)]
            for placed in self._placed:
                self._start(placed)
            deadline = time.monotonic() + START_SECONDS
            for placed in self._placed:
                self._arrive(placed, deadline - time.monotonic())
                if placed.state != "up":
                    raise UserError(f"server {placed.number} of the fleet did not start: {placed.error}")
            self._watch = threading.Thread(target=self._look, daemon=True, name="fleet")
            self._watch.start()
        except BaseException:
            self.close()
            raise

    @property
    def servers(self) -> list[Placed]:
        """The servers as they are now; copies."""
        with self._lock:
            return [dataclasses.replace(placed, actor=None, pending=None) for placed in self._placed]

    @property
    def addresses(self) -> list[str]:
        """Of the servers that are up, for `envs.make_vec`."""
        return [placed.address for placed in self.servers if placed.state == "up"]

    @property
    def tokens(self) -> list[str]:
        """Of the servers that are up, in the order of `addresses`."""
        return [placed.token for placed in self.servers if placed.state == "up"]

    def make_vec(
        self, name: str | Sequence[str], num_envs: int, batch_size: int | None = None, **options: Any
    ) -> "FleetVector":
        """As `envs.make_vec`, on this fleet: what a server takes with it comes back, after a reset, on its successor."""
        return FleetVector(self, name, num_envs, batch_size, **options)

    def close(self) -> None:
        """Ends the servers, and the connection to Ray if it was made here; may be called twice."""
        self._over.set()
        if self._watch is not None:
            self._watch.join()
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return
        placed = [one for one in self._placed if one.actor is not None]
        promises = [one.actor.close.remote() for one in placed if one.state == "up"]
        if promises:
            ray.wait(promises, num_returns=len(promises), timeout=15.0)
        for one in placed:
            with contextlib.suppress(Exception):  # it is gone already
                ray.kill(one.actor)
            one.actor = None
        if self._connected:
            self._connected = False
            ray.shutdown()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One server.

    def _nodes(self) -> list[str]:
        return [node["NodeID"] for node in _ray().nodes() if node["Alive"]]

    def _start(self, placed: Placed) -> None:
        """Starts a server's actor on the live node that has the fewest."""
        ray = _ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = self._nodes()
        if not nodes:
            placed.state, placed.error = "gone", "the cluster has no live node"
            return
        taken = [other.node for other in self._placed if other is not placed and other.state in ("starting", "up")]
        last = placed.node  # where it died: Ray may not know yet that the whole node did
        placed.node = min(nodes, key=lambda node: (node == last, taken.count(node), nodes.index(node)))
        strategy = NodeAffinitySchedulingStrategy(node_id=placed.node, soft=False)
        seat = ray.remote(Seat).options(num_cpus=self._cpus, max_restarts=0, scheduling_strategy=strategy)
        placed.state = "starting"
        placed.actor = seat.remote(self._patterns, self._host, self._settings)
        placed.pending, placed.asked_at = placed.actor.about.remote(), time.monotonic()

    def _arrive(self, placed: Placed, seconds: float) -> None:
        """Takes in the address of a server that has started, if it has within some seconds."""
        ray = _ray()
        if placed.pending is None:
            return
        ready, _ = ray.wait([placed.pending], timeout=max(0.0, seconds))
        if not ready:
            if time.monotonic() - placed.asked_at > START_SECONDS:
                self._lose(placed, f"it did not start within {START_SECONDS:g} s")
            return
        try:
            address, token, pid = ray.get(placed.pending)
        except Exception as error:  # Ray's, or what the server raised
            self._lose(placed, _reason(error))
            return
        with self._lock:
            placed.address, placed.token, placed.pid = address, token, pid
            placed.state, placed.error, placed.pending = "up", "", None
            placed.heard_at = time.monotonic()

    def _lose(self, placed: Placed, why: str) -> None:
        with self._lock:
            placed.state, placed.error, placed.pending = "gone", why, None
        actor, placed.actor = placed.actor, None
        with contextlib.suppress(Exception):  # it is gone already
            _ray().kill(actor)

    # All of them, from a thread.

    def _look(self) -> None:
        pings: dict[int, Any] = {}
        try:
            while not self._over.wait(TICK):
                for placed in self._placed:
                    if self._over.is_set():
                        return
                    if placed.state == "starting":
                        self._arrive(placed, 0.0)
                    elif placed.state == "up":
                        self._check(placed, pings)
                    elif placed.state == "gone":
                        self._again(placed)
        finally:
            for _, client in pings.values():
                client.close_all()

    def _check(self, placed: Placed, pings: dict[int, Any]) -> None:
        """Asks the actor, without waiting, and the server itself."""
        from envs.server import Client, ServerGoneError

        ray = _ray()
        if placed.pending is None:
            placed.pending = placed.actor.alive.remote()
        ready, _ = ray.wait([placed.pending], timeout=0.0)
        try:
            if ready:
                alive, placed.pending = ray.get(placed.pending), None
                if not alive:
                    self._lose(placed, "its process has ended")
                    return
            address, client = pings.get(placed.number, ("", None))
            if address != placed.address:
                if client is not None:
                    client.close_all()
                pings.pop(placed.number, None)
                client = Client(placed.address, placed.token, patience=TICK, heartbeat=False)
                pings[placed.number] = (placed.address, client)
            client.ping(TICK)
            placed.heard_at = time.monotonic()
        except ServerGoneError:
            if time.monotonic() - placed.heard_at > PING_SECONDS:
                self._lose(placed, f"it has not answered for {PING_SECONDS:g} s")
        except Exception as error:  # Ray's: the actor or its node is gone
            self._lose(placed, _reason(error))

    def _again(self, placed: Placed) -> None:
        now = time.monotonic()
        while placed.began and now - placed.began[0] > WINDOW:
            placed.began.popleft()
        if len(placed.began) >= RESTARTS:
            with self._lock:
                placed.state = "out"
                placed.error = f"it died {RESTARTS} times within {WINDOW:g} s; the last time: {placed.error}"
            print(f"fleet: server {placed.number} is out: {placed.error}", file=sys.stderr, flush=True)
            return
        if placed.began and now - placed.began[-1] < 2.0 ** len(placed.began) / 4:
            return  # back off
        placed.began.append(now)
        placed.restarts += 1
        try:
            self._start(placed)
        except Exception as error:  # Ray's: the cluster itself does not answer
            with self._lock:
                placed.state, placed.error = "gone", _reason(error)


class FleetVector(Vector):
    """A vector whose servers are a fleet's: see `Fleet.make_vec`."""

    def __init__(
        self,
        fleet: Fleet,
        name: str | Sequence[str],
        num_envs: int,
        batch_size: int | None = None,
        *,
        seed: int = 0,
        options: Mapping[str, Json] | None = None,
        ahead: int = 0,
    ):
        self._fleet = fleet
        self._seats = [placed for placed in fleet.servers if placed.state == "up"]
        if not self._seats:
            raise UserError("no server of the fleet is up")
        names = [name] if isinstance(name, str) else list(name)
        if not names or num_envs < 1:
            raise UserError(f"a vector has at least one environment, not {num_envs} of {names}")
        super().__init__(
            [(names[i % len(names)], dict(options or {})) for i in range(num_envs)],
            num_envs if batch_size is None else batch_size,
            workers=None,
            seed=seed,
            address=[placed.address for placed in self._seats],
            token=[placed.token for placed in self._seats],
            ahead=ahead,
            settings={},
        )

    def _connect(self, address: str, token: str | Path | None) -> Any:
        from envs.server import Client

        return Client(address, token, alive=lambda: address in self._fleet.addresses)

    def _revive(self, link: int) -> None:
        """Connects to the successor of a server that is gone, once it is up; others take its environments until then."""
        was = self._seats[link]
        now = self._fleet.servers[was.number]
        if now.state != "up" or now.address == was.address:
            return
        self._seats[link] = now
        self._clients[link].close_all()
        for place in (*self._places, *self._spares):
            if place.link == link:
                if place.session is not None:
                    self._by_session.pop((link, place.session), None)
                place.session = place.ready = None
                if not place.busy:
                    place.ahead_of = None
        self._out.pop(link, None)
        self._clients[link] = self._connect(now.address, now.token)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(f"a fleet needs Ray ({error}): pip install 'jaxllm[ray]'") from error
    return ray


def _reason(error: BaseException) -> str:
    """The last line of what Ray says, which is the error itself."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return (lines[-1] if lines else type(cause).__name__)[:300]

"""What stands behind a vector: its environments on one or several servers, fresh ones for those that are gone, spare ones."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.api import EnvSpec, Json, Obs
from envs.digest import session_seed
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from envs.server.client import Client, Reply

ROOM_SECONDS = 60.0  # that a session waits for room on its server
REVIVALS, REVIVAL_SECONDS = 5, 300.0  # how often the own server may be started again within how many seconds
CREATES = 3  # how often at least one is begun anew whose worker or server died of something else
LONG = 3600.0  # seconds that one wait takes at most; the server's deadlines come long before


@dataclasses.dataclass(eq=False)
class Place:
    """One environment of a vector, or a spare one that is reset ahead of need."""

    id: int  # -1 for a spare one
    name: str
    options: dict[str, Json]
    link: int  # which server
    session: int | None = None  # None: there is no environment
    spec: EnvSpec | None = None
    episode: int = 0  # how many were begun
    begun: int = 0  # order of the beginnings
    busy: bool = False  # until its result was handed out
    plan: deque[tuple[str, bytes]] = dataclasses.field(default_factory=deque)  # operations to come
    op: str = ""  # the operation that is on its way
    moves: int = 0  # servers tried for the present plan
    room_until: float = 0.0
    note: dict[str, Json] = dataclasses.field(default_factory=dict)  # goes into the info of the result
    ahead_of: tuple[int, int] | None = None  # id and episode that a spare one is reset for
    ready: "Reply | None" = None  # a spare one's first observation
    wanted: bool = False  # a spare one's result is waited for


class Places:
    """The environments of a vector, each on its way or not; results come into `_inbox` in the order of readiness."""

    def __init__(
        self,
        kinds: Sequence[tuple[str, dict[str, Json]]],
        batch_size: int,
        *,
        workers: int | None,
        seed: int,
        address: str | Sequence[str] | None,
        token: str | Path | Sequence[str | Path] | None,
        ahead: int,
        settings: Mapping[str, Any],
    ):
        from envs.server import Client, Server

        self.num_envs, self.batch_size, self._seed = len(kinds), batch_size, seed
        if not 1 <= batch_size <= self.num_envs:
            raise UserError(f"a batch of {batch_size} from {self.num_envs} environments")
        distinct = list({(name, repr(sorted(options.items()))): (name, options) for name, options in kinds}.values())
        total = self.num_envs + ahead * len(distinct)
        self._server: Server | None = None
        self._clients: list[Client] = []
        self._revived: deque[float] = deque()
        self._inbox: deque[tuple[Place, Reply]] = deque()
        self._by_session: dict[tuple[int, int], Place] = {}
        self._out: dict[int, list[tuple[int, str, bytes]]] = {}  # link -> operations to be sent
        self._retry: list[tuple[float, Place]] = []
        self._order = itertools.count()
        self._closed = False
        try:
            if address is None:
                own = dict(settings)
                own.setdefault("heavy", total)
                own.setdefault("max_sessions", 2 * total + 8)
                self._settings = ([name for name, _ in distinct], {"workers": workers or None, **own})
                self._start_own()
            else:
                if settings or workers:
                    raise UserError(
                        f"{', '.join(['workers'] if workers else settings)}: of a server that runs already; set it there"
                    )
                addresses = [address] if isinstance(address, str) else list(address)
                tokens = [token] * len(addresses) if token is None or isinstance(token, (str, Path)) else list(token)
                for where, secret in zip(addresses, tokens, strict=True):
                    self._clients.append(self._connect(where, secret))
            links = len(self._clients)
            self._places = [Place(i, name, options, i % links) for i, (name, options) in enumerate(kinds)]
            self._spares = [
                Place(-1, name, options, i % links) for i, (name, options) in enumerate(itertools.chain(*[distinct] * ahead))
            ]
            for place in self._places:
                self._begin(place, [], {})
            for place, reply in self._collect(self._places):
                if reply.status != "OK":
                    raise UserError(f"{place.name}: {reply.status}: {reply.info.get('message', '')}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the environments, and the server if it was started here; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for client in self._clients:
            client.close_all()
        if self._server is not None:
            self._server.close()

    def _episode_seed(self, id: int, episode: int) -> int:
        return session_seed(self._seed, f"{self._places[id].name} {id}", episode)

    def _begin(self, place: Place, plan: Iterable[tuple[str, bytes]], note: dict[str, Json]) -> None:
        """Sets a place on its way through operations, with a fresh environment first where it has none."""
        from envs.server import wire

        place.busy, place.note, place.moves = True, note, 0
        place.room_until = time.monotonic() + ROOM_SECONDS
        place.plan = deque(plan)
        if place.session is None:
            place.plan.appendleft(("create", wire.pack([place.name, place.options])))
        self._go_on(place)

    def _go_on(self, place: Place) -> None:
        op, payload = place.plan[0]
        if op == "create":
            self._revive(place.link)
            if place.session is not None:
                self._by_session.pop((place.link, place.session), None)
            place.session = self._clients[place.link].open()
            self._by_session[place.link, place.session] = place
        place.op = op
        assert place.session is not None
        self._out.setdefault(place.link, []).append((place.session, op, payload))

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, {}
            for link, items in out.items():
                self._clients[link].post(items)

    def _pump(self, timeout: float) -> None:
        """Sends what is to be sent, takes in what has come; waits up to `timeout` seconds for the first."""
        self._flush()
        if self._retry:
            now = time.monotonic()
            due = [place for at, place in self._retry if at <= now]
            self._retry = [(at, place) for at, place in self._retry if at > now]
            for place in due:
                self._go_on(place)
            self._flush()
            timeout = min([timeout, *(max(0.0, at - now) for at, _ in self._retry)])
        if len(self._clients) == 1:
            replies = self._clients[0].poll(min(timeout, 0.5))
            self._take_in(0, replies)
        else:
            from envs.server.connection import wait_any

            if timeout:
                wait_any(self._clients, min(timeout, 0.5))
            for link, client in enumerate(self._clients):
                self._take_in(link, client.poll(0.0))
        self._flush()

    def _take_in(self, link: int, replies: "list[Reply]") -> None:
        by_session, inbox = self._by_session, self._inbox
        for reply in replies:
            place = by_session.get((link, reply.session))
            if place is None:
                continue
            if place.op == "step" and reply.status not in _GONE:
                inbox.append((place, reply))
            else:
                self._advance(place, reply)

    def _advance(self, place: Place, reply: "Reply") -> None:
        if reply.status == "CAPACITY" and place.op == "create" and time.monotonic() < place.room_until:
            self._drop(place)
            self._retry.append((time.monotonic() + reply.info.get("retry_after_ms", 200) / 1e3, place))
            return
        if reply.status == "LOST" and place.op == "create" and place.moves + 1 < max(len(self._clients), CREATES):
            self._drop(place)
            place.moves += 1
            place.link = (place.link + 1) % len(self._clients)
            self._go_on(place)
            return
        if reply.status in _GONE or (place.op == "create" and reply.status != "OK"):
            self._drop(place)
        if place.plan:
            place.plan.popleft()
        if reply.status == "OK" and place.op == "create":
            place.spec = reply.value
            if place.plan:
                self._go_on(place)
                return
        place.plan.clear()
        if reply.status == "OK" and place.op in ("reset", "restore"):
            reply.info.update(place.note)
            if place.op == "reset" and place.id >= 0:
                place.episode += 1
            place.begun = next(self._order)
        if place.id >= 0:
            self._inbox.append((place, reply))
            self._prepare()
        else:
            self._spare_ready(place, reply)

    def _drop(self, place: Place) -> None:
        """Forgets the environment of a place, which is gone."""
        if place.session is not None:
            self._by_session.pop((place.link, place.session), None)
            self._clients[place.link].close(place.session)
            place.session = None

    def _collect(self, places: Sequence[Place]) -> "list[tuple[Place, Reply]]":
        """The results of some places in this order, when all are there; those of others stay for `recv`."""
        wanted = set(places)
        found: dict[Place, Reply] = {}
        while True:
            others: deque[tuple[Place, Reply]] = deque()
            for row in self._inbox:
                if row[0] in wanted:
                    found[row[0]] = row[1]
                else:
                    others.append(row)
            self._inbox = others
            if len(found) == len(wanted):
                break
            self._pump(LONG)
        for place in places:
            place.busy = False
        return [(place, found[place]) for place in places]

    # Resets ahead.

    def _take_spare(self, place: Place) -> bool:
        """Lets a spare environment step in, if one is or will soon be reset for this very episode."""
        spare = next((spare for spare in self._spares if spare.ahead_of == (place.id, place.episode)), None)
        if spare is None:
            return False
        place.busy = True
        if spare.ready is None:
            spare.wanted = True
        else:
            self._swap(spare, place)
        return True

    def _swap(self, spare: Place, place: Place) -> None:
        reply = spare.ready
        assert reply is not None
        for a in (spare, place):
            if a.session is not None:
                del self._by_session[a.link, a.session]
        spare.session, place.session = place.session, spare.session
        spare.link, place.link = place.link, spare.link
        for a in (spare, place):
            if a.session is not None:
                self._by_session[a.link, a.session] = a
        spare.ready, spare.wanted, spare.ahead_of = None, False, None
        place.episode += 1
        place.begun = next(self._order)
        self._inbox.append((place, reply))
        self._prepare()

    def _spare_ready(self, spare: Place, reply: "Reply") -> None:
        spare.busy = False
        assert spare.ahead_of is not None
        place = self._places[spare.ahead_of[0]]
        if reply.status == "OK":
            spare.ready = reply
            if spare.wanted:
                self._swap(spare, place)
            return
        wanted, spare.wanted, spare.ahead_of = spare.wanted, False, None
        if wanted:
            self._inbox.append((place, reply))
        # Not at once again: it is tried at the next beginning of an episode.

    def _prepare(self) -> None:
        """Sets idle spare environments to work, for the episodes that began first."""
        from envs.server import wire

        for spare in self._spares:
            if spare.busy or spare.ready is not None:
                continue
            served = {other.ahead_of for other in self._spares}
            candidates = [
                place for place in self._places
                if place.episode and place.name == spare.name and place.options == spare.options
                and (place.id, place.episode) not in served
            ]  # fmt: skip
            if not candidates:
                continue
            place = min(candidates, key=lambda place: place.begun)
            spare.ahead_of = (place.id, place.episode)
            seed = self._episode_seed(place.id, place.episode)
            self._begin(spare, [("reset", wire.pack_reset(None, seed))], {"seed": seed, "episode": place.episode})

    # The own server, and others.

    def _connect(self, address: str, token: str | Path | None) -> "Client":
        """A connection to a server that runs already."""
        from envs.server import Client

        return Client(address, token)

    def _start_own(self) -> None:
        from envs.server import Server

        patterns, settings = self._settings
        self._server = Server(patterns, **settings)
        self._clients = [self._server.client]

    def _revive(self, link: int) -> None:
        """Starts the own server again if it has died, within a budget."""
        if self._server is None or self._server.alive():
            return
        now = time.monotonic()
        while self._revived and now - self._revived[0] > REVIVAL_SECONDS:
            self._revived.popleft()
        if len(self._revived) >= REVIVALS:
            raise UserError(f"the step server died {REVIVALS} times within {REVIVAL_SECONDS:g} s; its log says why")
        self._revived.append(now)
        lost = [(self._by_session.get((link, reply.session)), reply) for reply in self._clients[link].abandon()]
        lost += [(self._by_session.get((link, session)), gone("the server died")) for session, _, _ in self._out.get(link, ())]
        self._clients[link].close_all()
        self._server.close()
        for place in (*self._places, *self._spares):
            place.session = None
            place.ready = None
            if not place.busy:
                place.ahead_of = None
        self._by_session.clear()
        self._out.clear()
        self._start_own()
        for lost_place, reply in lost:
            if lost_place is not None:
                self._advance(lost_place, reply)


_GONE = frozenset({"TIMEOUT", "CRASHED", "LOST"})


def gone(message: str) -> "Reply":
    """The answer for an environment that is no more."""
    from envs.server.client import Reply

    return Reply(0, 0, "LOST", Obs(), 0.0, False, True, {"error": "lost", "message": message}, 0.0)

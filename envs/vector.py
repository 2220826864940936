"""Many environments at once: `send` actions, `recv` what is ready.

    with envs.make_vec("games/sokoban", num_envs=64, batch_size=16) as vector:
        batch = vector.reset()
        vector.send(actions, batch.ids)
        batch = vector.recv()  # the first 16 that are ready

Nothing resets by itself: a step after the end says EPISODE_OVER. What a crash takes with it comes back with the status CRASHED,
LOST or TIMEOUT, and is there again after a reset of its id.
"""

import dataclasses
import itertools
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.api import Action, EnvSpec, Invalid, Json, Obs, Task
from envs.digest import session_seed
from envs.registry import FAMILIES, family
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from envs.server.client import Client, Reply

ROOM_SECONDS = 60.0  # that a session waits for room on its server
REVIVALS, REVIVAL_SECONDS = 5, 300.0  # how often the own server may be started again within how many seconds
LONG = 3600.0  # seconds that one wait takes at most; the server's deadlines come long before


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Results of k environments, row by row.

    Arrays in observations can't be written to, and stay as they are for as long as they are held. A row without an observation
    (CRASHED, LOST, TIMEOUT, BAD_REQUEST, CAPACITY) has an empty one, reward 0 and `truncated` where its environment is gone.
    """

    ids: np.ndarray  # int64 [k]
    obs: list[Obs]
    reward: np.ndarray  # float64 [k]
    terminated: np.ndarray  # bool [k]
    truncated: np.ndarray  # bool [k]
    info: list[dict[str, Json]]
    status: list[str]  # OK, PARSE_ERROR, EPISODE_OVER, TIMEOUT, CRASHED, LOST, CAPACITY, BAD_REQUEST or STALE_STEP

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(eq=False)
class _Place:
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


def make_vec(
    name: str | Sequence[str],
    num_envs: int,
    batch_size: int | None = None,
    *,
    workers: int | None = None,
    seed: int = 0,
    options: Mapping[str, Json] | Sequence[Mapping[str, Json]] | None = None,
    address: str | Sequence[str] | None = None,
    token: str | Path | Sequence[str | Path] | None = None,
    ahead: int = 0,
    **settings: Any,
) -> "Vector":
    """Makes environments side by side, each in a worker process.

    Args:
      name: of the environment, or several, which take turns: the i-th environment is ``name[i % len(name)]``.
      num_envs: N, how many.
      batch_size: k, what `recv` returns at most, and by default waits for. N by default.
      workers: processes that light environments share. A heavy one (a browser, a shell) has its own in any case.
      seed: of the run. The e-th episode of environment i has a seed that follows from these three alone.
      options: of the environments, plain JSON; one for all, or as many as names.
      address: of running servers (``jaxllm envs serve``), which share the environments; by default one is started here.
      token: of the servers, or the path of its file.
      ahead: how many environments to keep reset in advance, of each kind. They step in where an episode ends, so that a slow
        reset holds up nobody.
      settings: of the server that is started: ``lease``, ``deadlines``, ``restarts`` ... (`envs.server.Server`).

    Raises:
      UserError: an unknown name or option, something that is not installed, or a server that refuses.
    """
    if isinstance(name, str) and workers is None and address is None and not ahead and not settings:
        own = _own_batches(name)  # of a family that batches better than processes do
        if own is not None and (options is None or isinstance(options, Mapping)):
            return own(name.partition("/")[2], num_envs, batch_size, seed=seed, options=options)
    names = [name] if isinstance(name, str) else list(name)
    if not names or num_envs < 1:
        raise UserError(f"a vector has at least one environment, not {num_envs} of {names}")
    several: list[Mapping[str, Json]] = (
        [dict(options or {})] if options is None or isinstance(options, Mapping) else [dict(each) for each in options]
    )
    if len(several) not in (1, len(names)):
        raise UserError(f"options for {len(several)} of {len(names)} names; give one for all, or one each")
    kinds = [(names[i % len(names)], dict(several[i % len(names) % len(several)])) for i in range(num_envs)]
    return Vector(
        kinds, num_envs if batch_size is None else batch_size,
        workers=workers, seed=seed, address=address, token=token, ahead=ahead, settings=settings,
    )  # fmt: skip


def _own_batches(name: str) -> Any:
    """`make_vec` of the name's family, where it has one."""
    prefix = name.partition("/")[0]
    return getattr(family(prefix), "make_vec", None) if prefix in FAMILIES else None


class Vector:
    """Environments side by side; see `make_vec`. Used from one thread.

    Attributes: `num_envs` N, `batch_size` k, `specs` one for each environment.
    """

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
        self._inbox: deque[tuple[_Place, Reply]] = deque()
        self._by_session: dict[tuple[int, int], _Place] = {}
        self._out: dict[int, list[tuple[int, str, bytes]]] = {}  # link -> operations to be sent
        self._retry: list[tuple[float, _Place]] = []
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
            self._places = [_Place(i, name, options, i % links) for i, (name, options) in enumerate(kinds)]
            self._spares = [
                _Place(-1, name, options, i % links) for i, (name, options) in enumerate(itertools.chain(*[distinct] * ahead))
            ]
            for place in self._places:
                self._begin(place, [], {})
            for place, reply in self._collect(self._places):
                if reply.status != "OK":
                    raise UserError(f"{place.name}: {reply.status}: {reply.info.get('message', '')}")
        except BaseException:
            self.close()
            raise

    @property
    def specs(self) -> list[EnvSpec]:
        """What is known of each environment."""
        specs = [place.spec for place in self._places]
        assert all(spec is not None for spec in specs)
        return [spec for spec in specs if spec is not None]

    # All at once.

    def reset(
        self,
        ids: Sequence[int] | np.ndarray | None = None,
        *,
        seeds: Sequence[int] | None = None,
        tasks: Sequence[Task | None] | None = None,
    ) -> Batch:
        """Starts an episode in some environments, or all; a row for each in the order of `ids`, when all are there.

        Without `seeds`, each episode has its own, which is in `info`. An episode whose reset failed comes again at the next.
        """
        places = self._chosen(ids)
        self._send_reset(places, seeds, tasks)
        return _batch(self._collect(places))

    def step(self, actions: Sequence[Action | Invalid], ids: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Does an action in some environments, or all; a row for each in the order of `ids`, when all are there."""
        places = self._chosen(ids)
        self._send_actions(actions, places)
        return _batch(self._collect(places))

    def state(self, ids: Sequence[int] | np.ndarray | None = None) -> list[dict[str, Json] | None]:
        """The verifier's views; None where there is no environment any more."""
        return [reply.value if reply.status == "OK" else None for _, reply in self._all("state", ids)]

    def save(self, ids: Sequence[int] | np.ndarray | None = None) -> list[bytes | None]:
        """The episodes so far, for `restore`. Where one can't be saved: None and a warning, and the episode goes on."""
        saves = []
        for place, reply in self._all("save", ids):
            saves.append(reply.value if reply.status == "OK" else None)
            if reply.status != "OK":
                warnings.warn(f"environment {place.id} ({place.name}) is not saved: {reply.info.get('message')}", stacklevel=2)
        return saves

    def restore(self, ids: Sequence[int] | np.ndarray | None, blobs: Sequence[bytes]) -> Batch:
        """Goes on from saves, each in the environment beside it, in a fresh one where it is gone."""
        from envs.server import wire

        places = self._chosen(ids)
        if len(blobs) != len(places):
            raise UserError(f"{len(blobs)} saves for {len(places)} environments")
        for place, blob in zip(places, blobs, strict=True):
            self._begin(place, [("restore", wire.pack(blob))], {})
        return _batch(self._collect(places))

    # As they come.

    def send(self, actions: Sequence[Action | Invalid], ids: Sequence[int] | np.ndarray | None = None) -> None:
        """Sends actions, for any part of the environments; `recv` has what they led to."""
        self._send_actions(actions, self._chosen(ids))
        self._flush()

    def send_reset(
        self,
        ids: Sequence[int] | np.ndarray | None = None,
        *,
        seeds: Sequence[int] | None = None,
        tasks: Sequence[Task | None] | None = None,
    ) -> None:
        """Starts episodes without waiting; `recv` has their first observations (`obs.step` 0) among the others."""
        self._send_reset(self._chosen(ids), seeds, tasks)
        self._flush()

    def recv(self, min_items: int | None = None, timeout: float | None = None) -> Batch:
        """The next results in the order in which they became ready: at least one, at most `batch_size`.

        Args:
          min_items: waits for so many (by default `batch_size`), or for all that are on their way, if they are fewer.
          timeout: seconds after which fewer will do.

        Raises TimeoutError if not even one is there by then, UserError if nothing is on its way.
        """
        at_least = min(self.batch_size if min_items is None else max(1, min_items), self.batch_size)
        at_least = min(at_least, sum(place.busy for place in self._places))
        if not at_least:
            raise UserError("nothing is on its way: send actions, or a reset, first")
        deadline = time.monotonic() + (LONG if timeout is None else timeout)
        self._pump(0.0)
        while len(self._inbox) < at_least and (left := deadline - time.monotonic()) > 0:
            self._pump(left)
        if not self._inbox:
            raise TimeoutError(f"no environment was ready within {timeout} s")
        rows = [self._inbox.popleft() for _ in range(min(self.batch_size, len(self._inbox)))]
        for place, _ in rows:
            place.busy = False
        return _batch(rows)

    def stats(self) -> list[dict[str, Any]]:
        """The figures of each server (`envs.server.Client.stats`)."""
        return [client.stats() for client in self._clients]

    def close(self) -> None:
        """Ends the environments, and the server if it was started here; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for client in self._clients:
            client.close_all()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> "Vector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Behind them.

    def _chosen(self, ids: Sequence[int] | np.ndarray | None) -> list[_Place]:
        if self._closed:
            raise UserError("this vector is closed")
        if ids is None:
            chosen = self._places
        else:
            numbers = [int(i) for i in ids]
            if wrong := [i for i in numbers if not 0 <= i < self.num_envs]:
                raise UserError(f"ids {wrong[:10]}: there are environments 0 to {self.num_envs - 1}")
            if len(set(numbers)) < len(numbers):
                raise UserError(f"an id is given twice: {numbers[:20]}")
            chosen = [self._places[i] for i in numbers]
        if busy := [place.id for place in chosen if place.busy]:
            raise UserError(f"environments {busy[:10]} are on their way: recv them first")
        return chosen

    def _send_actions(self, actions: Sequence[Action | Invalid], places: list[_Place]) -> None:
        from envs.server import wire

        if len(actions) != len(places):
            raise UserError(f"{len(actions)} actions for {len(places)} environments")
        try:
            payloads = [wire.pack_action(action) for action in actions]
        except wire.WireError as error:
            raise UserError(str(error)) from error
        out = self._out
        for place, payload in zip(places, payloads, strict=True):
            place.busy = True
            if place.session is None:
                self._inbox.append((place, _gone("there is no environment any more: reset it")))
                continue
            place.op = "step"
            if place.link in out:
                out[place.link].append((place.session, "step", payload))
            else:
                out[place.link] = [(place.session, "step", payload)]

    def _send_reset(self, places: list[_Place], seeds: Sequence[int] | None, tasks: Sequence[Task | None] | None) -> None:
        from envs.server import wire

        for what, given in (("seeds", seeds), ("tasks", tasks)):
            if given is not None and len(given) != len(places):
                raise UserError(f"{len(given)} {what} for {len(places)} environments")
        for i, place in enumerate(places):
            if seeds is None and tasks is None and self._take_spare(place):
                continue
            seed = self._episode_seed(place.id, place.episode) if seeds is None else int(seeds[i])
            payload = wire.pack_reset(None if tasks is None else tasks[i], seed)
            self._begin(place, [("reset", payload)], {"seed": seed, "episode": place.episode})

    def _episode_seed(self, id: int, episode: int) -> int:
        return session_seed(self._seed, f"{self._places[id].name} {id}", episode)

    def _all(self, op: str, ids: Sequence[int] | np.ndarray | None) -> "list[tuple[_Place, Reply]]":
        places = self._chosen(ids)
        for place in places:
            if place.session is None:
                place.busy = True
                self._inbox.append((place, _gone("there is no environment any more: reset it")))
            else:
                self._begin(place, [(op, b"")], {})
        return self._collect(places)

    def _begin(self, place: _Place, plan: Iterable[tuple[str, bytes]], note: dict[str, Json]) -> None:
        """Sets a place on its way through operations, with a fresh environment first where it has none."""
        from envs.server import wire

        place.busy, place.note, place.moves = True, note, 0
        place.room_until = time.monotonic() + ROOM_SECONDS
        place.plan = deque(plan)
        if place.session is None:
            place.plan.appendleft(("create", wire.pack([place.name, place.options])))
        self._go_on(place)

    def _go_on(self, place: _Place) -> None:
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
            from envs.server.client import wait_any

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

    def _advance(self, place: _Place, reply: "Reply") -> None:
        if reply.status == "CAPACITY" and place.op == "create" and time.monotonic() < place.room_until:
            self._drop(place)
            self._retry.append((time.monotonic() + reply.info.get("retry_after_ms", 200) / 1e3, place))
            return
        if reply.status == "LOST" and place.op == "create" and place.moves + 1 < len(self._clients):
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

    def _drop(self, place: _Place) -> None:
        """Forgets the environment of a place, which is gone."""
        if place.session is not None:
            self._by_session.pop((place.link, place.session), None)
            self._clients[place.link].close(place.session)
            place.session = None

    def _collect(self, places: Sequence[_Place]) -> "list[tuple[_Place, Reply]]":
        """The results of some places in this order, when all are there; those of others stay for `recv`."""
        wanted = set(map(id, places))
        found: dict[int, tuple[_Place, Reply]] = {}
        while True:
            others: deque[tuple[_Place, Reply]] = deque()
            for row in self._inbox:
                if id(row[0]) in wanted:
                    found[id(row[0])] = row
                else:
                    others.append(row)
            self._inbox = others
            if len(found) == len(wanted):
                break
            self._pump(LONG)
        for place in places:
            place.busy = False
        return [found[id(place)] for place in places]

    # Resets ahead.

    def _take_spare(self, place: _Place) -> bool:
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

    def _swap(self, spare: _Place, place: _Place) -> None:
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

    def _spare_ready(self, spare: _Place, reply: "Reply") -> None:
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
        from envs.server import Client, Server

        patterns, settings = self._settings
        self._server = Server(patterns, **settings)
        self._clients = [Client(self._server.address, self._server.token, alive=self._server.alive)]

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


_GONE = frozenset({"TIMEOUT", "CRASHED", "LOST"})


def _gone(message: str) -> "Reply":
    from envs.server.client import Reply

    return Reply(0, 0, "LOST", Obs(), 0.0, False, True, {"error": "lost", "message": message}, 0.0)


def _batch(rows: "Sequence[tuple[_Place, Reply]]") -> Batch:
    k = len(rows)
    return Batch(
        np.fromiter((place.id for place, _ in rows), np.int64, k),
        [reply.obs for _, reply in rows],
        np.fromiter((reply.reward for _, reply in rows), np.float64, k),
        np.fromiter((reply.terminated for _, reply in rows), bool, k),
        np.fromiter((reply.truncated for _, reply in rows), bool, k),
        [reply.info for _, reply in rows],
        [reply.status for _, reply in rows],
    )

"""Many environments at once: `send` actions, `recv` what is ready.

    with envs.make_vec("games/sokoban", num_envs=64, batch_size=16) as vector:
        batch = vector.reset()
        vector.send(actions, batch.ids)
        batch = vector.recv()  # the first 16 that are ready

Nothing resets by itself: a step after the end says EPISODE_OVER. What a crash takes with it comes back with the status CRASHED,
LOST or TIMEOUT, and is there again after a reset of its id.
"""

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.api import Action, EnvSpec, Invalid, Json, Obs, Task
from envs.places import LONG, Place, Places, gone
from envs.registry import FAMILIES, family
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from envs.server.client import Reply


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


class Vector(Places):
    """Environments side by side; see `make_vec`. Used from one thread.

    Attributes: `num_envs` N, `batch_size` k, `specs` one for each environment.
    """

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

    def __enter__(self) -> "Vector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Behind them.

    def _chosen(self, ids: Sequence[int] | np.ndarray | None) -> list[Place]:
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

    def _send_actions(self, actions: Sequence[Action | Invalid], places: list[Place]) -> None:
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
                self._inbox.append((place, gone("there is no environment any more: reset it")))
                continue
            place.op = "step"
            if place.link in out:
                out[place.link].append((place.session, "step", payload))
            else:
                out[place.link] = [(place.session, "step", payload)]

    def _send_reset(self, places: list[Place], seeds: Sequence[int] | None, tasks: Sequence[Task | None] | None) -> None:
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

    def _all(self, op: str, ids: Sequence[int] | np.ndarray | None) -> "list[tuple[Place, Reply]]":
        places = self._chosen(ids)
        for place in places:
            if place.session is None:
                place.busy = True
                self._inbox.append((place, gone("there is no environment any more: reset it")))
            else:
                self._begin(place, [(op, b"")], {})
        return self._collect(places)


def _batch(rows: "Sequence[tuple[Place, Reply]]") -> Batch:
    replies = [reply for _, reply in rows]
    return Batch(
        np.array([place.id for place, _ in rows], np.int64),
        [reply.obs for reply in replies],
        np.array([reply.reward for reply in replies], np.float64),
        np.array([reply.terminated for reply in replies], bool),
        np.array([reply.truncated for reply in replies], bool),
        [reply.info for reply in replies],
        [reply.status for reply in replies],
    )

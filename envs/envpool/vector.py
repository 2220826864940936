"""Many environments of one envpool id, stepped in envpool's own batches: no message and no Python loop for each of them.

Beside the list of observations that every vector gives, a batch has `arrays`, with a row for each of its environments; lists
are made only when they are looked at.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from envs.actions import check
from envs.api import Action, EnvSpec, Invalid, Obs, Task
from envs.base import MAX_FAILURES
from envs.digest import session_seed
from envs.envpool.batch import MixedBatch, PoolBatch, Refusal
from envs.envpool.layout import env_spec, layout, no_tasks, pool
from jaxllm.errors import UserError


class _Group:
    """A pool of envpool's for the environments `first` to `first + count`, exclusive."""

    def __init__(self, first: int, count: int):
        self.first, self.count = first, count
        self.pool: Any = None
        self.waiting: list[tuple[np.ndarray, np.ndarray]] = []  # actions and rows that wait for the pool's answer
        self.busy = False


class EnvPoolVector:
    """Steps ``num_envs`` environments of one id: see `envs.vector.Vector`.

    Environments form groups of ``batch_size``; a group answers as a whole, in the order in which groups were sent. So
    ``batch_size = num_envs / 2`` steps one half while the learner looks at the other, always in the same order. Steps are C++
    and can't be interrupted: `recv` has no use for its timeout.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        batch_size: int | None = None,
        *,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ):
        """Makes it; options are those of envpool's id.

        The seed of environment i's first episode is `session_seed(seed, "envpool/<id>", i)`; the next ones follow from it.
        Raises UserError for an unknown id or option, and for sizes that are none.
        """
        batch_size = num_envs if batch_size is None else batch_size
        if num_envs < 1 or not 1 <= batch_size <= num_envs:
            raise UserError(f"a vector of {num_envs} environments and batches of {batch_size}: 1 <= batch_size <= num_envs")
        self.num_envs, self.batch_size = num_envs, batch_size
        self._options = dict(options or {})
        self.layout = layout(name, self._options)
        self.spec = env_spec(self.layout, name)
        self._seeds = [session_seed(seed, self.spec.name, index) for index in range(num_envs)]
        self._groups = [_Group(first, min(batch_size, num_envs - first)) for first in range(0, num_envs, batch_size)]
        self._over = np.ones(num_envs, bool)  # no episode runs
        self._steps = np.zeros(num_envs, np.int64)
        self._longest = 0  # no episode has taken more steps
        self._ended = True  # whether any is over
        self._stopped = True  # whether any may be over that envpool would go on with
        self._failures = np.zeros(num_envs, np.int64)  # refused in a row
        self._failing = False  # whether any is not 0
        self._movers = np.zeros(num_envs, np.int64)  # the player who moves next
        self._sent = np.zeros(num_envs, bool)
        self._whole: PoolBatch | None = None  # the last batch, if it was one of all environments in order
        self._last = np.empty(num_envs, object)  # otherwise: the batch with an environment's last observation
        self._rows = np.zeros(num_envs, np.int64)  # and its row there
        self._queue: list[_Group | PoolBatch | MixedBatch | tuple[int, Refusal]] = []  # what `recv` gives, in order
        self._all = np.arange(num_envs)
        self._all.flags.writeable = False
        self._in_order = self._all.astype(np.int32).tobytes()  # as envpool gives them
        self._fast = len(self._groups) == 1 and not self.layout.together
        self._kinds = "iu" if self.layout.dtype.kind in "iu" else "iuf"
        self._from_zero = not self.layout.shape and not self.layout.low  # actions are numbers from 0 to `_most`
        self._most = self.layout.high.max()

    @property
    def specs(self) -> list[EnvSpec]:
        """The spec of each environment."""
        return [self.spec] * self.num_envs

    def __enter__(self) -> "EnvPoolVector":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reset(
        self,
        ids: Iterable[int] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        tasks: Sequence[Task | None] | None = None,
    ) -> Any:
        """Starts the next episode of some environments, or of all; returns their first observations.

        envpool fixes seeds when it makes a pool: new ``seeds`` are for whole groups (see the class), which are made anew.
        Without, an environment goes on with its own random numbers.
        """
        chosen = self._chosen(ids)
        for task in tasks or ():
            no_tasks(self.spec.name, task)
        if seeds is not None and len(seeds) != len(chosen):
            raise UserError(f"{len(seeds)} seeds for {len(chosen)} environments")
        wanted = set(chosen.tolist())
        for group in self._groups:
            part = wanted.intersection(range(group.first, group.first + group.count))
            if seeds is not None and part:
                if len(part) != group.count:
                    raise UserError(
                        f"{self.spec.name}: seeds are for all environments from {group.first} to "
                        f"{group.first + group.count - 1} or none of them: envpool fixes seeds when it makes a pool. "
                        "Reset them all, or choose workers= for environments of their own"
                    )
                for id, seed in zip(chosen.tolist(), seeds, strict=True):
                    if id in part:
                        self._seeds[id] = int(seed)
                self._settle(group)
                group.pool = None
        parts: list[PoolBatch | MixedBatch] = []
        for group in self._groups:
            mine = chosen[(chosen >= group.first) & (chosen < group.first + group.count)]
            if len(mine):
                self._settle(group)
                group.pool = group.pool or self._pool(group)
                obs, info = group.pool.reset((mine - group.first).astype(np.int32))
                self._over[mine] = False
                self._steps[mine] = self._failures[mine] = 0
                parts.append(self._batch(self._ids(group, info), obs, info))
        self._ended = bool(self._over.any())
        self._stopped = self._stopped and self._ended
        return parts[0] if len(parts) == 1 and np.array_equal(parts[0].ids, chosen) else MixedBatch(chosen, parts, {})

    def send_reset(
        self,
        ids: Iterable[int] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        tasks: Sequence[Task | None] | None = None,
    ) -> None:
        """As `reset`, whose batch `recv` gives among the others."""
        batch = self.reset(ids, seeds=seeds, tasks=tasks)
        self._sent[batch.ids] = True
        self._queue.append(batch)

    def step(self, actions: Any, ids: Iterable[int] | None = None, *, restart: bool = False) -> Any:
        """One step of some environments, or of all: an array [k, ...] of envpool's actions, or k of `envs.Action`.

        An action of the wrong shape or out of bounds is not done: its status is PARSE_ERROR. With ``restart``, an episode that
        is over is not stepped but the next one started in its place, as `reset` does: the batch's ``restarted`` says where.
        That saves a call for each step in which one ends. Raises UserError for another number of actions, and for environments
        whose answer is awaited.
        """
        if ids is None and self._fast and not self._queue and self._plain(actions) and len(actions) == self.num_envs:
            group = self._groups[0]
            if not self._ended or (restart and not self._stopped):
                restarted = self._over if self._ended else None
                obs, reward, terminated, truncated, info = group.pool.step(actions)
                return self._stepped(group, obs, reward, terminated, truncated, info, restarted)
        chosen = self._chosen(ids)
        if self._queue:
            raise UserError("some steps await `recv`: receive them before `step`")
        if len(actions) != len(chosen):
            raise UserError(f"{len(actions)} actions for {len(chosen)} environments")
        parts: list[PoolBatch | MixedBatch] = []
        refused: dict[int, Refusal] = {}
        ended = self._over[chosen] & restart
        if ended.any():
            parts.append(self.reset(chosen[ended]))
        if not ended.all():
            plain = isinstance(actions, np.ndarray)
            rest = actions[~ended] if plain else [action for action, over in zip(actions, ended, strict=True) if not over]
            self.send(rest, chosen[~ended])
        while self._queue:
            self._deliver(self._queue.pop(0), parts, refused)
        if not refused and len(parts) == 1 and np.array_equal(parts[0].ids, chosen) and not ended.any():
            return parts[0]
        batch = MixedBatch(chosen, parts, refused)
        batch.restarted = ended if ended.any() else None
        return batch

    def send(self, actions: Any, ids: Iterable[int] | None = None) -> None:
        """Starts a step of some environments, or of all: see `step`."""
        chosen = self._chosen(ids)
        if len(actions) != len(chosen):
            raise UserError(f"{len(actions)} actions for {len(chosen)} environments")
        good: dict[int, np.ndarray] = {}
        if isinstance(actions, np.ndarray) and self._plain(actions) and not self._over[chosen].any():
            good = dict(zip(chosen.tolist(), actions, strict=True))
        else:
            for id, action in zip(chosen.tolist(), actions, strict=True):
                if self._over[id]:
                    self._refuse(id, "EPISODE_OVER", Invalid("episode_over", "reset first"))
                elif isinstance(value := self._action(action), Invalid):
                    self._refuse(id, "PARSE_ERROR", value)
                else:
                    good[id] = value
        for group in self._groups:
            mine = [id for id in good if group.first <= id < group.first + group.count]
            if mine:
                stacked = np.stack([good[id] for id in mine]).astype(self.layout.dtype)
                group.waiting.append((stacked, np.asarray(mine, np.int32) - np.int32(group.first)))
                self._begin(group)
                self._sent[mine] = True
                self._queue.append(group)

    def recv(self, min_items: int | None = None, timeout: float | None = None) -> Any:
        """The steps of the group that was sent first, and of further ones until there are ``min_items`` (`batch_size`).

        Raises UserError where nothing was sent.
        """
        if not self._queue:
            raise UserError("nothing is on its way: send actions, or a reset, first")
        wanted = self.batch_size if min_items is None else max(1, min_items)
        parts: list[PoolBatch | MixedBatch] = []
        refused: dict[int, Refusal] = {}
        while self._queue and sum(map(len, parts)) + len(refused) < wanted:
            self._deliver(self._queue.pop(0), parts, refused)
        if len(parts) == 1 and not refused:
            return parts[0]
        ids = [*(id for part in parts for id in part.ids.tolist()), *refused]
        return MixedBatch(np.asarray(ids, np.int64), parts, refused)

    def state(self, ids: Iterable[int] | None = None) -> list[dict[str, Any]]:
        """The state of environments as JSON: step and last observation."""
        found = []
        for id in self._chosen(ids).tolist():
            obs = self._seen(id)
            found.append({"step": obs.step, "arrays": {name: array.tolist() for name, array in obs.arrays.items()}})
        return found

    def save(self, ids: Iterable[int] | None = None) -> list[bytes]:
        """Raises UserError: a pool's episodes can't be replayed one by one."""
        raise UserError(f"{self.spec.name} can't be saved in envpool's batches; choose workers= for environments that can")

    def restore(self, ids: Iterable[int], blobs: Sequence[bytes]) -> Any:
        """Raises UserError: see `save`."""
        raise UserError(f"{self.spec.name} can't be restored in envpool's batches; choose workers= for environments that can")

    def close(self) -> None:
        """Ends envpool's threads. May be called twice."""
        for group in self._groups:
            group.pool, group.busy = None, False
            group.waiting.clear()
        self._queue.clear()
        self._whole = None
        self._last[:] = None
        self._over[:] = self._ended = True

    def _pool(self, group: _Group) -> Any:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = 0 if len(self._groups) == 1 else max(1, cpus // len(self._groups))
        seeds = self._seeds[group.first : group.first + group.count]
        return pool(self.layout, seeds, threads, self._options)

    def _chosen(self, ids: Iterable[int] | None) -> np.ndarray:
        if ids is None:
            chosen = self._all
        else:
            chosen = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
            sound = len(chosen) and chosen.min() >= 0 and chosen.max() < self.num_envs
            if not sound or np.bincount(chosen).max() > 1:
                raise UserError(
                    f"ids are different numbers from 0 to {self.num_envs - 1}, at least one; not {chosen.tolist()[:10]}"
                )
        if self._sent[chosen].any():
            raise UserError(f"environments {chosen[self._sent[chosen]].tolist()[:10]} await `recv`")
        return chosen

    def _plain(self, actions: Any) -> bool:
        """Whether all are actions of envpool within bounds."""
        found = self.layout
        if not isinstance(actions, np.ndarray) or actions.shape[1:] != found.shape or actions.dtype.kind not in self._kinds:
            return False
        if found.shape:
            return bool(((actions >= found.low) & (actions <= found.high)).all())
        if actions.dtype.kind == "i" and self._from_zero:
            # One look for both bounds: what is negative is large without its sign.
            return bool(len(actions) and int(np.maximum.reduce(actions.view(_UNSIGNED[actions.itemsize]))) <= self._most)
        return bool(len(actions) and actions.min() >= found.low and actions.max() <= found.high)

    def _action(self, action: Any) -> np.ndarray | Invalid:
        if isinstance(action, Invalid):
            return action
        if isinstance(action, Action):
            checked = check(action, self.spec)
            if isinstance(checked, Invalid):
                return checked
            action = checked.arguments["value"]
        return self.layout.action(action)

    def _refuse(self, id: int, status: str, why: Invalid) -> None:
        """A step that is not done. As in `BaseEnv`, refused actions count, and too many in a row end the episode."""
        truncated = False
        if status == "PARSE_ERROR":
            self._steps[id] += 1
            self._failures[id] += 1
            self._failing = True
            truncated = bool(self._failures[id] >= MAX_FAILURES)
            self._over[id] = truncated
            self._ended = self._ended or truncated
            self._stopped = self._stopped or truncated
        self._sent[id] = True
        obs = self._seen(id)
        self._queue.append((id, Refusal(status, obs, why.error, why.message, truncated)))

    def _seen(self, id: int) -> Obs:
        batch, row = (self._last[id], int(self._rows[id])) if self._whole is None else (self._whole, id)
        if batch is None:
            return Obs()
        obs = batch.observation(row)
        return Obs(text=obs.text, arrays=obs.arrays, step=int(self._steps[id]))

    def _begin(self, group: _Group) -> None:
        """Sends what waits: a pool mixes up the rows of two sends at once."""
        if group.waiting and not group.busy:
            self.layout.send(group.pool, *group.waiting.pop(0))
            group.busy = True

    def _settle(self, group: _Group) -> None:
        """Receives what a pool is at, for the queue: a reset would mix with it."""
        for place, entry in enumerate(self._queue):
            if entry is group:
                self._queue[place] = self._receive(group)

    def _deliver(self, entry: Any, parts: list[PoolBatch | MixedBatch], refused: dict[int, Refusal]) -> None:
        """Adds what an entry of the queue stands for to a batch."""
        if isinstance(entry, tuple):
            refused[entry[0]] = entry[1]
            self._sent[entry[0]] = False
        else:
            parts.append(self._receive(entry) if isinstance(entry, _Group) else entry)
            self._sent[parts[-1].ids] = False

    def _receive(self, group: _Group) -> PoolBatch:
        obs, reward, terminated, truncated, info = group.pool.recv()
        group.busy = False
        batch = self._stepped(group, obs, reward, terminated, truncated, info)
        self._begin(group)
        return batch

    def _stepped(
        self,
        group: _Group,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: Any,
        restarted: np.ndarray | None = None,
    ) -> PoolBatch:
        ids = self._ids(group, info)
        everyone = ids is self._all
        movers = self._movers[ids] if self.layout.players > 1 else self._movers
        if everyone:
            self._steps += 1
        else:
            self._steps[ids] += 1
        if restarted is not None:
            self._steps[restarted] = 0
        if self._failing:
            self._failures[ids] = 0
            self._failing = bool(self._failures.any())
        self._longest += 1
        if self._longest >= self.spec.max_steps:  # some of envpool's environments do not know their limit
            self._longest = int(self._steps.max())
            late = (self._steps[ids] >= self.spec.max_steps) & ~terminated & ~truncated
            if late.any():
                truncated = truncated | late
                self._stopped = True
        batch = self._batch(ids, obs, info, (self.layout.rewards(reward, movers), terminated, truncated))
        batch.restarted = restarted
        if self.layout.players > 1:
            batch.rewards = reward.reshape(len(ids), self.layout.players)
        over = terminated | truncated
        if everyone:
            self._over = over
            self._ended = bool(np.count_nonzero(over))  # quicker than `any`
        else:
            self._over[ids] = over
            self._ended = bool(self._over.any())
        return batch

    def _ids(self, group: _Group, info: Any) -> np.ndarray:
        """The environments of a pool's answer; `_all` itself where it is all of them in order."""
        ids = info["env_id"]
        return self._all if ids.tobytes() == self._in_order else ids.astype(np.int64) + group.first

    def _batch(
        self, ids: np.ndarray, obs: Any, info: Any, step: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    ) -> PoolBatch:
        everyone = ids is self._all
        batch = PoolBatch(self.layout, ids, self._steps.copy() if everyone else self._steps[ids], obs, info, step)
        if everyone:
            self._whole = batch
        else:
            if self._whole is not None:
                self._last[:], self._rows[:], self._whole = self._whole, self._all, None
            self._last[ids] = batch
            self._rows[ids] = self._all[: len(ids)]
        if "current_player" in info:
            self._movers[ids] = info["current_player"]
        return batch


_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}  # by bytes

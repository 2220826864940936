"""Recording: a policy plays an environment many times, into a folder of episodes (see `envs.record_folder`)."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.api import EnvSpec, Json, LostError, Obs, StepResult
from envs.browser.errors import CrashedError, HungError
from envs.digest import digest
from envs.episode import Outcome, Player, Turn, instruction, outcome, run_episode
from envs.policies import random_policy
from envs.record_folder import Run, open_folder
from envs.registry import describe, make, oracle
from envs.vector import make_vec
from jaxllm.errors import UserError

POLICIES = ("oracle", "random")
ATTEMPTS = 3  # at an episode whose environment dies

Report = Callable[[int, Outcome], Any]  # told of each episode that is done


def player(name: str, policy: str, spec: EnvSpec, seed: int) -> Player:
    """The player of one episode. Raises UserError for an unknown policy, or where the environment has no oracle."""
    if policy == "random":
        return random_policy(spec, seed)
    if policy != "oracle":
        raise UserError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
    found = oracle(name, seed)
    if found is None:
        raise UserError(f"{name} has no oracle; play it with --policy random")
    return found


def record(
    run: Run, count: int, path: Path, *, num_envs: int = 1, workers: int | None = None, report: Report = lambda *_: None
) -> int:
    """Plays the episodes 0 to ``count`` - 1 that the folder does not hold yet; returns how many those were.

    Args:
      path: made if absent; episodes that are there stay.
      num_envs: 1 plays in this process; more play at once in processes of a step server, the same episodes.
      workers: processes for them; None for one a processor, and no more than there are environments.

    Raises:
      UserError: something unknown or not installed, a folder of something else, or an environment that died `ATTEMPTS` times
        in one episode. Whole episodes are kept, also after Ctrl-C.
    """
    if count < 1 or num_envs < 1:
        raise UserError(f"the numbers of episodes and of environments must be at least 1, found {count} and {num_envs}")
    spec = describe(run.name, **run.options)
    player(run.name, run.policy, spec, 0)
    with open_folder(path, run, spec) as folder:
        todo = [episode for episode in range(count) if episode not in folder.done]
        play = _one_by_one(run, spec, todo) if num_envs == 1 else _together(run, spec, todo, num_envs, workers)
        for episode, task, turns in play:
            folder.add(episode, turns, task)
            report(episode, outcome(turns))
    return len(todo)


Played = Iterator[tuple[int, str | None, list[Turn]]]  # episode, instruction, turns


def _one_by_one(run: Run, spec: EnvSpec, todo: list[int]) -> Played:
    env = make(run.name, **run.options)
    try:
        for episode in todo:
            seed = run.episode_seed(episode)
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    turns = run_episode(env, player(run.name, run.policy, spec, seed), run.max_steps, seed=seed)
                    break
                except (LostError, CrashedError, HungError) as error:
                    env.close()
                    if attempt == ATTEMPTS:
                        raise UserError(f"{run.name}: episode {episode} was lost {ATTEMPTS} times: {error}") from error
                    env = make(run.name, **run.options)
            yield episode, instruction(env.state()), turns
    finally:
        env.close()


class _Slot:
    """An environment of a batch, in the middle of an episode."""

    def __init__(self, episode: int, player: Player, obs: Obs, attempt: int) -> None:
        self.episode, self.player, self.obs, self.attempt = episode, player, obs, attempt
        self.turns: list[Turn] = []


DIED = ("CRASHED", "TIMEOUT", "LOST")


def _together(run: Run, spec: EnvSpec, todo: list[int], num_envs: int, workers: int | None) -> Played:
    """The episodes in ``num_envs`` environments at once, each yielded when it is over."""
    waiting = [(episode, 1) for episode in reversed(todo)]
    num_envs = max(min(num_envs, len(todo)), 1)
    workers = workers or min(num_envs, os.cpu_count() or 1)
    with make_vec(run.name, num_envs, workers=workers, seed=run.seed, options=dict(run.options)) as vector:
        slots: dict[int, _Slot] = {}
        while True:
            free = [place for place in range(num_envs) if place not in slots][: len(waiting)]
            if free:
                taken = [waiting.pop() for _ in free]
                batch = vector.reset(free, seeds=[run.episode_seed(episode) for episode, _ in taken])
                asked = dict(zip(free, taken, strict=True))
                for place, obs, status, info in _items(batch):
                    episode, attempt = asked[place]
                    if _alive(status, info, run, episode, attempt):
                        chosen = player(run.name, run.policy, spec, run.episode_seed(episode))
                        slots[place] = _Slot(episode, chosen, obs, attempt)
                    else:
                        waiting.append((episode, attempt + 1))
            if not slots:
                if not waiting:
                    return
                continue
            yield from _round(vector, slots, waiting, run)


def _round(vector: Any, slots: dict[int, _Slot], waiting: list[tuple[int, int]], run: Run) -> Played:
    """One action in each environment; episodes that are over leave their slots."""
    states = dict(zip(slots, vector.state(list(slots)), strict=True))
    actions = {}
    for place, slot in list(slots.items()):
        limit = run.max_steps is not None and len(slot.turns) >= run.max_steps
        ended = limit or (bool(slot.turns) and slot.turns[-1].over)
        action = None if ended else slot.player(states[place], slot.obs)
        if action is None:
            slot.turns.append(Turn(slot.obs, digest(states[place]), None, None))
            yield slot.episode, instruction(states[place]), slot.turns
            del slots[place]
        else:
            actions[place] = action
    if not actions:
        return
    batch = vector.step(list(actions.values()), list(actions))
    for number, (place, obs, status, info) in enumerate(_items(batch)):
        slot = slots[place]
        if not _alive(status, info, run, slot.episode, slot.attempt):
            waiting.append((slot.episode, slot.attempt + 1))
            del slots[place]
            continue
        result = StepResult(
            obs, float(batch.reward[number]), bool(batch.terminated[number]), bool(batch.truncated[number]), info
        )
        slot.turns.append(Turn(slot.obs, digest(states[place]), actions[place], result))
        slot.obs = obs


def _items(batch: Any) -> Iterator[tuple[int, Obs, str, Mapping[str, Json]]]:
    """Place, observation, status and info of each item of a batch."""
    yield from zip(map(int, batch.ids), batch.obs, batch.status, batch.info, strict=True)


def _alive(status: str, info: Mapping[str, Json], run: Run, episode: int, attempt: int) -> bool:
    """Whether an episode goes on. Raises UserError where it can't be tried again."""
    if status in ("OK", "PARSE_ERROR"):
        return True
    what = f"{run.name}: episode {episode}: {status}: {info.get('message', info.get('error', 'no reason given'))}"
    if status not in DIED:
        raise UserError(what)
    if attempt >= ATTEMPTS:
        raise UserError(f"{what}; it was tried {ATTEMPTS} times")
    return False

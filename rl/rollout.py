"""The agent's loop over many environments at once: the policy answers some while others take their steps.

Nothing waits for the slowest: an answer that is finished goes to its environment at once, a result that is there is read at
once, and a place that is free begins the next episode.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from envs.api import Action, EnvSpec, Invalid, Obs, StepResult, Task
from envs.digest import digest
from envs.vector import Batch
from rl.codec import Codec
from rl.engine import Completion, Engine
from rl.memory import WHOLE, Answer, Memory, assemble
from rl.types import Stop, Trajectory, Turn

FAILED = ("CRASHED", "LOST", "TIMEOUT", "CAPACITY", "BAD_REQUEST", "STALE_STEP", "EPISODE_OVER")  # statuses without a result


class Environments(Protocol):
    """What a rollout needs of `envs.vector.Vector` or `envs.local.LocalVector`."""

    num_envs: int

    @property
    def specs(self) -> list[EnvSpec]: ...

    def send_reset(self, ids: Sequence[int], *, seeds: Sequence[int] | None, tasks: Sequence[Task | None] | None) -> None: ...

    def send(self, actions: Sequence[Action | Invalid], ids: Sequence[int]) -> None: ...

    def recv(self, min_items: int | None = None, timeout: float | None = None) -> Batch: ...

    def state(self, ids: Sequence[int]) -> list[dict[str, Any] | None]: ...


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one episode may use. Whatever runs out first ends it, and its name is the reason (`rl.types.Stop`)."""

    max_turns: int = 100
    max_tokens: int = 4096  # sampled ones
    max_tokens_per_turn: int = 512
    seconds: float = 600.0  # of the wall clock: resets, steps and answers together
    retries: int = 2  # of an episode whose environment failed, with its task and seed, from the start


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode to be played."""

    number: int  # of the run: what is sampled follows from it, from the attempt and from the engine's seed
    seed: int
    group: int = 0  # episodes of one task are a group
    task: Task | None = None
    attempt: int = 0


@dataclasses.dataclass
class _Live:
    """An episode under way in one environment."""

    episode: Episode
    begun: float
    seen: list[StepResult] = dataclasses.field(default_factory=list)  # the reset's first
    stream: list[int] = dataclasses.field(default_factory=list)  # what the sampler's session holds
    context: list[int] = dataclasses.field(default_factory=list)  # for the next answer
    rewritten: bool = False  # whether it is a whole prompt, in place of what the sampler holds
    segment: int = 0  # times that the history was rewritten
    turns: list[Turn] = dataclasses.field(default_factory=list)
    tokens: int = 0  # sampled so far
    state: str = ""

    @property
    def key(self) -> tuple[int, ...]:
        """Of the sampler's session: a new one for each segment, so that it draws anew."""
        number = self.episode.number, self.episode.attempt
        return (*number, self.segment) if self.segment else number


def rollout(
    engine: Engine,
    environments: Environments,
    episodes: Iterable[Episode],
    codec: Codec,
    budget: Budget = Budget(),
    *,
    memory: Memory = WHOLE,
    states: bool = False,
    clock: Callable[[], float] = time.monotonic,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Episode, Trajectory]]:
    """Plays episodes and yields each as soon as it has ended; those that failed for good too, with `Stop.ENV_ERROR`.

    Args:
      engine: with a slot for each environment that is to be used at one time, and no session of these episodes.
      environments: all of one kind, none of them on its way.
      memory: what prompts keep of the past. Where one is no extension of the last, a new segment begins (`Turn.rewritten`).
      states: whether to ask for the digest of the state before each turn (`Turn.state`), which GiGPO needs.
      clock: seconds of the budget.
      cancelled: asked again and again; once it says so, episodes under way end with `Stop.CANCELLED` and none begins.
    """
    return _Rollout(engine, environments, episodes, codec, budget, memory, states, clock, cancelled).run()


class _Rollout:
    def __init__(self, engine, environments, episodes, codec, budget, memory, states, clock, cancelled):  # type: ignore[no-untyped-def]
        self.engine, self.environments, self.codec, self.budget = engine, environments, codec, budget
        self.memory, self.states, self.clock, self.cancelled = memory, states, clock, cancelled
        self.episodes = iter(episodes)
        self.again: deque[Episode] = deque()
        self.free = list(range(min(environments.num_envs, engine.free)))[::-1]
        self.live: dict[int, _Live] = {}  # by environment
        self.away: set[int] = set()  # environments whose result is on its way
        self.spec = environments.specs[0]

    def run(self) -> Iterator[tuple[Episode, Trajectory]]:
        """See `rollout`."""
        try:
            yield from self._play()
        finally:
            for live in self.live.values():
                self._release(live)

    def _play(self) -> Iterator[tuple[Episode, Trajectory]]:
        while True:
            if self.cancelled():
                for i in list(self.live):
                    yield self._end(i, Stop.CANCELLED)
            else:
                self._start()
            if not self.live and not self.away:
                return
            if self.away:
                yield from self._receive()
            yield from self._expire()
            if self.engine.busy:
                places = {live.key: i for i, live in self.live.items()}
                for answer in self.engine.advance():
                    if answer.key in places:
                        self._answered(places[answer.key], answer)

    def _start(self) -> None:
        while self.free:
            episode = self.again.popleft() if self.again else next(self.episodes, None)
            if episode is None:
                return
            i = self.free.pop()
            self.live[i] = _Live(episode, self.clock())
            self.away.add(i)
            self.environments.send_reset([i], seeds=[episode.seed], tasks=[episode.task])

    def _receive(self) -> Iterator[tuple[Episode, Trajectory]]:
        """Takes what is there; waits only when there is nothing else to do, and never beyond an episode's time."""
        left = min((live.begun + self.budget.seconds - self.clock() for live in self.live.values()), default=1.0)
        try:
            batch = self.environments.recv(1, 0.0 if self.engine.busy else max(left, 0.0))
        except TimeoutError:
            return
        for k, i in enumerate(batch.ids.tolist()):
            self.away.discard(i)
            live = self.live.get(i)
            if live is None:  # the result of an episode that ran out of time
                self.free.append(i)
                continue
            info = {**batch.info[k], "status": batch.info[k].get("status", batch.status[k])}
            if batch.status[k] in FAILED:
                yield from self._failed(i, info)
                continue
            result = StepResult(batch.obs[k], float(batch.reward[k]), bool(batch.terminated[k]), bool(batch.truncated[k]), info)
            yield from self._took(i, result)

    def _took(self, i: int, result: StepResult) -> Iterator[tuple[Episode, Trajectory]]:
        """A first observation, or what a step led to."""
        live, budget = self.live[i], self.budget
        if live.turns:
            live.turns[-1] = dataclasses.replace(
                live.turns[-1], reward=live.turns[-1].reward + result.reward, error=result.info.get("error")
            )
        if result.terminated or result.truncated:
            stop = Stop.TERMINATED
            if not result.terminated:
                stop = Stop.PARSE_ERROR if result.info["status"] == "FAILED_TASK" else Stop.MAX_TURNS
            yield self._end(i, stop, success=bool(result.info.get("success")), info=result.info)
            return
        self._look(live, result)
        allowed = min(budget.max_tokens_per_turn, budget.max_tokens - live.tokens)
        if len(live.turns) >= budget.max_turns:
            yield self._end(i, Stop.MAX_TURNS)
        elif allowed < 1:
            yield self._end(i, Stop.MAX_TOKENS)
        elif len(live.context) + allowed > (self.engine.context if live.rewritten else self.engine.room(live.key)):
            yield self._end(i, Stop.CONTEXT_OVERFLOW)
        else:
            if self.states:
                (state,) = self.environments.state([i])
                live.state = digest({key: value for key, value in (state or {}).items() if key != "step"})
            if live.rewritten:
                self._release(live)
                live.stream, live.segment = [], live.segment + 1
            self.engine.submit(live.key, live.context, max_tokens=allowed, stop_ids=self.codec.stop_ids)

    def _look(self, live: _Live, result: StepResult) -> None:
        """What the policy reads next."""
        live.seen.append(result)
        if self.memory.whole and live.turns:
            live.context = self.codec.observe(result, stopped=live.turns[-1].stopped)
        elif self.memory.whole:
            live.context = self.codec.begin(result.obs, self.spec, live.episode.task)
        else:
            answers = [Answer(turn.ids, turn.stopped) for turn in live.turns]
            prompt = assemble(self.memory, self.codec, self.spec, live.episode.task, live.seen, answers)
            live.rewritten = prompt[: len(live.stream)] != live.stream
            live.context = prompt if live.rewritten else prompt[len(live.stream) :]

    def _answered(self, i: int, answer: Completion) -> None:
        live = self.live[i]
        told: dict[str, Any] = {"rewritten": live.rewritten, "state": live.state, "stopped": answer.stopped}
        live.turns.append(Turn(tuple(live.context), answer.ids, answer.logp, answer.version, **told))
        live.stream += [*live.context, *answer.ids]
        live.tokens += len(answer.ids)
        self.away.add(i)
        self.environments.send([self.codec.read(answer.ids, self.spec)], [i])

    def _expire(self) -> Iterator[tuple[Episode, Trajectory]]:
        now = self.clock()
        for i in [i for i, live in self.live.items() if now - live.begun > self.budget.seconds]:
            yield self._end(i, Stop.TIMEOUT)

    def _release(self, live: _Live) -> None:
        """Gives the sampler's slot back, if there is one."""
        if self.engine.room(live.key) < self.engine.context:
            self.engine.release(live.key)

    def _failed(self, i: int, info: dict[str, Any]) -> Iterator[tuple[Episode, Trajectory]]:
        episode = self.live[i].episode
        if episode.attempt < self.budget.retries:
            self._end(i, Stop.ENV_ERROR)
            self.again.append(dataclasses.replace(episode, attempt=episode.attempt + 1))
        else:
            yield self._end(i, Stop.ENV_ERROR, info=info)

    def _end(
        self, i: int, stop: Stop, *, success: bool = False, info: Mapping[str, Any] | None = None
    ) -> tuple[Episode, Trajectory]:
        live = self.live.pop(i)
        self._release(live)
        if i not in self.away:
            self.free.append(i)
        episode = live.episode
        trajectory = Trajectory(
            tuple(live.turns),
            stop,
            env=self.spec.name,
            task=episode.task.id if episode.task else "",
            seed=episode.seed,
            attempt=episode.attempt,
            outcome=sum(turn.reward for turn in live.turns),
            success=success,
            info=info or {},
        )
        return episode, trajectory


def scripted(env: Any, policy: Any, codec: Codec, episode: Episode) -> Trajectory:
    """An episode of a policy that is no model (`envs.api.Policy`), in the words of a codec: what imitation learns from.

    Log-probabilities are 0 and versions -1.
    """
    obs: Obs = env.reset(episode.task, episode.seed)
    context, turns = codec.begin(obs, env.spec, episode.task), []
    while True:
        action = policy(env.state(), obs)
        ids = tuple(codec.write(action, env.spec))
        result = env.step(action)
        obs = result.obs
        turns.append(Turn(tuple(context), ids, (0.0,) * len(ids), (-1,) * len(ids), reward=result.reward))
        if result.terminated or result.truncated:
            break
        context = codec.observe(result, stopped=True)
    stop = Stop.TERMINATED if result.terminated else Stop.MAX_TURNS
    score = sum(turn.reward for turn in turns)
    success = bool(result.info.get("success"))
    return Trajectory(tuple(turns), stop, env=env.spec.name, seed=episode.seed, outcome=score, success=success)

"""One episode: a policy plays an environment. The loop behind playing, recording and measuring."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from envs.api import Action, Env, Invalid, Json, Obs, StepResult, Task
from envs.digest import digest

# As `envs.api.Policy`; but it may also write nonsense, and None ends the episode.
Player = Callable[[Mapping[str, Json], Obs], Action | Invalid | None]


INSTRUCTIONS = ("instruction", "utterance")  # of a state: what the agent is told to do


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """What the agent saw, what it did then, and what that led to. The last turn of an episode is the sight of its end."""

    obs: Obs
    digest: str  # of the state that was seen
    action: Action | Invalid | None  # None on the last turn
    result: StepResult | None  # of the action; None on the last turn

    @property
    def over(self) -> bool:
        """Whether the action ended the episode."""
        return self.result is not None and (self.result.terminated or self.result.truncated)


def turns(env: Env, player: Player, max_steps: int | None = None, *, task: Task | None = None, seed: int = 0) -> Iterator[Turn]:
    """Resets the environment and plays until the episode is over, yielding each turn when its action is done.

    Args:
      env: stays open.
      player: made for this episode.
      max_steps: stop after so many actions; None for the environment's own limit.
      task: None for one that is drawn from the seed.

    Yields one turn an action, and a last one without an action.
    """
    obs = env.reset(task, seed)
    state = env.state()
    while max_steps is None or obs.step < max_steps:
        if (action := player(state, obs)) is None:
            break
        result = env.step(action)
        turn = Turn(obs, digest(state), action, result)
        obs, state = result.obs, env.state()
        yield turn
        if turn.over:
            break
    yield Turn(obs, digest(state), None, None)


def run_episode(
    env: Env, player: Player, max_steps: int | None = None, *, task: Task | None = None, seed: int = 0
) -> list[Turn]:
    """All `turns` of an episode."""
    return list(turns(env, player, max_steps, task=task, seed=seed))


def ended(episode: list[Turn]) -> list[Turn]:
    """The turns of an episode that was cut short, with the sight of its end; `turns` that came to theirs stay as they are."""
    if not episode or episode[-1].result is None:
        return episode
    return [*episode, Turn(episode[-1].result.obs, "", None, None)]


def instruction(state: Mapping[str, Json]) -> str | None:
    """What the agent is told to do, where the state says it."""
    return next((state[key] for key in INSTRUCTIONS if isinstance(state.get(key), str)), None)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How an episode ended."""

    steps: int
    reward: float  # summed
    success: bool
    ending: str  # "solved", "failed", "truncated: MAX_STEPS" or another status, or "stopped" by the player


def outcome(episode: list[Turn]) -> Outcome:
    """The sum of an episode's turns."""
    results = [turn.result for turn in episode if turn.result is not None]
    reward = sum(result.reward for result in results)
    if not results or not (results[-1].terminated or results[-1].truncated):
        return Outcome(len(results), reward, False, "stopped")
    last = results[-1]
    success = bool(last.info.get("success", False))
    if last.truncated and not last.terminated:
        ending = f"truncated: {last.info.get('status', 'by a limit')}"
    else:
        ending = "solved" if success else "failed"
    return Outcome(len(results), reward, success, ending)

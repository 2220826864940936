"""A game as an environment in plain text."""

from typing import Any

from envs.api import Action, EnvSpec, Obs, StepResult, Task
from envs.base import BaseEnv
from envs.games.core import BUDGET, Game, IllegalError, State, encode
from jaxllm.errors import UserError

SUPPORTS = frozenset({"save", "clock", "deterministic", "oracle"})


def spec(game: Game) -> EnvSpec:
    """The spec of a game's text view."""
    return EnvSpec(f"games/{game.name}", game.goal, game.actions, None, BUDGET, SUPPORTS, game.success)


def first_state(game: Game, task: Task | None, seed: int) -> State:
    """The state that a task sets: its data may hold ``seed`` (of the levels, the episode's if left out) and ``level``
    (from 0: levels before it count as solved). Raises UserError for other data."""
    data = dict(task.data) if task else {}
    seed, level = data.pop("seed", seed), data.pop("level", 0)
    if data:
        raise UserError(f"games/{game.name}: a task's data are seed and level, not {', '.join(map(repr, sorted(data)))}")
    if type(seed) is not int or type(level) is not int or not 0 <= level <= 1000:
        raise UserError(f"games/{game.name}: a task's seed is a whole number, its level one from 0 to 1000")
    if level and not game.levels:
        raise UserError(f"games/{game.name} has no levels")
    return game.start(seed, level)


class GameEnv(BaseEnv):
    """A game whose board is text and whose actions are its moves."""

    def __init__(self, game: Game, spec: EnvSpec, options: dict[str, Any]):
        self.game = game
        self.now: State = None
        super().__init__(spec, options)

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self.now = first_state(self.game, task, seed)
        return self._look()

    def _act(self, action: Action) -> StepResult:
        before = self.now
        try:
            self.now = self.game.play(before, action)
        except IllegalError as error:
            return StepResult(
                self._look(), 0.0, False, False, {"error": "illegal_move", "message": str(error), **self.figures()}
            )
        return StepResult(self._look(), self.gain(before), self.game.over(self.now), False, self.figures())

    def gain(self, before: State) -> float:
        """How much the score has grown since a state."""
        return self.game.score(self.now) - self.game.score(before)

    def figures(self) -> dict[str, Any]:
        """What a step's info says of the game."""
        return {"score": self.game.score(self.now), **({"level": self.now.level} if self.game.levels else {})}

    def _look(self) -> Obs:
        return Obs(text=f"{self.game.title}. {self.game.goal}\n\n{self.game.draw(self.now)}\n\n{self.game.legend}\n")

    def _state(self) -> dict[str, Any]:
        return {} if self.now is None else encode(self.now)

"""What episodes of games are worth, against people, or against the oracle and chance.

One episode's score says little: games are scored by the mean over seeds, which is then normalised. A suite needs all
of its games, normalised in the same way.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from jaxllm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a game's scores are measured by: a person's, or the oracle's and the random policy's.

    It holds for one set of levels and one budget of steps: with another of either, it says nothing.
    """

    levels: str  # name or digest of the set of levels
    budget: int  # steps of an episode
    human: float | None = None  # mean score of people, above 0
    random: float | None = None  # mean score of the random policy
    oracle: float | None = None  # mean score of the oracle, above random's

    def __post_init__(self) -> None:
        if self.human is not None:
            if not (math.isfinite(self.human) and self.human > 0):
                raise UserError(f"a person's score must be above 0, not {self.human}")
        elif self.random is None or self.oracle is None:
            raise UserError("a reference needs a person's score, or the oracle's and the random policy's")
        elif not (math.isfinite(self.random) and math.isfinite(self.oracle) and self.oracle > self.random):
            raise UserError(f"the oracle's score {self.oracle} must be above the random policy's {self.random}")

    @property
    def kind(self) -> str:
        """ "human-normalised" or "oracle-normalised"."""
        return "oracle-normalised" if self.human is None else "human-normalised"

    def normalise(self, score: float) -> float:
        """A mean score in percent of the reference; above 100 where it is better, which is never clipped."""
        if self.human is not None:
            return 100 * score / self.human
        assert self.random is not None
        assert self.oracle is not None
        return 100 * (score - self.random) / (self.oracle - self.random)


@dataclasses.dataclass(frozen=True)
class GameScore:
    """A game's score over its episodes."""

    mean: float  # over seeds, in the game's points
    normalised: float  # that mean, in percent of the reference
    standard_error: float | None  # of `normalised`; None for one episode
    n: int  # episodes that count
    crashed: int  # episodes in which the environment crashed: they are left out, not zeros
    kind: str  # "human-normalised" or "oracle-normalised"


def score_game(scores: Iterable[float | None], reference: Reference, *, levels: str, budget: int) -> GameScore:
    """The mean over seeds, normalised.

    Args:
      scores: one per episode, in the game's points; None where the environment crashed.
      levels, budget: what the episodes were played with; they must be the reference's.

    Raises:
      UserError: another set of levels or budget than the reference's, no episode that counts, a score that is not finite.
    """
    if (levels, budget) != (reference.levels, reference.budget):
        raise UserError(
            f"the reference was measured on {reference.levels} with {reference.budget} steps; "
            f"it says nothing of {levels} with {budget} steps: measure it anew"
        )
    scores = list(scores)
    counted = [float(score) for score in scores if score is not None]
    if not counted:
        raise UserError(f"none of {len(scores)} episodes counts: all crashed, or there are none")
    if not all(map(math.isfinite, counted)):
        raise UserError(f"a score is not finite: {next(score for score in counted if not math.isfinite(score))}")
    n = len(counted)
    mean = math.fsum(counted) / n
    error = None
    if n > 1:
        deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in counted) / (n - 1)) / math.sqrt(n)
        error = abs(reference.normalise(mean + deviation) - reference.normalise(mean))
    return GameScore(mean, reference.normalise(mean), error, n, len(scores) - n, reference.kind)


@dataclasses.dataclass(frozen=True)
class SuiteScore:
    """The plain mean over a suite's games."""

    mean: float | None  # in percent; None where a game is missing
    standard_error: float | None  # of the mean, from those of the games; None where one of them is unknown
    missing: tuple[str, ...]  # games of the suite without a score
    kind: str

    def __str__(self) -> str:
        if self.mean is None:
            return f"incomplete: no score of {', '.join(self.missing)}"
        return (
            f"{self.mean:.2f}"
            + (f" ± {self.standard_error:.2f}" if self.standard_error is not None else "")
            + f" ({self.kind})"
        )


def score_suite(games: Mapping[str, GameScore], suite: Sequence[str]) -> SuiteScore:
    """The mean over the games of a suite; "incomplete" where one is missing, never a mean over the rest.

    Raises:
      UserError: games that are not of the suite, a suite without games, two ways of normalising.
    """
    if not suite:
        raise UserError("a suite without games has no mean")
    if strange := sorted(games.keys() - set(suite)):
        raise UserError(f"not of this suite: {', '.join(strange)}")
    kinds = sorted({game.kind for game in games.values()})
    if len(kinds) > 1:
        raise UserError(f"{' and '.join(kinds)} scores can't be averaged; use one kind of reference for all games")
    kind = kinds[0] if kinds else ""
    missing = tuple(name for name in suite if name not in games)
    if missing:
        return SuiteScore(None, None, missing, kind)
    errors = [games[name].standard_error for name in suite]
    known = [error for error in errors if error is not None]
    error = math.sqrt(math.fsum(error**2 for error in known)) / len(suite) if len(known) == len(suite) else None
    return SuiteScore(math.fsum(games[name].normalised for name in suite) / len(suite), error, (), kind)


def log_score(total: float) -> float:
    """10 log2 of a total of 2048's merges, as LMGame-Bench reports it (arXiv 2505.15146); 0 for 0. Raises UserError below 0."""
    if total < 0 or not math.isfinite(total):
        raise UserError(f"a total of merges is at least 0, not {total}")
    return 10 * math.log2(total) if total else 0.0

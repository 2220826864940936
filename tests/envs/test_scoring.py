"""Scores against people, the oracle and chance. The vectors are published scores of games (UI-TARS-2, arXiv 2509.02544)."""

import math
import statistics

import pytest

from envs.scoring import Reference, log_score, score_game, score_suite
from jaxllm.errors import UserError

VECTORS = {  # score, human, normalised
    "a": (932.40, 1024.31, 91.0271),
    "b": (6.10, 6.58, 92.7052),
    "c": (5.90, 5.42, 108.8561),
    "d": (3.00, 3.92, 76.5306),
    "e": (3.10, 3.75, 82.6667),
    "f": (2908, 4646, 62.5915),
}
PLAYED = {"levels": "set 1", "budget": 100}


def people(human: float) -> Reference:
    return Reference("set 1", 100, human=human)


def machines(random: float, oracle: float) -> Reference:
    return Reference("set 1", 100, random=random, oracle=oracle)


@pytest.mark.parametrize(("score", "human", "normalised"), VECTORS.values())
def test_published_scores(score: float, human: float, normalised: float):
    assert people(human).normalise(score) == pytest.approx(normalised, abs=5e-5)


def test_the_mean_of_the_suite_is_not_clipped():
    games = {name: score_game([score], people(human), **PLAYED) for name, (score, human, _) in VECTORS.items()}
    suite = score_suite(games, list(VECTORS))
    assert suite.mean == pytest.approx(85.7295, abs=5e-5)
    clipped = statistics.mean(min(100, normalised) for _, _, normalised in VECTORS.values())
    assert clipped == pytest.approx(84.2535, abs=5e-5)  # what clipping would give
    assert suite.kind == "human-normalised"
    assert str(suite) == "85.73 (human-normalised)"


def test_seeds_are_averaged_before_normalising():
    scores = [1.0, 2.0, 6.0]
    game = score_game(scores, people(4.0), **PLAYED)
    assert (game.mean, game.normalised, game.n) == (3.0, 75.0, 3)
    assert game.standard_error == pytest.approx(statistics.stdev(scores) / math.sqrt(3) / 4 * 100)
    assert score_game([3.0], people(4.0), **PLAYED).standard_error is None


def test_the_standard_error_of_a_suite():
    games = {name: score_game([1.0, 2.0, 6.0], people(4.0), **PLAYED) for name in "ab"}
    one = games["a"].standard_error
    suite = score_suite(games, "ab")
    assert suite.standard_error == pytest.approx(one / math.sqrt(2))
    assert str(suite) == f"75.00 ± {one / math.sqrt(2):.2f} (human-normalised)"
    assert score_suite({**games, "b": score_game([1.0], people(4.0), **PLAYED)}, "ab").standard_error is None


def test_without_people_the_oracle_and_chance_are_the_scale():
    game = score_game([3.0], machines(1.0, 5.0), **PLAYED)
    assert (game.normalised, game.kind) == (50.0, "oracle-normalised")
    assert machines(1.0, 5.0).normalise(1.0) == 0
    assert machines(-3.0, 5.0).normalise(9.0) == 150


def test_two_scales_never_meet_in_one_mean():
    games = {"a": score_game([3.0], machines(1.0, 5.0), **PLAYED), "b": score_game([3.0], people(4.0), **PLAYED)}
    with pytest.raises(UserError, match="human-normalised and oracle-normalised scores can't be averaged"):
        score_suite(games, "ab")


def test_a_crash_is_left_out_and_reported():
    game = score_game([2.0, None, 4.0, None], people(3.0), **PLAYED)
    assert (game.normalised, game.n, game.crashed) == (100.0, 2, 2)  # as zeros they would give 50
    with pytest.raises(UserError, match="none of 2 episodes counts"):
        score_game([None, None], people(3.0), **PLAYED)


def test_a_missing_game_makes_the_suite_incomplete():
    suite = score_suite({"a": score_game([3.0], people(4.0), **PLAYED)}, ["a", "b", "c"])
    assert (suite.mean, suite.missing) == (None, ("b", "c"))
    assert str(suite) == "incomplete: no score of b, c"
    with pytest.raises(UserError, match="not of this suite: z"):
        score_suite({"z": score_game([3.0], people(4.0), **PLAYED)}, ["a"])
    with pytest.raises(UserError, match="without games"):
        score_suite({}, [])


@pytest.mark.parametrize("played", [{"levels": "set 2", "budget": 100}, {"levels": "set 1", "budget": 200}])
def test_a_reference_holds_for_its_levels_and_budget(played: dict):
    with pytest.raises(UserError, match=r"measured on set 1 with 100 steps.*measure it anew"):
        score_game([1.0], people(2.0), **played)


@pytest.mark.parametrize(
    "scores", [{"human": 0.0}, {"human": -1.0}, {"human": math.nan}, {}, {"random": 1.0}, {"random": 2.0, "oracle": 2.0}]
)
def test_references_that_measure_nothing(scores: dict):
    with pytest.raises(UserError):
        Reference("set 1", 100, **scores)


def test_scores_that_are_no_numbers():
    with pytest.raises(UserError, match="not finite: nan"):
        score_game([1.0, math.nan], people(2.0), **PLAYED)


@pytest.mark.parametrize(("total", "score"), [(3350, 117.1), (7231, 128.2), (0, 0)])
def test_log_score_of_2048(total: int, score: float):
    assert log_score(total) == pytest.approx(score, abs=0.05)  # LMGame-Bench's reported figures


def test_log_score_below_zero():
    with pytest.raises(UserError):
        log_score(-1)

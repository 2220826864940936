"""The games as environments in plain text: the family, tasks, saves, refusals, determinism, and the oracle against chance."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.api import Action, Invalid, LostError, Task
from envs.games import GAMES, baselines
from envs.games.core import BUDGET, Chance, decode, draw_below, encode, first_rng
from envs.scoring import score_game
from jaxllm.errors import UserError

NAMES = sorted(GAMES)
LEVELLED = [name for name in NAMES if GAMES[name].levels]


def played(name: str, seed: int, steps: int, env=None) -> list:
    """An episode of legal moves at random: digests, rewards and texts."""
    env = env or envs.make(f"games/{name}")
    seen = [envs.digest(env.state()) if env.now else None]
    if env.now is None:
        env.reset(seed=seed)
    draws = Chance("test", seed)
    for _ in range(steps):
        moves = GAMES[name].legal(env.now)
        if not moves:
            break
        result = env.step(draws.choice(moves))
        seen.append((envs.digest(env.state()), result.reward, result.obs.text))
    return seen


def test_the_family_lists_each_game_as_text_and_as_a_page():
    found = list(envs.names("games/*"))
    assert found == sorted([f"games/{name}" for name in NAMES] + [f"games/{name}-page" for name in NAMES])
    assert NAMES == ["gem-rise", "loop-rotate", "slide-merge", "slide-out", "sokoban", "tray-match"]
    for name in found:
        spec = envs.describe(name)
        assert spec.name == name
        assert spec.max_steps == BUDGET == 100
        assert spec.supports == {"save", "clock", "deterministic", "oracle"}
        assert (spec.screen_wh is not None) == (spec.weight == "heavy") == name.endswith("-page")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("games/chess", {}, "no game 'chess'; there are gem-rise, loop-rotate"),
        ("games/sokoban", {"size": 3}, "games/sokoban takes no options, not 'size'"),
        ("games/sokoban-page", {"size": 3}, "takes backend and screenshot, not 'size'"),
        ("games/sokoban-page", {"screenshot": 1}, "screenshot is true or false, not 1"),
    ],
)
def test_wrong_names_and_options_are_told(name, options, why):
    with pytest.raises(UserError, match=why):
        envs.make(name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_episode_and_other_seeds_differ(name):
    assert played(name, 5, 100) == played(name, 5, 100)
    game = GAMES[name]
    assert len({envs.digest(encode(game.start(seed, 0))) for seed in range(20)}) >= 18


def test_another_process_plays_the_same_episodes():
    script = (
        "import envs, json\n"
        "from envs.games import GAMES\n"
        "from envs.games.core import encode\n"
        "games = [GAMES[name] for name in sorted(GAMES)]\n"
        "print(json.dumps([[envs.digest(encode(game.start(seed, 2 * game.levels))) for seed in (1, 99)] for game in games]))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=120).stdout
    wanted = [[envs.digest(encode(GAMES[name].start(seed, 2 * GAMES[name].levels))) for seed in (1, 99)] for name in NAMES]
    assert json.loads(printed) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_save_goes_on_as_the_original_and_copies_share_nothing(name):
    env = envs.make(f"games/{name}")
    env.reset(seed=9)
    played(name, 1, 30, env)
    blob = env.save()
    copies = [envs.make(f"games/{name}") for _ in range(2)]
    for copy in copies:
        copy.restore(blob)
        assert copy.state() == env.state()
    assert played(name, 2, 20, env) == played(name, 2, 20, copies[0])
    assert copies[1].save() == blob


def test_a_save_of_another_game_or_a_changed_one_is_refused():
    env = envs.make("games/loop-rotate")
    env.reset(seed=1)
    env.step(Action("rotate", {"row": 1, "column": 1}))
    blob = env.save()
    with pytest.raises(UserError, match="can't be restored"):
        envs.make("games/sokoban").restore(blob)
    changed = json.loads(blob)
    changed["seed"] = 2
    with pytest.raises(LostError):
        envs.make("games/loop-rotate").restore(json.dumps(changed).encode())


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_json_and_comes_back(name):
    env = envs.make(f"games/{name}")
    assert env.state() == {"step": 0}
    env.reset(seed=3)
    played(name, 3, 10, env)
    assert decode(GAMES[name].state, json.loads(json.dumps(env.state()))) == env.now


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("gem-rise", Action("melt", {"row": 1, "column": 1})),
        ("loop-rotate", Action("rotate", {"row": 9, "column": 1})),
        ("slide-out", Action("slide", {"piece": "?", "cells": 1})),
        ("sokoban", None),
        ("slide-merge", None),
        ("tray-match", Action("pick", {"tile": 99})),
    ],
)
def test_an_illegal_move_takes_a_step_and_changes_nothing(name, action):
    env = envs.make(f"games/{name}")
    game = GAMES[name]
    first = env.reset(
        seed=next(seed for seed in range(99) if name != "slide-merge" or len(game.legal(game.start(seed, 0))) < 4)
    )
    if action is None:
        legal = {move.arguments.get("direction") for move in GAMES[name].legal(env.now)}
        action = Action("move", {"direction": next(way for way in ("up", "right", "down", "left") if way not in legal)})
    before = env.now
    result = env.step(action)
    assert result.info["error"] == "illegal_move"
    assert result.info["message"]
    assert result.info["effect"] == "unchanged"
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    assert env.now == before
    assert result.obs.text == first.text
    assert result.obs.step == 1


def test_what_is_no_move_is_refused_by_the_interface():
    env = envs.make("games/sokoban")
    env.reset(seed=0)
    for action, error in [(Action("jump"), "unknown_action"), (Action("move", {"direction": "north"}), "bad_argument")]:
        assert env.step(action).info["error"] == error
    result = env.step(Invalid("no_action", "nothing"))
    assert result.truncated
    assert result.info["status"] == "FAILED_TASK"
    assert env.step(Action("restart")).info["error"] == "episode_over"


@pytest.mark.parametrize("name", LEVELLED)
def test_a_task_names_seed_and_level(name):
    env = envs.make(f"games/{name}")
    env.reset(Task("t", "", {"seed": 7, "level": 2}), seed=1)
    assert env.now == GAMES[name].start(7, 2)
    assert env.restore(env.save()).text == env._last.text
    env.reset(seed=7)
    assert env.now == GAMES[name].start(7, 0)
    for data in ({"sed": 1}, {"level": -1}, {"level": True}, {"seed": "1"}):
        with pytest.raises(UserError, match="a task's"):
            env.reset(Task("t", "", data))


def test_games_without_levels_refuse_one():
    with pytest.raises(UserError, match="games/gem-rise has no levels"):
        envs.make("games/gem-rise").reset(Task("t", "", {"level": 1}))


@pytest.mark.parametrize("name", NAMES)
def test_rewards_add_up_to_the_score_and_the_budget_ends_the_episode(name):
    env, policy = envs.make(f"games/{name}"), envs.oracle(f"games/{name}")
    obs, total, steps = env.reset(seed=4), 0.0, 0
    begun = GAMES[name].score(env.now)
    while True:
        result = env.step(policy(env.state(), obs))
        obs, total, steps = result.obs, total + result.reward, steps + 1
        assert "error" not in result.info
        assert result.info["score"] == pytest.approx(total)
        if result.terminated or result.truncated:
            break
    assert begun == 0
    assert steps == BUDGET or result.terminated
    assert result.info["success"] == (total >= env.spec.success)
    if name in LEVELLED:
        assert result.info["level"] == int(total + 1e-9)
        assert total > 4


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_beats_chance_by_far(name):
    seeds = range(200, 205)
    oracle = [baselines.score(name, envs.oracle(f"games/{name}"), seed) for seed in seeds]
    random = [baselines.score(name, baselines.chance(name, seed), seed) for seed in seeds]
    error = np.std(random, ddof=1) / len(random) ** 0.5
    assert np.mean(oracle) > np.mean(random) + 3 * error
    # The stored means give a scale from 0 (chance) to 100 (the oracle) for other seeds, too.
    reference = baselines.REFERENCES[name]
    scale = [score_game(scores, reference, levels=baselines.level_set(name), budget=BUDGET) for scores in (random, oracle)]
    assert scale[0].normalised < 40
    assert 60 < scale[1].normalised < 140
    assert scale[0].kind == "oracle-normalised"


def test_the_references_belong_to_these_levels_and_this_budget():
    assert baselines.REFERENCES.keys() == GAMES.keys()
    for name, reference in baselines.REFERENCES.items():
        assert (reference.levels, reference.budget) == (baselines.level_set(name), BUDGET)


def test_levels_show_in_the_text():
    env = envs.make("games/sokoban")
    text = env.reset(Task("t", "", {"seed": 0, "level": 3})).text
    assert "Level 4\n" in text
    assert "\n".join(env.now.board) in text
    assert "# wall, @ you" in text


@given(st.integers(0, 2**64 - 1), st.integers(1, 1000))
@settings(max_examples=50)
def test_draws_lie_below_their_bound(rng, n):
    after, value = draw_below(rng, n)
    assert 0 <= value < n
    assert 0 <= after < 2**64


def test_random_numbers_are_those_of_splitmix64():
    # The first outputs for seed 1234567, as the algorithm's public test vectors give them.
    rng, outputs = 1234567, []
    for _ in range(3):
        rng, value = draw_below(rng, 1 << 64)
        outputs.append(value)
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert first_rng("a", 1) != first_rng("a", 2)

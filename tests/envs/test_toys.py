"""Toys: their optimum by brute force, what pays, and the contract of environments."""

import itertools
import random

import pytest

import envs
from envs import toys
from envs.api import Action, Task
from jaxllm.errors import UserError


def play(name, seed, policy, **options):
    """The return of an episode and its number of steps."""
    env = toys.make(name, **options)
    obs = env.reset(seed=seed)
    total = 0.0
    for step in itertools.count(1):
        result = env.step(policy(env.state(), obs))
        obs, total = result.obs, total + result.reward
        if result.terminated or result.truncated:
            assert result.info["success"] == (total >= 1)
            return total, step
    raise AssertionError


@pytest.mark.parametrize("name", toys.names())
def test_the_oracle_reaches_the_optimum(name):
    assert {play(name, seed, toys.oracle(name))[0] for seed in range(40)} == {toys.optimum(name)} == {1.0}


def best(numbers, guesses):
    """Secrets that the best strategy finds, by trying every first guess."""
    if not numbers or not guesses:
        return 0
    return max(1 + best(n, guesses - 1) + best(numbers - 1 - n, guesses - 1) for n in range(numbers))


@pytest.mark.parametrize(("numbers", "guesses"), [(10, 4), (10, 3), (7, 3), (5, 1), (12, 2)])
def test_optimum_of_hilo_by_search(numbers, guesses):
    assert toys.optimum("hilo", numbers=numbers, guesses=guesses) == best(numbers, guesses) / numbers
    found = [play_secret(numbers, guesses, secret) for secret in range(numbers)]
    assert sum(found) <= best(numbers, guesses)


def play_secret(numbers, guesses, secret):
    """The oracle's return for one secret."""
    env = toys.make("hilo", numbers=numbers, guesses=guesses)
    env.reset(Task("t", "", {"secret": secret}))
    while True:
        result = env.step(toys.oracle("hilo")(env.state(), env._last))
        if result.terminated or result.truncated:
            return result.reward


def test_keeping_to_a_wall_always_gets_out():
    order = "nesw"

    def right_hand():
        facing = "n"

        def choose(state, obs):
            nonlocal facing
            ways = obs.text.split()[-1]
            turns = [order[(order.index(facing) + k) % 4] for k in (1, 0, 3, 2)]  # right, straight on, left, back
            facing = next(way for way in turns if way in ways)
            return Action("go", {"direction": facing})

        return choose

    for side in (2, 3, 4):
        for seed in range(30):
            total, _ = play("maze", seed, right_hand(), side=side)
            assert total == 1


def test_chance_is_far_from_the_optimum():
    rng = random.Random(0)
    guess = lambda state, obs: Action("guess", {"n": rng.randrange(10)})  # noqa: E731
    scores = [play("hilo", seed, guess)[0] for seed in range(400)]
    assert sum(scores) / 400 == pytest.approx(1 - 0.9**4, abs=0.08)
    call = lambda state, obs: Action("call", {"n": rng.randrange(10)})  # noqa: E731
    assert sum(play("keys", seed, call)[0] for seed in range(400)) / 400 < 0.15


def test_answers_of_hilo():
    env = toys.make("hilo")
    assert env.reset(Task("t", "", {"secret": 6})).text == "0-9"
    texts = [env.step(Action("guess", {"n": n})).obs.text for n in (4, 8, 6)]
    assert texts == [">", "<", "found"]
    assert env.step(Action("guess", {"n": 1})).info["error"] == "episode_over"


@pytest.mark.parametrize("name", toys.names())
def test_same_seed_same_episode(name):
    one, other = (toys.make(name) for _ in range(2))
    assert (one.reset(seed=3).text, envs.digest(one.state())) == (other.reset(seed=3).text, envs.digest(other.state()))
    one.step(toys.oracle(name)(one.state(), one._last))
    other.restore(one.save())
    assert envs.digest(one.state()) == envs.digest(other.state())
    starts = set()
    for seed in range(8):
        one.reset(seed=seed)
        starts.add(envs.digest(one.state()))
    assert len(starts) > 4


def test_wrong_names_and_sizes():
    for name, options, match in (
        ("chess", {}, "no toy 'chess'"),
        ("hilo", {"sides": 3}, "unknown option sides"),
        ("hilo", {"guesses": 0}, "guesses must be"),
        ("maze", {"side": 1}, "at least 2"),
    ):
        with pytest.raises(UserError, match=match):
            toys.make(name, **options)
    with pytest.raises(UserError, match="secret must be"):
        toys.make("hilo").reset(Task("t", "", {"secret": 10}))
    env = toys.make("hilo")
    env.reset()
    assert env.step(Action("guess", {"n": 10})).info["error"] == "bad_argument"

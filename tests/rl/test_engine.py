"""Slots, resident caches and new weights: what is sampled is what a fresh model would sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import model, params
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from rl import engine, offpolicy, policy, slots
from rl.engine import Engine

CFG = Config(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=64,
    max_position_embeddings=128,
    rope_theta=10000.0,
)
STOP = 7


@pytest.fixture(scope="module")
def weights():
    return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, params.init(jax.random.key(0), CFG))


@pytest.fixture(scope="module")
def others():
    return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, params.init(jax.random.key(1), CFG))


def make(weights, **options):
    """An engine of four slots."""
    return Engine(weights, CFG, **{"slots": 4, "context": 64, "steps": 4, **options})


def answers(machine):
    """All answers that are under way."""
    found = {}
    while machine.busy:
        found |= {done.key: done for done in machine.advance()}
    return found


compiled = jax.jit(policy.logprobs, static_argnames=("cfg", "temperature"))
following = jax.jit(lambda weights, ids, clamp: model.logits(weights, model.forward(weights, CFG, ids, clamp=clamp))[0])


def greedy(weights, ids, max_tokens, stops=(), clamp=None):
    """The answer of a model that reads all anew for each token."""
    ids, begin = list(ids), len(ids)
    while len(ids) < begin + max_tokens and ids[-1] not in stops:
        padded = np.array([[*ids, *[0] * (64 - len(ids))]])
        ids.append(int(np.argmax(following(weights, padded, clamp)[len(ids) - 1])))
    return ids[begin:]


def score(weights, ids, temperature=1.0):
    """Log-probabilities of a whole session, by the trainer's function."""
    padded = jnp.asarray([*ids, *[0] * (64 - len(ids))])[None]
    return np.asarray(compiled(weights, CFG, padded, temperature=temperature)[0][0])[: len(ids)]


def test_greedy_answers_equal_plain_generation(weights):
    prompts = [[1, 2, 3], [5], list(range(8, 40)), [9, 9]]
    machine = make(weights, temperature=0.0, stop_ids=[STOP])
    for i, prompt in enumerate(prompts):
        machine.submit(i, prompt, max_tokens=6 + i)
    found = answers(machine)
    for i, prompt in enumerate(prompts):
        expected = greedy(weights, prompt, 6 + i, [STOP])
        assert list(found[i].ids) == expected
        assert found[i].stopped == (expected[-1] == STOP)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_the_trainer_over_turns(temperature, weights):
    machine = make(weights, temperature=temperature)
    stream, at = [3, 4, 5], []
    machine.submit("a", stream, max_tokens=5)
    for context in ([10, 11], [12], [13, 14, 15, 16]):
        machine.submit(f"filler {context}", context, max_tokens=3)  # others come and go beside it
        done = answers(machine)["a"]
        at.append((len(stream), done))
        stream = [*stream, *done.ids, *context]
        machine.submit("a", context, max_tokens=5)
        machine.release(f"filler {context}")
    found = score(weights, stream, temperature)
    for begin, done in at:
        np.testing.assert_allclose(done.logp, found[begin : begin + len(done.ids)], atol=1e-4)
    if temperature != 1.0:
        assert not np.allclose(score(weights, stream)[3:8], at[0][1].logp, atol=1e-2)


def test_draws_depend_on_the_session_alone(weights):
    alone = make(weights, seed=5)
    alone.submit("x", [1, 2], max_tokens=12)
    expected = answers(alone)["x"]
    crowded = make(weights, seed=5, steps=3)
    for i in range(3):
        crowded.submit(i, [i + 1] * (i + 2), max_tokens=2 + 5 * i)
    crowded.submit("x", [1, 2], max_tokens=12)
    found = answers(crowded)["x"]
    assert found.ids == expected.ids
    np.testing.assert_allclose(found.logp, expected.logp, atol=1e-5)
    other = make(weights, seed=6)
    other.submit("x", [1, 2], max_tokens=12)
    assert answers(other)["x"].ids != expected.ids
    alone.submit(("x", 1), [1, 2], max_tokens=12)  # another segment of an episode draws anew
    assert answers(alone)["x", 1].ids != expected.ids


draw = jax.jit(slots.draw)


@pytest.mark.parametrize("V", [256, 200])
def test_draws_follow_the_distribution(V):
    logits = np.random.default_rng(0).normal(size=V).astype(np.float32) * 2
    logits[130] = -np.inf
    count = 20_000
    rows, keys = np.broadcast_to(logits, (count, V)), jax.random.split(jax.random.key(0), count)
    token, logp = map(np.asarray, draw(rows, keys, np.arange(count), np.full(count, 0.7, np.float32)))
    expected = logits / 0.7 - np.log(np.exp(logits / 0.7).sum())
    np.testing.assert_allclose(logp, expected[token], atol=1e-5)
    seen, mean = np.bincount(token, minlength=V), count * np.exp(expected)
    assert seen[130] == 0
    often = mean > 5
    # Pearson's sum over tokens is about their number, with a deviation of the square root of twice that.
    assert abs(((seen - mean) ** 2 / np.maximum(mean, 1e-9))[often].sum() - often.sum()) < 5 * np.sqrt(2 * often.sum())
    best, logp = draw(rows, keys, np.arange(count), np.zeros(count, np.float32))
    assert (best == logits.argmax()).all()
    np.testing.assert_allclose(logp, logits.max() - np.log(np.exp(logits).sum()), rtol=1e-5)  # at temperature 1


def test_long_contexts_are_read_in_pieces_and_looked_at_in_part(weights, monkeypatch):
    for name, value in (("FEED", 16), ("SMALLEST_SPLIT", 8), ("SMALLEST_SPAN", 16)):
        monkeypatch.setattr(engine, name, value)
    machine = make(weights, temperature=0.0)
    prompts = {"short": [1, 2, 3], "long": list(range(5, 45))}
    for key, prompt in prompts.items():
        machine.submit(key, prompt, max_tokens=12)
    found = answers(machine)
    more = list(range(20, 24))
    machine.submit("short", more, max_tokens=12)  # it grows out of the span that it began with
    again = answers(machine)["short"]
    for key, prompt in prompts.items():
        expected = greedy(weights, prompt, 12)
        assert list(found[key].ids) == expected
    expected = greedy(weights, [1, 2, 3, *found["short"].ids, *more], 12)
    assert list(again.ids) == expected


def test_a_sampler_with_one_wrong_weight_is_noticed(weights):
    wrong = jax.tree.map(lambda leaf: leaf, weights)
    wrong["layers"][1]["mlp"]["up_proj"]["weight"] = wrong["layers"][1]["mlp"]["up_proj"]["weight"].at[3].mul(-3)
    sizes = []
    for sampler in (weights, wrong):
        machine = make(sampler)
        machine.submit("s", [1, 2, 3], max_tokens=12)
        done = answers(machine)["s"]
        mine = jnp.asarray(score(weights, [1, 2, 3, *done.ids])[3:])[None]
        apart = offpolicy.mismatch(mine, jnp.asarray(done.logp)[None], jnp.ones(mine.shape, bool))
        sizes.append(float(apart.abs_dlogp_max))
    assert sizes[0] < 1e-4 < 1e-2 < sizes[1]


def test_in_bfloat16_sampler_and_trainer_stay_close(weights):
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)
    machine = make(half)
    machine.submit("s", [1, 2, 3], max_tokens=12)
    done = answers(machine)["s"]
    assert np.abs(score(half, [1, 2, 3, *done.ids])[3:] - done.logp).mean() < 0.05


def test_a_freed_slot_remembers_nothing(weights):
    machine = make(weights, temperature=0.0)
    machine.submit("long", list(range(1, 40)), max_tokens=8)
    machine.advance()
    machine.release("long")  # in the middle of its answer
    machine.submit("next", [4, 5], max_tokens=5)
    assert machine._sessions["next"].slot == 0  # the same slot
    assert list(answers(machine)["next"].ids) == greedy(weights, [4, 5], 5)


def test_requests_have_their_own_limits_stops_and_temperatures(weights):
    machine = make(weights, temperature=0.0)
    plain = greedy(weights, [1, 2, 3], 10)
    machine.submit("stop", [1, 2, 3], max_tokens=10, stop_ids=[plain[2]])
    machine.submit("limit", [1, 2, 3], max_tokens=1)
    machine.submit("warm", [1, 2, 3], max_tokens=10, temperature=5.0)
    found = answers(machine)
    first = plain.index(plain[2])
    assert (list(found["stop"].ids), found["stop"].stopped) == (plain[: first + 1], True)
    assert (list(found["limit"].ids), found["limit"].stopped) == (plain[:1], False)
    assert list(found["warm"].ids) != plain


def test_new_weights_are_taken_at_once(weights, others):
    machine = make(weights, temperature=0.0)
    machine.submit("s", [1, 2, 3], max_tokens=8)
    assert machine.advance() == []
    machine.publish(others, 1)
    done = answers(machine)["s"]
    assert done.version == (0, 0, 0, 0, 1, 1, 1, 1)
    first = greedy(weights, [1, 2, 3], 4)
    assert list(done.ids) == first + greedy(others, [1, 2, 3, *first], 4)
    # The cache was read anew: the log-probabilities are those of a fresh model with the new weights.
    np.testing.assert_allclose(done.logp[4:], score(others, [1, 2, 3, *done.ids])[7:], atol=1e-4)
    machine.submit("s", [8], max_tokens=2)
    again = answers(machine)["s"]
    np.testing.assert_allclose(again.logp, score(others, [1, 2, 3, *done.ids, 8, *again.ids])[12:], atol=1e-4)


def test_an_old_cache_would_be_seen(weights, others):
    machine = make(weights, temperature=0.0, on_publish="keep")
    machine.submit("s", [1, 2, 3], max_tokens=8)
    machine.advance()
    machine.publish(others, 1)
    done = answers(machine)["s"]
    assert done.version == (0, 0, 0, 0, 1, 1, 1, 1)  # a mixed answer says so
    assert not np.allclose(done.logp[4:], score(others, [1, 2, 3, *done.ids])[7:], atol=1e-2)


def test_a_publication_is_checked(weights, others):
    machine = make(weights)
    with pytest.raises(UserError, match="does not follow"):
        machine.publish(others, 0)
    with pytest.raises(UserError, match="other shapes"):
        machine.publish(jax.tree.map(lambda x: x.astype(jnp.bfloat16), others), 1)
    assert machine.version == 0


def test_clamps_act_on_their_session_alone(weights):
    clamp = NeuronClamp(1, 5, 40.0)
    machine = make(weights, temperature=0.0)
    machine.submit("plain", [1, 2, 3], max_tokens=6)
    machine.submit("held", [1, 2, 3], max_tokens=6, clamps=[clamp])
    found = answers(machine)
    plain = greedy(weights, [1, 2, 3], 6)
    held = greedy(weights, [1, 2, 3], 6, clamp=make_clamp(CFG, [clamp]))
    assert (list(found["plain"].ids), list(found["held"].ids)) == (plain, held)
    assert plain != held


def test_nothing_is_compiled_after_warm_up(weights):
    machine = make(weights, seed=1)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 41, 200)  # of what is read, in the first turns and in later ones

    def play(rounds):
        for i in range(rounds):
            for key, length in enumerate(lengths[4 * i : 4 * i + 4]):
                if machine.room((i // 4, key)) > length + 6:
                    ids = rng.integers(0, 64, length).tolist()
                    machine.submit((i // 4, key), ids, max_tokens=int(rng.integers(1, 6)))
            answers(machine)
            if i % 4 == 3:
                for key in range(4):
                    machine.release((i // 4, key))

    before = machine.warm_up()
    play(50)
    assert machine.compilations == before


def test_wrong_requests_change_nothing(weights):
    machine = make(weights)
    for key in ("s", "r", "q", "p"):
        machine.submit(key, [1], max_tokens=2)
    for arguments, match in (
        ((("t", [1]), 1), "all 4 slots"),
        ((("s", [1]), 1), "in the middle"),
    ):
        with pytest.raises(UserError, match=match):
            machine.submit(*arguments[0], max_tokens=arguments[1])
    answers(machine)
    for ids, tokens, match in (([64], 1, "outside"), ([-1], 1, "outside"), ([1], 100, "room for 61"), ([1], 0, "do not fit")):
        with pytest.raises(UserError, match=match):
            machine.submit("s", ids, max_tokens=tokens)
    with pytest.raises(UserError, match="stop ids"):
        machine.submit("s", [1], max_tokens=1, stop_ids=range(9))
    with pytest.raises(UserError, match="at least one token"):
        make(weights).submit("new", [], max_tokens=1)
    with pytest.raises(UserError, match="positions"):
        make(weights, context=4096)
    assert machine.busy == 0
    assert machine.room("s") == 61

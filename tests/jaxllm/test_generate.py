"""Generation: equal to recomputing the whole text each step, and stops, streams, compiles and donates as promised."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import generate, model, params, sharding
from jaxllm.cli.text import Generate
from jaxllm.errors import UserError
from jaxllm.sampling import Sampler

PROMPTS = [[5, 0, 17, 80, 3], [9], [96, 2, 2, 41, 7, 7, 30, 12, 64, 1, 1]]
SAMPLER = Sampler(temperature=1.0, top_p=0.95)


@pytest.fixture(scope="module")
def weights(tiny_params) -> params.Params:
    """The tiny model with a louder head, so that its best token is far ahead of the second."""
    return {**tiny_params, "lm_head": {"weight": 50 * tiny_params["lm_head"]["weight"]}}


@pytest.fixture(scope="module")
def greedy(weights, tiny_config) -> list[list[int]]:
    """Twelve tokens for each prompt, each from a forward pass over the whole text."""
    forward = jax.jit(lambda w, tokens: model.logits(w, model.forward(w, tiny_config, tokens)))
    out = []
    for prompt in PROMPTS:
        text = list(prompt)
        for _ in range(12):
            padded = jnp.array([text + [0] * (32 - len(text))], jnp.int32)
            text.append(int(forward(weights, padded)[0, len(text) - 1].argmax()))
        out.append(text[len(prompt) :])
    return out


def flat(pieces) -> list[int]:
    return [token for piece in pieces for token in piece]


def test_rows_of_unequal_length_equal_full_recomputation(weights, tiny_config, greedy):
    assert generate.generate(weights, tiny_config, PROMPTS, max_tokens=12) == greedy
    assert len({tuple(row) for row in greedy}) == 3


def test_stream_gives_the_same_ids(weights, tiny_config, greedy):
    pieces = list(generate.stream(weights, tiny_config, PROMPTS[0], max_tokens=12, every=4))
    assert [len(piece) for piece in pieces] == [1, 4, 4, 3]
    assert flat(pieces) == greedy[0]


def test_every_stop_id_stops_and_nothing_is_written_after(weights, tiny_config, greedy):
    stops = {greedy[0][2], greedy[1][5], greedy[2][8]}
    expected = [row[: 1 + next(i for i, token in enumerate(row) if token in stops)] for row in greedy]
    assert generate.generate(weights, tiny_config, PROMPTS, max_tokens=12, stop_ids=stops) == expected
    assert flat(generate.stream(weights, tiny_config, PROMPTS[0], max_tokens=12, stop_ids=stops)) == expected[0]
    state, array = generate.start(weights, tiny_config, PROMPTS, max_tokens=12, stop_ids=stops)
    state = generate.decode(weights, tiny_config, state, array, 12)
    for row, tokens in zip(np.asarray(state.ids), expected, strict=True):
        assert (row[len(tokens) :] == generate.NO_TOKEN).all()


def test_a_done_row_keeps_its_cache_and_the_loop_ends_early(weights, tiny_config, greedy):
    state, stops = generate.start(weights, tiny_config, PROMPTS, max_tokens=12, stop_ids={greedy[0][2]})
    state = generate.decode(weights, tiny_config, state, stops, 3)
    assert np.asarray(state.done).tolist() == [row.index(greedy[0][2]) < 3 if greedy[0][2] in row else False for row in greedy]
    before = [np.asarray(x[0]) for x in (*state.cache.k, *state.cache.v)]
    length = int(state.cache.lengths[0])
    state = generate.decode(weights, tiny_config, state, stops, 9)
    assert int(state.cache.lengths[0]) == length == len(PROMPTS[0]) + 2
    for old, new in zip(before, (*state.cache.k, *state.cache.v), strict=True):
        np.testing.assert_array_equal(new[0], old)
    alone, stops = generate.start(weights, tiny_config, PROMPTS[:1], max_tokens=12, stop_ids={greedy[0][2]})
    assert int(generate.decode(weights, tiny_config, alone, stops, 12).step) == 3


def test_a_row_samples_the_same_in_another_slot(weights, tiny_config):
    def run(order: list[int]) -> np.ndarray:
        keys = jax.random.split(jax.random.key(7), 3)[jnp.array(order)]
        tokens = np.zeros((len(order), 16), np.int32)
        for row, i in zip(tokens, order, strict=True):
            row[: len(PROMPTS[i])] = PROMPTS[i]
        lengths = np.array([len(PROMPTS[i]) for i in order], np.int32)
        stops = np.array([2] * 16, np.int32)
        state = generate.prefill(weights, tiny_config, tokens, lengths, keys, stops, S=32, N=16, sampler=SAMPLER)
        return np.asarray(generate.decode(weights, tiny_config, state, stops, 12, sampler=SAMPLER).ids)

    straight, moved = run([0, 1, 2]), run([2, 0, 1])
    np.testing.assert_array_equal(moved, straight[[2, 0, 1]])


def test_seeds_give_samples(weights, tiny_config):
    first, again, other = (
        generate.generate(weights, tiny_config, PROMPTS[:1] * 3, max_tokens=12, sampler=SAMPLER, seed=seed)
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert first[0] != first[1]


def test_prompts_in_one_bucket_compile_once(weights, tiny_config):
    def programs() -> tuple[int, int]:
        return generate.prefill._cache_size(), generate.decode._cache_size()

    fresh = dataclasses.replace(tiny_config, max_position_embeddings=300)
    prefills, decodes = programs()
    for prompt, stops in (([1] * 3, {2}), ([2] * 16, {2, 3}), ([4] * 9, ())):
        generate.generate(weights, fresh, [prompt], max_tokens=10, stop_ids=stops)
        list(generate.stream(weights, fresh, prompt, max_tokens=12, stop_ids=stops, every=3))
    assert programs() == (prefills + 1, decodes + 1)
    generate.generate(weights, fresh, [[1] * 17], max_tokens=10)
    assert programs() == (prefills + 2, decodes + 2)


def test_buckets_are_powers_of_two():
    assert [generate.bucket(n) for n in (1, 16, 17, 32, 33, 1000)] == [16, 16, 32, 32, 64, 1024]


def test_the_cache_is_donated(weights, tiny_config):
    state, stops = generate.start(weights, tiny_config, PROMPTS, max_tokens=12)
    held = state.cache.k[0]
    generate.decode(weights, tiny_config, state, stops, 3)
    assert held.is_deleted()


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 4)])
def test_generation_on_a_mesh_is_the_same(shape: tuple[int, int, int], weights, tiny_config, greedy):
    """With eight simulated devices, a donated cache and constraints together: a combination that once went wrong in JAX."""
    mesh = sharding.make_mesh(*shape)
    placed = jax.device_put(weights, sharding.shardings(tiny_config, mesh))
    prompts = [*PROMPTS, PROMPTS[0]]
    assert generate.generate(placed, tiny_config, prompts, max_tokens=12, mesh=mesh) == [*greedy, greedy[0]]


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "match"),
    [
        ([], 4, "at least one token"),
        ([[1], []], 4, "at least one token"),
        ([[97]], 4, "outside 0..96"),
        ([[-1]], 4, "outside 0..96"),
        ([[1]], 0, "max_tokens"),
        ([[1] * 500], 13, "512 positions"),
    ],
)
def test_impossible_requests_are_explained(prompts, max_tokens, match, weights, tiny_config):
    with pytest.raises(UserError, match=match):
        generate.generate(weights, tiny_config, prompts, max_tokens=max_tokens)


def test_command_refuses_a_system_message_without_chat():
    with pytest.raises(UserError, match="--chat"):
        Generate(model="unused", prompt="x", system="y").run()


def test_command_refuses_a_seed_beyond_64_bits():
    with pytest.raises(UserError, match="--seed must fit into 64 bits"):
        Generate(model="unused", prompt="x", seed=2**63).run()

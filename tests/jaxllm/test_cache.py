"""The KV cache: what is written where, and that cached steps give what a full forward pass gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import cache as kv
from jaxllm import model

LENGTHS = np.array([5, 11, 1, 8], np.int32)
TOTAL = 16


@pytest.fixture(scope="module")
def tokens(tiny_config) -> np.ndarray:
    return np.random.default_rng(0).integers(0, tiny_config.vocab_size, (4, TOTAL)).astype(np.int32)


@pytest.fixture(scope="module")
def step(tiny_params, tiny_config):
    def run(cache, tokens, lengths):
        return model.forward(tiny_params, tiny_config, tokens, lengths=lengths, cache=cache)

    return jax.jit(run)


@pytest.fixture(scope="module")
def full(tiny_params, tiny_config, tokens) -> np.ndarray:
    """Hidden states without a cache."""
    return np.asarray(jax.jit(model.forward, static_argnums=1)(tiny_params, tiny_config, tokens))


def test_write_drops_what_is_beyond_the_end():
    held = jnp.zeros((2, 1, 4, 2))
    new = jnp.ones((2, 3, 1, 2)) * jnp.array([1.0, 2.0, 3.0])[None, :, None, None]
    out = kv.write(held, new, jnp.array([[0, 1, 4], [2, 4, 5]]))
    np.testing.assert_array_equal(out[:, 0, :, 0], [[1, 2, 0, 0], [0, 0, 1, 0]])


def test_mask_lets_a_token_read_itself_and_those_before():
    np.testing.assert_array_equal(kv.mask(jnp.array([[0, 2]]), 4)[0, 0], [[1, 0, 0, 0], [1, 1, 1, 0]])


def test_grow_keeps_the_content(tiny_config):
    cache = kv.create(tiny_config, 2, 4, jnp.float32)
    cache = dataclasses.replace(cache, k=tuple(x + 1 for x in cache.k), lengths=cache.lengths + 3)
    grown = kv.grow(cache, 7)
    assert grown.size == 7
    np.testing.assert_array_equal(grown.lengths, [3, 3])
    np.testing.assert_array_equal(grown.k[0][:, :, :4], cache.k[0])
    assert not grown.k[0][:, :, 4:].any()


def test_prefill_then_decode_equals_full_forward_at_every_position(tiny_config, tokens, step, full):
    hidden, cache = step(kv.create(tiny_config, 4, TOTAL, jnp.float32), tokens[:, :11], LENGTHS)
    np.testing.assert_array_equal(cache.lengths, LENGTHS)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(np.asarray(hidden)[row, :length], full[row, :length], atol=1e-5)
    for i in range(TOTAL - 11):
        at = LENGTHS + i
        hidden, cache = step(cache, tokens[np.arange(4), at][:, None], np.ones(4, np.int32))
        np.testing.assert_allclose(np.asarray(hidden)[:, 0], full[np.arange(4), at], atol=1e-5)
    np.testing.assert_array_equal(cache.lengths, LENGTHS + TOTAL - 11)


def test_prompt_in_pieces_equals_prompt_at_once(tiny_config, tokens, step, full):
    """A second piece attends to the first: the case in which a mask aligned to the top left hides nearly everything."""
    cache = kv.create(tiny_config, 4, TOTAL, jnp.float32)
    _, cache = step(cache, tokens[:, :8], np.full(4, 8, np.int32))
    hidden, _ = step(cache, tokens[:, 8:], np.full(4, 8, np.int32))
    np.testing.assert_allclose(hidden, full[:, 8:], atol=1e-5)


def test_what_is_beyond_a_row_is_never_read(tiny_config, tokens, step):
    cache = kv.create(tiny_config, 4, TOTAL, jnp.float32)
    _, cache = step(cache, tokens[:, :11], LENGTHS)
    beyond = jnp.arange(TOTAL)[:, None] >= cache.lengths[:, None, None, None]
    dirty = dataclasses.replace(cache, k=tuple(jnp.where(beyond, 1e4, x) for x in cache.k))
    dirty = dataclasses.replace(dirty, v=tuple(jnp.where(beyond, -1e4, x) for x in dirty.v))
    one = np.ones(4, np.int32)
    np.testing.assert_array_equal(step(cache, tokens[:, :1], one)[0], step(dirty, tokens[:, :1], one)[0])


def test_a_row_with_nothing_real_keeps_its_cache(tiny_config, tokens, step):
    _, before = step(kv.create(tiny_config, 4, TOTAL, jnp.float32), tokens[:, :11], LENGTHS)
    _, after = step(before, tokens[:, :1], np.array([1, 0, 1, 0], np.int32))
    np.testing.assert_array_equal(after.lengths, LENGTHS + np.array([1, 0, 1, 0]))
    for old, new in zip((*before.k, *before.v), (*after.k, *after.v), strict=True):
        np.testing.assert_array_equal(new[1::2], old[1::2])
        assert (new[0] != old[0]).any()

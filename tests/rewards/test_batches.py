"""Batches of any size through few programs."""

import jax.numpy as jnp
import numpy as np
import pytest

import rewards
from jaxllm.errors import UserError
from rewards.batches import bucket, in_buckets


def test_buckets():
    assert [bucket(N) for N in (0, 1, 256, 257, 1000, 131_072, 10_000_000)] == [256, 256, 256, 512, 1024, 131_072, 131_072]


def test_fifty_sizes_compile_few_programs_and_give_the_same_numbers():
    rng = np.random.default_rng(0)
    pred, target = (np.sort(rng.uniform(0, 100, (2500, 2, 2)), 1).reshape(-1, 4).astype(np.float32) for _ in range(2))
    reward = in_buckets(rewards.get("gui_g2"), smallest=64, largest=1024)
    sizes = [1, 63, 64, 65, 1023, 1024, 1025, 2500, *rng.integers(1, 2500, 42)]
    whole = rewards.gui_g2(pred, target)
    for N in sizes:
        parts = reward(pred[:N], jnp.asarray(target[:N]), format_ok=np.ones(N, bool))
        assert parts.reward.shape == (N,)
        np.testing.assert_allclose(parts.reward, whole.reward[:N], atol=2e-6)
    assert reward.program._cache_size() <= 5


def test_an_empty_batch():
    parts = in_buckets(rewards.get("gui_g2"))(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32))
    assert parts.reward.shape == (0,)


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(UserError, match="same first axis"):
        in_buckets(rewards.get("gui_g2"))(np.zeros((3, 4)), np.zeros((4, 4)))

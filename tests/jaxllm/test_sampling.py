"""Sampling: limits that must agree with each other, distributions counted, and draws that stay with their row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import sampling
from jaxllm.errors import UserError
from jaxllm.sampling import GREEDY, GROUP, NUCLEUS, Sampler

sample = jax.jit(sampling.sample, static_argnames="sampler")
DRAWS = 20_000
LOGITS = np.log(np.array([0.4, 0.05, 0.3, 0.15, 0.1], np.float32))


def frequencies(logits: np.ndarray, sampler: Sampler) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    ids = sample(jnp.tile(jnp.asarray(logits), (DRAWS, 1)), keys, sampler)
    return np.bincount(ids, minlength=len(logits)) / DRAWS


def random_logits(B: int, V: int, scale: float = 3.0) -> jax.Array:
    return scale * jax.random.normal(jax.random.key(1), (B, V))


def test_greedy_takes_the_lowest_of_equal_ids():
    ids = sample(jnp.array([[0.0, 2.0, 2.0, 1.0]]), jax.random.split(jax.random.key(0), 1), GREEDY)
    assert ids.dtype == jnp.int32
    assert ids.tolist() == [1]


@pytest.mark.parametrize("V", [GROUP, 4 * GROUP, 4 * GROUP + 1])
def test_greedy_by_groups_takes_the_lowest_of_equal_ids(V: int):
    """Few distinct values, so that the best stands many times in a row: within one group and in several."""
    values = np.random.default_rng(0).integers(0, 20, (64, V)).astype(np.float32)
    ids = sample(jnp.asarray(values), jax.random.split(jax.random.key(0), 64), GREEDY)
    np.testing.assert_array_equal(ids, [row.tolist().index(row.max()) for row in values])


@pytest.mark.parametrize("sampler", [Sampler(temperature=1.0, top_k=1), Sampler(temperature=1.0, top_p=1e-6)])
def test_narrowest_sampling_is_greedy(sampler: Sampler):
    logits = random_logits(64, 5000)
    keys = jax.random.split(jax.random.key(0), 64)
    np.testing.assert_array_equal(sample(logits, keys, sampler), jnp.argmax(logits, -1))


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Sampler(temperature=1.0), [0.4, 0.05, 0.3, 0.15, 0.1]),
        # squares 16, 0.25, 9, 2.25, 1 over their sum 28.5
        (Sampler(temperature=0.5), [0.5614, 0.0088, 0.3158, 0.0789, 0.0351]),
        (Sampler(temperature=1.0, top_k=2), [4 / 7, 0, 3 / 7, 0, 0]),
        # 0.4 + 0.3 < 0.8: the token that crosses is kept
        (Sampler(temperature=1.0, top_p=0.8), [0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85, 0]),
        # top-k first: 4/7 of what is left exceeds 0.5
        (Sampler(temperature=1.0, top_k=2, top_p=0.5), [1, 0, 0, 0, 0]),
    ],
)
def test_distribution(sampler: Sampler, expected: list[float]):
    # four standard deviations of a frequency of 20,000 draws are at most 0.0142
    np.testing.assert_allclose(frequencies(LOGITS, sampler), expected, atol=0.0142)


def test_nucleus_of_the_best_1024_uses_the_true_normaliser():
    """5000 tokens: the best three hold 0.6 of all, but 0.88 of the best 1024. A cut at 0.7 must look beyond them."""
    probabilities = np.full(5000, 0.4 / 4997)
    probabilities[:3] = 0.3, 0.2, 0.1
    ids = np.asarray(_many(np.log(probabilities), Sampler(temperature=1.0, top_p=0.7), 4000))
    assert (ids >= 3).any()
    assert (np.asarray(_many(np.log(probabilities), Sampler(temperature=1.0, top_p=0.599), 4000)) < 3).all()


def _many(logits: np.ndarray, sampler: Sampler, draws: int) -> jax.Array:
    row = jnp.asarray(logits, jnp.float32)[None]
    keys = jax.random.split(jax.random.key(5), draws)
    return jax.lax.map(lambda key: sample(row, key[None], sampler)[0], keys)


@pytest.mark.parametrize("exact", [False, True])
def test_only_the_exact_path_draws_beyond_the_best_1024(exact: bool):
    logits = np.linspace(0.01, 0.0, 3000, dtype=np.float32)  # nearly flat, best first
    ids = _many(logits, Sampler(temperature=1.0, top_p=0.9, exact=exact), 400)
    assert int(ids.max()) < (2705 if exact else NUCLEUS)
    assert (ids >= NUCLEUS).any() == exact


def _nucleus(row: jax.Array) -> set[int]:
    p = np.asarray(jax.nn.softmax(row), np.float64)
    order = np.argsort(-p)
    return set(order[: int(np.searchsorted(np.cumsum(p[order]), 0.9)) + 1].tolist())


@pytest.mark.parametrize("exact", [False, True])
def test_draws_stay_in_the_nucleus(exact: bool):
    logits = random_logits(1, 3000, scale=4.0)
    ids = _many(np.asarray(logits[0]), Sampler(temperature=1.0, top_p=0.9, exact=exact), 400)
    drawn = set(np.asarray(ids).tolist())
    assert drawn <= _nucleus(logits[0])
    assert len(drawn) > 10


@pytest.mark.parametrize(
    "sampler", [Sampler(temperature=0.8), Sampler(temperature=0.8, top_k=40), Sampler(temperature=0.8, top_p=0.9)]
)
def test_a_row_draws_the_same_in_another_slot_and_batch(sampler: Sampler):
    logits = random_logits(6, 1500)
    keys = jax.random.split(jax.random.key(4), 6)
    together = sample(logits, keys, sampler)
    order = np.array([3, 0, 5, 1, 4, 2])
    np.testing.assert_array_equal(sample(logits[order], keys[order], sampler), together[order])
    for i in range(6):
        assert sample(logits[i : i + 1], keys[i : i + 1], sampler)[0] == together[i]


def test_bfloat16_logits_are_drawn_in_float32():
    logits = random_logits(4, 500).astype(jnp.bfloat16)
    keys = jax.random.split(jax.random.key(6), 4)
    sampler = Sampler(temperature=0.7)
    np.testing.assert_array_equal(sample(logits, keys, sampler), sample(logits.astype(jnp.float32), keys, sampler))


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}])
def test_impossible_settings_are_explained(wrong: dict[str, float]):
    with pytest.raises(UserError, match="must be"):
        Sampler(**wrong)

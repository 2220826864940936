"""Traps of training over turns: each fact holds for the product and fails for a variant that falls into the trap.

Where weights come into it, `test_engine.test_an_old_cache_would_be_seen` is the variant, and for packing and padding
`test_packing`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl import advantages as adv
from rl import losses, tokens

REAL = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]], bool)
M = np.array([[0, 0, 1, 1, 0, 1, 0], [0, 1, 0, 1, 0, 0, 0]], bool)
IDS = np.array([[3, 1, 4, 1, 5, 2, 0], [2, 7, 1, 6, 0, 0, 0]])
ADVANTAGES = np.random.default_rng(0).normal(size=M.shape)


def facts(*variants):
    """Parameters of a fact: the product, where it must hold, and variants, where it must not."""
    product, *broken = variants
    return pytest.mark.parametrize(
        ("how", "holds"), [pytest.param(product, True, id="product"), *(pytest.param(v, False, id=v.__name__) for v in broken)]
    )


def ppo(logits, ids, mask):
    """The loss of tokens [B, T] whose distributions are softmax(logits [B, T-1, V])."""
    taken = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(ids)[:, 1:, None], -1)[..., 0]
    ratios = losses.log_ratio(tokens.to_tokens(taken), jnp.full(mask.shape, -2.0), mask)
    return (losses.token_weights(mask) * losses.ppo_loss(ratios, jnp.asarray(ADVANTAGES), mask).loss).sum()


def of_policy_tokens(logits, ids):
    return ppo(logits, ids, jnp.asarray(M))


def of_all_tokens(logits, ids):
    return ppo(logits, ids, jnp.asarray(REAL).at[:, 0].set(False))


def of_the_neighbour(logits, ids):
    return ppo(logits, ids, jnp.asarray(np.roll(M, 1, axis=1)))


@facts(of_policy_tokens, of_all_tokens, of_the_neighbour)
def test_targets_of_context_change_neither_loss_nor_gradient(how, holds):
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(2, 6, 8)))
    others = np.where(M, IDS, (IDS + 3) % 8)
    one, other = map(functools.partial(jax.jit(jax.value_and_grad(how)), logits), (IDS, others))
    assert holds == all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@jax.jit
def chain(rewards, values, mask):
    return adv.gae(rewards, values, mask, gamma=0.9, lam=0.8)


@jax.jit
def decays_at_context(rewards, values, mask):
    found = adv.gae(rewards, jnp.where(mask, values, 0), jnp.ones_like(mask), gamma=0.9, lam=0.8)
    return adv.Gae(*(jnp.where(mask, x, 0) for x in found))


def bootstraps_from_context(rewards, values, mask):
    found, carry = np.zeros(mask.shape), 0.0
    values = np.append(values[0], 0.0)
    for t in reversed(np.flatnonzero(mask[0])):
        carry = rewards[0, t] + 0.9 * values[t + 1] - values[t] + 0.9 * 0.8 * carry
        found[0, t] = carry
    return adv.Gae(found, found + values[:-1])


@facts(chain, decays_at_context, bootstraps_from_context)
@pytest.mark.parametrize("junk", [np.nan, 1e6])
def test_context_between_turns_is_no_time(how, holds, junk):
    mask = np.array([[0, 1, 1, 0, 0, 1, 0]], bool)
    values, rewards = np.where(mask, 0.3, junk), np.array([[0, 0, 0.5, 0, 0, 1.0, 0]])
    found = how(rewards, values, mask)
    compact = chain(rewards[mask][None], np.full((1, 3), 0.3), np.ones((1, 3), bool))
    assert holds == all(np.array_equal(np.asarray(a)[mask], np.asarray(b)[0]) for a, b in zip(found, compact, strict=True))


@jax.jit
def over_the_batch(x, mask):
    return adv.whiten(x, mask)


@jax.jit
def over_each_shard(x, mask):
    return jax.vmap(adv.whiten)(x.reshape(4, 2, -1), mask.reshape(4, 2, -1)).reshape(x.shape)


@jax.jit
def by_squares(x, mask):
    count = mask.sum()
    mean = jnp.where(mask, x, 0).sum() / count
    variance = jnp.where(mask, x**2, 0).sum() / count - mean**2
    return jnp.where(mask, (x - mean) / jnp.sqrt(jnp.maximum(variance, 0) + 1e-8), 0)


@jax.jit
def with_the_context(x, mask):
    return jnp.where(mask, adv.whiten(x, jnp.ones_like(mask)), 0)


@facts(over_the_batch, over_each_shard, by_squares, with_the_context)
def test_whitening_is_that_of_all_policy_tokens(how, holds):
    rng = np.random.default_rng(1)
    x, mask = (1e4 + rng.normal(size=(8, 16))).astype(np.float32), rng.random((8, 16)) < 0.5
    x[:2] += 3  # shards differ
    x[~mask] += 9
    kept = x.astype(np.float64)[mask]
    found = np.asarray(how(x, mask))[mask]
    assert holds == np.allclose(found, (kept - kept.mean()) / kept.std(), atol=2e-3)


def clipped(ratio, advantage):
    mask = jnp.ones((1, 1), bool)
    ratios = losses.log_ratio(jnp.log(ratio)[None, None], jnp.zeros((1, 1)), mask)
    return losses.ppo_loss(ratios, jnp.full((1, 1), advantage), mask).loss[0, 0]


def always_clipped(ratio, advantage):
    return -jnp.clip(ratio, 0.8, 1.28) * advantage


def never_clipped(ratio, advantage):
    return -ratio * advantage


def optimistic(ratio, advantage):
    return -jnp.maximum(ratio * advantage, jnp.clip(ratio, 0.8, 1.28) * advantage)


def one_bound(ratio, advantage):
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)


@facts(clipped, always_clipped, never_clipped, optimistic, one_bound)
def test_clipping_goes_by_the_sign_of_the_advantage(how, holds):
    # (ratio, advantage): loss and slope by hand, eps_low 0.2 and eps_high 0.28.
    table = {
        (0.5, 1.0): (-0.5, -1.0),
        (1.25, 1.0): (-1.25, -1.0),
        (1.5, 1.0): (-1.28, 0.0),
        (0.5, -1.0): (0.8, 0.0),
        (1.5, -1.0): (1.5, 1.0),
        (10.0, -1.0): (10.0, 1.0),
        (10.0, 0.0): (0.0, 0.0),
    }
    compiled = jax.jit(jax.value_and_grad(how))
    found = [compiled(ratio, advantage) for ratio, advantage in table]
    assert holds == np.allclose(found, list(table.values()), atol=1e-5)


def weighted_once(part, mask, rows):
    return (losses.token_weights(mask)[rows] * part(rows)).sum()


def mean_of_means(part, mask, rows):
    return (losses.token_weights(mask[rows]) * part(rows)).sum() * len(rows) / len(mask)


@facts(weighted_once, mean_of_means)
@pytest.mark.parametrize("count", [2, 8])
def test_gradients_do_not_depend_on_the_cut(how, holds, count):
    rng = np.random.default_rng(0)
    mask = rng.random((8, 16)) < np.linspace(0.05, 0.95, 8)[:, None]
    mask, logp, advantages = map(jnp.asarray, (mask, rng.normal(size=(8, 16)) * 0.3, rng.normal(size=(8, 16))))

    @jax.jit
    @jax.grad
    def gradient(logp, rows):
        def part(rows):
            ratios = losses.log_ratio(logp[rows], jnp.zeros_like(logp[rows]), mask[rows])
            return losses.ppo_loss(ratios, advantages[rows], mask[rows]).loss

        return how(part, mask, rows)

    whole = gradient(logp, np.arange(8))
    parts = sum(np.asarray(gradient(logp, rows)) for rows in np.split(np.arange(8), count))
    assert holds == np.allclose(parts, whole, rtol=1e-5, atol=1e-7)

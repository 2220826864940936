"""One update: targets by algorithm, gradients that do not depend on how a batch is cut, and steps that refuse NaN."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_update import CFG

from jaxllm import params
from rl import critic, groups, tokens, update
from rl.config import Algo, Optim
from rl.types import Stop, Trajectory, Turn
from rl.update import Setting, TrainState


def setting(**algo):
    """A setting with a warm optimiser."""
    return Setting(CFG, Algo(**algo), Optim(actor_lr=1e-2, critic_lr=1e-2, warmup=1, weight_decay=0.0), 1.0)


COMMON = setting()  # scores are the same by all algorithms: one program for them


@pytest.fixture(scope="module")
def batch():
    """Two groups of two, of different lengths; the second member of each is solved."""
    rng = np.random.default_rng(0)
    played = []
    for i in range(4):
        turns = []
        for k in range(1 + i):
            ids = tuple(rng.integers(0, 32, 2).tolist())
            context = tuple(rng.integers(0, 32, 3).tolist())
            turns.append(Turn(context, ids, (-3.0,) * 2, (0, 0), reward=float(i % 2 and k == i), state=f"s{k % 2}"))
        played.append(Trajectory(tuple(turns), Stop.TERMINATED, outcome=float(i % 2), success=bool(i % 2)))
    return tokens.make_batch(played, [0, 0, 1, 1], num_rows=8)


def state_of(setting):
    """Fresh weights and moments."""
    weights = params.init(jax.random.key(0), CFG, stacked=True)
    judge = critic.init(CFG, trunk=params.init(jax.random.key(1), CFG, stacked=True)) if setting.algo.critic else None
    return TrainState(
        policy=weights,
        critic=judge,
        policy_opt=update.optimiser(setting.optim.actor_lr, setting.optim).init(weights),
        critic_opt=update.optimiser(setting.optim.critic_lr, setting.optim).init(judge) if judge else (),
        reference=None,
    )


def aims_of(setting, batch, state=None, anchors=None):
    """Targets of a batch under fresh weights."""
    scores = update.score(COMMON, state or state_of(COMMON), jnp.asarray(batch.tokens))
    return update.targets(setting, batch, scores, anchors)


def copy(tree):
    """Donated arguments need one."""
    return jax.tree.map(jnp.copy, tree)


def test_ppo_aims_at_the_outcome(batch):
    plain = setting(lambda_policy=1.0, whiten=False)
    aims, figures = aims_of(plain, batch)
    mask = np.asarray(batch.mask)
    # A critic that says 0 everywhere, gamma and lambda 1: every token of a trajectory has its outcome.
    expected = np.where(mask, np.asarray(batch.outcome)[:, None], 0)
    np.testing.assert_allclose(aims.advantages, expected, atol=1e-6)
    np.testing.assert_allclose(aims.returns, expected, atol=1e-6)
    assert figures["off/abs_dlogp_mean"] > 0
    white, _ = aims_of(setting(lambda_policy=1.0), batch)
    assert np.asarray(white.advantages)[mask].mean() == pytest.approx(0, abs=1e-5)


def test_adaptive_lambda_is_that_of_each_trajectory(batch):
    _, figures = aims_of(setting(alpha=0.5), batch)
    lengths = np.array([2, 4, 6, 8])
    expected = np.clip(1 - 1 / (0.5 * lengths), 0, 1)
    assert figures["gae/lambda_mean"] == pytest.approx(expected.mean(), abs=1e-6)
    assert figures["gae/lambda_max"] == pytest.approx(0.75)


def test_group_estimators(batch):
    aims, figures = aims_of(setting(name="grpo"), batch)
    first = np.asarray(aims.advantages)[np.arange(4), np.argmax(batch.mask[:4], axis=1)]
    np.testing.assert_allclose(first, [-0.7071058, 0.7071058] * 2, atol=1e-6)
    assert figures["groups/zero_var"] == 0
    aims, _ = aims_of(setting(name="rloo"), batch)
    np.testing.assert_allclose(np.asarray(aims.advantages)[1][np.asarray(batch.mask[1])], 1.0, atol=1e-6)
    keys = [["s0"], ["s0", "s1"], ["s0", "s1", "s0"], ["s0", "s1", "s0", "s1"]]
    anchors = groups.anchor_ids(keys, [0, 0, 1, 1], 4)
    two_level, _ = aims_of(setting(name="gigpo"), batch, anchors=anchors)
    assert not np.allclose(two_level.advantages, aims_of(setting(name="grpo"), batch)[0].advantages)
    assert (np.asarray(two_level.advantages)[~np.asarray(batch.mask)] == 0).all()


@pytest.mark.parametrize("reduction", ["token_mean", "seq_mean_token_mean"])
def test_the_step_does_not_depend_on_micro_batches(reduction, batch):
    plain = setting(reduction=reduction)
    state = state_of(plain)
    aims, _ = aims_of(plain, batch, state)
    results = []
    for count in (1, 4):
        cut = dataclasses.replace(plain, optim=dataclasses.replace(plain.optim, micro_batches=count))
        step = update.policy_step(
            cut, copy(state.policy), copy(state.policy_opt), jnp.asarray(batch.tokens), jnp.arange(8), aims
        )
        results.append(step)
        assert float(step.metrics["ppo/kl_k3"]) == pytest.approx(0, abs=1e-6)  # the ratio is 1 before the first step
        assert float(step.metrics["ppo/clip_high_frac"]) == 0
    for step in results[1:]:
        # The moments hold the gradient itself; Adam's first step of it is near to its sign.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7), step.opt, results[0].opt)
        assert float(step.metrics["ppo/loss"]) == pytest.approx(float(results[0].metrics["ppo/loss"]), abs=1e-6)


def test_small_steps_of_bfloat16_passes_are_not_lost(batch):
    plain = setting()
    optim = dataclasses.replace(plain.optim, actor_lr=1e-6, compute_dtype="bfloat16")
    half = dataclasses.replace(plain, optim=optim)
    state = state_of(half)
    aims, _ = aims_of(plain, batch, state)
    before = copy(state.policy)
    step = update.policy_step(half, copy(before), state.policy_opt, jnp.asarray(batch.tokens), jnp.arange(8), aims)
    assert {leaf.dtype for leaf in jax.tree.leaves((step.params, step.opt[1][0].mu, step.opt[1][0].nu))} == {
        jnp.dtype("float32")
    }
    old, new = before["norm"]["weight"], step.params["norm"]["weight"]
    np.testing.assert_allclose(np.abs(new - old), 1e-6, rtol=0.1)  # Adam's first step is the learning rate
    assert (new.astype(jnp.bfloat16) == old.astype(jnp.bfloat16)).all()  # weights in that dtype would not have moved
    # The passes were in bfloat16: the gradient is that of float32 but for its rounding.
    exact = update.policy_step(
        plain, copy(before), copy(state_of(plain).policy_opt), jnp.asarray(batch.tokens), jnp.arange(8), aims
    )
    a, b = (one.opt[1][0].mu["embed_tokens"]["weight"] for one in (step, exact))
    assert 1e-5 < np.linalg.norm(a - b) / np.linalg.norm(b) < 0.1


def test_context_does_not_move_weights(batch):
    plain = setting()
    state = state_of(plain)
    aims, _ = aims_of(plain, batch, state)
    junk = dataclasses.replace(
        aims, **{name: jnp.where(aims.mask, getattr(aims, name), jnp.nan) for name in ("advantages", "logp_old")}
    )
    args = jnp.asarray(batch.tokens), jnp.arange(8)
    one = update.policy_step(plain, copy(state.policy), copy(state.policy_opt), *args, aims)
    other = update.policy_step(plain, copy(state.policy), copy(state.policy_opt), *args, junk)
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    padded = jnp.where(batch.real, args[0], 5)  # other ids of padding
    third = update.policy_step(plain, copy(state.policy), copy(state.policy_opt), padded, args[1], aims)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), one.params, third.params)


def test_a_step_that_is_not_finite_is_skipped(batch):
    plain = setting()
    state = state_of(plain)
    aims, _ = aims_of(plain, batch, state)
    row, at = 0, int(np.argmax(batch.mask[0]))
    bad = dataclasses.replace(aims, advantages=aims.advantages.at[row, at].set(jnp.nan))
    before = copy(state.policy)
    step = update.policy_step(plain, copy(before), copy(state.policy_opt), jnp.asarray(batch.tokens), jnp.arange(8), bad)
    assert bool(step.metrics["ppo/skipped"])
    jax.tree.map(np.testing.assert_array_equal, step.params, before)


def test_the_critic_learns_alone(batch):
    plain = setting(lambda_policy=1.0)
    state = state_of(plain)
    aims, _ = aims_of(plain, batch, state)
    losses, judge, opt = [], state.critic, state.critic_opt
    for _ in range(12):
        step = update.critic_step(plain, judge, opt, jnp.asarray(batch.tokens), aims, None)
        judge, opt = step.params, step.opt
        losses.append(float(step.metrics["critic/loss"]))
    assert losses[-1] < losses[0] / 2
    assert losses[0] == pytest.approx(0.5 * np.average(np.asarray(batch.outcome[:4]), weights=[2, 4, 6, 8]), abs=1e-5)


def test_imitation_lowers_the_loss_on_its_tokens(batch):
    plain = setting()
    weights = state_of(plain).policy
    opt = update.optimiser(1e-2, plain.optim).init(weights)
    losses = []
    for _ in range(10):
        weights, opt, figures = update.imitation_step(plain, weights, opt, jnp.asarray(batch.tokens), jnp.asarray(batch.mask))
        losses.append(float(figures["sft/loss"]))
    assert losses[0] == pytest.approx(np.log(32), abs=0.1)  # small random weights know nothing
    assert losses[-1] < losses[0] - 0.5

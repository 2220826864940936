"""What follows an episode that a limit cut short: nothing, or what the critic says of its last state."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_update

from jaxllm.errors import UserError
from rl import advantages as adv
from rl import critic, tokens, update
from rl.config import PRESETS, Algo
from rl.types import Batch, Stop, Trajectory, Turn

GAMMA, LAMBDA, WORTH = 0.9, 0.8, 0.6
ENDS = (Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.TERMINATED, Stop.PARSE_ERROR, Stop.TIMEOUT, Stop.CONTEXT_OVERFLOW)
CUT = np.array([True, True, False, False, True, True])
FULL = (Stop.MAX_TOKENS, Stop.TERMINATED)
WIDTH = 18


def episodes(*, rewritten: bool = False, reward: float = 0.0) -> Batch:
    """An episode of three turns for each end. Two of them end with the last token of their row, the others read on."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, 32, count).tolist())

    played = []
    for stop in ENDS:
        count, read = (2, 0) if stop in FULL else (1, 3)
        turns = [Turn(ids(4), ids(count), (-3.0,) * count, (0,) * count, rewritten=rewritten and k > 0) for k in range(3)]
        turns[-1] = dataclasses.replace(turns[-1], reward=reward)
        played.append(Trajectory(tuple(turns), stop, outcome=reward, closing=ids(read)))
    rows, width = (24, 8) if rewritten else (8, WIDTH)
    return tokens.make_batch(played, [0] * len(ENDS), num_rows=rows, buckets=(width,))


def setting(**algo) -> update.Setting:
    plain = Algo(lambda_policy=LAMBDA, gamma=GAMMA, whiten=False, **algo)
    return dataclasses.replace(small_update.setting(), algo=plain)


STANDING = setting(bootstrap_truncated=True)


@pytest.fixture(scope="module")
def judged() -> update.TrainState:
    """A policy, and a critic to whom no two states are worth the same."""
    return small_update.begin(STANDING)


def score(state: update.TrainState, batch: Batch, worth: float | None = None):
    """What the models say; values are all ``worth`` if given."""
    logp, entropy, values, reference = update.score(STANDING, state, jnp.asarray(batch.tokens))
    assert values.shape == (batch.shape[0], batch.shape[1] + 1)
    return logp, entropy, values if worth is None else jnp.full_like(values, worth), reference


def ahead(mask: np.ndarray) -> np.ndarray:
    """[B, T] of each policy token: how many of its row it and those after it are."""
    return np.where(mask, np.cumsum(mask[:, ::-1], axis=1)[:, ::-1], 0)


def closed_form(m: np.ndarray, boot: np.ndarray, reward: float) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns where every state is worth `WORTH`: all TD errors but the last are (gamma - 1) worth."""
    decay, step = GAMMA * LAMBDA, (GAMMA - 1) * WORTH
    before = step * (1 - decay ** (m - 1)) / (1 - decay)
    last = reward + GAMMA * boot - WORTH
    return before + decay ** (m - 1) * last, GAMMA ** (m - 1.0) * reward + GAMMA**m * boot


@pytest.mark.parametrize(("algo", "boot"), [({}, 0.0), ({"bootstrap_truncated": True}, WORTH)])
def test_the_last_state_of_a_cut_episode_follows_it_if_so_chosen(algo: dict, boot: float, judged):
    batch = episodes(reward=0.5)
    aims, _ = update.targets(setting(**algo), batch, score(judged, batch, WORTH))
    mask = np.asarray(batch.mask)
    assert [bool(row[-1]) for row in mask[: len(ENDS)]] == [stop in FULL for stop in ENDS]
    cut = np.zeros((len(mask), 1))
    cut[: len(CUT), 0] = CUT
    advantages, returns = closed_form(np.maximum(ahead(mask), 1), boot * cut, 0.5)
    np.testing.assert_allclose(np.asarray(aims.advantages)[mask], advantages[mask], atol=1e-6)
    np.testing.assert_allclose(np.asarray(aims.returns)[mask], returns[mask], atol=1e-6)
    assert (np.asarray(aims.returns)[~mask] == 0).all()


def test_it_is_the_state_after_the_last_sampled_token(judged):
    batch = episodes()
    whole = dataclasses.replace(STANDING, algo=dataclasses.replace(STANDING.algo, gamma=1.0))
    aims, _ = update.targets(whole, batch, score(judged, batch))
    mask, ids = np.asarray(batch.mask), np.asarray(batch.tokens)
    ends = [int(np.flatnonzero(row)[-1]) for row in mask[: len(ENDS)]]
    # Of the row up to that token and one more, whatever that is: the value before it.
    rows = np.array([np.pad(row[: end + 1], (0, WIDTH - end), constant_values=7) for row, end in zip(ids, ends, strict=False)])
    values = np.asarray(jax.jit(critic.values, static_argnums=1)(judged.critic, small_update.CFG, jnp.asarray(rows)))
    expected = np.where(CUT, values[np.arange(len(ends)), np.array(ends) + 1], 0)
    for i, worth in enumerate(expected):  # with gamma and lambda 1 every token's return is what follows the end
        np.testing.assert_allclose(np.asarray(aims.returns)[i][mask[i]], worth, atol=1e-5)
    assert len(set(np.round(expected[CUT], 4))) == CUT.sum()


def test_an_episode_of_several_rows_is_cut_once(judged):
    batch = episodes(rewritten=True, reward=0.5)
    assert batch.order.max() == 2
    aims, _ = update.targets(STANDING, batch, score(judged, batch, WORTH))
    mask, traj = np.asarray(batch.mask), np.asarray(batch.traj_id)
    for i, cut in enumerate(CUT):
        chain = np.concatenate([np.asarray(aims.returns)[row][mask[row]] for row in np.flatnonzero(traj == i)])
        m = np.arange(len(chain), 0, -1)
        np.testing.assert_allclose(chain, closed_form(m, WORTH * cut, 0.5)[1], atol=1e-6)


def by_the_width(after, mask, truncated):
    return adv.bootstrap(after, mask, mask[:, -1])


def before_the_last_token(after, mask, truncated):
    return adv.bootstrap(jnp.pad(after, ((0, 0), (1, 0)))[:, :-1], mask, truncated)


def after_what_was_read_last(after, mask, truncated):
    return jnp.where(truncated & mask.any(axis=1), after[:, -1], 0)


def whatever_the_end(after, mask, truncated):
    return adv.bootstrap(after, mask, jnp.ones_like(truncated))


@pytest.mark.parametrize(
    "how", [adv.bootstrap, by_the_width, before_the_last_token, after_what_was_read_last, whatever_the_end]
)
def test_the_end_is_known_and_not_guessed(how):
    # The longest row ended by itself, the shortest was cut, one has no token of the policy.
    mask = np.array([[0, 1, 0, 1, 1], [0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    after = np.arange(20.0).reshape(4, 5) + 1
    found = how(jnp.asarray(after), jnp.asarray(mask), jnp.array([False, True, True, True]))
    assert np.array_equal(found, [0, 7, 13, 0]) == (how is adv.bootstrap)
    gradient = jax.grad(lambda x: how(x, jnp.asarray(mask), jnp.array([False, True, True, True])).sum())(jnp.asarray(after))
    assert how is not adv.bootstrap or not gradient.any()


def test_it_needs_a_critic():
    config = PRESETS["toy-hilo"]
    dataclasses.replace(config, algo=dataclasses.replace(config.algo, bootstrap_truncated=True))
    with pytest.raises(UserError, match=r"algo\.bootstrap_truncated asks a critic, and algo\.name grpo has none"):
        dataclasses.replace(config, algo=dataclasses.replace(config.algo, name="grpo", bootstrap_truncated=True))

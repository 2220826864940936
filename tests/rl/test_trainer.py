"""A whole run: after a kill it goes on to the numbers of one that was not killed; it watches itself; it compiles once."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from jax.experimental.compilation_cache import compilation_cache

import envs
from jaxllm import params, sharding
from jaxllm.errors import UserError
from rl import metrics, models, trainer, update
from rl.config import Memory
from rl.state import Checkpoints, Counters
from rl.types import Stop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled programs that the processes share. The model is small meanwhile."""
    folder = tmp_path_factory.mktemp("programs")
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_disable_most_optimizations": True,
    }
    before = {name: jax.config.values[name] for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "TINY", small_run.CFG)
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield folder
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> trainer.Trainer:
    """A run that nothing disturbed, at its end. Its folder holds every checkpoint."""
    run = small_run.make(tmp_path_factory.mktemp("whole"))
    figures = small_run.train(run)
    assert len(figures) == small_run.UPDATES
    assert len({one["reward/outcome"] for one in figures}) > 1  # otherwise there is nothing to be equal
    assert all(one["ppo/grad_norm"] > 0.01 and one["critic/grad_norm"] > 0.01 for one in figures)
    return run


def begun(whole: trainer.Trainer, folder: Path, update: int) -> Path:
    """The folder of a run that ended after this update, its metrics a little beyond."""
    shutil.copytree(whole.folder / "checkpoints" / str(update), folder / "checkpoints" / str(update))
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(whole.folder / name, folder / name)
    return folder


def at(whole: trainer.Trainer, folder: Path, update: int = 2, **settings) -> trainer.Trainer:
    """A trainer that stands where the whole run stood after this update."""
    run = small_run.make(begun(whole, folder, update), **settings)
    run.state, run.counters = run.checkpoints.restore(run.state)
    run._send()
    return run


def assert_equal(run: trainer.Trainer, whole: trainer.Trainer) -> None:
    """Weights, moments, counters and the file of figures, bit for bit."""
    for (name, a), (_, b) in zip(small_run.leaves(run), small_run.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    ours, theirs = ([small_run.timeless(row) for row in metrics.read(one.folder)] for one in (run, whole))
    assert ours == theirs


# Stopping and going on.

CHILD = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 8)
sys.path.insert(0, "tests/rl")
import small_run
from rl import engine, update
small_run.prepare()
signal.alarm(250)
folder, moment, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def before(holder, name):
    former, calls = getattr(holder, name), []
    def dying(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            die()
        return former(*arguments, **options)
    setattr(holder, name, dying)

if moment == "save":  # all is written, but the folder has not its name yet
    sys.addaudithook(lambda event, found: die() if event == "os.rename" and Path(str(found[1])).name == str(count) else None)
elif moment == "play":
    before(engine.Engine, "advance")
else:  # the critic has moved, the policy has not
    before(update, "policy_step")
small_run.train(small_run.make(Path(folder)), print)
"""


def test_a_run_that_is_killed_thrice_ends_as_one_that_is_not(whole, programs: Path, tmp_path: Path):
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for moment, count, left in (("save", 2, [0, 1]), ("play", 5, [0, 1]), ("step", 6, [0, 1, 2])):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, tmp_path, moment, str(count)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, (moment, done.stdout, done.stderr)
        there = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal())
        assert there == left, moment
    said: list[str] = []
    run = small_run.make(tmp_path)
    figures = small_run.train(run, said.append)
    assert said == ["goes on after update 2"]
    assert len(figures) == small_run.UPDATES - 2
    assert_equal(run, whole)


def test_a_finished_run_may_get_more_updates(whole, tmp_path: Path):
    short = small_run.make(tmp_path, updates=2)
    small_run.train(short)
    longer = small_run.make(tmp_path)
    small_run.train(longer)
    assert_equal(longer, whole)
    said: list[str] = []
    assert small_run.train(small_run.make(tmp_path, updates=1), said.append) == []
    assert said == ["all is done after update 4: more --updates go on"]


@pytest.mark.parametrize("lost", ["policy_opt", "critic_opt", "critic", "policy", "reference", "groups", "episodes", "update"])
def test_every_part_of_a_checkpoint_matters(lost: str, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    former = Checkpoints.restore

    def forgetful(self, like):
        state, counters = former(self, like)
        if lost in ("groups", "episodes"):
            return state, dataclasses.replace(counters, **{lost: 0})
        if lost == "update":  # the order of mini-batches follows from it
            return state, dataclasses.replace(counters, update=counters.update + 5)
        return dataclasses.replace(state, **{lost: getattr(like, lost)}), counters

    monkeypatch.setattr(Checkpoints, "restore", forgetful)
    run = small_run.make(begun(whole, tmp_path, 2), updates=9 if lost == "update" else small_run.UPDATES)
    assert small_run.train(run)
    apart = [
        name
        for (name, a), (_, b) in zip(small_run.leaves(run), small_run.leaves(whole), strict=True)
        if name.startswith(".policy[") and not np.array_equal(a, b)
    ]
    assert apart


def test_other_settings_are_refused_by_name(whole, tmp_path: Path):
    begun(whole, tmp_path, 2)
    algo = dataclasses.replace(small_run.CONFIG.algo, gamma=0.5)
    with pytest.raises(UserError) as found:
        small_run.make(tmp_path, algo=algo, seed=3, updates=50)
    assert str(found.value).splitlines()[1:] == ["  algo.gamma is 1.0 there, not 0.5", "  seed is 0 there, not 3"]


def test_a_checkpoint_is_restored_as_it_was_and_where_it_belongs(whole, tmp_path: Path):
    mesh = sharding.make_mesh(2, 2, 2)
    run = at(whole, tmp_path, small_run.UPDATES)
    spread = small_run.make(tmp_path, mesh=mesh)
    state, counters = spread.checkpoints.restore(spread.state)
    assert counters == run.counters == whole.counters
    for ours, theirs, fresh in zip(*map(jax.tree.leaves, (state, whole.state, spread.state)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.sharding.is_equivalent_to(fresh.sharding, ours.ndim)
        assert ours.dtype == theirs.dtype
    split = state.policy_opt[1][0].mu["layers"]["mlp"]["up_proj"]["weight"]
    assert np.abs(split).max() > 0  # moments that a fresh state does not have
    assert split.addressable_shards[0].data.size == split.size // 4


def test_a_damaged_checkpoint_or_one_of_another_model_is_one_message(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = small_run.make(begun(whole, tmp_path, 2))
    wider = dataclasses.replace(run.state, policy=jax.tree.map(lambda x: jnp.zeros((*x.shape, 2)), run.state.policy))
    with pytest.raises(UserError, match="the checkpoint of update 2 can't be restored"):
        run.checkpoints.restore(wider)
    with pytest.raises(UserError, match="the checkpoint of update 2 can't be restored"):
        run.checkpoints.restore(dataclasses.replace(run.state, critic=None, critic_opt=()))
    for file in (tmp_path / "checkpoints" / "2").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(UserError, match="the checkpoint of update 2 can't be restored"):
        run.checkpoints.restore(run.state)


def test_old_checkpoints_go(tmp_path: Path):
    kept = Checkpoints(tmp_path, keep=2)
    state = update.TrainState({"a": jnp.ones(3)}, None, (), (), None)
    for i in range(4):
        kept.save(state, Counters(update=i))
    kept.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]


# What a run sees to.


def test_evaluation_changes_nothing(whole, tmp_path: Path):
    watched = small_run.make(tmp_path, eval_every=1)
    figures = small_run.train(watched)
    assert all("eval/success_rate" in one for one in figures)
    for (name, a), (_, b) in zip(small_run.leaves(watched), small_run.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    assert (
        whole.evaluate() == watched.evaluate() == {key[5:]: value for key, value in figures[-1].items() if key[:5] == "eval/"}
    )


def test_versions_are_counted_by_token(whole, tmp_path: Path):
    run = at(whole, tmp_path)
    for _ in range(2):
        version = run.counters.version
        played, _ = run._collect()
        assert {one for each in played for turn in each.turns for one in turn.version} == {version}
        assert run.engine.version == version
        before = run.counters
        run.iterate()
        assert run.counters.version == version + 1
        assert run.counters.accepted == before.accepted + 8
        assert run.counters.groups == before.groups + 4
    assert [row["off/lag_max"] for row in metrics.read(whole.folder)] == [0.0] * small_run.UPDATES


def test_the_sampler_keeps_its_weights_until_they_are_published(whole, tmp_path: Path):
    run = at(whole, tmp_path)
    sampler = run.engine._params
    before = jax.device_get(sampler)
    send, run._publish = run._publish, lambda: None
    run.iterate()
    assert run.counters.update == 3
    jax.tree.map(np.testing.assert_array_equal, sampler, before)
    assert run.engine._params is sampler
    send()
    assert np.abs(run.engine._params["norm"]["weight"] - before["norm"]["weight"]).max() > 0
    # Without a copy the next step takes the memory away under the sampler.
    shared = params.unstack(run.state.policy)
    run.iterate()
    assert shared["norm"]["weight"].is_deleted()


def test_weights_and_moments_are_float32_and_stay_in_place(whole):
    for path, leaf in jax.tree_util.tree_leaves_with_path(whole.state):
        assert leaf.dtype == (jnp.int32 if "count" in jax.tree_util.keystr(path) else jnp.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(whole.engine._params)} == {jnp.dtype("float32")}


def test_nothing_is_compiled_after_warm_up(whole, tmp_path: Path):
    run = at(whole, tmp_path)
    for _ in range(4):
        run.iterate()
    programs = (update.score, update._aim, update.critic_step, update.policy_step)
    before = [program._cache_size() for program in programs]
    compiled: list[str] = []

    def listen(event: str, seconds: float, **_) -> None:
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for _ in range(16):
        run.iterate()
    jax.monitoring.unregister_event_duration_listener(listen)
    assert [program._cache_size() for program in programs] == before
    assert not [event for event in compiled if "compile" in event]


class Broken:
    """Environments of which some crash at every step."""

    def __init__(self, share: float):
        self.share, self.made, self.former = share, 0, envs.make

    def __call__(self, name: str):
        env = self.former(name)
        self.made += 1
        if self.made * self.share % 1 + self.share >= 1:
            env._act = self.crash
        return env

    def crash(self, action):
        raise RuntimeError("the game is broken")


def test_a_run_stops_when_too_many_episodes_fail(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs, "make", Broken(1.0))
    run = small_run.make(begun(whole, tmp_path, 2))
    with pytest.raises(UserError) as found:
        small_run.train(run)
    assert str(found.value) == "100% of the episodes failed: RuntimeError: the game is broken"


def test_few_failures_are_left_out(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = at(whole, tmp_path)
    former = run._play

    def play(episodes):
        pairs = former(episodes)
        lost = dataclasses.replace(pairs[0][1], stop=Stop.ENV_ERROR, outcome=float("nan"))
        return [(pairs[0][0], lost), *pairs[1:]]

    monkeypatch.setattr(run, "_play", play)
    before = run.counters.accepted
    figures = run.iterate()
    assert figures["env/failed_frac"] == 1 / 8
    assert run.counters.accepted == before + 7
    assert np.isfinite(figures["ppo/grad_norm"])


def test_three_steps_that_are_not_finite_end_the_run(whole, tmp_path: Path):
    run = at(whole, tmp_path)
    before = jax.device_get(run.state.policy)
    run.state.critic["head"]["bias"] *= np.nan  # every value, and so every advantage
    with pytest.raises(UserError, match="3 steps in a row had gradients that are not finite"):
        run.iterate()
    jax.tree.map(np.testing.assert_array_equal, run.state.policy, before)
    assert run.counters.skipped == 3


def test_dynamic_sampling_plays_until_enough_groups_differ(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = at(whole, tmp_path)
    algo = dataclasses.replace(small_run.CONFIG.algo, name="dapo", dynamic_sampling=True, max_resample_rounds=8)
    run.config = dataclasses.replace(small_run.CONFIG, algo=algo)
    before, drawn = run.counters.episodes, run.counters.groups
    played, groups = run._collect()
    after, of_all = run.counters, run._figures["reward/outcome"]
    following = run._collect()
    again = at(whole, tmp_path / "again")
    again.config, again.counters = run.config, after
    turns = [[one.turns for one in collected[0]] for collected in (again._collect(), following)]
    assert turns[0] == turns[1]  # groups that were dropped count as drawn
    assert len(set(groups)) == 4
    assert all(len({one.outcome for one, at in zip(played, groups, strict=True) if at == group}) == 2 for group in range(4))
    assert after.episodes - before == 2 * (after.groups - drawn) > len(played) == 8
    assert np.mean([one.outcome for one in played]) == 0.5 != of_all  # figures are of all that was played
    former = run._play

    def even(episodes):
        return [(episode, dataclasses.replace(one, outcome=1.0)) for episode, one in former(episodes)]

    monkeypatch.setattr(run, "_play", even)
    with pytest.raises(UserError, match="no group of this update had unequal outcomes"):
        run._collect()


def test_prompts_that_leave_out_old_turns_are_trained(whole, tmp_path: Path):
    run = at(whole, tmp_path)
    run.config = dataclasses.replace(small_run.CONFIG, memory=Memory(turns=0))
    figures = run.iterate()
    assert figures["rewritten"] > 0  # segments beyond the first
    assert figures["off/abs_dlogp_max"] < 1e-4  # the trainer reads what the sampler read


@pytest.mark.slow  # test_update_spread.py has the steps alone on five meshes
def test_devices_change_no_figure(whole, tmp_path: Path):
    expected = list(metrics.read(whole.folder))[2]
    run = small_run.make(begun(whole, tmp_path, 2), mesh=sharding.make_mesh(2, 2, 2), updates=3)
    (figures,) = small_run.train(run)
    assert run.engine._state.cache.k[0].sharding.num_devices == 8
    assert set(figures) == {name for name in expected if not name.startswith("seconds/")}
    for name, value in figures.items():
        if np.isfinite(value):
            assert value == pytest.approx(expected[name], rel=2e-3, abs=1e-5), name
    fresh = small_run.make(tmp_path / "fresh", mesh=sharding.make_mesh(2, 2, 2)).state
    for now, begin in zip(jax.tree.leaves(run.state), jax.tree.leaves(fresh), strict=True):
        assert now.sharding.is_equivalent_to(begin.sharding, now.ndim)

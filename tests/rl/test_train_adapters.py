"""A run that trains adapters alone: the model stands still, the sampler has both, and what is left behind reads back."""

import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import small_run

from jaxllm import load
from jaxllm.errors import UserError
from rl import lora, models, update
from rl.config import Adapters, Imitate
from rl.trainer import Trainer


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "TINY", small_run.CFG)
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a run that ended after imitation."""
    run = small_run.make(tmp_path_factory.mktemp("start"), updates=0)
    assert small_run.train(run) == []
    return run.folder / "model"


def make(start: Path, folder: Path, updates: int = 2) -> Trainer:
    settings = {"model": str(start), "imitate": Imitate(), "lora": Adapters(rank=2, alpha=8.0)}
    return small_run.make(folder, updates=updates, **settings)


@pytest.fixture(scope="module")
def whole(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run of two updates."""
    run = make(start, tmp_path_factory.mktemp("whole"))
    figures = small_run.train(run)
    assert all(one["ppo/grad_norm"] > 0.01 and one["critic/grad_norm"] > 0.01 for one in figures)
    # Sampler and trainer are one policy, rounding apart.
    assert all(one["off/abs_dlogp_mean"] < 1e-5 for one in figures)
    return run


def weights(folder: Path) -> dict:
    return load.load_params(load.open_checkpoint(folder), dtype=jnp.float32, stacked=True)


def assert_equal(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_adapters_move_and_the_model_stands_still(whole: Trainer, start: Path):
    assert_equal(whole.state.base, weights(start))
    policy, critic = whole.state.policy["layers"], whole.state.critic["trunk"]["layers"]
    for part, linears in policy.items():
        for name, leaves in linears.items():
            assert set(leaves) == {"lora_a", "lora_b"}
            other = critic[part][name]["lora_b"]
            assert np.abs(leaves["lora_b"]).max() > 0  # it began at 0
            assert np.abs(leaves["lora_b"] - other).max() > 0  # the critic's are its own
    moments = [leaf.size for leaf in jax.tree.leaves(whole.state.policy_opt) if leaf.ndim]
    assert sum(moments) == 2 * sum(leaf.size for leaf in jax.tree.leaves(whole.state.policy))


def test_the_sampler_gets_adapters_alone(whole: Trainer):
    before, after = whole._published(), whole._published()
    for layer, block in after["layers"].items():
        for part, linears in whole.state.policy["layers"].items():
            for name, leaves in linears.items():
                found = block[part][name]
                assert found["weight"] is before["layers"][layer][part][name]["weight"]  # no copy is made
                np.testing.assert_array_equal(found["lora_a"], leaves["lora_a"][layer])
                np.testing.assert_allclose(found["lora_b"], 4 * leaves["lora_b"][layer], rtol=1e-6)


def test_the_reference_is_the_policy_that_the_run_began_with(start: Path, tmp_path: Path):
    run = make(start, tmp_path)
    run.environments.close()
    ids = jnp.arange(24)[None] % 50
    logp, _, values, reference = update.score(run.setting, run.state, ids)
    np.testing.assert_array_equal(logp, reference)  # adapters begin without effect
    moved = jax.tree.map(lambda leaf: leaf + 0.1, run.state.policy)
    other, _, again, still = update.score(run.setting, dataclasses.replace(run.state, policy=moved), ids)
    np.testing.assert_array_equal(still, reference)
    np.testing.assert_array_equal(again, values)
    assert np.abs(other - logp).max() > 0.01


def test_what_a_run_leaves_behind(whole: Trainer):
    assert_equal(weights(whole.folder / "model"), lora.merge(whole.state.base, whole.state.policy, whole.setting.lora))
    adapters, sizes = lora.load_peft(whole.folder / "adapter", whole.cfg)
    assert sizes == whole.setting.lora
    for layer, block in adapters["layers"].items():
        assert_equal(block, jax.tree.map(lambda leaf, layer=layer: leaf[layer], whole.state.policy["layers"]))


def test_a_run_goes_on_without_the_model_in_its_checkpoints(whole: Trainer, start: Path, tmp_path: Path):
    small_run.train(make(start, tmp_path, updates=1))
    first = weights(tmp_path / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "export", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # it dies when all is trained, and before the model is written
            small_run.train(make(start, tmp_path))
    run = make(start, tmp_path)
    assert small_run.train(run) == []
    for (name, a), (_, b) in zip(small_run.leaves(run), small_run.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    last = weights(tmp_path / "model")
    assert_equal(last, weights(whole.folder / "model"))  # in the place of that after one update
    assert np.abs(last["layers"]["mlp"]["up_proj"]["weight"] - first["layers"]["mlp"]["up_proj"]["weight"]).max() > 0
    tree = ocp.StandardCheckpointer().metadata((tmp_path / "checkpoints" / "2" / "state").resolve()).item_metadata
    kept = jax.tree.leaves(tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    assert sum(math.prod(leaf.shape) for leaf in kept) == sum(
        leaf.size for leaf in jax.tree.leaves(dataclasses.replace(run.state, base=None))
    )


def test_random_weights_are_not_adapted(tmp_path: Path):
    with pytest.raises(UserError, match=r"lora\.rank adapts a model that has learnt"):
        small_run.make(tmp_path, lora=Adapters(rank=4))


def test_a_model_that_no_run_has_made_stays(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    with pytest.raises(UserError, match="model: is there already"):
        small_run.make(tmp_path, updates=0)
    assert [file.name for file in tmp_path.rglob("*")] == ["model", "mine"]


def test_what_is_not_finite_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"lora\.alpha is nan"):
        small_run.make(tmp_path, lora=Adapters(rank=4, alpha=float("nan")))


def test_a_model_that_is_none_leaves_no_settings(tmp_path: Path):
    with pytest.raises(UserError, match="absent"):
        small_run.make(tmp_path, model=str(tmp_path / "absent"), imitate=Imitate())
    assert list(tmp_path.iterdir()) == []

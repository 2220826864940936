"""Merging: the specification's vector, exactness at the corners, refusals, and checkpoints block by block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import load, params, save, sharding
from jaxllm.errors import UserError
from rl.merge import merge, merge_checkpoints

TREES = [{"w": jnp.array(x)} for x in ([1.0, -2, 0.5], [2.0, 0, -0.5], [-1.0, 4, 1.5])]


def test_weighted_mean():
    np.testing.assert_allclose(merge(TREES, (0.5, 0.3, 0.2))["w"], [0.9, -0.2, 0.4], rtol=1e-6)
    np.testing.assert_allclose(merge(TREES)["w"], [2 / 3, 2 / 3, 0.5], rtol=1e-6)


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.1), (1.2, -0.2, 0.0), (np.nan, 0.5, 0.5), (0.5, 0.5)])
def test_weights_are_never_mended(weights):
    with pytest.raises(UserError, match="weights"):
        merge(TREES, weights)


def test_one_hot_returns_the_bits(tiny_params):
    noise = jax.tree.map(lambda x: x + jnp.float32(1e-8), tiny_params)
    merged = merge([noise, tiny_params], (0.0, 1.0))
    jax.tree.map(np.testing.assert_array_equal, merged, tiny_params)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equal_models_stay_within_a_rounding(dtype):
    x = jax.random.normal(jax.random.key(0), (1000,)).astype(dtype)
    merged = merge([{"w": x}] * 3)["w"]
    assert merged.dtype == dtype
    ulp = np.spacing(np.abs(np.asarray(x, np.float32))) * (1 if dtype == jnp.float32 else 2**16)
    assert (np.abs(np.asarray(merged, np.float32) - np.asarray(x, np.float32)) <= ulp).all()


def test_the_first_difference_is_named():
    with pytest.raises(UserError, match=r"only one of them has \['b'\]"):
        merge([{"w": TREES[0]["w"], "b": jnp.ones(2)}, TREES[1]])
    with pytest.raises(UserError, match=r"\['w'\] is float32\[3\] in tree 0 and float32\[2\] in tree 1"):
        merge([TREES[0], {"w": jnp.ones(2)}])
    with pytest.raises(UserError, match="int32 and differs"):
        merge([{"n": jnp.array([1])}, {"n": jnp.array([2])}])
    assert merge([{"n": jnp.array([1])}] * 2)["n"] == 1


def test_shards_stay_where_they_are(tiny_config, tiny_params):
    mesh = sharding.make_mesh(fsdp=4, tensor=2)
    places = sharding.shardings(tiny_config, mesh)
    placed = jax.device_put(tiny_params, places)
    merged = merge([placed, placed], (0.5, 0.5))
    jax.tree.map(lambda leaf, place: leaf.sharding.is_equivalent_to(place, leaf.ndim) or pytest.fail(str(leaf)), merged, places)
    jax.tree.map(np.testing.assert_array_equal, merged, tiny_params)


def test_checkpoints(tiny_config, tiny_params, tmp_path):
    other = params.init(jax.random.key(7), tiny_config)
    for name, tree in (("a", tiny_params), ("b", other)):
        save.save_params(tree, tiny_config, tmp_path / name)
    opened = [load.open_checkpoint(tmp_path / name) for name in ("a", "b")]
    merge_checkpoints(opened, tmp_path / "merged", (0.25, 0.75))
    merged = load.load_params(load.open_checkpoint(tmp_path / "merged"))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9), merged, merge([tiny_params, other], (0.25, 0.75))
    )
    merge_checkpoints(opened, tmp_path / "one", (0.0, 1.0))
    jax.tree.map(np.testing.assert_array_equal, load.load_params(load.open_checkpoint(tmp_path / "one")), other)
    save.save_params(other, tiny_config, tmp_path / "half", dtype=jnp.bfloat16)
    with pytest.raises(UserError, match="bfloat16, and float32"):
        merge_checkpoints([opened[0], load.open_checkpoint(tmp_path / "half")], tmp_path / "no")
    assert not (tmp_path / "no").exists()

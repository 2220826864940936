"""Baked checkpoints: equal to the clamped model, readable by others, written whole or not at all."""

import json
import re
from pathlib import Path

import dense_llama
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from trees import by_name

from jaxllm import load, model, params, sharding
from jaxllm.bake import bake
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.errors import UserError

TOKENS = np.array([[5, 0, 17, 80, 3, 96, 41, 7]], np.int32)
CLAMPS = [NeuronClamp(1, 3, -30.0), NeuronClamp(1, 47, 2.5), NeuronClamp(2, 0, 0.7)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_params, tiny_config) -> load.Checkpoint:
    folder = tmp_path_factory.mktemp("bake") / "plain"
    load.save_params(tiny_params, tiny_config, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    return load.open_checkpoint(folder)


@pytest.fixture(scope="module")
def baked(checkpoint) -> load.Checkpoint:
    folder = checkpoint.path.parent / "baked"
    bake(checkpoint, CLAMPS, folder)
    return load.open_checkpoint(folder)


@pytest.fixture(scope="module")
def clamped(checkpoint) -> np.ndarray:
    """Logits of the clamped model."""
    clamp = make_clamp(checkpoint.config, CLAMPS)
    return logits(checkpoint, load.load_params(checkpoint), clamp=clamp)


def logits(checkpoint, weights, **options) -> np.ndarray:
    run = jax.jit(lambda w: model.logits(w, model.forward(w, checkpoint.config, TOKENS, **options)))
    return np.asarray(run(weights))


def test_the_baked_model_equals_the_clamped_one(checkpoint, baked, clamped):
    np.testing.assert_allclose(logits(baked, load.load_params(baked)), clamped, atol=1e-6)
    assert np.abs(clamped - logits(checkpoint, load.load_params(checkpoint))).max() > 1e-2


def test_the_clamp_is_a_zero_row_and_a_bias(checkpoint, baked):
    """Every other number is that of the original file, and the other biases are zero."""
    before, after = (safetensors.numpy.load_file(c.path / "model.safetensors") for c in (checkpoint, baked))
    for clamp in CLAMPS:
        up = f"model.layers.{clamp.layer}.mlp.up_proj"
        assert (after[f"{up}.weight"][clamp.neuron] == 0).all()
        assert after[f"{up}.bias"][clamp.neuron] == np.float32(clamp.value)
        after[f"{up}.weight"][clamp.neuron] = before[f"{up}.weight"][clamp.neuron]
        after[f"{up}.bias"][clamp.neuron] = 0
    biases = {name: array for name, array in after.items() if name not in before}
    assert {name.removeprefix("model.layers.") for name in biases} == {
        f"{layer}.mlp.{site}_proj.bias" for layer in range(3) for site in ("gate", "up", "down")
    }
    assert not any(array.any() for array in biases.values())
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert json.loads((baked.path / "config.json").read_text())["mlp_bias"] is True
    assert baked.stop_ids == checkpoint.stop_ids == {2}


def test_biases_of_all_three_projections_reach_the_computation(baked):
    """Against a float64 reference, with random biases; stacked and on eight devices as well."""
    cfg = baked.config
    rng = np.random.default_rng(0)
    noise = {path: rng.standard_normal(spec.shape) for path, spec in params.table(cfg).items() if path[-1] == "bias"}
    weights = load.load_params(baked)
    for _, layer, block, name, leaf in noise:
        weights["layers"][layer][block][name][leaf] = jnp.asarray(noise["layers", layer, block, name, leaf], jnp.float32)

    def add(layer: int, site: str, values: np.ndarray) -> np.ndarray:
        name = {"gate_pre": "gate_proj", "up": "up_proj"}.get(site)
        return values if name is None else values + noise["layers", layer, "mlp", name, "bias"]

    down = [noise["layers", layer, "mlp", "down_proj", "bias"] for layer in range(3)]
    freq = dense_llama.frequencies(16, 10000.0, {"factor": 8.0, "low": 1.0, "high": 4.0, "original": 64})
    expected = dense_llama.forward(
        by_name(weights, cfg), TOKENS[0].tolist(), H=6, K=2, C=16, eps=1e-5, freq=freq, change=add, down_bias=down
    )
    np.testing.assert_allclose(logits(baked, weights)[0], expected, atol=2e-5)
    np.testing.assert_allclose(logits(baked, params.stack(weights))[0], expected, atol=2e-5)
    mesh = sharding.make_mesh(1, 2, 4)
    placed = jax.device_put(weights, sharding.shardings(cfg, mesh))
    np.testing.assert_allclose(logits(baked, placed, mesh=mesh)[0], expected, atol=2e-5)


def test_baking_again_keeps_what_was_baked(baked, clamped, tmp_path):
    bake(baked, [NeuronClamp(0, 7, 4.0)], tmp_path / "twice")
    twice = load.open_checkpoint(tmp_path / "twice")
    bias = [twice.read(f"model.layers.{layer}.mlp.up_proj.bias") for layer in range(3)]
    assert {(layer, int(j)): float(bias[layer][j]) for layer in range(3) for j in np.flatnonzero(bias[layer])} == {
        (0, 7): 4.0,
        (1, 3): -30.0,
        (1, 47): 2.5,
        (2, 0): pytest.approx(0.7),
    }


def test_shards_and_other_element_types(checkpoint, clamped, tmp_path):
    bake(checkpoint, CLAMPS, tmp_path / "half", dtype="bfloat16", max_shard_bytes=10_000)
    half = load.open_checkpoint(tmp_path / "half")
    assert len(list((tmp_path / "half").glob("*.safetensors"))) > 3
    assert {info.stored for info in half.tensors.values()} == {"BF16"}
    assert np.abs(logits(half, load.load_params(half)) - clamped).max() < 0.02


@pytest.mark.parametrize(
    ("clamp", "reason"),
    [
        (NeuronClamp(1, 3, 1.0, site="product"), "site product is computed from two projections"),
        (NeuronClamp(1, 3, 1.0, site="gate_act"), "site gate_act is computed"),
        (NeuronClamp(1, 3, 1.0, site="gate_pre"), "site gate_pre"),
        (NeuronClamp(1, 3, 1.0, mode="floor"), "mode floor depends on what the neuron would have been"),
        (NeuronClamp(1, 3, 1.0, positions="last"), "weights act on every token"),
        (NeuronClamp(1, 3, 1.0, positions=(0,)), "weights act on every token"),
        (NeuronClamp(1, 3, 1.0, exclude_special=True), "weights act on every one"),
    ],
)
def test_what_weights_cannot_do_is_refused_with_the_reason(clamp, reason, checkpoint, tmp_path):
    with pytest.raises(UserError, match=f"L1/N3: cannot be baked: .*{reason}") as caught:
        bake(checkpoint, [clamp], tmp_path / "out")
    assert "set at up for all positions" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("clamps", "options", "message"),
    [
        ([], {}, "no clamp to bake"),
        ([NeuronClamp(3, 0, 1.0)], {}, "L3/N0: the model has layers 0 to 2"),
        ([NeuronClamp(0, 1, 1e6)], {"dtype": "float16"}, "L0/N1: 1000000.0 is beyond float16"),
    ],
)
def test_mistakes_write_nothing(clamps, options, message, checkpoint, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        bake(checkpoint, clamps, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone(checkpoint, tmp_path: Path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="already exists"):
        bake(checkpoint, CLAMPS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

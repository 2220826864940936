"""The table of parameters against the published counts and names."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import params
from jaxllm.config import PRESETS, Config


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [  # model cards and the index files of the checkpoints
        ("llama-3.1-8b", 8_030_261_248, 291),
        ("llama-3.2-3b", 3_212_749_824, 254),
        ("llama-3.2-1b", 1_235_814_400, 146),
        ("smollm2-135m", 134_515_008, 272),
    ],
)
def test_counts_of_published_models(name: str, parameters: int, tensors: int) -> None:
    table = params.table(PRESETS[name])
    assert params.count(PRESETS[name]) == parameters == sum(int(np.prod(spec.shape)) for spec in table.values())
    assert len(table) == tensors


def test_bytes_of_8b_are_those_of_its_index() -> None:
    assert 2 * params.count(PRESETS["llama-3.1-8b"]) == 16_060_522_496  # metadata.total_size


def test_names_and_shapes_of_8b() -> None:
    shapes = {params.hf_name(path): spec.shape for path, spec in params.table(PRESETS["llama-3.1-8b"]).items()}
    assert shapes["model.embed_tokens.weight"] == (128256, 4096)
    assert shapes["model.layers.31.self_attn.k_proj.weight"] == (1024, 4096)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (4096, 14336)
    assert shapes["model.norm.weight"] == (4096,)
    assert shapes["lm_head.weight"] == (128256, 4096)


def test_every_axis_has_a_name(tiny_config: Config) -> None:
    for stacked in (False, True):
        for spec in params.table(tiny_config, stacked=stacked).values():
            assert len(spec.axes) == len(spec.shape)


def test_stack_and_unstack_are_inverses(tiny_params: params.Params) -> None:
    stacked = params.stack(tiny_params)
    assert stacked["layers"]["mlp"]["up_proj"]["weight"].shape == (3, 48, 32)
    chex.assert_trees_all_equal(params.unstack(stacked), tiny_params)


@pytest.mark.parametrize("stacked", [False, True])
def test_init_has_the_shapes_of_abstract(tiny_config: Config, stacked: bool) -> None:
    made = params.init(jax.random.key(1), tiny_config, jnp.bfloat16, stacked=stacked)
    chex.assert_trees_all_equal_shapes_and_dtypes(made, params.abstract(tiny_config, jnp.bfloat16, stacked=stacked))


def test_init_draws_every_matrix_apart(tiny_params: params.Params) -> None:
    layers = tiny_params["layers"]
    gate, up, other = (layers[i]["mlp"][name]["weight"] for i, name in ((0, "gate_proj"), (0, "up_proj"), (1, "up_proj")))
    assert 0.015 < float(jnp.std(up)) < 0.025
    assert not jnp.array_equal(gate, up)
    assert not jnp.array_equal(up, other)
    assert jnp.all(tiny_params["norm"]["weight"] == 1)


def test_head_of_a_tied_model_is_its_embedding(tiny_params: params.Params) -> None:
    assert params.head(tiny_params) is tiny_params["lm_head"]["weight"]
    tied = {key: value for key, value in tiny_params.items() if key != "lm_head"}
    assert params.head(tied) is tied["embed_tokens"]["weight"]

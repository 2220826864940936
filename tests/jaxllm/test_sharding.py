"""Where each parameter lives, and that loading puts it there without holding more than a shard."""

import logging

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxllm import load, params, sharding
from jaxllm.config import PRESETS, Config
from jaxllm.errors import UserError


def test_8b_splits_as_the_table_says() -> None:
    mesh = sharding.make_mesh(fsdp=2, tensor=4)
    tree = sharding.shardings(PRESETS["llama-3.1-8b"], mesh)
    block = tree["layers"][7]
    assert tree["embed_tokens"]["weight"].spec == P("tensor", "fsdp")
    assert tree["lm_head"]["weight"].spec == P("tensor", "fsdp")
    assert block["self_attn"]["q_proj"]["weight"].spec == P("tensor", "fsdp")
    assert block["self_attn"]["k_proj"]["weight"].spec == P("tensor", "fsdp")
    assert block["self_attn"]["o_proj"]["weight"].spec == P("fsdp", "tensor")
    assert block["mlp"]["up_proj"]["weight"].spec == P("tensor", "fsdp")
    assert block["mlp"]["down_proj"]["weight"].spec == P("fsdp", "tensor")
    assert block["input_layernorm"]["weight"].spec == P(None)
    stacked = sharding.shardings(PRESETS["llama-3.1-8b"], mesh, stacked=True)
    assert stacked["layers"]["mlp"]["up_proj"]["weight"].spec == P(None, "tensor", "fsdp")


def test_mesh_axes_are_auto() -> None:
    mesh = sharding.make_mesh(data=2, tensor=4)
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tensor": 4}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.parametrize("sizes", [{"data": 16}, {"tensor": 0}, {"fsdp": 3, "tensor": 3}])
def test_a_mesh_needs_its_devices(sizes: dict[str, int]) -> None:
    with pytest.raises(UserError, match="devices"):
        sharding.make_mesh(**sizes)


def test_heads_that_do_not_divide_stay_whole_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="jaxllm"):
        tree = sharding.shardings(PRESETS["smollm2-135m"], sharding.make_mesh(tensor=2))
    block = tree["layers"][0]
    # 9 and 3 heads: the rows (576 and 192) would divide by 2, and cut a head in half.
    assert block["self_attn"]["q_proj"]["weight"].spec == P(None, "fsdp")
    assert block["self_attn"]["k_proj"]["weight"].spec == P(None, "fsdp")
    assert block["self_attn"]["o_proj"]["weight"].spec == P("fsdp", None)
    assert block["mlp"]["up_proj"]["weight"].spec == P("tensor", "fsdp")
    assert len(caplog.records) == 1
    assert "heads (9) over tensor (2)" in caplog.text
    assert "kv_heads (3) over tensor (2)" in caplog.text
    assert "mlp" not in caplog.text


def test_nothing_is_logged_when_all_divides(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="jaxllm"):
        sharding.shardings(PRESETS["llama-3.1-8b"], sharding.make_mesh(tensor=8))
    assert not caplog.records


def test_activations_follow_the_same_rules() -> None:
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    assert sharding.spec_for(("batch", "length", "mlp"), (8, 5, 48), mesh) == P(("data", "fsdp"), None, "tensor")
    assert sharding.spec_for(("batch", "length", "heads", None), (3, 5, 3, 16), mesh) == P(None, None, None, None)
    x = np.ones((8, 5, 48), np.float32)
    placed = jax.jit(lambda x: sharding.constrain(x + 1, "batch", "length", "mlp", mesh=mesh))(x)
    assert placed.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P(("data", "fsdp"), None, "tensor")), 3)
    assert sharding.constrain(x, "batch", "length", "mlp", mesh=None) is x


def test_memory_of_8b() -> None:
    # 16,060,522,496 bytes of weights; 131,072 bytes of cache per token, 1 GiB for 8,192.
    assert sharding.bytes_per_device(PRESETS["llama-3.1-8b"], 1, 2, 8192) == (16_060_522_496, 1 << 30)
    weights, cache = sharding.bytes_per_device(PRESETS["llama-3.1-8b"], 8, 2, 8192)
    norms = 2 * (2 * 32 + 1) * 4096
    assert weights == (16_060_522_496 - norms) // 8 + norms
    assert cache == (1 << 30) // 8
    assert sharding.bytes_per_device(PRESETS["smollm2-135m"], 2, 2, 8192)[1] == 2 * 30 * 3 * 64 * 8192 * 2  # 3 heads stay whole


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("sizes", [{"tensor": 2, "fsdp": 4}, {"fsdp": 8}, {"data": 4, "tensor": 2}])
def test_loading_on_eight_devices(tiny_folder, tiny_config, tiny_params, monkeypatch, sizes, stacked) -> None:
    mesh = sharding.make_mesh(**sizes)
    checkpoint = load.open_checkpoint(tiny_folder)
    buffers = []
    read = type(checkpoint).read

    def recorded(self, name, index=(), **options):
        part = read(self, name, index, **options)
        buffers.append((name, part.shape))
        return part

    monkeypatch.setattr(type(checkpoint), "read", recorded)
    tree = load.load_params(checkpoint, mesh=mesh, stacked=stacked)
    expected = sharding.shardings(tiny_config, mesh, stacked=stacked)
    original = params.stack(tiny_params) if stacked else tiny_params
    split = ways = 0
    for (path, leaf), place, value in zip(
        jax.tree_util.tree_flatten_with_path(tree)[0], jax.tree.leaves(expected), jax.tree.leaves(original), strict=True
    ):
        np.testing.assert_array_equal(leaf, value)
        assert leaf.sharding == place
        whole = "norm" in jax.tree_util.keystr(path) or (leaf.shape[0] == 97 and "fsdp" not in sizes)  # 97 is prime
        assert leaf.sharding.is_fully_replicated == whole, path
        split += leaf.addressable_shards[0].data.size
        ways += leaf.size
    assert split < 0.6 * ways
    # No host buffer is larger than one shard, and no slice is read twice.
    for (path, spec), place in zip(params.table(tiny_config).items(), _unstacked_places(expected, tiny_config), strict=True):
        shapes = [shape for name, shape in buffers if name == params.hf_name(path)]
        assert set(shapes) == {place.shard_shape(spec.shape)}
        assert len(shapes) == len(set(map(str, place.devices_indices_map(spec.shape).values())))


def _unstacked_places(tree: params.Params, cfg: Config) -> list[jax.sharding.NamedSharding]:
    """The placement of each tensor in file order; that of a stacked leaf without its leading axis."""
    places = []
    for path in params.table(cfg):
        node, keys = tree, list(path)
        if path[0] == "layers" and path[1] not in tree["layers"]:
            keys.remove(path[1])
        for key in keys:
            node = node[key]
        dropped = len(keys) < len(path)
        places.append(jax.sharding.NamedSharding(node.mesh, P(*node.spec[1:])) if dropped else node)
    return places

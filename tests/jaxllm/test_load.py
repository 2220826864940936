"""Folders of safetensors: read as other programs wrote them, written so that other programs read them, refused when unsound."""

import json
import logging
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from trees import by_name

from jaxllm import load, params, tensors
from jaxllm.config import Config
from jaxllm.errors import UserError

UP = "model.layers.1.mlp.up_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
SHARDS = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}


@pytest.fixture
def weights(tiny_params: params.Params, tiny_config: Config) -> dict[str, np.ndarray]:
    """The tiny model's tensors under their Hugging Face names."""
    return by_name(tiny_params, tiny_config)


def write(folder: Path, weights: dict[str, np.ndarray], config: dict, shards: int = 1) -> Path:
    """A folder made by the safetensors package itself."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        safetensors.numpy.save_file(weights, folder / "model.safetensors")
        return folder
    names = list(weights)
    weight_map = {}
    for i, file in enumerate(sorted(SHARDS)):
        part = {name: weights[name] for name in names[i::2]}
        weight_map.update(dict.fromkeys(part, file))
        safetensors.numpy.save_file(part, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("shards", [1, 2])
def test_reads_what_safetensors_wrote(tmp_path, tiny_config, tiny_params, weights, shards) -> None:
    checkpoint = load.open_checkpoint(write(tmp_path / "m", weights, tiny_config.to_hf(), shards))
    assert checkpoint.config == tiny_config
    assert list(checkpoint.stop_ids) == [2, 3]
    chex.assert_trees_all_equal(load.load_params(checkpoint), tiny_params)
    chex.assert_trees_all_equal(load.load_params(checkpoint, stacked=True), params.stack(tiny_params))


def test_one_shard_with_an_index(tmp_path, tiny_config, tiny_params, weights) -> None:
    folder = write(tmp_path / "m", weights, tiny_config.to_hf())
    index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "stray.safetensors").write_bytes(b"not looked at")
    chex.assert_trees_all_equal(load.load_params(load.open_checkpoint(folder)), tiny_params)


def test_slices_touch_only_their_bytes(tiny_folder, weights, monkeypatch) -> None:
    read_bytes, counted = tensors.read_bytes, []

    def counting(path, offset, count):
        counted.append(count)
        return read_bytes(path, offset, count)

    monkeypatch.setattr("jaxllm.folder.read_bytes", counting)
    checkpoint = load.open_checkpoint(tiny_folder)
    assert sum(counted) < 8 + (1 << 13)  # the header alone
    counted.clear()
    np.testing.assert_array_equal(checkpoint.read(UP, (slice(5, 9),)), weights[UP][5:9])
    np.testing.assert_array_equal(checkpoint.read(UP, (slice(40, None), slice(3, 7))), weights[UP][40:, 3:7])
    np.testing.assert_array_equal(checkpoint.read("model.norm.weight", (slice(4, 6),)), weights["model.norm.weight"][4:6])
    assert counted == [4 * 32 * 4, 8 * 32 * 4, 2 * 4]
    assert checkpoint.read(UP, (slice(7, 7),)).shape == (0, 32)


def test_column_slices_in_several_blocks(tiny_folder, weights, monkeypatch) -> None:
    monkeypatch.setattr(tensors, "BLOCK_BYTES", 1000)  # 7 rows at a time
    checkpoint = load.open_checkpoint(tiny_folder)
    np.testing.assert_array_equal(checkpoint.read(UP, (slice(1, 48), slice(30, 32))), weights[UP][1:, 30:])
    half = checkpoint.read(UP, (slice(1, 48),), dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal(half, weights[UP][1:].astype(ml_dtypes.bfloat16))


def test_element_types_are_read_exactly(tmp_path, tiny_config, weights) -> None:
    kinds = [np.float32, np.float16, ml_dtypes.bfloat16]
    mixed = {name: value.astype(kinds[i % 3]) for i, (name, value) in enumerate(weights.items())}
    checkpoint = load.open_checkpoint(write(tmp_path / "m", mixed, tiny_config.to_hf()))
    for name, value in mixed.items():
        assert checkpoint.tensors[name].dtype == value.dtype
        assert checkpoint.read(name).tobytes() == value.tobytes()
    loaded = load.load_params(checkpoint, dtype=jnp.float32)
    up = loaded["layers"][1]["mlp"]["up_proj"]["weight"]
    np.testing.assert_array_equal(up, mixed[UP].astype(np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}


def test_the_log_tells_what_is_loaded(tiny_folder, caplog) -> None:
    with caplog.at_level("INFO", "jaxllm"):
        load.load_params(load.open_checkpoint(tiny_folder))
    assert caplog.messages[0] == f"{tiny_folder}: 3 layers, width 32, vocabulary 97"
    assert "parameters loaded in" in caplog.messages[1]


def test_progress_is_reported_per_leaf(tiny_folder) -> None:
    steps = []
    load.load_params(load.open_checkpoint(tiny_folder), progress=lambda done, total: steps.append((done, total)))
    assert steps == [(i + 1, 30) for i in range(30)]


# Tied and untied heads


def test_tied_model_has_no_head_of_its_own(tmp_path, tiny_config, weights, caplog) -> None:
    del weights[HEAD]
    checkpoint = load.open_checkpoint(write(tmp_path / "m", weights, tiny_config.to_hf() | {"tie_word_embeddings": True}))
    assert checkpoint.head_name() == EMBEDDING
    assert "lm_head" not in load.load_params(checkpoint)
    assert not caplog.records


def test_tied_model_with_a_head_that_differs_warns(tmp_path, tiny_config, weights, caplog) -> None:
    config = tiny_config.to_hf() | {"tie_word_embeddings": True}
    checkpoint = load.open_checkpoint(write(tmp_path / "m", weights, config))
    assert checkpoint.head_name() == EMBEDDING
    assert "lm_head.weight differs from the embedding" in caplog.text
    assert "lm_head" not in load.load_params(checkpoint)
    caplog.clear()
    same = load.open_checkpoint(write(tmp_path / "same", weights | {HEAD: weights[EMBEDDING]}, config))
    assert same.head_name() == EMBEDDING
    assert not caplog.records


def test_untied_model_without_a_head_cannot_run_but_can_be_read(tmp_path, tiny_config, weights, caplog) -> None:
    del weights[HEAD]
    checkpoint = load.open_checkpoint(write(tmp_path / "m", weights, tiny_config.to_hf()))
    with pytest.raises(UserError, match=r"no lm_head\.weight.*tie_word_embeddings"):
        load.load_params(checkpoint)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.head_name() == EMBEDDING
    assert "decoding with the embedding" in caplog.text


# Unsound folders


def test_all_faults_are_in_one_message(tmp_path, tiny_config, weights) -> None:
    weights[UP] = weights[UP][:-1]
    weights["model.layers.0.self_attn.q_proj.bias"] = weights.pop("model.norm.weight")
    with pytest.raises(UserError) as caught:
        load.open_checkpoint(write(tmp_path / "m", weights, tiny_config.to_hf()))
    message = str(caught.value)
    assert f"{UP} has shape (47, 32); the config implies (48, 32)" in message
    assert "missing tensor model.norm.weight (32,)" in message
    assert "unexpected tensor model.layers.0.self_attn.q_proj.bias" in message


def test_missing_shards_are_named_once(tmp_path, tiny_config, weights) -> None:
    folder = write(tmp_path / "m", weights, tiny_config.to_hf(), 2)
    for shard in SHARDS:
        (folder / shard).unlink()
    with pytest.raises(UserError) as caught:
        load.open_checkpoint(folder)
    assert all(f"missing shard {shard}" in str(caught.value) for shard in SHARDS)
    assert "missing tensor" not in str(caught.value)


def test_index_and_shards_must_agree(tmp_path, tiny_config, weights) -> None:
    folder = write(tmp_path / "m", weights, tiny_config.to_hf(), 2)
    first, second = sorted(SHARDS)
    everything = dict.fromkeys(weights, second)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": everything | {EMBEDDING: first}}))
    with pytest.raises(UserError, match=f"{second}: lacks .*, which model.safetensors.index.json places there"):
        load.open_checkpoint(folder)
    safetensors.numpy.save_file(weights, folder / second)
    with pytest.raises(UserError, match=f"is in {first} and again in {second}"):
        load.open_checkpoint(folder)


@pytest.mark.parametrize("place", ["../m/model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "model.bin", 7])
def test_index_may_not_point_outside_the_folder(tmp_path, tiny_config, weights, place) -> None:
    folder = write(tmp_path / "m", weights, tiny_config.to_hf())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, place)}))
    with pytest.raises(UserError, match=r"not a \.safetensors file of this folder"):
        load.open_checkpoint(folder)


def test_old_rotary_buffers_are_ignored(tmp_path, tiny_config, tiny_params, weights) -> None:
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32) for i in range(3)}
    checkpoint = load.open_checkpoint(write(tmp_path / "m", weights | extra, tiny_config.to_hf()))
    chex.assert_trees_all_equal(load.load_params(checkpoint), tiny_params)


def test_quantised_folders_are_refused(tmp_path, tiny_config, weights) -> None:
    weights[UP] = weights[UP].astype(np.int8)
    with pytest.raises(UserError, match=f"{UP} is stored as I8; supported are F32, F16, BF16"):
        load.open_checkpoint(write(tmp_path / "m", weights, tiny_config.to_hf()))


def test_what_is_not_a_model_is_refused(tmp_path, tiny_config) -> None:
    with pytest.raises(UserError, match=r"not a model's folder: it has no config\.json"):
        load.open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config.to_hf()))
    with pytest.raises(UserError, match=r"has neither model\.safetensors nor"):
        load.open_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"not a folder of safetensors nor a \.gguf file"):
        load.open_checkpoint(tmp_path / "config.json")


def test_stop_ids_come_from_the_generation_config(tiny_folder) -> None:
    path = tiny_folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [5, 8, 9]}))
    assert load.open_checkpoint(tiny_folder).stop_ids == {5, 8, 9}
    path.write_text(json.dumps({"temperature": 0.6}))
    assert load.open_checkpoint(tiny_folder).stop_ids == {2, 3}
    path.write_text(json.dumps({"eos_token_id": "x"}))
    with pytest.raises(UserError, match="eos_token_id"):
        load.open_checkpoint(tiny_folder)


# Writing


def _awkward(tree: params.Params, dtype) -> params.Params:
    """The same tree in another type, with a NaN that carries a payload, an infinity and a negative zero in each leaf."""

    def change(leaf):
        value = np.asarray(leaf).astype(dtype)
        bits = value.reshape(-1).view(f"u{value.dtype.itemsize}")
        bits[:3] = {2: [0x7FC1, 0xFF80, 0x8000], 4: [0x7FC00123, 0xFF800000, 0x80000000]}[value.dtype.itemsize]
        return jnp.asarray(value)

    return jax.tree.map(change, tree)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_saved_folder_reads_back_bit_for_bit(tmp_path, tiny_config, tiny_params, dtype, stacked) -> None:
    from jaxllm.sharding import make_mesh

    tree = _awkward(tiny_params, dtype)
    load.save_params(tree, tiny_config, tmp_path / "one")
    back = load.load_params(load.open_checkpoint(tmp_path / "one"), mesh=make_mesh(fsdp=2, tensor=2), stacked=stacked)
    load.save_params(back, tiny_config, tmp_path / "many", max_shard_bytes=30_000)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    again = load.open_checkpoint(tmp_path / "many")
    for name, value in safetensors.deserialize((tmp_path / "one" / "model.safetensors").read_bytes()):
        assert again.read(name).tobytes() == bytes(value["data"]), name
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == params.count(tiny_config) * np.dtype(dtype).itemsize
    assert all((tmp_path / "many" / name).stat().st_size < 31_500 for name in index["weight_map"].values())


def test_written_files_satisfy_the_reference_reader(tiny_folder, weights) -> None:
    loaded = safetensors.numpy.load_file(tiny_folder / "model.safetensors")
    assert loaded.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(loaded[name], value)


def test_saving_can_change_the_element_type(tmp_path, tiny_config, tiny_params) -> None:
    load.save_params(tiny_params, tiny_config, tmp_path / "m", dtype=jnp.bfloat16)
    checkpoint = load.open_checkpoint(tmp_path / "m")
    assert {info.stored for info in checkpoint.tensors.values()} == {"BF16"}
    assert json.loads((tmp_path / "m" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    with pytest.raises(UserError, match="cannot store int8"):
        load.save_params(tiny_params, tiny_config, tmp_path / "bad", dtype=np.int8)


def test_text_files_come_along(tmp_path, tiny_config, tiny_params, tiny_folder) -> None:
    (tiny_folder / "tokenizer.json").write_text("{}")
    (tiny_folder / "generation_config.json").write_text('{"eos_token_id": [5]}')
    like = load.open_checkpoint(tiny_folder)
    load.save_params(tiny_params, tiny_config, tmp_path / "m", like=like)
    assert (tmp_path / "m" / "tokenizer.json").read_text() == "{}"
    load.convert(like, tmp_path / "n", dtype=np.float16)
    converted = load.open_checkpoint(tmp_path / "n")
    assert converted.stop_ids == {5}
    np.testing.assert_array_equal(converted.read(UP), like.read(UP).astype(np.float16))


def test_a_folder_appears_whole_or_not_at_all(tmp_path, tiny_config, tiny_params, tiny_folder, monkeypatch) -> None:
    with pytest.raises(UserError, match="already exists"):
        load.save_params(tiny_params, tiny_config, tiny_folder)
    broken = {**tiny_params, "norm": {"weight": jnp.ones(31)}}
    with pytest.raises(UserError, match=r"model\.norm\.weight has shape \(31,\) in the tree; the config implies \(32,\)"):
        load.save_params(broken, tiny_config, tmp_path / "m")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("jaxllm.save.os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        load.save_params(tiny_params, tiny_config, tmp_path / "m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]

"""Orbax folders: from one mesh to another, bit for bit."""

import random
import shutil
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import load, params
from jaxllm.checkpoint import OrbaxCheckpoint, save_checkpoint
from jaxllm.errors import UserError
from jaxllm.sharding import make_mesh, shardings


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("stacked", [False, True])
def test_saved_on_eight_devices_and_restored_on_two(tmp_path, tiny_config, tiny_params, stacked, dtype) -> None:
    stack, unstack = jax.jit(params.stack), jax.jit(params.unstack)
    tree = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), stack(tiny_params) if stacked else tiny_params)
    placed = jax.device_put(tree, shardings(tiny_config, make_mesh(fsdp=4, tensor=2), stacked=stacked))
    save_checkpoint(placed, tiny_config, tmp_path / "m")
    mesh = make_mesh(fsdp=2, devices=jax.devices()[6:])
    for form in (False, True):
        restored = load.load_params(load.open_checkpoint(tmp_path / "m"), mesh=mesh, stacked=form)
        expected = tree if form == stacked else stack(tree) if form else unstack(tree)
        chex.assert_trees_all_equal(jax.device_get(restored), jax.device_get(expected))
        places = jax.tree.leaves(shardings(tiny_config, mesh, stacked=form))
        assert all(a.sharding.is_equivalent_to(b, a.ndim) for a, b in zip(jax.tree.leaves(restored), places, strict=True))


@pytest.mark.parametrize("stacked", [False, True])
def test_reads_like_any_checkpoint(tmp_path, tiny_config, tiny_params, tiny_folder, stacked) -> None:
    like = load.open_checkpoint(tiny_folder)
    (tiny_folder / "tokenizer.json").write_text("{}")
    save_checkpoint(params.stack(tiny_params) if stacked else tiny_params, tiny_config, tmp_path / "m", like=like)
    checkpoint = load.open_checkpoint(tmp_path / "m")
    assert isinstance(checkpoint, OrbaxCheckpoint)
    assert checkpoint.config == tiny_config
    assert {n: (i.shape, i.stored) for n, i in checkpoint.tensors.items()} == {
        n: (i.shape, i.stored) for n, i in like.tensors.items()
    }
    for name in like.tensors:
        np.testing.assert_array_equal(checkpoint.read(name, (slice(3, 9),)), like.read(name, (slice(3, 9),)))
    load.convert(checkpoint, tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (tiny_folder / "model.safetensors").read_bytes()
    assert (tmp_path / "back" / "tokenizer.json").exists()


def test_relative_paths_and_another_element_type(tmp_path, tiny_config, tiny_params, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tiny_params, tiny_config, Path("here"))
    restored = load.load_params(load.open_checkpoint("here"), dtype=jnp.bfloat16)
    chex.assert_trees_all_equal(restored, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tiny_params))


def test_what_does_not_fit_is_refused(tmp_path, tiny_config, tiny_params) -> None:
    save_checkpoint(tiny_params, tiny_config, tmp_path / "m")
    with pytest.raises(UserError, match="already exists"):
        save_checkpoint(tiny_params, tiny_config, tmp_path / "m")
    with pytest.raises(UserError, match=r"model\.norm\.weight is absent; the config implies \(32,\)"):
        save_checkpoint({**tiny_params, "norm": {}}, tiny_config, tmp_path / "n")
    assert not (tmp_path / "n").exists()
    text = (tmp_path / "m" / "config.json").read_text()
    (tmp_path / "m" / "config.json").write_text(text.replace('"vocab_size": 97', '"vocab_size": 98'))
    with pytest.raises(UserError, match=r"has shape \(97, 32\); the config implies \(98, 32\)"):
        load.open_checkpoint(tmp_path / "m")


def test_a_damaged_folder_is_a_clean_error(tmp_path, tiny_config, tiny_params) -> None:
    save_checkpoint(tiny_params, tiny_config, tmp_path / "m")
    (tmp_path / "m" / "params" / "_METADATA").write_text("{")
    with pytest.raises(UserError, match="not a sound Orbax folder"):
        load.open_checkpoint(tmp_path / "m")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # threads of Orbax that outlive a failed read
def test_forty_damaged_folders_load_or_end_in_a_clean_error(tmp_path, tiny_config, tiny_params) -> None:
    save_checkpoint(params.stack(tiny_params), tiny_config, tmp_path / "m")
    files = sorted(path.relative_to(tmp_path / "m") for path in (tmp_path / "m").rglob("*") if path.is_file())
    loaded, messages = 0, []
    for seed in range(40):
        rng = random.Random(seed)
        shutil.copytree(tmp_path / "m", tmp_path / "w")
        path = tmp_path / "w" / files[seed % len(files)]
        data = bytearray(path.read_bytes())
        at = rng.randrange(max(len(data), 1))
        kind = rng.choice(("flip", "cut", "zero", "remove"))
        data[at : None if kind == "cut" else at + 16] = {
            "flip": bytes(byte ^ 64 for byte in data[at : at + 16]),
            "zero": bytes(len(data[at : at + 16])),
        }.get(kind, b"")
        path.unlink()
        if kind != "remove":
            path.write_bytes(data)
        try:
            checkpoint = load.open_checkpoint(tmp_path / "w")
            for name in checkpoint.tensors:
                checkpoint.read(name)
            loaded += 1
        except UserError as error:
            messages.append(str(error))
        shutil.rmtree(tmp_path / "w")
    assert all(str(tmp_path / "w") in message for message in messages)
    assert min(loaded, len(messages)) > 5

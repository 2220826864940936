"""Damaged files: a clean error or a correct load, never a crash, a hang, or memory out of proportion to the file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy

import jaxllm
from jaxllm import load, params
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.folder import read_header

MUTATIONS = 200
SPARE_BYTES = 200 << 20  # that a load may take beyond the size of the file
SECONDS = 5  # for one load


@pytest.fixture
def sharded_folder(tmp_path: Path, tiny_params: params.Params, tiny_config: Config) -> Path:
    load.save_params(tiny_params, tiny_config, tmp_path / "sharded", max_shard_bytes=60_000)
    return tmp_path / "sharded"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    """A one-layer model with quantised blocks, a small vocabulary and a template in its metadata."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(48)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{i}" for i in range(48)])
    writer.add_token_types([1] * 48)
    writer.add_chat_template("{{ messages[0].content }}")
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (48, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {"blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32)}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    for name, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize("kind", ["tiny_folder", "sharded_folder", "gguf_file"])
def test_two_hundred_mutations(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    original = request.getfixturevalue(kind)
    (tmp_path / "work").mkdir()
    numbers = map(str, (len(kind), MUTATIONS, SPARE_BYTES, SECONDS))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("damage.py")), str(original), str(tmp_path / "work"), *numbers],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(jaxllm.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout)
    assert outcomes["limited"]  # the limit on memory is in force
    assert outcomes["wrong"] == []
    assert outcomes["error"] + outcomes["loaded"] == MUTATIONS
    assert min(outcomes["error"], outcomes["loaded"]) > 10  # the mutations reach both


def _header(folder: Path) -> tuple[dict, bytes]:
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _write(folder: Path, header: dict | str, body: bytes, length: int | None = None) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (folder / "model.safetensors").write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + body)


UP, GATE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"


def _overlap(header: dict) -> None:
    header[UP]["data_offsets"] = header[GATE]["data_offsets"]


def _huge_shape(header: dict) -> None:
    header[UP]["shape"] = [1 << 40, 1 << 40]


def _huge_and_consistent(header: dict) -> None:
    start = header[UP]["data_offsets"][0]
    header[UP].update(shape=[1 << 30, 32], data_offsets=[start, start + (1 << 30) * 128])


def _negative(header: dict) -> None:
    header[UP]["shape"] = [-48, -32]


def _fraction(header: dict) -> None:
    header[UP]["data_offsets"] = [0.5, 1e300]


def _swapped(header: dict) -> None:
    header[UP]["data_offsets"].reverse()


def _gap(header: dict) -> None:
    header.pop(UP)


def _extra_key(header: dict) -> None:
    header[UP]["compressed"] = True


@pytest.mark.parametrize(
    "damage", [_overlap, _huge_shape, _huge_and_consistent, _negative, _fraction, _swapped, _gap, _extra_key]
)
def test_headers_that_lie(tiny_folder, damage) -> None:
    header, body = _header(tiny_folder)
    _write(tiny_folder, header, body)
    load.open_checkpoint(tiny_folder)  # written again as it was, it is sound
    damage(header)
    _write(tiny_folder, header, body)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load.open_checkpoint(tiny_folder)


@pytest.mark.parametrize("length", [0, 7, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_wrong_header_lengths(tiny_folder, length) -> None:
    header, body = _header(tiny_folder)
    _write(tiny_folder, header, body, length)
    with pytest.raises(UserError, match=r"model\.safetensors: header"):
        load.open_checkpoint(tiny_folder)


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_truncated_files(tiny_folder, size) -> None:
    path = tiny_folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:size])
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load.open_checkpoint(tiny_folder)


def test_a_file_that_shrinks_after_it_was_opened(tiny_folder) -> None:
    checkpoint = load.open_checkpoint(tiny_folder)
    path = tiny_folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(UserError, match="before the data that its header announces"):
        load.load_params(checkpoint)


def test_repeated_names_and_deep_nesting(tiny_folder) -> None:
    header, body = _header(tiny_folder)
    text = json.dumps(header)
    _write(tiny_folder, text[:-1] + f', "{UP}": {json.dumps(header[UP])}}}', body)
    with pytest.raises(UserError, match="a key is given twice"):
        load.open_checkpoint(tiny_folder)
    _write(tiny_folder, "[" * 200_000, body)
    with pytest.raises(UserError, match="not valid JSON"):
        read_header(tiny_folder / "model.safetensors")


def test_nan_weights_load_as_they_are(tmp_path, tiny_folder, tiny_config) -> None:
    weights = safetensors.numpy.load_file(tiny_folder / "model.safetensors")
    weights[UP][3] = np.nan
    safetensors.numpy.save_file(weights, tiny_folder / "model.safetensors")
    loaded = load.load_params(load.open_checkpoint(tiny_folder))
    assert np.isnan(loaded["layers"][0]["mlp"]["up_proj"]["weight"]).sum() == tiny_config.hidden_size


def _gguf(fields: bytes, count: int, version: int = 3) -> bytes:
    return b"GGUF" + version.to_bytes(4, "little") + (0).to_bytes(8, "little") + count.to_bytes(8, "little") + fields


def _key(name: str, kind: int, value: bytes) -> bytes:
    return len(name).to_bytes(8, "little") + name.encode() + kind.to_bytes(4, "little") + value


def _array(kind: int, length: int, content: bytes = b"") -> bytes:
    return kind.to_bytes(4, "little") + length.to_bytes(8, "little") + content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic number"),
        (b"GGML" + bytes(20), "not a GGUF file"),
        (_gguf(b"", 0, version=1), "version 1 is not supported"),
        (_gguf(b"", 0, version=3 << 24), "little-endian"),
        (_gguf(b"", 1 << 40), "number of metadata keys"),
        (_gguf(_key("a", 9, _array(8, 1 << 60)), 1), "length of 'a'"),
        (_gguf(_key("a", 9, _array(4, 1 << 20)), 1), "'a' needs 4194304 bytes"),
        (_gguf(_key("a", 9, _array(9, 1, _array(9, 1))), 1), "array of the unknown type 9"),
        (_gguf(_key("a", 8, (1 << 62).to_bytes(8, "little")), 1), "length of 'a'"),
        (_gguf(_key("a", 99, b""), 1), "unknown type 99"),
        (_gguf(_key("a", 0, b"1") * 2, 2), "given twice"),
        (_gguf(_key("a", 8, (1).to_bytes(8, "little") + b"\xff"), 1), "UTF-8"),
        (_gguf(_key("a", 9, _array(0, 1 << 20, bytes(1 << 20))) + _key("b", 9, _array(0, 1 << 21)), 2), "length of 'b'"),
        (_gguf(b"", 0), "general.architecture None is not supported"),
    ],
)
def test_gguf_headers_that_lie(tmp_path, data, message) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(UserError, match=message):
        load.open_checkpoint(tmp_path / "m.gguf")

"""GGUF files: block formats against their definitions, row order against what the writers do, and refusals."""

import dataclasses
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from jaxllm import load
from jaxllm.config import PRESETS, Config
from jaxllm.errors import UserError
from jaxllm.gguf import read_header

QUANT = gguf.GGMLQuantizationType
D, F, V, H, K, C = 256, 512, 64, 6, 2, 64  # widths are whole K-blocks; H * C is not D, and K is not H
NAMES = {
    "input_layernorm": ("attn_norm", (D,)),
    "self_attn.q_proj": ("attn_q", (H * C, D)),
    "self_attn.k_proj": ("attn_k", (K * C, D)),
    "self_attn.v_proj": ("attn_v", (K * C, D)),
    "self_attn.o_proj": ("attn_output", (D, H * C)),
    "post_attention_layernorm": ("ffn_norm", (D,)),
    "mlp.gate_proj": ("ffn_gate", (F, D)),
    "mlp.up_proj": ("ffn_up", (F, D)),
    "mlp.down_proj": ("ffn_down", (D, F)),
}


def interleave(w: np.ndarray, heads: int) -> np.ndarray:
    """The order in which writers of the llama architecture put q and k rows: the halves of each head side by side."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def write(
    path: Path, weights: dict[str, np.ndarray], kinds: dict[str, QUANT] | None = None, arch: str = "llama", **fields: object
) -> Path:
    """A one-layer model made by the gguf package; ``weights`` by GGUF name, quantised ones as bytes."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(K)
    writer.add_key_length(C)
    writer.add_value_length(C)
    writer.add_rope_dimension_count(C)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(V)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)
    for key, value in fields.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for name, value in weights.items():
        writer.add_tensor(name, value, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A random float32 model: its tensors by Hugging Face name, and by GGUF name as a writer stores them."""
    rng = np.random.default_rng(0)
    hf = {f"model.layers.0.{name}.weight": rng.normal(size=shape) for name, (_, shape) in NAMES.items()}
    hf |= {"model.embed_tokens.weight": rng.normal(size=(V, D)), "model.norm.weight": rng.normal(size=D)}
    hf = {name: value.astype(np.float32) for name, value in hf.items()}
    stored = {f"blk.0.{short}.weight": hf[f"model.layers.0.{name}.weight"] for name, (short, _) in NAMES.items()}
    stored["blk.0.attn_q.weight"] = interleave(stored["blk.0.attn_q.weight"], H)
    stored["blk.0.attn_k.weight"] = interleave(stored["blk.0.attn_k.weight"], K)
    stored |= {"token_embd.weight": hf["model.embed_tokens.weight"], "output_norm.weight": hf["model.norm.weight"]}
    return hf, stored


def test_tensors_come_under_hugging_face_names_and_in_their_row_order(tmp_path, model) -> None:
    hf, stored = model
    checkpoint = load.open_checkpoint(write(tmp_path / "m.gguf", stored))
    assert checkpoint.tensors.keys() == hf.keys()
    for name, value in hf.items():
        np.testing.assert_array_equal(checkpoint.read(name), value)
    q = "model.layers.0.self_attn.q_proj.weight"
    assert not np.array_equal(hf[q], stored["blk.0.attn_q.weight"])  # an order left as stored would be seen
    k = "model.layers.0.self_attn.k_proj.weight"
    wrong = interleave(hf[k], H // 3 * 2)  # more heads than K: the order differs
    assert not np.array_equal(wrong, stored["blk.0.attn_k.weight"])
    for start, stop in ((0, 1), (31, 34), (63, 65), (5, 128)):
        at = (slice(start, stop), slice(10, 20))
        np.testing.assert_array_equal(checkpoint.read(k, at), hf[k][at])


def test_config_comes_from_the_metadata(tmp_path, model) -> None:
    checkpoint = load.open_checkpoint(write(tmp_path / "m.gguf", model[1]))
    assert checkpoint.config == Config(
        hidden_size=D,
        intermediate_size=F,
        num_hidden_layers=1,
        num_attention_heads=H,
        num_key_value_heads=K,
        head_dim=C,
        vocab_size=V,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,  # stored as the float32 9.99999975e-06
        rope_theta=500000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    assert checkpoint.stop_ids == {2, 7}


def test_an_output_tensor_makes_the_model_untied(tmp_path, model) -> None:
    _, stored = model
    head = np.random.default_rng(1).normal(size=(V, D)).astype(np.float32)
    checkpoint = load.open_checkpoint(write(tmp_path / "m.gguf", stored | {"output.weight": head}))
    assert not checkpoint.config.tie_word_embeddings
    np.testing.assert_array_equal(load.load_params(checkpoint)["lm_head"]["weight"], head)


# Block formats, one value at a time from their definitions


def half(data: bytes) -> float:
    return struct.unpack("<e", data)[0]


def decode_q8_0(b: bytes) -> list[float]:
    return [half(b[:2]) * q for q in struct.unpack("<32b", b[2:])]


def decode_q4_0(b: bytes) -> list[float]:
    return [half(b[:2]) * (q - 8) for q in [*(x & 15 for x in b[2:]), *(x >> 4 for x in b[2:])]]


def decode_q4_1(b: bytes) -> list[float]:
    return [half(b[:2]) * q + half(b[2:4]) for q in [*(x & 15 for x in b[4:]), *(x >> 4 for x in b[4:])]]


def decode_q4_k(b: bytes) -> list[float]:
    d, least, s, q = half(b[:2]), half(b[2:4]), b[4:16], b[16:]
    values = []
    for j in range(8):  # 32 values each; 6-bit scales and minima, the last four of each with their high bits apart
        scale = s[j] & 63 if j < 4 else (s[j + 4] & 15) | (s[j - 4] >> 6) << 4
        minimum = s[j + 4] & 63 if j < 4 else (s[j + 4] >> 4) | (s[j] >> 6) << 4
        nibbles = [x >> 4 if j % 2 else x & 15 for x in q[j // 2 * 32 : j // 2 * 32 + 32]]
        values += [d * scale * x - least * minimum for x in nibbles]
    return values


def decode_q6_k(b: bytes) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b[208:])
    values = []
    for i in range(256):
        chunk, part, at = i // 128, i % 128 // 32, i % 32
        nibble = low[chunk * 64 + part % 2 * 32 + at] >> (4 if part > 1 else 0) & 15
        q = (nibble | (high[chunk * 32 + at] >> 2 * part & 3) << 4) - 32
        values.append(d * scales[i // 16] * q)
    return values


BLOCKS = {  # values per block, bytes, where the float16 scales stand
    QUANT.Q8_0: (32, 34, (0,), decode_q8_0),
    QUANT.Q4_0: (32, 18, (0,), decode_q4_0),
    QUANT.Q4_1: (32, 20, (0, 2), decode_q4_1),
    QUANT.Q4_K: (256, 144, (0, 2), decode_q4_k),
    QUANT.Q6_K: (256, 210, (208,), decode_q6_k),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_block_formats(tmp_path, model, kind) -> None:
    size, nbytes, scales, decode = BLOCKS[kind]
    rng = np.random.default_rng(int(kind))
    blocks = rng.integers(0, 256, (F * D // size, nbytes), dtype=np.uint8)
    for at in scales:
        blocks[:, at : at + 2] = rng.normal(size=(len(blocks), 1)).astype("<f2").view(np.uint8)
    data = {"blk.0.ffn_up.weight": blocks.reshape(F, -1)}
    checkpoint = load.open_checkpoint(write(tmp_path / "m.gguf", model[1] | data, dict.fromkeys(data, kind)))
    name = "model.layers.0.mlp.up_proj.weight"
    info = checkpoint.tensors[name]
    assert (info.shape, info.stored, info.nbytes) == ((F, D), kind.name, F * D // size * nbytes)
    whole = checkpoint.read(name)
    assert whole.dtype == np.float32
    per_row = D // size
    for row in (0, 1, 17, F - 1):
        expected = np.concatenate([decode(bytes(block)) for block in blocks[row * per_row : (row + 1) * per_row]])
        np.testing.assert_allclose(whole[row], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(checkpoint.read(name, (slice(17, 19), slice(3, 40))), whole[17:19, 3:40])


@pytest.mark.parametrize("kind", [QUANT.F16, QUANT.BF16, QUANT.Q8_0])
def test_permuted_rows_of_narrow_types(tmp_path, model, kind) -> None:
    hf, stored = model
    data = {"blk.0.attn_q.weight": gguf.quants.quantize(stored["blk.0.attn_q.weight"], kind)}
    checkpoint = load.open_checkpoint(write(tmp_path / "m.gguf", stored | data, dict.fromkeys(data, kind)))
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = gguf.quants.dequantize(gguf.quants.quantize(hf[name], kind), kind)
    np.testing.assert_array_equal(checkpoint.read(name, dtype=np.float32), expected)
    np.testing.assert_array_equal(checkpoint.read(name, (slice(60, 70),), dtype=np.float32), expected[60:70])


# Rope scaling, which these files store as divisors


@pytest.mark.parametrize("preset", ["llama-3.1-8b", "llama-3.2-1b"])
def test_rope_divisors_of_llama_3_are_recognised(tmp_path, model, preset) -> None:
    scaling = PRESETS[preset].rope_scaling
    divisors = []
    for j in range(C // 2):  # as the converters of these files compute them
        wavelength = 2 * np.pi * 500000.0 ** (2 * j / C)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(scaling.factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    stored = model[1] | {"rope_freqs.weight": np.array(divisors, np.float32)}
    assert load.open_checkpoint(write(tmp_path / "m.gguf", stored)).config.rope_scaling == scaling
    stored["rope_freqs.weight"][10] *= 1.01
    with pytest.raises(UserError, match=r"rope_freqs\.weight does not hold the divisors"):
        load.open_checkpoint(write(tmp_path / "other.gguf", stored))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"llama__rope__scaling__type": "yarn"}, "rope scaling"),
        ({"llama__expert_count": 8}, "mixtures of experts"),
        ({"llama__attention__sliding_window": 4096}, r"unknown key llama\.attention\.sliding_window"),
        ({"llama__rope__scaling__factor": [1, 2]}, "must be one number"),
    ],
)
def test_metadata_that_changes_the_model_is_refused(tmp_path, model, fields, message) -> None:
    with pytest.raises(UserError, match=message):
        load.open_checkpoint(write(tmp_path / "m.gguf", model[1], **fields))


def test_other_architectures_are_refused(tmp_path, model) -> None:
    with pytest.raises(UserError, match="'qwen2' is not supported"):
        load.open_checkpoint(write(tmp_path / "m.gguf", model[1], arch="qwen2"))


def test_other_block_types_and_tensors_are_refused(tmp_path, model) -> None:
    data = {"blk.0.ffn_up.weight": gguf.quants.quantize(model[1]["blk.0.ffn_up.weight"], QUANT.Q5_0)}
    with pytest.raises(UserError, match="block type Q5_0; supported are"):
        load.open_checkpoint(write(tmp_path / "m.gguf", model[1] | data, dict.fromkeys(data, QUANT.Q5_0)))
    with pytest.raises(UserError, match=r"unexpected tensor blk\.0\.attn_q\.bias"):
        load.open_checkpoint(write(tmp_path / "b.gguf", model[1] | {"blk.0.attn_q.bias": np.ones(H * C, np.float32)}))
    short = dict(model[1])
    del short["blk.0.ffn_up.weight"]
    with pytest.raises(UserError, match=r"missing tensor model\.layers\.0\.mlp\.up_proj\.weight"):
        load.open_checkpoint(write(tmp_path / "c.gguf", short))


def test_header_equals_that_of_the_gguf_package(tmp_path, model) -> None:
    path = write(tmp_path / "m.gguf", model[1], general__tags=["a", "é"], general__numbers=[1, -2])
    fields, infos = read_header(path)
    reader = gguf.GGUFReader(path)
    assert fields == {key: f.contents() for key, f in reader.fields.items() if not key.startswith("GGUF.")}
    expected = {t.name: (tuple(reversed(t.shape.tolist())), t.n_bytes, t.data_offset) for t in reader.tensors}
    assert {name: (info.shape, info.nbytes, info.offset) for name, info in infos.items()} == expected


def test_smollm2_sums(smollm2) -> None:
    """Sums and sums of squares, in float64, of the dequantised weights as computed from the published file."""
    checkpoint = load.open_checkpoint(smollm2)
    assert checkpoint.config == dataclasses.replace(PRESETS["smollm2-135m"])
    sums = {
        "model.embed_tokens.weight": (-15353.044494, 520415.715448),
        "model.layers.0.self_attn.q_proj.weight": (59.223221, 26749.573275),
        "model.layers.29.mlp.up_proj.weight": (305.732681, 41023.198646),
        "model.norm.weight": (1038.332031, 1921.735550),
    }
    for name, expected in sums.items():
        value = checkpoint.read(name).astype(np.float64)
        np.testing.assert_allclose((value.sum(), (value**2).sum()), expected, atol=1e-6)

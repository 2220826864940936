"""GGUF files of the ``llama`` architecture, under Hugging Face's names, shapes and row order.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The header is parsed here with every count and length checked
against the file; the arithmetic of the blocks is that of the ``gguf`` package.
"""

import dataclasses
import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import gguf
import ml_dtypes
import numpy as np

from jaxllm.config import PRESETS, Config, RopeScaling
from jaxllm.errors import UserError
from jaxllm.tensors import EMBEDDING, HEAD, Checkpoint, TensorInfo, check_tensors, raise_faults, read_bytes

if TYPE_CHECKING:
    from jaxllm.tokenizer import Tokenizer

MAX_ENTRIES = 1 << 16  # metadata keys, tensors
MAX_ELEMENTS = 1 << 21  # of all metadata arrays together; a large vocabulary with its merges has a million
MAX_STRING_BYTES = 4 << 20

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_PLAIN = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
_SUPPORTED = (*_PLAIN, "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_TYPES = {gguf.GGMLQuantizationType[name].value: gguf.GGMLQuantizationType[name] for name in _SUPPORTED}

_ROPE_FACTORS = "rope_freqs.weight"
_OUTER = {"token_embd": EMBEDDING, "output_norm": "model.norm.weight", "output": HEAD}
_INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
_OTHER_KEYS = {
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "vocab_size",
    "expert_count",
    "expert_used_count",
}


class GgufCheckpoint(Checkpoint):
    """A ``.gguf`` file. Quantised tensors read as float32; q and k rows are in Hugging Face's order.

    Attributes (besides those of `Checkpoint`):
      fields: the file's metadata, as plain Python values.
    Raises:
      UserError: a damaged file, another architecture, an unsupported block type, or tensors that disagree with the metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields, stored = read_header(path)
        factors = stored.pop(_ROPE_FACTORS, None)
        tensors = {_hf_name(name): info for name, info in stored.items()}
        config = _read_config(self.fields, path, tied=HEAD not in tensors)
        if factors is not None:
            values = read_bytes(path, factors.offset, factors.nbytes)
            scaling = _recover_scaling(config, values.view("<f4") if factors.stored == "F32" else None, path)
            config = dataclasses.replace(config, rope_scaling=scaling)
        raise_faults(path, check_tensors(config, tensors))
        self.config, self.tensors = config, tensors
        ends = [self.fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        self.stop_ids = frozenset(token for token in ends if isinstance(token, int))

    def _load_tokenizer(self) -> "Tokenizer":
        from jaxllm.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self.fields, where=str(self.path))

    def save_text_files(self, folder: Path) -> None:
        self.tokenizer().save(folder)
        generation = {"bos_token_id": self.config.bos_token_id, "eos_token_id": sorted(self.stop_ids)}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")

    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        info = self.tensors[name]
        row_bytes = info.nbytes // info.shape[0]
        first, last, order = start, stop, None
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # Writers interleave the two halves of each head (rotary pairs side by side); whole heads hold the rows asked for.
            width = self.config.head_dim
            first, last = start // width * width, -(-stop // width) * width
            head, half, pair = np.unravel_index(np.arange(start, stop), (info.shape[0] // width, 2, width // 2))
            order = head * width + pair * 2 + half - first
        raw = read_bytes(info.file, info.offset + first * row_bytes, (last - first) * row_bytes)
        if order is not None:
            raw = raw.reshape(last - first, row_bytes)[order]
        if info.stored in _PLAIN:
            return raw.reshape(-1).view(info.dtype).reshape(stop - start, *info.shape[1:])
        return gguf.quants.dequantize(raw.reshape(stop - start, row_bytes), gguf.GGMLQuantizationType[info.stored])


class _Reader:
    """Reads little-endian values; nothing past the end of the file, nothing longer than the format can need."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path, self.position = file, path, 0
        self.size = path.stat().st_size
        self.elements = 0

    def take(self, count: int, what: str) -> bytes:
        data = self.file.read(count) if count <= self.size - self.position else b""
        if len(data) != count:
            raise UserError(f"{self.path}: {what} needs {count} bytes at byte {self.position} of {self.size}; damaged file")
        self.position += count
        return data

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def count(self, limit: int, what: str, code: str = "Q") -> int:
        n = self.number(code, what)
        if n > limit:
            raise UserError(f"{self.path}: {what} is {n}; the limit is {limit}; damaged file")
        return n

    def string(self, what: str) -> str:
        data = self.take(self.count(MAX_STRING_BYTES, f"length of {what}"), what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{self.path}: {what} is not valid UTF-8; damaged file") from None

    def value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind != _ARRAY:
            raise UserError(f"{self.path}: {what} has the unknown type {kind}; damaged file")
        kind = self.number("I", what)
        n = self.count(MAX_ELEMENTS - self.elements, f"length of {what}")
        self.elements += n
        if kind == _STRING:
            return [self.string(what) for _ in range(n)]
        if kind not in _SCALARS:
            raise UserError(f"{self.path}: {what} is an array of the unknown type {kind}; damaged file")
        code = _SCALARS[kind]
        return list(struct.unpack(f"<{n}{code}", self.take(n * struct.calcsize("<" + code), what)))


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Metadata, and tensors under the names of the file, shapes row-major.

    Raises:
      UserError: not a GGUF of version 2 or 3, or counts, lengths, offsets or shapes that do not fit the file.
    """
    try:
        with path.open("rb") as file:
            return _parse(_Reader(file, path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(reader: _Reader) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    path = reader.path
    if reader.take(4, "the magic number") != b"GGUF":
        raise UserError(f"{path}: not a GGUF file")
    if (version := reader.number("I", "the version")) not in (2, 3):
        raise UserError(f"{path}: GGUF version {version} is not supported; 2 and 3 are, in little-endian order")
    num_tensors = reader.count(MAX_ENTRIES, "the number of tensors")
    fields: dict[str, Any] = {}
    for _ in range(reader.count(MAX_ENTRIES, "the number of metadata keys")):
        key = reader.string("a metadata key")
        if key in fields:
            raise UserError(f"{path}: metadata key {key!r} is given twice")
        fields[key] = reader.value(reader.number("I", f"type of {key!r}"), repr(key))
    entries: dict[str, tuple[tuple[int, ...], Any, int]] = {}
    for _ in range(num_tensors):
        name = reader.string("a tensor's name")
        if name in entries:
            raise UserError(f"{path}: tensor {name!r} is given twice")
        dims = [reader.number("Q", f"shape of {name}") for _ in range(reader.count(4, f"rank of {name}", "I"))]
        kind = reader.number("I", f"type of {name}")
        if kind not in _TYPES:
            found = next((t.name for t in gguf.GGMLQuantizationType if t.value == kind), kind)
            raise UserError(f"{path}: {name} has block type {found}; supported are {', '.join(_SUPPORTED)}")
        entries[name] = tuple(reversed(dims)), _TYPES[kind], reader.number("Q", f"offset of {name}")
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise UserError(f"{path}: general.alignment {alignment!r} is not a power of two from 8 to 65536")
    start = -(-reader.position // alignment) * alignment
    return fields, _place(entries, start, reader.size, path)


def _place(entries: dict[str, tuple[tuple[int, ...], Any, int]], start: int, size: int, path: Path) -> dict[str, TensorInfo]:
    """Tensor infos with absolute offsets, none past the end of the file, none overlapping."""
    infos = {}
    for name, (shape, kind, offset) in entries.items():
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if not shape or not all(shape) or shape[-1] % block:
            raise UserError(f"{path}: {name} has shape {shape}, which does not hold whole {kind.name} blocks of {block}")
        nbytes = math.prod(shape) // block * block_bytes
        if start + offset + nbytes > size:
            raise UserError(f"{path}: {name} {kind.name}{shape} ends at byte {start + offset + nbytes}; the file has {size}")
        dtype = _PLAIN.get(kind.name, np.dtype(np.float32))
        infos[name] = TensorInfo(shape, dtype, kind.name, nbytes, path, start + offset)
    end, before = start, "the header"
    for name, info in sorted(infos.items(), key=lambda item: item[1].offset):
        if info.offset < end:
            raise UserError(f"{path}: {name} starts at byte {info.offset}, inside {before}, which ends at {end}")
        end, before = info.offset + info.nbytes, name
    return infos


def _hf_name(name: str) -> str:
    """Hugging Face's name for a GGUF tensor; a name that has none is kept, and reported as unexpected."""
    stem, _, suffix = name.rpartition(".")
    if suffix == "weight" and stem in _OUTER:
        return _OUTER[stem]
    parts = stem.split(".")
    if suffix == "weight" and len(parts) == 3 and parts[0] == "blk" and parts[2] in _INNER:
        return f"model.layers.{parts[1]}.{_INNER[parts[2]]}.weight"
    return name


def _read_config(fields: dict[str, Any], path: Path, *, tied: bool) -> Config:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{path}: general.architecture {architecture!r} is not supported; only 'llama' is")
    values = {key.removeprefix("llama."): value for key, value in fields.items() if key.startswith("llama.")}
    if unknown := sorted(set(values) - set(_SIZES) - _OTHER_KEYS):
        raise UserError(
            f"{path}: unknown key {', '.join(f'llama.{key}' for key in unknown)}; refusing to guess what it changes"
        )
    if not_scalar := [key for key, value in values.items() if isinstance(value, list)]:
        raise UserError(f"{path}: llama.{not_scalar[0]} must be one number; a list (one per layer) is not supported")
    if values.get("expert_count") or values.get("rope.scaling.type", "none") != "none":
        raise UserError(f"{path}: mixtures of experts and rope scaling of type linear or yarn are not supported")
    if missing := sorted(set(_SIZES) - set(values)):
        raise UserError(f"{path}: missing key {', '.join(f'llama.{key}' for key in missing)}")
    tokens = fields.get("tokenizer.ggml.tokens")
    vocab = values.get("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    data = {hf: values[key] for key, hf in _SIZES.items()}
    heads, width = data["num_attention_heads"], data["hidden_size"]
    if type(heads) is not int or heads < 1 or type(width) is not int:
        raise UserError(f"{path}: llama.attention.head_count must be one positive number, found {str(heads)[:80]}")
    lengths = {
        values.get(key, width // heads) for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    }
    if len(lengths) > 1:
        raise UserError(f"{path}: key, value and rotary lengths of a head differ: {sorted(map(str, lengths))}")
    data |= {
        "num_key_value_heads": values.get("attention.head_count_kv", heads),
        "head_dim": lengths.pop(),
        "rms_norm_eps": _decimal(values.get("attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_theta": _decimal(values.get("rope.freq_base", 10000.0)),
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }
    return Config.from_hf(data, where=str(path))


def _decimal(value: Any) -> Any:
    """The shortest decimal that rounds to a stored float32: 9.99999975e-06 was written as 1e-5."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value))) if isinstance(value, float) else value


def _recover_scaling(config: Config, factors: np.ndarray | None, path: Path) -> RopeScaling:
    """The Llama 3 scaling whose divisors of the rotary frequencies are ``factors``, ``[C/2]``.

    A GGUF of Llama 3.1 or 3.2 stores the divisors instead of the rule; only those of the published rules are accepted.
    """
    j = np.arange(config.head_dim // 2)
    wavelength = 2 * np.pi * config.rope_theta ** (2 * j / config.head_dim)
    published = {preset.rope_scaling for preset in PRESETS.values() if preset.rope_scaling is not None}
    for s in sorted(published, key=lambda scaling: scaling.factor):
        turns = s.original_max_position_embeddings / wavelength
        kept = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0, 1)
        divisors = 1 / ((1 - kept) / s.factor + kept)
        if factors is not None and factors.shape == divisors.shape and np.allclose(factors, divisors, rtol=1e-5, atol=0):
            return s
    raise UserError(
        f"{path}: {_ROPE_FACTORS} does not hold the divisors of a published Llama 3 rope scaling; refusing to guess"
    )

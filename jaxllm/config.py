"""The shape of a Llama, read from and written to Hugging Face's ``config.json``.

The reader fails closed: a key that it does not know, or a value that this architecture cannot honour, raises. A scaling
rule lost in silence costs accuracy that no test on short prompts shows.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.errors import UserError

MAX_CONFIG_BYTES = 1 << 20

# Keys with no effect on the computation of a Llama at inference.
_IGNORED = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "dtype",
        "initializer_range",
        "is_llama_config",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)
# Keys that change the computation; only this value of each is implemented.
_REQUIRED_VALUES = {"attention_bias": False, "hidden_act": "silu", "rope_interleaved": False}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
_OTHER = ("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "mlp_bias", "bos_token_id", "eos_token_id")
_KNOWN = _IGNORED | _REQUIRED_VALUES.keys() | {*_SIZES, *_ROPE_KEYS, *_OTHER}

_DEFAULT_THETA = 10000.0  # what a file of 2023 means when it names no base (Llama 1 and 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3's wavelength-dependent scaling of the rotary frequencies ("llama3" in ``config.json``)."""

    factor: float  # long wavelengths are divided by this
    low_freq_factor: float  # wavelengths above original / this are fully scaled
    high_freq_factor: float  # wavelengths below original / this are left alone
    original_max_position_embeddings: int  # tokens, the context length before scaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that the forward pass of a Llama depends on, apart from the weights.

    Names are those of Hugging Face's ``config.json``. ``eos_token_ids`` is the set of ids that end a text; it may be empty.
    """

    hidden_size: int  # D
    intermediate_size: int  # F
    num_hidden_layers: int  # L
    num_attention_heads: int  # H
    num_key_value_heads: int  # K, divides H
    head_dim: int  # C, even
    vocab_size: int  # V, rows of the embedding (the tokenizer may have fewer)
    max_position_embeddings: int  # tokens
    rms_norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    mlp_bias: bool = False  # whether the three projections of an MLP have biases, as a baked clamp needs
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (*_SIZES, "num_key_value_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
                raise UserError(f"config: {name} must be a positive integer, found {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise UserError(
                f"config: num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise UserError(f"config: head_dim {self.head_dim} is odd; rotary embeddings need pairs")

    @classmethod
    def from_hf(cls, data: Mapping[str, Any], *, where: str = "config.json") -> "Config":
        """Reads the content of a ``config.json``, in the spelling of transformers 4 or 5.

        Raises:
          UserError: an unknown key, rope type, activation or bias, a missing key, or two spellings that disagree. The message
            names ``where`` and the key.
        """
        if not isinstance(data, Mapping):
            raise UserError(f"{where}: expected a JSON object, found {type(data).__name__}")
        if data.get("model_type", "llama") != "llama":
            raise UserError(f"{where}: model_type {data['model_type']!r} is not supported; only 'llama' is")
        if unknown := sorted(set(data) - _KNOWN):
            raise UserError(f"{where}: unknown key {', '.join(map(repr, unknown))}; refusing to guess what it changes")
        for key, only in _REQUIRED_VALUES.items():
            if data.get(key, only) != only:
                raise UserError(f"{where}: {key} = {data[key]!r} is not supported; only {only!r} is")
        if missing := [key for key in _SIZES if data.get(key) is None]:
            raise UserError(f"{where}: missing key {', '.join(map(repr, missing))}")
        theta, scaling = _read_rope(data, where)
        heads = data["num_attention_heads"]
        head_dim = data.get("head_dim")
        if head_dim is None:
            if not isinstance(heads, int) or heads < 1 or not isinstance(data["hidden_size"], int):
                raise UserError(f"{where}: hidden_size and num_attention_heads must be positive integers")
            if data["hidden_size"] % heads:
                raise UserError(f"{where}: head_dim is absent and hidden_size is not a multiple of num_attention_heads")
            head_dim = data["hidden_size"] // heads
        kv_heads = data.get("num_key_value_heads")
        try:
            return cls(
                **{key: data[key] for key in _SIZES},
                num_key_value_heads=heads if kv_heads is None else kv_heads,
                head_dim=head_dim,
                rms_norm_eps=_positive(data.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
                rope_theta=theta,
                rope_scaling=scaling,
                tie_word_embeddings=_boolean(data.get("tie_word_embeddings", False), "tie_word_embeddings"),
                mlp_bias=_boolean(data.get("mlp_bias", False), "mlp_bias"),
                bos_token_id=next(iter(_token_ids(data.get("bos_token_id"), "bos_token_id")), None),
                eos_token_ids=_token_ids(data.get("eos_token_id"), "eos_token_id"),
            )
        except UserError as error:
            raise UserError(f"{where}: {str(error).removeprefix('config: ')}") from None

    @classmethod
    def read(cls, path: Path) -> "Config":
        """Reads a ``config.json`` file. Raises UserError with the path when it is absent, too large or not valid."""
        return cls.from_hf(read_json(path), where=str(path))

    def to_hf(self) -> dict[str, Any]:
        """The content of a ``config.json`` that `from_hf`, transformers 4 and transformers 5 read back to the same model."""
        rope = {"rope_type": "llama3", **dataclasses.asdict(self.rope_scaling)} if self.rope_scaling else None
        eos = self.eos_token_ids
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": self.mlp_bias,
            **{key: getattr(self, key) for key in (*_SIZES, "num_key_value_heads", "head_dim")},
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": rope,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else list(eos),
        }


def read_json(path: Path, *, limit: int = MAX_CONFIG_BYTES) -> Any:
    """Parses a JSON file of at most ``limit`` bytes. Raises UserError with the path and what is wrong."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise UserError(f"{path}: {size} bytes is too large for this file (limit {limit})")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None


def _read_rope(data: Mapping[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    """Rotary base and scaling from the old spelling, the new one, or both when they agree."""
    old = _rope(data.get("rope_theta"), data.get("rope_scaling"), where, "rope_scaling")
    new_block = data.get("rope_parameters")
    if new_block is None:
        return (_DEFAULT_THETA if old[0] is None else old[0]), old[1]
    if not isinstance(new_block, Mapping):
        raise UserError(f"{where}: rope_parameters must be an object, found {new_block!r}")
    block = dict(new_block)
    new = _rope(block.pop("rope_theta", None), block, where, "rope_parameters")
    theta = new[0] if new[0] is not None else old[0]
    if theta is None:
        raise UserError(f"{where}: rope_parameters has no rope_theta")
    for key, mine, theirs in (("rope_theta", old[0], theta), ("rope_scaling", old[1], new[1])):
        if data.get(key) is not None and mine != theirs:
            raise UserError(f"{where}: {key} and rope_parameters disagree: {mine} against {theirs}")
    return theta, new[1]


def _rope(theta: Any, block: Any, where: str, key: str) -> tuple[float | None, RopeScaling | None]:
    base = None if theta is None else _positive(theta, f"{where}: rope_theta")
    if block is None:
        return base, None
    if not isinstance(block, Mapping):
        raise UserError(f"{where}: {key} must be an object or null, found {block!r}")
    values = dict(block)
    kinds = {values.pop(name) for name in ("rope_type", "type") if isinstance(values.get(name), str)}
    kind = next(iter(kinds)) if len(kinds) == 1 else sorted(kinds)
    if kind == "default" or (not kinds and not values):
        return base, None
    if kind != "llama3":
        raise UserError(f"{where}: {key} has rope type {kind!r}; supported are 'default' and 'llama3'")
    fields = [field.name for field in dataclasses.fields(RopeScaling)]
    if set(values) != set(fields):
        raise UserError(f"{where}: {key} needs exactly the keys {fields}, found {sorted(values)}")
    numbers = {name: _positive(values[name], f"{where}: {key}.{name}") for name in fields}
    scaling = RopeScaling(
        factor=numbers["factor"],
        low_freq_factor=numbers["low_freq_factor"],
        high_freq_factor=numbers["high_freq_factor"],
        original_max_position_embeddings=int(numbers["original_max_position_embeddings"]),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise UserError(f"{where}: {key}.high_freq_factor must exceed low_freq_factor")
    return base, scaling


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise UserError(f"{name} must be a positive number, found {value!r}")
    return float(value)


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, found {value!r}")
    return value


def _token_ids(value: Any, name: str) -> tuple[int, ...]:
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise UserError(f"{name} must be a token id or a list of them, found {value!r}")
    return ids


_LLAMA_3_SCALING: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LLAMA_3: dict[str, Any] = {
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "bos_token_id": 128000,
    "eos_token_ids": (128001,),
}

PRESETS: dict[str, Config] = {
    "llama-3.1-8b": Config(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rope_scaling=RopeScaling(factor=8.0, **_LLAMA_3_SCALING),
        **_LLAMA_3,
    ),
    "llama-3.2-3b": Config(
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        rope_scaling=RopeScaling(factor=32.0, **_LLAMA_3_SCALING),
        tie_word_embeddings=True,
        **_LLAMA_3,
    ),
    "llama-3.2-1b": Config(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        rope_scaling=RopeScaling(factor=32.0, **_LLAMA_3_SCALING),
        tie_word_embeddings=True,
        **_LLAMA_3,
    ),
    "smollm2-135m": Config(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=49152,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
}
"""Published shapes, by name. ``llama-3.x`` are the base models: one end-of-text id."""

"""Facts of the published models, and a reader that refuses what it does not know."""

import dataclasses
import json

import pytest

from jaxllm.config import PRESETS, Config, RopeScaling, read_json
from jaxllm.errors import UserError

# As published for Llama 3.1 8B Instruct.
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
NEW_SPELLING = {
    **{key: value for key, value in LLAMA_8B.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")},
    "rope_parameters": {**LLAMA_8B["rope_scaling"], "rope_theta": 500000.0},
    "dtype": "bfloat16",
}


def test_reads_the_published_file() -> None:
    config = Config.from_hf(LLAMA_8B)
    assert config == dataclasses.replace(PRESETS["llama-3.1-8b"], eos_token_ids=(128001, 128008, 128009))
    assert config.head_dim == 128


def test_both_rope_spellings_mean_the_same() -> None:
    assert Config.from_hf(NEW_SPELLING) == Config.from_hf(LLAMA_8B)
    assert Config.from_hf({**LLAMA_8B, **NEW_SPELLING}) == Config.from_hf(LLAMA_8B)


def test_spellings_that_disagree_are_refused() -> None:
    with pytest.raises(UserError, match="rope_theta and rope_parameters disagree"):
        Config.from_hf({**NEW_SPELLING, "rope_theta": 10000.0})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_round_trip(name: str) -> None:
    assert Config.from_hf(json.loads(json.dumps(PRESETS[name].to_hf()))) == PRESETS[name]


def test_biases_of_the_mlp_are_read_and_written() -> None:
    config = Config.from_hf({**LLAMA_8B, "mlp_bias": True})
    assert config == dataclasses.replace(Config.from_hf(LLAMA_8B), mlp_bias=True)
    assert Config.from_hf(config.to_hf()) == config


def test_head_dim_follows_from_the_width_and_is_never_128_by_default() -> None:
    data = PRESETS["llama-3.2-1b"].to_hf()
    del data["head_dim"]
    assert Config.from_hf(data).head_dim == 64


def test_absent_kv_heads_mean_one_per_query_head() -> None:
    data = {key: value for key, value in LLAMA_8B.items() if key != "num_key_value_heads"}
    assert Config.from_hf(data).num_key_value_heads == 32


def test_old_type_key_of_rope_scaling_is_read() -> None:
    block = {"type" if key == "rope_type" else key: value for key, value in LLAMA_8B["rope_scaling"].items()}
    assert Config.from_hf({**LLAMA_8B, "rope_scaling": block}).rope_scaling == RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 4096}, "unknown key 'sliding_window'"),
        ({"quantization_config": {}}, "unknown key 'quantization_config'"),
        ({"model_type": "qwen2"}, "model_type 'qwen2'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": 1}, "mlp_bias must be true or false"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "needs exactly the keys"),
        ({"num_key_value_heads": 5}, "not a multiple"),
        ({"head_dim": 63}, "odd"),
        ({"hidden_size": None}, "missing key 'hidden_size'"),
        ({"hidden_size": 4096.5}, "positive integer"),
        ({"vocab_size": 0}, "positive integer"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rms_norm_eps": -1}, "positive number"),
    ],
)
def test_refuses_what_it_cannot_honour(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config.from_hf({**LLAMA_8B, **change}, where="config.json")


def test_errors_name_the_file(tmp_path) -> None:
    path = tmp_path / "config.json"
    for text in ("{", "[1]", "[" * 100_000, "1" * 5000):
        path.write_text(text)
        with pytest.raises(UserError, match=r"config\.json"):
            Config.read(path)
    with pytest.raises(UserError, match="cannot be read"):
        Config.read(tmp_path / "absent.json")
    with pytest.raises(UserError, match="too large"):
        read_json(path, limit=10)

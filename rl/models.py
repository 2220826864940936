"""What a run starts from: a checkpoint, or the tiny model of bytes; and how conversations with it are written."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxllm import params as trees
from jaxllm import sharding
from jaxllm.config import Config
from jaxllm.hub import resolve
from jaxllm.load import load_params, open_checkpoint
from jaxllm.save import TextFiles
from jaxllm.tokenizer import Tokenizer
from rl.bytes import byte_tokenizer
from rl.codec import ChatCodec, Codec, PlainCodec
from rl.config import TINY


@dataclasses.dataclass(frozen=True)
class Start:
    """A model before its training."""

    cfg: Config
    params: trees.Params  # stacked
    codec: Codec
    tokenizer: Tokenizer
    text: TextFiles  # its tokenizer and chat template, for the folder of a trained model


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer that comes from no checkpoint."""

    tokenizer: Tokenizer

    def save_text_files(self, folder: Path) -> None:
        """Writes it."""
        self.tokenizer.save(folder)


def start(model: str, seed: int = 0, mesh: Mesh | None = None, dtype: Any = jnp.float32) -> Start:
    """The model of this name, its weights split over the mesh.

    A model whose vocabulary is that of bytes speaks in plain lines, any other one by its chat template.

    Args:
      model: ``tiny`` (`rl.config.TINY`, random weights by the seed), or a checkpoint as for `jaxllm info`.
      dtype: of the weights.
    Raises:
      UserError: no such checkpoint, or one without a tokenizer or without a token that ends a turn.
    """
    if model == "tiny":
        tokenizer = byte_tokenizer()
        places = sharding.shardings(TINY, mesh, stacked=True)
        weights = jax.device_put(trees.init(jax.random.key(seed), TINY, dtype, stacked=True, std=None), places)
        return Start(TINY, weights, PlainCodec(tokenizer), tokenizer, TokenizerFiles(tokenizer))
    checkpoint = open_checkpoint(resolve(model))
    tokenizer = checkpoint.tokenizer()
    codec: Codec
    if tokenizer.digest() == byte_tokenizer().digest():
        codec = PlainCodec(tokenizer)
    else:
        codec = ChatCodec(tokenizer, stop_ids=checkpoint.stop_ids)
    weights = load_params(checkpoint, dtype=dtype, mesh=mesh, stacked=True)
    return Start(checkpoint.config, weights, codec, tokenizer, checkpoint)

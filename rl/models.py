"""What a run starts from, a checkpoint or the tiny model of bytes; how conversations with it are written; what it leaves."""

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
from jaxllm.save import TextFiles, save_params
from jaxllm.tokenizer import Tokenizer
from rl import lora
from rl.bytes import byte_tokenizer
from rl.codec import ChatCodec, Codec, PlainCodec
from rl.config import TINY

MODEL, ADAPTER = "model", "adapter"  # folders of what a run has made


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


def merged(weights: trees.Params, base: trees.Params | None, small: lora.Lora | None) -> trees.Params:
    """The model whole: what was trained, or a base with the adapters that were in its weights."""
    return weights if base is None or small is None else lora.merge(base, weights, small)


def export(
    folder: Path,
    weights: trees.Params,
    cfg: Config,
    text: TextFiles,
    *,
    base: trees.Params | None = None,
    small: lora.Lora | None = None,
    source: str = "",
    name: str = MODEL,
) -> list[Path]:
    """Writes a trained model as a Hugging Face folder, and its adapters as PEFT's beside it; returns the folders.

    What is there already stays: it was written whole.

    Args:
      folder: of the run.
      source: the model that was adapted, for PEFT.
      name: of the model's folder; the adapters' has `ADAPTER` in the place of `MODEL`.
    """
    made = [folder / name]
    if small is not None:
        made.append(folder / name.replace(MODEL, ADAPTER, 1))
        if not made[1].exists():
            lora.save_peft(weights, small, made[1], base=source)
    if not made[0].exists():
        save_params(merged(weights, base, small), cfg, made[0], like=text)
    return made

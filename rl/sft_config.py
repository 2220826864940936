"""The settings of supervised learning on recorded episodes; saved with the run."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from jaxllm.errors import UserError


@dataclasses.dataclass(frozen=True)
class SftConfig:
    """How recorded episodes are imitated."""

    model: str = "tiny"
    """a checkpoint as for `jaxllm info`, or tiny: 1.2 M parameters over bytes, from random weights"""
    min_reward: float | None = None
    """leave out episodes that earned less in all"""
    holdout: float = 0.05
    """share of the tasks that are never trained, to measure the loss on"""
    width: int = 256
    """tokens of a row, into which whole episodes are packed"""
    batch: int = 8
    """rows of an optimiser step"""
    steps: int = 200
    """optimiser steps"""
    lr: float | None = None
    """highest learning rate (default: 1e-3 for tiny, 1e-5 for a checkpoint, 2e-4 for adapters)"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """what follows the warm-up: down to a tenth along a cosine, or the same rate to the end"""
    warmup: int = 10
    """steps over which the rate rises from 0"""
    weight_decay: float = 0.1
    """of AdamW"""
    clip_norm: float = 1.0
    """of the whole gradient"""
    micro_batches: int = 1
    """parts whose gradients are added up in an optimiser step, to save memory"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """of the forward and backward pass; weights and moments are float32"""
    remat: bool = False
    """recompute each layer in the backward pass: a layer's input stays in memory in place of all that it computes"""
    lora_rank: int = 0
    """train adapters of this rank beside every linear layer, and nothing else; 0 trains all weights"""
    lora_alpha: float = 32.0
    """an adapter's product is scaled by alpha / rank"""
    seed: int = 0
    """of the order of the data, of the held-out tasks, and of whatever is random in the weights"""
    eval_every: int = 50
    """steps between measurements of the held-out loss; 0 for the last step only"""
    checkpoint_every: int = 50
    """steps between checkpoints; 0 for the last one only"""
    keep: int = 2
    """checkpoints that stay"""

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        if self.lr is not None:
            return self.lr
        return 2e-4 if self.lora_rank else 1e-3 if self.model == "tiny" else 1e-5

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise UserError("these settings can't be trained with:\n" + "\n".join(f"  {problem}" for problem in problems))


def _problems(config: SftConfig) -> Iterator[str]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{field.name} is {value}"
    for name, least in (
        ("width", 2), ("batch", 1), ("steps", 1), ("warmup", 0), ("weight_decay", 0), ("micro_batches", 1), ("lora_rank", 0),
        ("seed", 0), ("eval_every", 0), ("checkpoint_every", 0), ("keep", 1),
    ):  # fmt: skip
        if getattr(config, name) < least:
            yield f"{name} must be at least {least}, found {getattr(config, name)}"
    for name in ("clip_norm", "lora_alpha", "rate"):
        if getattr(config, name) <= 0:
            yield f"{'lr' if name == 'rate' else name} must be positive, found {getattr(config, name)}"
    if not 0 <= config.holdout < 1:
        yield f"holdout must be at least 0 and below 1, found {config.holdout}"
    if config.micro_batches >= 1 and config.batch % config.micro_batches:
        yield f"micro_batches {config.micro_batches} does not divide {config.batch} rows"
    if config.warmup > config.steps:
        yield f"warmup {config.warmup} is longer than the {config.steps} steps"
    if config.model == "tiny" and config.lora_rank:
        yield "lora_rank adapts a model that has learnt something; tiny begins with random weights"

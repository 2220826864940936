"""The command that merges models."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class Merge:
    """Merge models that started from one into their weighted mean."""

    models: tyro.conf.Positional[tuple[str, ...]]
    """folders of safetensors, .gguf files or Hugging Face ids, all of one shape"""
    out: Path
    """the folder to be written; it must not exist, or be empty"""
    weights: Annotated[tuple[float, ...] | None, tyro.conf.arg(metavar="ALPHA")] = None
    """one weight for each model, 0 or more, summing to 1 (default: equal ones)"""

    def run(self) -> None:
        from jaxllm.cli import console
        from jaxllm.hub import resolve
        from jaxllm.load import open_checkpoint
        from rl.merge import check_weights, merge_checkpoints

        alphas = check_weights(self.weights, len(self.models))
        checkpoints = [open_checkpoint(resolve(model)) for model in self.models]
        merge_checkpoints(checkpoints, self.out, alphas)
        parts = ", ".join(f"{alpha:.4g} of {model}" for alpha, model in zip(alphas, self.models, strict=True))
        console.write(f"wrote {self.out}: {parts}")


COMMANDS = {"merge": Merge}

"""Commands on text: generation."""

import dataclasses
import logging
from typing import Any, Literal

import tyro

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue a prompt, or answer it, and stream the text to the terminal.

    The text is the most likely one unless --temperature is given, whatever the checkpoint's own default, so that a command
    prints the same each time.
    """

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    prompt: tyro.conf.Positional[str]
    """the text to continue; with --chat, the user's message"""
    chat: bool = False
    """put the prompt into the checkpoint's chat template"""
    system: str | None = None
    """with --chat: the system message (default: the template's own)"""
    max_tokens: int = 256
    """stop after this many tokens, if no stop token came before"""
    temperature: float = 0.0
    """0 takes the most likely token; 1 samples from the model's distribution"""
    top_k: int = 0
    """sample among this many best tokens only; 0 is all"""
    top_p: float = 1.0
    """sample among the fewest best tokens whose probabilities sum to this"""
    seed: int = 0
    """another seed, another sample"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the weights (default: as stored; float32 for quantised models)"""

    def run(self) -> None:
        import time

        import jax.numpy as jnp

        from jaxllm import generate
        from jaxllm.cli import console
        from jaxllm.errors import UserError
        from jaxllm.hub import resolve
        from jaxllm.load import load_params, open_checkpoint
        from jaxllm.sampling import Sampler

        sampler = Sampler(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        if self.system is not None and not self.chat:
            raise UserError("--system needs --chat")
        if not -(2**63) <= self.seed < 2**63:
            raise UserError(f"--seed must fit into 64 bits, found {self.seed}")
        checkpoint = open_checkpoint(resolve(self.model))
        tokenizer = checkpoint.tokenizer()
        ids = self._encode(tokenizer, checkpoint.chat_template())
        params = load_params(checkpoint, dtype=None if self.dtype is None else jnp.dtype(self.dtype))
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "stop_ids": checkpoint.stop_ids, "sampler": sampler}
        decoder = tokenizer.stream(skip_specials=True)
        start, count, first = time.perf_counter(), 0, 0.0
        for piece in generate.stream(params, checkpoint.config, ids, seed=self.seed, **options):
            console.write("".join(map(decoder.push, piece)), end="")
            first = first or time.perf_counter() - start
            count += len(piece)
        console.write(decoder.finish())
        rate = (count - 1) / max(time.perf_counter() - start - first, 1e-9)
        log.info("%d prompt tokens, first token after %.2f s, then %d at %.1f a second", len(ids), first, count - 1, rate)

    def _encode(self, tokenizer: Any, template: str | None) -> list[int]:
        from jaxllm.chat import encode_chat

        if not self.chat:
            return tokenizer.encode(self.prompt)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return encode_chat(tokenizer, template, [*system, {"role": "user", "content": self.prompt}])


COMMANDS: dict[str, type[Any]] = {"generate": Generate}

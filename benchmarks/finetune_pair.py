"""Makes a pair of models to compare: SmolLM2, and SmolLM2 after some hundred steps on one narrow text.

    python benchmarks/finetune_pair.py --out smollm2-bees

Trains every parameter in float32 with AdamW on random windows of `bees.txt`, a text on beekeeping. Logs the loss and, at times,
how many neurons of a sample have changed their top token since the start (`interp.compare.drift`). Writes a Hugging Face
folder that `jaxllm map` reads. The last line is JSON.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxllm.config import Config
from jaxllm.logprobs import sequence_logprobs
from jaxllm.params import Params

TEXT = Path(__file__).with_name("bees.txt")
CLIP, WEIGHT_DECAY, WARM_UP = 1.0, 0.01, 0.1  # WARM_UP is a share of the steps


def windows(ids: np.ndarray, batch: int, length: int, seed: int) -> Iterator[np.ndarray]:
    """Endless batches [batch, length] of consecutive ids from random places of the text."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(ids) - length + 1, batch)
        yield np.stack([ids[start : start + length] for start in starts])


def train(
    params: Params,
    cfg: Config,
    ids: np.ndarray,
    *,
    steps: int,
    batch: int = 4,
    length: int = 128,
    learning_rate: float = 1e-4,
    seed: int = 0,
    each: Callable[[int, float, Params], None] = lambda *_: None,
) -> Params:
    """Parameters after ``steps`` of AdamW on the text; the given ones are left as they are.

    Args:
      params: stacked or not, float32.
      ids: the text's token ids.
      learning_rate: at its peak, after a linear warm-up; a cosine takes it to a tenth.
      each: called after each step with its number (from 1), its loss in nats a token, and the parameters.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, round(WARM_UP * steps)), max(2, steps), learning_rate / 10
    )
    optimiser = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(schedule, b2=0.95, weight_decay=WEIGHT_DECAY))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, tokens: jax.Array) -> tuple[Params, Any, jax.Array]:
        def loss(params: Params) -> jax.Array:
            return -jnp.mean(sequence_logprobs(params, cfg, tokens)[0])

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.tree.map(jnp.copy, params)
    state = optimiser.init(params)
    for number, tokens in zip(range(1, steps + 1), windows(ids, batch, length, seed), strict=False):
        params, state, value = step(params, state, jnp.asarray(tokens))
        each(number, float(value), params)
    return params


def main() -> None:
    from jaxllm.hub import resolve
    from jaxllm.load import load_params, open_checkpoint
    from jaxllm.save import save_params

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(resolve(arguments.model))
    cfg = checkpoint.config
    ids = np.array(checkpoint.tokenizer().encode(arguments.text.read_text(encoding="utf-8"), bos=False), np.int32)
    before = load_params(checkpoint, dtype=jnp.float32, stacked=True)
    print(f"{arguments.text.name}: {len(ids):,} tokens, {len(np.unique(ids)):,} different")
    begun = time.perf_counter()
    losses = []

    def each(number: int, loss: float, params: Params) -> None:
        losses.append(loss)
        print(f"step {number}: loss {loss:.3f}, {time.perf_counter() - begun:.0f} s", flush=True)

    after = train(before, cfg, ids, steps=arguments.steps, learning_rate=arguments.learning_rate, each=each)
    save_params(after, cfg, arguments.out, like=checkpoint)
    print(json.dumps({"benchmark": "finetune_pair", "losses": losses[::10]}))


if __name__ == "__main__":
    main()

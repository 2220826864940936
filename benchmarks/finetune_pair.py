"""Makes a pair of models to compare: SmolLM2, and SmolLM2 after some hundred steps on one narrow text.

    python benchmarks/finetune_pair.py --out smollm2-bees                    about 20 minutes on two cores
    jaxllm map smollm2 --out maps/smollm2
    jaxllm map smollm2-bees --out maps/bees
    python benchmarks/finetune_pair.py --maps maps/smollm2 maps/bees

Trains every parameter in float32 with AdamW on random windows of `bees.txt`, a text on beekeeping. Logs the loss and, at times,
how many neurons of a sample have kept their top token since the start (`interp.compare.drift`). Writes a Hugging Face folder
that `jaxllm map` reads. With --maps it tells whether the neurons that changed are those whose token the text names. The last
line is JSON.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from interp.atlas import NO_TOKEN, Atlas
from interp.compare import drift, label
from interp.tokens import group_tokens
from jaxllm import intervals
from jaxllm.config import Config
from jaxllm.hub import resolve
from jaxllm.load import Checkpoint, load_params, open_checkpoint
from jaxllm.logprobs import sequence_logprobs
from jaxllm.params import Params
from jaxllm.save import save_params

TEXT = Path(__file__).with_name("bees.txt")
SAMPLE = 4096  # neurons whose drift is logged
EVERY = 50  # steps
BIG = 1 << 30
OCCURRENCES = (0, 1, 3, 10, 30, BIG)  # limits of the classes of tokens
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


def near_and_far(a: Atlas, b: Atlas, ids: np.ndarray) -> list[dict[str, Any]]:
    """How many neurons keep their top token, by how often a spelling of that token occurs in the text ``ids``."""
    groups, V = a.tokens.group, len(a.tokens.data)
    occurs = np.bincount(groups[ids], minlength=V)[groups]
    old, new = (atlas.column("ids")[..., 0, 0].ravel() for atlas in (a, b))
    margin = a.column("margin")[..., 0].ravel()
    labelled = (old != NO_TOKEN) & (new != NO_TOKEN)
    rows = []
    for low, high in itertools.pairwise(OCCURRENCES):
        before, after = (labelled & (occurs[labels] >= low) & (occurs[labels] < high) for labels in (old, new))
        match = intervals.rate_of((old == new)[before])
        rows.append(
            {
                "occurrences": f"{low}" if high == low + 1 else f"{low} to {high - 1}" if high < BIG else f"{low} or more",
                **dataclasses.asdict(match),
                "median_margin": float(np.median(margin[before])) if before.any() else math.nan,
                "labelled_after": int(after.sum()),
            }
        )
    return rows


def make(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains and writes the second model of the pair."""
    checkpoint = open_checkpoint(resolve(arguments.model))
    cfg, tokenizer = checkpoint.config, checkpoint.tokenizer()
    ids = text_ids(checkpoint, arguments.text)
    before = load_params(checkpoint, dtype=jnp.float32, stacked=True)
    groups = group_tokens(tokenizer, cfg.vocab_size).group
    start = label(before, cfg, sample=SAMPLE)
    print(f"{arguments.text.name}: {len(ids):,} tokens, {len(np.unique(ids)):,} different")
    begun, losses, kept = time.perf_counter(), [], {}

    def each(number: int, loss: float, params: Params) -> None:
        losses.append(loss)
        if number % (EVERY // 5) and number != 1:
            return
        told = f"step {number}: loss {loss:.3f}, {time.perf_counter() - begun:.0f} s"
        if not number % EVERY:
            found = drift(start, params, cfg, groups=groups)
            kept[number] = found.match.share
            gained = ", ".join(f"{tokenizer.display(w.id)} {w.before} to {w.after}" for w in found.gained(6))
            told += f"; {found.match.share:.2%} of {found.match.total:,} neurons keep their token; gained: {gained}"
        print(told, flush=True)

    after = train(before, cfg, ids, steps=arguments.steps, learning_rate=arguments.learning_rate, each=each)
    save_params(after, cfg, arguments.out, like=checkpoint)
    return {"losses": [round(loss, 4) for loss in losses[:: EVERY // 5]], "kept": kept}


def text_ids(checkpoint: Checkpoint, text: Path) -> np.ndarray:
    """The token ids of a text file."""
    return np.array(checkpoint.tokenizer().encode(text.read_text(encoding="utf-8"), bos=False), np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, help="folder to write")
    parser.add_argument("--maps", type=Path, nargs=2, help="maps of the model and of the trained one: no training")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    arguments = parser.parse_args()
    if (arguments.out is None) == (arguments.maps is None):
        parser.error("give --out to train, or --maps to look at two maps")
    result: dict[str, Any] = {"benchmark": "finetune_pair"}
    if arguments.out is not None:
        result |= make(arguments)
    else:
        ids = text_ids(open_checkpoint(resolve(arguments.model)), arguments.text)
        result["near_and_far"] = near_and_far(Atlas(arguments.maps[0]), Atlas(arguments.maps[1]), ids)
        for row in result["near_and_far"]:
            print(
                f"top token {row['occurrences']} times in the text: {row['share']:.2%} of {row['total']:,} neurons keep it "
                f"({row['low']:.2%} to {row['high']:.2%}), median margin {row['median_margin']:.3f}; "
                f"{row['labelled_after']:,} neurons have such a token afterwards"
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()

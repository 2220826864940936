"""The search for a neuron's top activations against the plain forward pass, token for token, in alternating rounds.

Both sides use the same weights in one process and windows of the same shape, all of them full. The plain pass is the compiled
model with its logits; without the head it is timed as well. The search reads the text, cuts it, runs the model up to the
neuron's layer, and keeps statistics, counts and the best contexts. A sixteenth of its windows repeats the one before, which
counts for nothing: only the tokens that it reports are its tokens.

    python benchmarks/acts.py [--dtype float32 bfloat16] [--layer 29 15]

The last line is JSON: the ratios (tokens a second of the search over those of the plain pass) and their target.
"""

import argparse
import functools
import json
import os
import statistics
import time
from typing import Any

from jaxllm.cli.runtime import configure_jax

ROUNDS, BATCHES, BATCH = 5, 1, 4
TARGET = 1.0
NEURONS = (605, 0, 1, 2)  # of each layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--layer", nargs="+", type=int, default=[29, 15])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    configure_jax()
    import jax
    import jax.numpy as jnp

    from interp import windows
    from interp.acts import activations
    from interp.calibration import calibration_text
    from jaxllm import hub, load, model

    checkpoint = load.open_checkpoint(hub.resolve("smollm2"))
    cfg, tokenizer = checkpoint.config, checkpoint.tokenizer()
    shape = windows.shape_for(windows.LENGTH, BATCH)
    B, T = shape.batch, shape.length
    ids = tokenizer.encode(calibration_text()) * BATCHES
    plain = [jnp.array(ids[n * B * T : (n + 1) * B * T], jnp.int32).reshape(B, T) for n in range(BATCHES)]
    room = T + (BATCHES * B - 1) * (T - shape.context)
    text = tokenizer.decode(ids[: room - 8])  # where the text is cut, its tokens may differ by a few
    counted = len(tokenizer.encode(text)) - 1

    @functools.partial(jax.jit, static_argnames="head")
    def forward(params: Any, tokens: Any, *, head: bool) -> Any:
        hidden = model.forward(params, cfg, tokens)
        return model.logits(params, hidden) if head else hidden

    def run_plain(params: Any, head: bool) -> int:
        for tokens in plain:
            jax.block_until_ready(forward(params, tokens, head=head))
        return BATCHES * B * T

    def search(params: Any, layer: int) -> int:
        found = activations(params, cfg, tokenizer, [(layer, n) for n in NEURONS], [text], shape=shape)
        assert found.tokens == counted
        return counted

    print(f"SmolLM2-135M, windows of {T}, batches of {B}, {os.cpu_count()} cores, medians of {args.rounds} alternating rounds")
    results: dict[str, Any] = {}
    for dtype in args.dtype:
        params = load.load_params(checkpoint, dtype=jnp.dtype(dtype))
        sides = {"plain": functools.partial(run_plain, params, True), "no head": functools.partial(run_plain, params, False)}
        sides |= {f"layer {layer}": functools.partial(search, params, layer) for layer in args.layer}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(args.rounds + 1):
            for name, side in sides.items():
                start = time.perf_counter()
                tokens = side()
                if number:  # the first round compiles
                    rates[name].append(tokens / (time.perf_counter() - start))
        middle = {name: statistics.median(values) for name, values in rates.items()}
        print(f"{dtype:10}{'tokens/s':>10}{'lowest':>8}{'highest':>8}{'over plain':>12}{'over no head':>14}")
        for name, values in rates.items():
            ratios = {other: middle[name] / middle[other] for other in ("plain", "no head")}
            print(
                f"{name:10}{middle[name]:10,.0f}{min(values):8,.0f}{max(values):8,.0f}"
                f"{ratios['plain']:12.2f}{ratios['no head']:14.2f}"
            )
            if name.startswith("layer"):
                numbers = {"ratio": ratios["plain"], "target": TARGET, "ratio_to_pass_without_head": ratios["no head"]}
                results[f"{dtype} {name}"] = {**numbers, "tokens_per_second": middle[name]}
        del params, sides
    print(json.dumps(results))


if __name__ == "__main__":
    main()

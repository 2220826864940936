"""Decode and prefill of SmolLM2 against Hugging Face transformers, on the same weights and dtype, in alternating rounds.

Both sides get the same prompts and the same number of new tokens, greedy, without stopping, each in a process of its own; a
round times one side after the other, and the medians of the rounds are compared. Transformers runs eagerly in inference mode,
with its dynamic cache and the head on the last position only. The memory bandwidth is what two threads reach that sum a buffer
of the weights' size, in the same rounds.

    python benchmarks/generate.py [--dtype float32 bfloat16] [--batch 1 8]

Without the `peers` extra it prints its own side alone. The last line is JSON: the ratios and their targets.
"""

import argparse
import concurrent.futures
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.cli.runtime import configure_jax
from sides import peer

PROMPT, NEW, ROUNDS = 64, 32, 5
DECODE_TARGETS = {"float32": 2.0, "bfloat16": 1.2}
BANDWIDTH_TARGET = 0.6
Times = tuple[float, float]  # seconds: prefill with the first token, then the other tokens
ABSENT: Times = (math.nan, math.nan)


def ours(weights: Any, cfg: Any, prompts: list[list[int]]) -> Times:
    """One prefill and one decode loop."""
    import jax

    from jaxllm import generate

    start = time.perf_counter()
    state, stops = generate.start(weights, cfg, prompts, max_tokens=NEW)
    jax.block_until_ready(state)
    middle = time.perf_counter()
    jax.block_until_ready(generate.decode(weights, cfg, state, stops, NEW))
    return middle - start, time.perf_counter() - middle


def theirs(model: Any, prompts: list[list[int]]) -> Times:
    """The same with transformers, a hand-written greedy loop: less overhead than its ``generate``."""
    import torch

    with torch.inference_mode():
        start = time.perf_counter()
        out = model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        middle = time.perf_counter()
        for _ in range(NEW - 1):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return middle - start, time.perf_counter() - middle


def prompts(B: int) -> list[list[int]]:
    """Ids that SmolLM2 has."""
    return np.random.default_rng(0).integers(3, 49000, (B, PROMPT)).tolist()


def transformers_sides(folder: Path, dtype: str, batches: list[int]) -> dict[str, Callable[[], Times]]:
    """What transformers does on all cores with the checkpoint, by batch."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    return {str(B): lambda B=B: theirs(model, prompts(B)) for B in batches}  # type: ignore[misc]


def bandwidth(buffer: np.ndarray, pool: concurrent.futures.Executor) -> float:
    """Bytes per second at which two threads read ``buffer`` once."""
    halves = np.array_split(buffer, 2)
    start = time.perf_counter()
    list(pool.map(np.sum, halves))
    return buffer.nbytes / (time.perf_counter() - start)


def median(values: list[float]) -> float:
    return statistics.median(values)


def compare(mine: Callable[[], Times], other: Callable[[], Times], read: Callable[[], float]) -> dict[str, float]:
    """Medians of the alternating rounds, after one unmeasured round; a peer that is not there takes NaN."""
    rounds = [(mine(), other(), read()) for _ in range(ROUNDS + 1)][1:]
    fields = {
        "prefill_ms": [1e3 * a[0] for a, _, _ in rounds],
        "peer_prefill_ms": [1e3 * b[0] for _, b, _ in rounds],
        "step_ms": [1e3 * a[1] / (NEW - 1) for a, _, _ in rounds],
        "peer_step_ms": [1e3 * b[1] / (NEW - 1) for _, b, _ in rounds],
        "bandwidth": [c for _, _, c in rounds],
    }
    return {name: median(values) for name, values in fields.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=list(DECODE_TARGETS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    args = parser.parse_args()
    configure_jax()
    import jax
    import jax.numpy as jnp

    from jaxllm import hub, load

    folder = hub.resolve("smollm2")
    checkpoint = load.open_checkpoint(folder)
    pool = concurrent.futures.ThreadPoolExecutor(2)
    rows, results, absent = [], {}, False
    for dtype in args.dtype:
        weights = load.load_params(checkpoint, dtype=jnp.dtype(dtype))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
        buffer = np.ones(size // 4, np.float32)
        with peer(transformers_sides, folder, dtype, args.batch) as sides:
            absent = not sides
            for B in args.batch:
                side = sides.get(str(B))
                r = compare(
                    lambda w=weights, B=B: ours(w, checkpoint.config, prompts(B)),
                    lambda side=side: ABSENT if side is None else side().value,
                    lambda b=buffer: bandwidth(b, pool),
                )
                share = size / (r["step_ms"] / 1e3) / r["bandwidth"]
                rows.append((dtype, B, r, share))
                numbers = {
                    "decode_ratio": r["peer_step_ms"] / r["step_ms"],
                    "decode_target": DECODE_TARGETS[dtype],
                    "prefill_ratio": r["peer_prefill_ms"] / r["prefill_ms"],
                    "bandwidth_share": share,
                    **({"bandwidth_target": BANDWIDTH_TARGET} if (dtype, B) == ("float32", 1) else {}),
                    **r,
                }
                results[f"{dtype} batch {B}"] = {name: value for name, value in numbers.items() if not math.isnan(value)}
        del weights, buffer
    print(f"SmolLM2-135M, {PROMPT} prompt tokens, {NEW} new, {os.cpu_count()} cores, medians of {ROUNDS} alternating rounds")
    print(
        f"{'dtype':10}{'batch':>6}{'ms/step':>10}{'peer':>9}{'ratio':>7}{'target':>8}{'prefill':>9}{'peer':>8}{'ratio':>7}{'bandwidth':>11}"
    )
    for dtype, B, r, share in rows:
        print(
            f"{dtype:10}{B:6d}{r['step_ms']:10.1f}{r['peer_step_ms']:9.1f}{r['peer_step_ms'] / r['step_ms']:7.2f}"
            f"{DECODE_TARGETS[dtype]:8.1f}{r['prefill_ms']:9.0f}{r['peer_prefill_ms']:8.0f}"
            f"{r['peer_prefill_ms'] / r['prefill_ms']:7.2f}{share:11.2f}"
        )
    if absent:
        print("transformers is not installed: no peer (pip install '.[peers]')")
    print("bandwidth: weights read per step over what two threads read in the same time")
    print(json.dumps(results))


if __name__ == "__main__":
    main()

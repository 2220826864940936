"""What it costs to see how far training has moved a model's neurons, against mapping the model.

    python benchmarks/drift.py                two trees of SmolLM2, all 46,080 neurons, and a sample of 4,096
    python benchmarks/drift.py --layers 6     its first layers alone, for a quick look

A round times, one after the other: a map on disk (both poles, every statistic, as `jaxllm map` makes it), a full drift between
two parameter trees, a drift against labels that were made before, and one of a sample. Medians of the rounds, after one round
that is not counted. The target: a full drift costs at most two maps. The last line is JSON.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxllm.cli.runtime import configure_jax

TARGET = 2.0  # maps
SAMPLE = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, help="of the model; all by default")
    arguments = parser.parse_args()
    configure_jax()
    import jax
    import jax.numpy as jnp

    from interp.compare import drift, label
    from interp.run import map_model
    from jaxllm.hub import resolve
    from jaxllm.load import load_params, open_checkpoint

    checkpoint = open_checkpoint(resolve("smollm2"))
    L = arguments.layers or checkpoint.config.num_hidden_layers
    cfg = dataclasses.replace(checkpoint.config, num_hidden_layers=L)
    before = load_params(checkpoint, dtype=jnp.float32)
    before["layers"] = {i: before["layers"][i] for i in range(L)}
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(before))))
    after = jax.tree.map(lambda leaf: leaf + 0.01 * jax.random.normal(next(keys), leaf.shape), before)
    start, start_sample = label(before, cfg), label(before, cfg, sample=SAMPLE)

    def on_disk() -> None:
        with tempfile.TemporaryDirectory() as folder:
            map_model(checkpoint, Path(folder) / "map", layers=range(L))

    sides: dict[str, Callable[[], Any]] = {
        "map": on_disk,
        "drift": lambda: drift(before, after, cfg),
        "drift_from_labels": lambda: drift(start, after, cfg),
        "drift_of_a_sample": lambda: drift(start_sample, after, cfg),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(arguments.rounds + 1):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    neurons = L * cfg.intermediate_size
    for name, times in seconds.items():
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"{name:18} {medians[name]:6.2f} s ({spread}), {medians[name] / medians['map']:.2f} maps of {neurons:,} neurons")
    ratio = medians["drift"] / medians["map"]
    print(f"full drift: {ratio:.2f} maps, target at most {TARGET}: {'met' if ratio <= TARGET else 'missed'}")
    ratios = {name: round(value / medians["map"], 3) for name, value in medians.items()}
    result = {"benchmark": "drift", "neurons": neurons, "seconds": medians, "maps": ratios, "target": TARGET}
    print(json.dumps(result | {"met": ratio <= TARGET}))


if __name__ == "__main__":
    main()

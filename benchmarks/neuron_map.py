"""The map's kernel against the matmul peak, against PyTorch, and against one neuron at a time; at the 8B size; on one GPU.

    python benchmarks/neuron_map.py                                     every neuron of SmolLM2, in float32 and bfloat16
    python benchmarks/neuron_map.py --shape llama-3.1-8b                one layer of the 8B shape, from a folder, and its memory
    python benchmarks/neuron_map.py --shape llama-3.1-8b --device gpu   all 32 layers of random weights on one accelerator

The peak is a 2048^3 matmul of the same dtype with float32 output, the best of 5 before each measurement. A round times each
side once; the medians of the rounds are compared. PyTorch (the `peers` extra) does one pole (matmul, logsumexp, top-k) at the
best of several chunk sizes. The paper's way (arXiv 2501.02688, first version) is a product of the head with one neuron at a
time. The last line is JSON: ratios and targets.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.cli.runtime import configure_jax

K = 16
TARGETS = {  # share of the matmul peak (one pole; both poles with every statistic), and PyTorch's time over ours
    "float32": {"one_pole": 0.90, "everything": 0.75, "torch": 1.3},
    "bfloat16": {"one_pole": 0.75, "everything": 0.55, "torch": 1.15},
}
MEMORY_TARGET_GB = 6.0
GPU_TARGET_SECONDS, GPU_PEAK = 1.0, 790e12
TORCH_CHUNKS = (64, 128, 256, 512, 1536)


def timed(f: Callable[[], Any]) -> float:
    """Seconds of one call whose result is ready."""
    import jax

    start = time.perf_counter()
    jax.block_until_ready(f())
    return time.perf_counter() - start


def torch_pole(rows: np.ndarray, head: np.ndarray, dtype: str) -> Callable[[], Any] | None:
    """PyTorch's best for one pole over ``rows``, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(os.cpu_count() or 1)
    w, e = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (rows, head))

    def run(chunk: int, rows: Any) -> Any:
        out = []
        with torch.inference_mode():
            for part in rows.split(chunk):
                z = part @ e.T
                out.append((torch.logsumexp(z, 1), *torch.topk(z, K)))
        return out

    def seconds(chunk: int) -> float:
        run(chunk, w[:256])
        start = time.perf_counter()
        run(chunk, w[:1536])
        return time.perf_counter() - start

    best = min(TORCH_CHUNKS, key=seconds)
    print(f"  PyTorch {torch.__version__}: best chunk {best} of {TORCH_CHUNKS}")
    return lambda: run(best, w)


def smollm2(dtype: str, rounds: int, layers: int) -> dict[str, Any]:
    """All neurons of the real model, by layer, as the product decodes them."""
    import jax
    import jax.numpy as jnp

    from interp.decode import decode, prepare_head, top
    from interp.head import read_head
    from interp.rows import directions, read_layer
    from interp.run import Settings
    from interp.stats import matmul_peak
    from interp.tokens import group_tokens
    from jaxllm.hub import resolve
    from jaxllm.load import open_checkpoint

    checkpoint = open_checkpoint(resolve("smollm2"))
    head = read_head(checkpoint)
    settings = Settings()
    w = [
        directions(
            read_layer(checkpoint, i, settings.site).rows, settings.norm, eps=head.eps, final_gain=head.gain, input_gain=None
        )
        for i in range(layers)
    ]
    vocabulary = prepare_head(
        head.rows, groups=group_tokens(checkpoint.tokenizer(), len(head.rows)).group, dtype=jnp.dtype(dtype)
    )
    on_device = [jnp.asarray(part, dtype) for part in w]
    N, D, V = sum(map(len, w)), w[0].shape[1], len(head.rows)
    flops = 2 * N * D * V
    columns = jnp.asarray(head.rows, dtype)

    @jax.jit
    def one_neuron(row: jax.Array) -> Any:
        z = jax.lax.dot(columns, row, preferred_element_type=jnp.float32)
        values, ids = jax.lax.top_k(jax.nn.softmax(z), K)
        return values, ids

    few = [row for part in on_device for row in part[:2]]
    sides: dict[str, Callable[[], Any]] = {
        "one_pole": lambda: [top(part, vocabulary, k=K) for part in on_device],
        "everything": lambda: [decode(part, vocabulary, k=K) for part in on_device],
        "one_at_a_time": lambda: [jax.block_until_ready(one_neuron(row)) for row in few],
    }
    peer_rows = np.concatenate(w[: max(1, layers // 5)])
    peer = torch_pole(peer_rows, np.asarray(head.rows, np.float32), dtype)
    if peer is not None:
        sides["torch"] = peer
    scale = {"one_at_a_time": N / len(few), "torch": N / len(peer_rows)}
    for side in sides.values():
        timed(side)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    peaks = []
    for _ in range(rounds):
        for name, side in sides.items():
            peaks.append(matmul_peak(dtype))
            seconds[name].append(timed(side) * scale.get(name, 1))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    limit = statistics.median(peaks)
    print(f"  {dtype}: {N:,} neurons x {D} x {V:,} = {flops / 1e12:.2f} TFLOP; peak {limit / 1e9:,.0f} GFLOP/s")
    for name, value in median.items():
        low, high = min(seconds[name]), max(seconds[name])
        print(
            f"  {name:14} {value:8.2f} s ({low:.2f} to {high:.2f})  {N / value:10,.0f} neurons/s  "
            f"{flops / value / limit:6.3f} of the peak"
        )
    result = {name: round(flops / median[name] / limit, 3) for name in ("one_pole", "everything")}
    if peer is not None:
        result["torch"] = round(median["torch"] / median["one_pole"], 3)
    result["one_at_a_time"] = round(median["one_at_a_time"] / median["one_pole"], 1)
    print(f"  against one neuron at a time: {result['one_at_a_time']} x as fast")
    return {"peak_gflops": round(limit / 1e9), **result, "targets": TARGETS[dtype]}


def one_layer_of_8b(dtype: str, directory: Path | None) -> dict[str, Any]:
    """A layer of the 8B shape from a safetensors folder, mapped in a process of its own."""
    import random_checkpoint
    from jaxllm.config import PRESETS

    cfg = PRESETS["llama-3.1-8b"]
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        random_checkpoint.write(Path(folder) / "model", dataclasses.replace(cfg, num_hidden_layers=1))
        command = [sys.executable, __file__, "--child", folder, "--dtype", dtype]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(child.stdout.splitlines()[-1])
    F, D, V, L = cfg.intermediate_size, cfg.hidden_size, cfg.vocab_size, cfg.num_hidden_layers
    flops = 2 * F * D * V
    share = flops / result["layer_seconds"] / result["peak_flops"]
    print(f"  {dtype}: one layer, {F:,} x {D:,} x {V:,} = {flops / 1e12:.1f} TFLOP, in {result['layer_seconds']:.1f} s,")
    print(f"  {share:.3f} of the matmul peak ({result['peak_flops'] / 1e9:,.0f} GFLOP/s), both poles with every statistic")
    print(f"  peak host memory {result['peak_gb']:.2f} GB (target under {MEMORY_TARGET_GB})")
    print(f"  all {L} layers: {L} x {result['layer_seconds']:.1f} s = {L * result['layer_seconds'] / 60:.1f} min")
    return {
        "everything": round(share, 3),
        "target": TARGETS[dtype]["everything"],
        "peak_gb": result["peak_gb"],
        "target_gb": MEMORY_TARGET_GB,
        "minutes_for_all_layers": round(L * result["layer_seconds"] / 60, 1),
    }


def child_8b(folder: Path, dtype: str) -> None:
    """Maps the folder's one layer and prints what it took; the layer's seconds hold its compilation."""
    import resource

    from interp.run import Settings, map_model
    from interp.stats import matmul_peak
    from jaxllm.load import open_checkpoint

    checkpoint = open_checkpoint(folder / "model")
    atlas = map_model(checkpoint, folder / "map", Settings(dtype=dtype))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    seconds = next(iter(atlas.meta["layers"].values()))["seconds"]
    print(json.dumps({"layer_seconds": seconds, "peak_gb": round(used, 2), "peak_flops": matmul_peak(dtype)}))


def accelerator(rounds: int) -> dict[str, Any]:
    """Every neuron of the 8B shape with random weights on the default accelerator: device time, with true probabilities."""
    import jax
    import jax.numpy as jnp

    from interp.decode import prepare_head, rows_per_block, top
    from interp.stats import matmul_peak
    from jaxllm.config import PRESETS

    cfg = PRESETS["llama-3.1-8b"]
    F, D, V, L = cfg.intermediate_size, cfg.hidden_size, cfg.vocab_size, cfg.num_hidden_layers
    rng = np.random.default_rng(0)
    vocabulary = prepare_head(rng.standard_normal((V, D), np.float32) * 0.02, dtype=jnp.bfloat16)
    layers = [jax.random.normal(jax.random.key(i), (F, D), jnp.bfloat16) for i in range(L)]
    timed(lambda: top(layers[0], vocabulary, k=K))
    seconds = [timed(lambda: [top(layer, vocabulary, k=K) for layer in layers]) for _ in range(rounds)]
    median, flops = statistics.median(seconds), 2 * L * F * D * V
    R = rows_per_block(F, 1, V)
    print(f"  {jax.devices()[0].device_kind}: {L * F:,} neurons in {median:.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    peak = matmul_peak("bfloat16")
    print(f"  {flops / 1e12:.0f} TFLOP; {flops / median / 1e12:.0f} TFLOP/s; matmul peak {peak / 1e12:.0f} TFLOP/s")
    print(f"  limit {flops / GPU_PEAK:.2f} s at {GPU_PEAK / 1e12:.0f} TFLOP/s; the paper: under 10 s")
    print(f"  a block of {R} rows: {4 * R * V / 1e6:.0f} MB of logits written once and read twice")
    return {"seconds": round(median, 3), "target_seconds": GPU_TARGET_SECONDS}


def without_n_by_v(N: int, D: int, V: int, dtype: str) -> dict[str, Any]:
    """What the compiled program holds, from its shapes alone: no buffer of N x V, and the bytes that a block moves."""
    import re

    import jax
    import jax.numpy as jnp

    from interp.decode import Vocabulary, decode, rows_per_block

    R = rows_per_block(N, 1, V)
    struct = jax.ShapeDtypeStruct
    vocabulary = Vocabulary(
        rows=struct((V, D), jnp.dtype(dtype)),
        ids=struct((V,), jnp.int32),
        center=struct((D,), jnp.float32),
        inverse_length=struct((V,), jnp.float32),
        group=struct((V,), jnp.int32),
        members=struct((V // 2, 8), jnp.int32),
        count=V,
        padded=False,
        mesh=None,
    )
    program = jax.jit(lambda rows, vocabulary: decode(rows, vocabulary, k=K))
    compiled = program.lower(struct((N, D), jnp.dtype(dtype)), vocabulary).compile()
    shapes = re.findall(r"= \(?(?:f32|bf16)\[([\d,]+)\]", compiled.as_text())
    largest = max(int(np.prod([int(n) for n in shape.split(",")])) for shape in shapes)
    temporary = compiled.memory_analysis().temp_size_in_bytes
    size = jnp.dtype(dtype).itemsize
    print(f"  {N:,} x {D:,} x {V:,} {dtype}: {R} rows a block; largest array {largest:,} numbers, N x V would be {N * V:,}")
    print(
        f"  temporaries {temporary / 1e9:.2f} GB; a block reads {size * V * D / 1e6:,.0f} MB, writes {4 * R * V / 1e6:.0f} MB"
    )
    assert largest < N * V
    return {"rows_per_block": R, "temporary_gb": round(temporary / 1e9, 3), "largest_array": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["smollm2", "llama-3.1-8b"], default="smollm2")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--dtype", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=30, help="of SmolLM2; fewer for a quick look")
    parser.add_argument("--dir", type=Path, help="where 2.5 GB may be written for the time of the run (default: the system's)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    configure_jax()
    if arguments.child:
        child_8b(arguments.child, arguments.dtype[0])
        return
    result: dict[str, Any] = {"benchmark": "neuron_map", "shape": arguments.shape, "device": arguments.device}
    if arguments.device == "gpu":
        import jax

        if jax.default_backend() == "cpu":
            parser.error("JAX finds no accelerator; install the gpu extra, or leave --device out")
        result |= accelerator(arguments.rounds)
    elif arguments.shape == "llama-3.1-8b":
        result |= {dtype: one_layer_of_8b(dtype, arguments.dir) for dtype in arguments.dtype}
        result["program"] = without_n_by_v(14336, 4096, 128256, "bfloat16")
    else:
        result |= {dtype: smollm2(dtype, arguments.rounds, arguments.layers) for dtype in arguments.dtype}
        result["program"] = without_n_by_v(46080, 576, 49152, "float32")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

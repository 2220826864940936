"""The real size without the real weights: every command on a full Llama 3.1 8B folder of random bfloat16 weights.

    python benchmarks/rehearse_8b.py --dir D

Writes four shards, index, config and the real tokenizer (16 GB) into a new folder under D, runs each step in a process of its
own, and removes the folder. A step fails when its peak host memory passes its limit: nothing may hold a second copy of the
model, so that all of it passes on a machine with 24 GB. The last line is JSON.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GB = 1e9
CLI = "import sys; from jaxllm.cli import main; sys.exit(main())"
PROMPT_TOKENS = 16
NEW_TOKENS = 4

# Step -> most host memory in GB beyond the weights (for those that load them all), or in all.
LIMITS = {"write": 2.0, "info": 1.0, "load_1_device": 2.5, "load_8_devices": 2.5, "prefill": 6.0, "decode": 6.0, "map": 6.0}
_LOADS_ALL = ("load_1_device", "load_8_devices", "prefill", "decode")


def step_write(folder: Path, preset: str) -> dict[str, Any]:
    import random_checkpoint
    from jaxllm import hub
    from jaxllm.config import PRESETS

    random_checkpoint.write(folder, PRESETS[preset], shards=4)
    tokenizer = hub.fetch_wheel_file(
        "llama-models",
        "0.3.0",
        "7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f",
        "llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    )
    shutil.copyfile(tokenizer, folder / "tokenizer.model")
    return {"shards": len(list(folder.glob("*.safetensors"))), "bytes": sum(f.stat().st_size for f in folder.iterdir())}


def step_load_1_device(folder: Path) -> dict[str, Any]:
    import jax

    from jaxllm.load import load_params, open_checkpoint

    start = time.perf_counter()
    params = load_params(open_checkpoint(folder))
    seconds = round(time.perf_counter() - start, 2)
    return {
        "load_seconds": seconds,
        "leaves": len(jax.tree.leaves(params)),
        "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
    }


def step_load_8_devices(folder: Path) -> dict[str, Any]:
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    from jaxllm.load import load_params, open_checkpoint
    from jaxllm.sharding import make_mesh

    start = time.perf_counter()
    params = load_params(open_checkpoint(folder), mesh=make_mesh(fsdp=2, tensor=4))
    seconds = round(time.perf_counter() - start, 2)
    shards = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params)]
    return {"load_seconds": seconds, "bytes_per_device": sum(shards), "largest_shard": max(shards)}


def step_prefill(folder: Path) -> dict[str, Any]:
    return _generate(folder, 1)


def step_decode(folder: Path) -> dict[str, Any]:
    return _generate(folder, NEW_TOKENS)


def _generate(folder: Path, tokens: int) -> dict[str, Any]:
    from jaxllm.generate import generate
    from jaxllm.load import load_params, open_checkpoint

    checkpoint = open_checkpoint(folder)
    prompt = checkpoint.tokenizer().encode("The quick brown fox jumps over the lazy dog. " * PROMPT_TOKENS)[:PROMPT_TOKENS]
    params = load_params(checkpoint)
    start = time.perf_counter()
    ids = generate(params, checkpoint.config, [prompt], max_tokens=tokens)
    first = time.perf_counter() - start
    start = time.perf_counter()
    again = generate(params, checkpoint.config, [prompt], max_tokens=tokens)
    assert ids == again
    return {"ids": ids[0], "seconds_with_compilation": round(first, 2), "seconds_again": round(time.perf_counter() - start, 2)}


def command(step: str, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """How a step is run: two are commands of the product, the others functions of this file."""
    if step == "info":
        return [sys.executable, "-c", CLI, "info", str(folder)]
    if step == "map":
        out = folder.with_name(f"{folder.name}-map")
        return [
            sys.executable,
            "-c",
            CLI,
            "map",
            str(folder),
            "--out",
            str(out),
            "--layers",
            "0:2",
            "--dtype",
            "bfloat16",
        ]
    return [sys.executable, __file__, "--dir", str(arguments.dir), "--preset", arguments.preset, "--step", step]


def run(step: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs one step in a process of its own; its wall time, its peak host memory, and what it printed last."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(command(step, folder, arguments), stdout=subprocess.PIPE, stderr=problems, text=True)
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)  # unlike wait(), with this child's own peak
        problems.seek(0)
        problem = problems.read()[-2000:]
    process.returncode = os.waitstatus_to_exitcode(status)
    result: dict[str, Any] = {
        "step": step,
        "seconds": round(time.perf_counter() - start, 2),
        "peak_gb": round(usage.ru_maxrss * 1024 / GB, 2),
        "code": process.returncode,
    }
    if process.returncode:
        result["problem"] = problem
    elif step not in ("info", "map"):
        result.update(json.loads(output.splitlines()[-1]))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where the 16 GB are written for the time of the run")
    parser.add_argument(
        "--preset",
        default="llama-3.1-8b",
        choices=["llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b"],  # those of the tokenizer that is written
        help="a smaller one tries the script itself",
    )
    parser.add_argument("--steps", nargs="+", choices=[step for step in LIMITS if step != "write"], help="default: all")
    parser.add_argument("--step", choices=list(LIMITS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.dir.absolute() / f"{arguments.preset}-random"
    if arguments.step:
        steps: dict[str, Callable[[Path], dict[str, Any]]] = {
            "write": lambda folder: step_write(folder, arguments.preset),
            "load_1_device": step_load_1_device,
            "load_8_devices": step_load_8_devices,
            "prefill": step_prefill,
            "decode": step_decode,
        }
        print(json.dumps(steps[arguments.step](folder)))
        return 0

    from jaxllm import params
    from jaxllm.config import PRESETS

    weights = 2 * params.count(PRESETS[arguments.preset])
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(arguments.dir).free < 1.1 * weights:
        parser.error(f"{arguments.dir} has less than {1.1 * weights / GB:.0f} GB free")
    results = []
    try:
        for step in ("write", *(arguments.steps or [step for step in LIMITS if step != "write"])):
            result = run(step, folder, arguments)
            result["limit_gb"] = round(LIMITS[step] + (weights / GB if step in _LOADS_ALL else 0), 2)
            result["ok"] = result["code"] == 0 and result["peak_gb"] <= result["limit_gb"]
            results.append(result)
            print(
                f"{step:15} {result['seconds']:8.1f} s   peak {result['peak_gb']:6.2f} GB of {result['limit_gb']:6.2f}   ",
                end="",
            )
            print("ok" if result["ok"] else f"FAILED {result.get('problem', '')}", flush=True)
            if step == "write" and not result["ok"]:
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder.with_name(f"{folder.name}-map"), ignore_errors=True)
    passed = all(result["ok"] for result in results)
    print(
        json.dumps(
            {"benchmark": "rehearse_8b", "preset": arguments.preset, "weights_gb": weights / GB, "ok": passed, "steps": results}
        )
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""Seeded damage to checkpoints, and the reference readers that what still loads is compared with.

As a program: loads many damaged copies in one process with little memory, and prints what came of them.
"""

import json
import random
import resource
import shutil
import signal
import sys
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

from jaxllm import load
from jaxllm.errors import UserError


def mutate(original: Path, target: Path, rng: random.Random) -> str:
    """Copies a checkpoint (file or folder) to ``target`` with one damage in one file; returns what was done."""
    if target.is_dir():
        shutil.rmtree(target)
    if original.is_dir():
        shutil.copytree(original, target)
        path = rng.choice(sorted(file for file in target.iterdir()))
    else:
        shutil.copyfile(original, target)
        path = target
    data = bytearray(path.read_bytes())
    near = min(len(data), rng.choice((16, 64, 1000, 4000, len(data))))  # headers come first: hit them more often
    at = rng.randrange(near)
    kind = rng.choice(("bit", "byte", "bytes", "number", "cut", "drop", "repeat", "append", "digit"))
    if kind == "bit":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[at] = rng.randrange(256)
    elif kind == "bytes":
        data[at : at + 16] = rng.randbytes(16)
    elif kind == "number":
        value = rng.choice((0, 1, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1))
        data[at : at + 8] = value.to_bytes(8, "little")
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "drop":
        del data[at : at + rng.choice((1, 8, 100))]
    elif kind == "repeat":
        data[at:at] = data[at : at + rng.choice((1, 8, 100))]
    elif kind == "append":
        data += rng.randbytes(rng.choice((1, 1000)))
    else:  # a digit of the text at or after this place
        digits = [i for i in range(at, min(at + 2000, len(data))) if 48 <= data[i] < 58]
        data[digits[0] if digits else at] = rng.choice(b"0123456789e-")
    path.write_bytes(data)
    return f"{kind} at {at} of {path.name}"


def read_all(path: Path) -> dict[str, np.ndarray]:
    """Every tensor through the product."""
    checkpoint = load.open_checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def reference(path: Path) -> dict[str, np.ndarray]:
    """The same through the packages that define the formats; q and k of the GGUF put in Hugging Face's order."""
    if path.is_dir():
        return {name: value for file in path.glob("*.safetensors") for name, value in _load(file).items()}
    short = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inner = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
        **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
        "attn_output": "self_attn.o_proj",
    }
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        stem = tensor.name.removesuffix(".weight")
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if stem.endswith(("attn_q", "attn_k")):  # heads of width 16
            value = value.reshape(-1, 8, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        name = short.get(stem) or f"model.layers.{stem.split('.')[1]}.{inner[stem.split('.')[2]]}"
        found[f"{name}.weight"] = value
    return found


def _load(file: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load(file.read_bytes())


def main(original: Path, work: Path, seed: int, count: int, spare: int, seconds: int) -> None:
    """Loads ``count`` mutations with ``spare`` bytes of memory beyond the file's size; SIGALRM ends a load that hangs."""
    read_all(original)
    reference(original)
    size = original.stat().st_size if original.is_file() else sum(file.stat().st_size for file in original.iterdir())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size + spare,) * 2)
    outcomes = {"error": 0, "loaded": 0, "wrong": [], "limited": False}
    try:
        np.empty(size + spare + (1 << 20), np.uint8)
    except MemoryError:
        outcomes["limited"] = True
    for i in range(count):
        target = work / original.name
        what = mutate(original, target, random.Random(seed * 1000 + i))
        signal.alarm(seconds)
        try:
            found = read_all(target)
        except UserError as error:
            outcomes["error"] += 1
            if target.name not in str(error):
                outcomes["wrong"].append([i, what, f"names no file: {error}"])
        except BaseException as error:
            outcomes["wrong"].append([i, what, repr(error)])
        else:
            outcomes["loaded"] += 1
            expected = reference(target)
            if any(found[name].tobytes() != expected[name].tobytes() for name in found):
                outcomes["wrong"].append([i, what, "other values than the reference reader"])
        signal.alarm(0)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))

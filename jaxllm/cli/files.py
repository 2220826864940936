"""Commands on files: what a checkpoint holds, and conversion."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from jaxllm.tensors import Checkpoint

DEVICE_COUNTS = (1, 2, 4, 8)
CACHED_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class Info:
    """Show a model's config, size, files, tokenizer, and the memory that it needs."""

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        import json

        from jaxllm.cli import console
        from jaxllm.hub import resolve
        from jaxllm.load import open_checkpoint

        facts = describe(open_checkpoint(resolve(self.model)))
        if self.json:
            console.write(json.dumps(facts, indent=2))
            return
        for table in _tables(facts):
            console.stdout().print(table)


@dataclasses.dataclass(frozen=True)
class Convert:
    """Write a model as a folder of safetensors, or as an Orbax checkpoint."""

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    out: tyro.conf.Positional[Path]
    """the folder to be written; it must not exist, or be empty"""
    format: Literal["safetensors", "orbax"] = "safetensors"
    """safetensors is what other programs read; orbax restores quickly onto many devices"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """element type of all weights (default: as stored; float32 for quantised models)"""
    max_shard_gb: Annotated[float, tyro.conf.arg(metavar="GB")] = 5.0
    """most gigabytes in one file of safetensors"""

    def run(self) -> None:
        from jaxllm.checkpoint import save_checkpoint
        from jaxllm.cli import console
        from jaxllm.errors import UserError
        from jaxllm.hub import resolve
        from jaxllm.load import convert, load_params, open_checkpoint

        if not self.max_shard_gb > 0:
            raise UserError(f"--max-shard-gb must be positive, found {self.max_shard_gb}")
        checkpoint = open_checkpoint(resolve(self.model))
        kind = None if self.dtype is None else _dtype(self.dtype)
        if self.format == "orbax":
            save_checkpoint(load_params(checkpoint, dtype=kind), checkpoint.config, self.out, like=checkpoint)
        else:
            convert(checkpoint, self.out, dtype=kind, max_shard_bytes=int(self.max_shard_gb * 1e9))
        console.write(f"wrote {self.out}")


def describe(checkpoint: "Checkpoint") -> dict[str, Any]:
    """All that ``jaxllm info`` shows, as plain values: sizes in bytes, the config in Hugging Face's names."""
    from jaxllm import params, sharding
    from jaxllm.errors import UserError

    files: dict[str, dict[str, Any]] = {}
    dtypes: dict[str, int] = {}
    for info in checkpoint.tensors.values():
        entry = files.setdefault(info.file.name, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += info.nbytes
        dtypes[info.stored] = dtypes.get(info.stored, 0) + info.nbytes
    try:
        tokenizer: dict[str, Any] | None = {"tokens": checkpoint.tokenizer().size, "chat_template": checkpoint.chat_template()}
        problem = None
    except UserError as error:
        tokenizer, problem = None, str(error)
    memory = []
    for itemsize, name in ((2, "bfloat16"), (4, "float32")):
        for devices in DEVICE_COUNTS:
            weights, cache = sharding.bytes_per_device(checkpoint.config, devices, itemsize, CACHED_TOKENS)
            memory.append({"dtype": name, "devices": devices, "weights": weights, "cache_per_8192_tokens": cache})
    return {
        "path": str(checkpoint.path),
        "config": checkpoint.config.to_hf(),
        "parameters": params.count(checkpoint.config),
        "files": files,
        "bytes_by_dtype": dtypes,
        "stop_ids": sorted(checkpoint.stop_ids),
        "tokenizer": tokenizer,
        "tokenizer_problem": problem,
        "memory_per_device": memory,
    }


def _tables(facts: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    tokenizer = facts["tokenizer"]
    template = tokenizer and tokenizer["chat_template"]
    head = Table("", facts["path"], title_justify="left")
    head.add_row("parameters", f"{facts['parameters']:,}")
    for name, entry in facts["files"].items():
        head.add_row(name, f"{entry['tensors']} tensors, {_size(entry['bytes'])}")
    head.add_row("stored as", ", ".join(f"{kind} {_size(size)}" for kind, size in facts["bytes_by_dtype"].items()))
    head.add_row("stop ids", ", ".join(map(str, facts["stop_ids"])) or "none")
    head.add_row("tokenizer", f"{tokenizer['tokens']:,} tokens" if tokenizer else facts["tokenizer_problem"])
    head.add_row("chat template", f"{len(template)} characters" if template else "none")
    skipped = ("architectures", "bos_token_id", "eos_token_id")
    for key, value in facts["config"].items():
        if key not in skipped:
            head.add_row(key, str(value))

    memory = Table("devices", *(str(n) for n in DEVICE_COUNTS), title="memory per device", title_justify="left")
    rows = facts["memory_per_device"]
    for dtype in ("bfloat16", "float32"):
        for key, label in (("weights", f"weights, {dtype}"), ("cache_per_8192_tokens", "  cache for 8,192 tokens")):
            memory.add_row(label, *(_size(row[key]) for row in rows if row["dtype"] == dtype))
    return [head, memory]


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


COMMANDS: dict[str, type[Any]] = {"info": Info, "convert": Convert}

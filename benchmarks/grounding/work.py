"""What runs in a process of its own, on one thread: a part of the benchmark. Imports JAX only there."""

import dataclasses
import functools
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

# Set before the process starts. One thread a process: two of them do more than one of two threads. The allocator keeps what
# it has, instead of handing large buffers back after every step.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "NPROC": "1",  # threads of XLA's pool
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """One training."""

    start: str
    reward: str
    seed: int
    steps: int
    every: int  # steps between points of the curve
    curve: int  # held-out scenes of a point
    end: int  # held-out scenes of the end


def warm(folder: Path, base: int, settings: dict[str, Any], names: tuple[str, ...]) -> Path:
    """Makes the named starts of a base, unless they are there, and returns their file."""
    from . import train

    kept = train.WarmStart(**settings)
    path = folder / f"base{base}-{kept.steps}-{kept.weak}-{kept.shifting}.npz"
    if path.exists() and set(names) <= set(_names(path)):
        return path
    begun = time.perf_counter()

    def report(step: int, loss: float) -> None:
        if step % 100 == 0:
            seconds = time.perf_counter() - begun
            print(f"start {base}, step {step}: loss {loss:.2f}, {seconds:.0f} s", file=sys.stderr, flush=True)

    found = train.warm_starts(base, kept, names, report)
    import numpy as np

    arrays = {f"{name}/{key}": value for name, params in found.items() for key, value in _flat(params).items()}
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.replace(path)
    return path


def measure(path: Path, start: str, count: int) -> dict[str, Any]:
    """How good a start is on held-out scenes."""
    from . import train

    return train.evaluate(_load(path, start), count)


def one(path: Path, task: Task) -> dict[str, Any]:
    """Runs a task from the starts in a file."""
    from . import train

    params = _load(path, task.start)
    return train.run(params, task.start, task.reward, task.seed, task.steps, task.every, (task.curve, task.end))


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.split("/")[0] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile):
        return []


def _flat(params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in params.items():
        flat |= _flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {prefix + key: value}
    return flat


@functools.lru_cache(maxsize=8)
def _load(path: Path, start: str) -> dict[str, Any]:
    import numpy as np

    params: dict[str, Any] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            owner, *keys = name.split("/")
            if owner != start:
                continue
            place = params
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            place[keys[-1]] = arrays[name]
    return params

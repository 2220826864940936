"""Checkpoint folders of random bfloat16 weights in the real shapes, written fast and without holding them."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxllm import params
from jaxllm.config import Config
from jaxllm.save import Source, write_folder

STD = 0.02
POOL_TAIL = 40_000_000  # numbers; more than the writer asks for at once
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def write(folder: Path, cfg: Config, *, shards: int = 1) -> None:
    """Writes a folder of that many shards. Noise is drawn once and read at changing offsets: 8 billion draws are slow."""
    pool = (STD * np.random.default_rng(0).standard_normal(50_000_017, np.float32)).astype(BFLOAT16)
    pool = np.concatenate([pool, pool[:POOL_TAIL]])

    def source(i: int, path: params.Path, spec: params.Spec) -> Source:
        width = int(np.prod(spec.shape[1:]))

        def rows(start: int, stop: int) -> Any:
            if spec.init == "ones":
                return np.ones(stop - start, BFLOAT16)
            at = (i * 7_654_321 + start * width) % (pool.size - POOL_TAIL)
            return pool[at : at + (stop - start) * width].reshape(stop - start, width)

        return Source(params.hf_name(path), spec.shape, BFLOAT16, rows)

    sources = [source(i, *item) for i, item in enumerate(params.table(cfg).items())]
    slack = 600_000_000 if shards > 1 else 0  # a tensor is never split
    write_folder(folder, cfg, sources, None, sum(s.nbytes for s in sources) // shards + slack)

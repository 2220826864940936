"""JAX compiles a program per shape: batches of any size through few shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.errors import UserError

SMALLEST, LARGEST = 1 << 8, 1 << 17
"""Rows of the smallest and the largest program. A larger batch goes through the largest in pieces, which stay in the cache."""


def bucket(N: int, smallest: int = SMALLEST, largest: int = LARGEST) -> int:
    """The rows of the program that N rows are run by: the next power of two, within bounds."""
    return min(max(smallest, 1 << max(0, N - 1).bit_length()), largest)


def in_buckets(function: Callable[..., Any], *, smallest: int = SMALLEST, largest: int = LARGEST) -> Callable[..., Any]:
    """``function`` of arrays [N, ...], compiled for at most ten batch sizes, whatever N comes.

    The arrays are padded with zeros, rows without a target to every reward of this package; the results are cut back.

    Args:
      function: takes arrays by position and by name, all with the same leading N, and returns a tree of arrays [N, ...]; a row
        must not depend on others. `rewards.get(...)` of a reward that is not ``grouped`` is one.
    Returns:
      A function of NumPy or JAX arrays that returns the same tree of NumPy arrays.
    """
    import jax  # only who calls this needs it

    program = jax.jit(function)

    def run(*arrays: Any, **named: Any) -> Any:
        inputs = (arrays, named)
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(inputs)}
        if len(lengths) != 1 or () in lengths:
            raise UserError(f"all arrays of a batch need the same first axis; these begin with {sorted(lengths)}")
        ((N,),) = lengths
        B = bucket(N, smallest, largest)

        def rows(leaf: Any, start: int) -> np.ndarray:
            part = np.asarray(leaf)[start : start + B]
            return part if len(part) == B else np.concatenate([part, np.zeros((B - len(part), *part.shape[1:]), part.dtype)])

        def piece(start: int) -> Any:
            positional, keywords = jax.tree.map(lambda leaf: rows(leaf, start), inputs)
            return program(*positional, **keywords)

        # All pieces are started before any is waited for.
        pieces = [piece(start) for start in range(0, max(N, 1), B)]
        return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts])[:N], *pieces)

    run.program = program  # type: ignore[attr-defined]
    return run

"""Several models that started from one, merged into their weighted mean (UI-TARS-2, arXiv 2509.02544: vertical agents).

theta = sum_k alpha_k theta_k with alpha_k >= 0 and sum alpha_k = 1; the paper gives no values, so they are equal by default.
Optimisers, critics, step counters and random keys are not merged.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.errors import UserError
from jaxllm.save import MAX_SHARD_BYTES, Source, write_folder
from jaxllm.tensors import Checkpoint, names_and_shapes

TOLERANCE = 1e-6  # of the sum of weights


def check_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """The weights of ``count`` models, equal by default. Raises UserError unless they are a convex combination."""
    if count < 1:
        raise UserError("nothing to merge: name at least one model")
    if weights is None:
        return (1 / count,) * count
    if len(weights) != count:
        raise UserError(f"{len(weights)} weights for {count} models")
    if not all(math.isfinite(alpha) and alpha >= 0 for alpha in weights) or abs(sum(weights) - 1) > TOLERANCE:
        raise UserError(
            f"weights must be 0 or more and sum to 1, found {', '.join(map(str, weights))} (sum {sum(weights):.9g})"
        )
    return tuple(weights)


def merge(trees: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """The weighted mean of parameter trees, leaf by leaf, in their dtype; added in float32 (float64 for float64 leaves).

    One leaf at a time is computed, where its shards lie. A weight of 1 returns that tree's leaves bit for bit.

    Raises:
      UserError: weights that do not sum to 1; trees that differ in structure, shape or dtype (the first difference); leaves of
        another kind than floats that are not equal.
    """
    alphas = check_weights(weights, len(trees))
    first, structure = jax.tree.flatten_with_path(trees[0])
    others = [jax.tree.flatten_with_path(tree)[0] for tree in trees[1:]]
    for k, other in enumerate(others, 1):
        ours, theirs = [path for path, _ in first], [path for path, _ in other]
        if ours != theirs:
            odd = next((path for path in ours if path not in theirs), None) or next(path for path in theirs if path not in ours)
            raise UserError(f"tree {k} differs from tree 0: only one of them has {jax.tree_util.keystr(odd)}")
    merged = []
    for i, (path, leaf) in enumerate(first):
        leaves = [leaf, *(other[i][1] for other in others)]
        for k, one in enumerate(leaves):
            if (one.shape, one.dtype) != (leaf.shape, leaf.dtype):
                raise UserError(
                    f"{jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)} in tree 0 "
                    f"and {one.dtype}{list(one.shape)} in tree {k}"
                )
        merged.append(_merged(jax.tree_util.keystr(path), leaves, alphas))
    return jax.tree.unflatten(structure, merged)


def merge_checkpoints(
    checkpoints: Sequence[Checkpoint],
    folder: Path,
    weights: Sequence[float] | None = None,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes the weighted mean of checkpoints as a Hugging Face folder, block by block: no model is ever held.

    Tokenizer and text files are those of the first.

    Raises:
      UserError: as `merge`; models of different shape; a folder that is in use.
    """
    alphas = check_weights(weights, len(checkpoints))
    first = checkpoints[0]
    for other in checkpoints:
        other.require_head()
        if other.config != first.config:
            ours, theirs = first.config.to_hf(), other.config.to_hf()
            key = next(key for key in [*ours, *theirs] if ours.get(key) != theirs.get(key))
            raise UserError(f"{other.path}: {key} is {theirs.get(key)}, and {ours.get(key)} in {first.path}: they do not merge")
        for name in names_and_shapes(first.config):
            if (found := other.tensors[name].dtype) != first.tensors[name].dtype:
                raise UserError(
                    f"{other.path}: {name} is {found}, and {first.tensors[name].dtype} in {first.path}; convert one"
                )

    def source(name: str, shape: tuple[int, ...]) -> Source:
        dtype = np.dtype(first.tensors[name].dtype)

        def rows(start: int, stop: int) -> np.ndarray:
            parts = (checkpoint.read(name, (slice(start, stop),)) for checkpoint in checkpoints)
            if 1.0 in alphas:
                return checkpoints[alphas.index(1.0)].read(name, (slice(start, stop),))
            total = np.zeros((stop - start, *shape[1:]), np.float32)
            for alpha, part in zip(alphas, parts, strict=True):
                if alpha:
                    total += np.float32(alpha) * part.astype(np.float32)
            return total.astype(dtype)

        return Source(name, shape, dtype, rows)

    sources = [source(name, shape) for name, shape in names_and_shapes(first.config).items()]
    write_folder(folder, first.config, sources, first, max_shard_bytes)


def _merged(name: str, leaves: list[Any], alphas: tuple[float, ...]) -> Any:
    if not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        if not all(bool((leaf == leaves[0]).all()) for leaf in leaves):
            raise UserError(f"{name} is {leaves[0].dtype} and differs between trees: only floats have a mean")
        return leaves[0]
    if 1.0 in alphas:
        return leaves[alphas.index(1.0)]
    wide = jnp.promote_types(leaves[0].dtype, jnp.float32)
    total = None
    for alpha, leaf in zip(alphas, leaves, strict=True):
        part = alpha * leaf.astype(wide)
        total = part if total is None else total + part
    assert total is not None
    return total.astype(leaves[0].dtype)

"""The MLP rows of a checkpoint, read a layer at a time and turned into the directions that the head decodes.

Reads ``up_proj``, ``gate_proj`` and ``down_proj`` and nothing else of a layer; blocks are converted to float32, tensors never.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from jaxllm.errors import UserError

if TYPE_CHECKING:
    from jaxllm.tensors import Checkpoint

Site = Literal["up", "gate", "down"]
Norm = Literal["rms", "final", "none"]
SITES: tuple[Site, ...] = ("up", "gate", "down")
NORMS: tuple[Norm, ...] = ("rms", "final", "none")
CONTROLS = ("gaussian", "permuted")

BLOCK_BYTES = 8 << 20  # float32, per block of a tensor that is streamed


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer's neurons, F of them."""

    number: int
    rows: np.ndarray  # [F, D] as stored: rows of up or gate, or columns of down
    norm_up: np.ndarray  # [F] float32, length of the up row
    norm_gate: np.ndarray  # [F]
    norm_down: np.ndarray  # [F], length of the down column
    read_write: np.ndarray  # [F], cosine of up row and down column; 0 where either is zero
    sha256: str  # of the bytes of the three tensors, in the order up, gate, down

    def length(self, site: Site) -> np.ndarray:
        """[F]: length of the decoded rows; not finite where a row holds NaN or infinity, or is too long for float32."""
        return {"up": self.norm_up, "gate": self.norm_gate, "down": self.norm_down}[site]


def tensor_name(layer: int, site: Site) -> str:
    """Hugging Face name of a layer's MLP matrix."""
    return f"model.layers.{layer}.mlp.{site}_proj.weight"


def read_layer(checkpoint: "Checkpoint", layer: int, site: Site) -> Layer:
    """Reads one layer. Raises UserError when the checkpoint lacks one of the three tensors or ends early."""
    F, D = checkpoint.tensors[tensor_name(layer, "up")].shape
    digest = hashlib.sha256()
    up = checkpoint.read(tensor_name(layer, "up"))
    digest.update(_bytes(up))
    squares = {name: np.zeros(F, np.float32) for name in SITES}
    for start in range(0, F, step := max(1, BLOCK_BYTES // (4 * D))):
        block = up[start : start + step].astype(np.float32)
        squares["up"][start : start + step] = np.einsum("fd,fd->f", block, block)
    gate = np.empty_like(up) if site == "gate" else None
    for start, block in _blocks(checkpoint, tensor_name(layer, "gate")):
        digest.update(_bytes(block))
        if gate is not None:
            gate[start : start + len(block)] = block
        block = block.astype(np.float32)
        squares["gate"][start : start + len(block)] = np.einsum("fd,fd->f", block, block)
    down = np.empty_like(up) if site == "down" else None
    dots = np.zeros(F, np.float32)
    for start, block in _blocks(checkpoint, tensor_name(layer, "down")):
        digest.update(_bytes(block))
        if down is not None:
            down[:, start : start + len(block)] = block.T
        block = block.astype(np.float32)
        squares["down"] += np.einsum("df,df->f", block, block)
        dots += np.einsum("df,fd->f", block, up[:, start : start + len(block)].astype(np.float32))
    norms = {name: np.sqrt(values) for name, values in squares.items()}
    lengths = norms["up"] * norms["down"]
    with np.errstate(invalid="ignore"):
        read_write = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths != 0)
    rows = up if site == "up" else gate if site == "gate" else down
    assert rows is not None
    return Layer(layer, rows, norms["up"], norms["gate"], norms["down"], read_write, digest.hexdigest())


def directions(
    rows: np.ndarray, norm: Norm, *, eps: float, final_gain: np.ndarray | None = None, input_gain: np.ndarray | None = None
) -> np.ndarray:
    """``w2`` of the formula: the directions to multiply with the head.

    Args:
      rows: [N, D] in any float type.
      norm: ``rms`` divides each row by its root mean square, ``final`` applies the model's final norm, ``none`` does nothing.
      eps: of the model's norms.
      final_gain: [D], needed by ``final``.
      input_gain: [D] of the norm before the MLP, to express the rows in coordinates of the residual stream.
    Returns:
      [N, D] float32. A zero row stays zero.
    """
    w = rows.astype(np.float32)
    if input_gain is not None:
        w *= input_gain.astype(np.float32)
    if norm == "none":
        return w
    w /= np.sqrt(np.einsum("nd,nd->n", w, w)[:, None] / np.float32(w.shape[1]) + np.float32(eps))
    if norm == "final":
        if final_gain is None:
            raise ValueError("norm='final' needs the gain of the final norm")
        w *= final_gain.astype(np.float32)
    return w


def control_rows(rows: np.ndarray, usable: np.ndarray, count: int, kind: str, seed: tuple[int, ...]) -> np.ndarray:
    """Rows without meaning that share the layer's statistics.

    Args:
      rows: [F, D].
      usable: [F] bool, the rows to learn from: those that are finite and not zero.
      count: how many to draw.
      kind: ``gaussian`` draws from a normal distribution with the rows' mean and covariance; ``permuted`` shuffles each
        coordinate among the rows, which keeps every coordinate's own distribution and breaks all else.
      seed: equal seeds draw equal rows.
    Returns:
      [count, D] float32; zeros when fewer than two rows are usable.
    """
    rng = np.random.default_rng(seed)
    usable = np.flatnonzero(usable)
    F, D = len(usable), rows.shape[1]
    out = np.zeros((count, D), np.float32)
    if F < 2:
        return out
    if kind == "permuted":
        for d in range(D):
            out[:, d] = rows[usable[rng.permutation(max(F, count))[:count] % F], d]
        return out
    if kind != "gaussian":
        raise UserError(f"unknown control {kind!r}; choose one of {', '.join(CONTROLS)}")
    # Random combinations of the centred rows have exactly their covariance, and need no D x D matrix.
    mixed, total = np.zeros(count, np.float64), np.zeros(D, np.float64)
    for start in range(0, F, step := max(1, BLOCK_BYTES // (4 * D))):
        block = rows[usable[start : start + step]].astype(np.float32)
        weights = rng.standard_normal((count, len(block)), np.float32)
        out += weights @ block
        mixed += weights.sum(1)
        total += block.sum(0, dtype=np.float64)
    mean = total / F
    return ((out - np.outer(mixed, mean)) / np.sqrt(F - 1) + mean).astype(np.float32)


def _blocks(checkpoint: "Checkpoint", name: str) -> Iterator[tuple[int, np.ndarray]]:
    n, width = checkpoint.tensors[name].shape
    for start in range(0, n, step := max(1, BLOCK_BYTES // (4 * width))):
        yield start, checkpoint.read(name, (slice(start, min(start + step, n)),))


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

"""The head that decodes: read once, in its own element type, with what is known of each of its rows."""

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import numpy as np

from jaxllm.errors import UserError

if TYPE_CHECKING:
    from jaxllm.tensors import Checkpoint

BLOCK_BYTES = 32 << 20
FINAL_NORM = "model.norm.weight"


@dataclasses.dataclass(frozen=True)
class Head:
    """The head of a model, V rows of width D."""

    name: str  # of its tensor; the embedding's for a tied model
    rows: np.ndarray  # [V, D] as stored
    gain: np.ndarray  # [D] float32, of the final norm
    eps: float  # of the norms
    length: np.ndarray  # [V] float32; not finite where the row holds NaN or infinity
    same_row: np.ndarray  # [V] int32, the lowest id with exactly this row
    sha256: str  # of the bytes of head and gain

    @property
    def nonfinite(self) -> np.ndarray:
        """Ids whose row holds NaN or infinity."""
        return np.flatnonzero(~np.isfinite(self.length))

    def without_rows(self) -> "Head":
        """What is known of the head, with ``rows [0, D]``: lets their memory go."""
        return dataclasses.replace(self, rows=np.empty((0, self.rows.shape[1]), self.rows.dtype))


def read_head(checkpoint: "Checkpoint", *, mask_nonfinite: bool = False) -> Head:
    """Reads head and final norm.

    Raises:
      UserError: there is no head; the gain is not finite; or a head row is not and ``mask_nonfinite`` is off (ids are named).
    """
    name = checkpoint.head_name()
    rows = checkpoint.read(name)
    gain = checkpoint.read(FINAL_NORM)
    if not np.isfinite(gain.astype(np.float32)).all():
        raise UserError(f"{checkpoint.path}: {FINAL_NORM} holds values that are not finite; the checkpoint is damaged")
    digest = hashlib.sha256(rows.reshape(-1).view(np.uint8))
    digest.update(gain.view(np.uint8))
    eps = checkpoint.config.rms_norm_eps
    head = Head(name, rows, gain.astype(np.float32), eps, _lengths(rows), _same_rows(rows), digest.hexdigest())
    if len(head.nonfinite) and not mask_nonfinite:
        ids = ", ".join(map(str, head.nonfinite[:20])) + (", ..." if len(head.nonfinite) > 20 else "")
        raise UserError(
            f"{checkpoint.path}: {name} holds values that are not finite in the rows of {len(head.nonfinite)} token ids: "
            f"{ids}; mend the checkpoint, or leave these ids out with --mask-nonfinite-head"
        )
    return head


def _lengths(rows: np.ndarray) -> np.ndarray:
    out = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), step := max(1, BLOCK_BYTES // (4 * rows.shape[1]))):
        block = rows[start : start + step].astype(np.float32)
        with np.errstate(over="ignore"):
            out[start : start + step] = np.sqrt(np.einsum("vd,vd->v", block, block))
    return out


def _same_rows(rows: np.ndarray) -> np.ndarray:
    """Bytes decide; a hash only proposes."""
    out = np.arange(len(rows), dtype=np.int32)
    seen: dict[int, list[int]] = {}
    for i, row in enumerate(rows.view(np.uint8).reshape(len(rows), -1)):
        same_hash = seen.setdefault(hash(row.tobytes()), [])
        twin = next((j for j in same_hash if np.array_equal(rows[j].view(np.uint8), row)), None)
        if twin is None:
            same_hash.append(i)
        else:
            out[i] = twin
    return out

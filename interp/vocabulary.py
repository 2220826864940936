"""The vocabulary of a map: text, class, group and mask of every head row, and the head made ready to decode."""

import dataclasses
import logging
from typing import Any

import jax
import numpy as np

from interp.atlas import Tokens
from interp.decode import Vocabulary, prepare_head
from interp.head import Head
from interp.tokens import KINDS, Classes, Masks, classify, group_tokens, untrained_rows
from jaxllm.errors import UserError
from jaxllm.load import Checkpoint

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Described:
    """The vocabulary of a model under some masks."""

    tokens: Tokens
    counts: dict[str, Any]  # ids of each class, masked ids, head rows that repeat another
    tokenizer_sha256: str | None  # None when the checkpoint has no tokenizer


def describe(checkpoint: Checkpoint, head: Head, masks: Masks) -> Described:
    """Text, groups, classes and masks of all V head rows. A checkpoint without a tokenizer shows ids instead of text.

    Raises UserError when tokenizer and head do not belong together, or the masks leave nothing.
    """
    V = len(head.rows)
    untrained = untrained_rows(head.length, head.same_row)
    try:
        tokenizer = checkpoint.tokenizer()
    except UserError as error:
        log.warning("%s; the map shows token ids instead of text", error)
        none = np.zeros(V, bool)
        classes = Classes(padding=none, special=none, untrained=untrained, byte=none)
        data, display, group, digest = [b""] * V, [f"⟨id {i}⟩" for i in range(V)], np.arange(V, dtype=np.int32), None
    else:
        classes = classify(tokenizer, V, untrained)
        data = [tokenizer.token_bytes(i) if i < tokenizer.size else b"" for i in range(V)]
        display = [tokenizer.display(i) for i in range(V)]
        group, digest = group_tokens(tokenizer, V).group, tokenizer.digest()
    allowed = classes.allowed(masks)
    allowed[head.nonfinite] = False
    if not allowed.any():
        raise UserError(f"{checkpoint.path}: no row of {head.name} is finite and allowed; nothing can be decoded")
    tokens = Tokens(data, display, group, [KINDS[code] for code in classes.kind], allowed, head.same_row)
    repeated = int((np.bincount(head.same_row, minlength=V)[head.same_row] > 1).sum())
    counts = {
        "classes": classes.counts(),
        "allowed": int(allowed.sum()),
        "nonfinite": head.nonfinite[:1000].tolist(),
        "repeated_rows": repeated,
    }
    return Described(tokens, counts, digest)


def prepare(
    head: Head, tokens: Tokens, *, score: str = "logit", dtype: str = "float32", mesh: jax.sharding.Mesh | None = None
) -> Vocabulary:
    """The head as the kernel wants it. ``score="cosine"`` gives every row the length 1."""
    rows = head.rows
    if score == "cosine":
        rows = rows / np.maximum(head.length, np.float32(1e-30))[:, None].astype(rows.dtype)
    return prepare_head(rows, allowed=tokens.allowed, groups=tokens.group, dtype=dtype, mesh=mesh)

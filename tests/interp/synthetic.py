"""Maps written column by column, for cases that no small model shows."""

from pathlib import Path

import numpy as np

from interp.atlas import NEURON_STATISTICS, POLE_STATISTICS, Atlas, AtlasWriter, Tokens

SETTINGS = {
    "site": "up",
    "norm": "rms",
    "fold_input_norm": False,
    "score": "logit",
    "dtype": "float32",
    "mask_padding": True,
    "mask_special": False,
    "mask_untrained": False,
    "mask_bytes": False,
}


def tokens(words: list[bytes], *, special: int = 0, padding: int = 0) -> Tokens:
    """A vocabulary of ``words``, the last ``special`` of them special, and ``padding`` rows without a token."""
    V = len(words) + padding
    data = [*words, *[b""] * padding]
    kind = ["normal"] * (len(words) - special) + ["special"] * special + ["padding"] * padding
    group = np.array([data.index(word) if (word := x.lstrip()) in data else i for i, x in enumerate(data)], np.int32)
    display = [word.decode() or f"⟨id {i}⟩" for i, word in enumerate(data)]
    return Tokens(data, display, group, kind, np.array([k != "padding" for k in kind]), np.arange(V, dtype=np.int32))


def write(
    folder: Path,
    vocabulary: Tokens,
    ids: np.ndarray,
    *,
    logits: np.ndarray | None = None,
    flags: np.ndarray | None = None,
    settings: dict | None = None,
    layers: list[int] | None = None,
    **model: object,
) -> Atlas:
    """A map whose + poles have the ids [L, F, k] and logits, by default falling by 1; its - poles have the same."""
    L, F, k = ids.shape
    flags = np.zeros((L, F), np.uint8) if flags is None else flags
    logits = np.broadcast_to(-np.arange(k, dtype=np.float32), ids.shape) if logits is None else logits
    layers = list(range(L)) if layers is None else layers
    about = {
        "model": {"name": "m", "path": "nowhere", "layers": L, "neurons": F, "width": 8, "vocabulary": len(vocabulary.data)}
        | model
    }
    writer = AtlasWriter(folder, SETTINGS | {"top_k": k} | (settings or {}), about, vocabulary)
    for i, layer in enumerate(layers):
        columns = {name: np.zeros((F, 2), np.float32) for name in POLE_STATISTICS}
        columns |= {name: np.zeros(F, np.float32) for name in NEURON_STATISTICS}
        columns |= {"ids": np.stack([ids[i]] * 2, 1).astype(np.int32), "logits": np.stack([logits[i]] * 2, 1)}
        columns["logits"] = columns["logits"].astype(np.float32)
        columns["margin"] = columns["logits"][..., 0] - columns["logits"][..., min(1, k - 1)]
        columns["flags"] = np.stack([flags[i]] * 2, 1).astype(np.uint8)
        writer.write_layer(layer, columns, {})
    writer.finish()
    return Atlas(folder)

"""A comparison as files: `comparison.json`, `layers.csv`, `changed.csv` and `comparison.png`, each whole or not at all."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from interp import compare_plot
from interp.atlas import Tokens
from interp.compare import Comparison
from interp.matching import Count
from interp.query import as_json
from jaxllm.errors import UserError
from jaxllm.files import write_atomically
from jaxllm.intervals import Mean, Rate

LISTED_CHANGED = 1000  # in the JSON; `changed.csv` has all
LISTED_LABELS = 100  # gains, and losses


def write(comparison: Comparison, tokens: Tokens, out: Path) -> list[Path]:
    """Writes the four files into ``out``, made if absent, and returns their paths; ``tokens`` are the first map's.

    Raises UserError when ``out`` cannot be a folder.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be a folder: {error.strerror}; choose another --out") from None
    contents = {
        "comparison.json": json.dumps(facts(comparison, tokens), indent=1, allow_nan=False).encode("utf-8"),
        "layers.csv": _csv(layer_rows(comparison)).encode("utf-8"),
        "changed.csv": _csv(map(_flat, changed_rows(comparison, tokens))).encode("utf-8"),
        "comparison.png": compare_plot.png(comparison),
    }
    for name, data in contents.items():
        write_atomically(out / name, data)
    return [out / name for name in contents]


def facts(comparison: Comparison, tokens: Tokens) -> dict[str, Any]:
    """Everything but the tail of the list of changed neurons, as JSON values; what is not a number is null."""
    told = {
        field.name: getattr(comparison, field.name)
        for field in dataclasses.fields(comparison)
        if field.name not in ("changed", "labels")
    }
    gained = [word for word in comparison.labels[:LISTED_LABELS] if word.after > word.before]
    lost = [word for word in comparison.labels[: -LISTED_LABELS - 1 : -1] if word.after < word.before]
    told |= {
        "changed": changed_rows(comparison, tokens, LISTED_CHANGED),
        "changed_in_all": len(comparison.changed.layer),
        "gained": [_word(word, tokens) for word in gained],
        "lost": [_word(word, tokens) for word in lost],
    }
    return as_json(told)


def changed_rows(comparison: Comparison, tokens: Tokens, limit: int | None = None) -> list[dict[str, Any]]:
    """The changed neurons in order, one dict each, with the text of their tokens; ``cause`` is None where it is not known."""
    columns = {f.name: getattr(comparison.changed, f.name)[:limit].tolist() for f in dataclasses.fields(comparison.changed)}
    known = comparison.weights.causes if comparison.weights else []
    causes = [*known, *[None] * (len(columns["layer"]) - len(known))]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [
        {**row, "old": _token(row["old"], tokens), "new": _token(row["new"], tokens), "cause": cause}
        for row, cause in zip(rows, causes, strict=False)
    ]


def layer_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat row per layer, and one for all layers together, in which ``layer`` is "all"."""
    rows = []
    cosines = comparison.weights.row_cos_by_layer if comparison.weights else []
    for i, agreement in enumerate([*comparison.by_layer, comparison.overall]):
        row: dict[str, Any] = {}
        for field in dataclasses.fields(agreement):
            value = getattr(agreement, field.name)
            if isinstance(value, Rate | Mean):
                row[field.name] = value.share if isinstance(value, Rate) else value.value
                row |= {f"{field.name}_low": value.low, f"{field.name}_high": value.high}
                row |= {f"{field.name}_rows": value.total} if isinstance(value, Rate) else {}
            else:
                row[field.name] = "all" if value is None else value
        if comparison.weights:
            row["row_cos"] = (cosines[i] if i < len(cosines) else comparison.weights.row_cos).value
        rows.append(row)
    return rows


def _token(token: int, tokens: Tokens) -> dict[str, Any]:
    return {"id": token, "bytes": tokens.data[token], "display": tokens.display[token]}


def _word(word: Count, tokens: Tokens) -> dict[str, Any]:
    return {**_token(word.id, tokens), "before": word.before, "after": word.after}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in row.items():
        out |= {f"{name}_id": value["id"], name: value["display"]} if isinstance(value, dict) else {name: value}
    return out


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()

"""A sweep as files: `sweep.json`, `sweep.csv`, `prompts.csv`, `continuations.csv` and `sweep.png`, each whole or not at all."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interp import sweep_plot
from interp.query import as_json
from interp.sweep import Curve, Dose, Sweep, mean_fluency, share
from jaxllm.errors import UserError
from jaxllm.files import write_atomically
from jaxllm.tokenizer import Tokenizer


def make_folder(out: Path) -> None:
    """Makes ``out`` if absent. Raises UserError when it cannot be a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be a folder: {error.strerror}; choose another --out") from None


def write(sweep: Sweep, prompts: Sequence[str], tokenizer: Tokenizer, out: Path, about: Mapping[str, Any]) -> list[Path]:
    """Writes the files into ``out``, made if absent, and returns their paths.

    Args:
      prompts: their texts.
      about: what else is known: the model, the settings, where the prompts are from.
    Raises:
      UserError: ``out`` cannot be a folder.
    """
    make_folder(out)
    name = f"L{sweep.neuron.layer}/N{sweep.neuron.neuron}"
    title = f"{name} of {about['model']}: {sweep.concept.name}, {sweep.prompts} prompts"
    contents = {
        "sweep.json": json.dumps(facts(sweep, tokenizer, about), indent=1, allow_nan=False, ensure_ascii=False).encode(),
        "sweep.csv": to_csv(rows(sweep)).encode(),
        "prompts.csv": to_csv(prompt_rows(sweep, prompts, tokenizer)).encode(),
        "sweep.png": sweep_plot.png(sweep, title),
    }
    if sweep.plain.greedy:
        contents["continuations.csv"] = to_csv(continuation_rows(sweep, prompts)).encode()
    for file, data in contents.items():
        write_atomically(out / file, data)
    return [out / file for file in contents]


def facts(sweep: Sweep, tokenizer: Tokenizer, about: Mapping[str, Any]) -> dict[str, Any]:
    """All but the single prompts, as JSON values."""
    neuron = sweep.neuron
    concept = {**dataclasses.asdict(sweep.concept), "tokens": [tokenizer.display(i) for i in sweep.concept.ids]}
    return as_json(
        {
            **about,
            "neuron": f"L{neuron.layer}/N{neuron.neuron}",
            "layer": neuron.layer,
            "index": neuron.neuron,
            "cosine_up_down": neuron.cosine,
            "norm_down": neuron.norm_down,
            "concept": concept,
            "prompts": sweep.prompts,
            "natural": dict(sweep.natural),
            "signs": {site: dataclasses.asdict(sign) for site, sign in sweep.signs.items()},
            "rows": rows(sweep),
        }
    )


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One flat row per site, curve and value, means over the prompts; the first is the plain model."""
    out = [_row(sweep.plain, 0, "plain", None, sweep)]
    for curve in sweep.curves:
        out += [_row(curve, i, curve.kind, dose, sweep) for i, dose in enumerate(sweep.doses[curve.site])]
    return out


def _row(curve: Curve, i: int, kind: str, dose: Dose | None, sweep: Sweep) -> dict[str, Any]:
    value = None if dose is None else -dose.value if kind == "other pole" else dose.value
    return {
        "site": curve.site,
        "kind": kind,
        "neuron": None if dose is None else f"L{curve.layer}/N{curve.neuron}",
        "at": None if dose is None else dose.value,
        "value": value,
        "written": None if dose is None else dose.written,
        "p_mean": float(curve.p[i].mean()),
        "p_median": float(np.median(curve.p[i])),
        "logit_mean": float(curve.logit[i].mean()),
        "rank_median": float(np.median(curve.rank[i])),
        "kl_mean": float(curve.kl[i].mean()),
        "top_is_concept": int(np.isin(curve.top[i], sweep.concept.ids).sum()),
        "share_greedy": share(curve.greedy[i]) if curve.greedy else None,
        "share_sampled": share(curve.sampled[i]) if curve.sampled else None,
        "fluency": mean_fluency(curve.greedy[i]) if curve.greedy else None,
    }


def prompt_rows(sweep: Sweep, prompts: Sequence[str], tokenizer: Tokenizer) -> Iterable[dict[str, Any]]:
    """One row per site, curve, value and prompt."""
    for curve, doses in [(sweep.plain, (None,)), *((curve, sweep.doses[curve.site]) for curve in sweep.curves)]:
        for i, dose in enumerate(doses):
            for j, text in enumerate(prompts):
                yield {
                    "site": curve.site,
                    "kind": "plain" if dose is None else curve.kind,
                    "neuron": None if dose is None else f"L{curve.layer}/N{curve.neuron}",
                    "at": None if dose is None else dose.value,
                    "prompt": text,
                    **{name: getattr(curve, name)[i, j].item() for name in ("p", "logit", "rank", "kl")},
                    "top": tokenizer.display(int(curve.top[i, j])),
                }


def continuation_rows(sweep: Sweep, prompts: Sequence[str]) -> Iterable[dict[str, Any]]:
    """One row per continuation."""
    for curve, doses in [(sweep.plain, (None,)), *((curve, sweep.doses[curve.site]) for curve in sweep.curves)]:
        for how, all_texts in (("greedy", curve.greedy), ("sampled", curve.sampled)):
            for dose, texts in zip(doses, all_texts, strict=False):
                for j, text in enumerate(texts):
                    yield {
                        "site": curve.site,
                        "value": None if dose is None else dose.value,
                        "how": how,
                        "prompt": prompts[j % len(prompts)],
                        "text": text.text,
                        "occurs": int(text.occurs),
                        "fluency": text.fluency,
                        "tokens": len(text.ids),
                    }


def to_csv(table: Iterable[Mapping[str, Any]]) -> str:
    """Rows with equal keys as CSV with a header."""
    table = list(table)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return buffer.getvalue()

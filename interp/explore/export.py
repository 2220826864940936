"""What a person can take away: CSV, JSON, a page that needs nothing else, and the feature JSON that Neuronpedia uses."""

import base64
import csv
import hashlib
import html
import io
import itertools
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]  # heading, names of the columns, rows


def csv_of_matches(found: dict[str, Any]) -> str:
    """The matches of a search, one row each."""
    rows = [
        (m["layer"], m["neuron"], m["pole"], f"{m['probability']:.9g}", " ".join(t[0] for t in m["tokens"]))
        for m in found["matches"]
    ]
    return _csv(("layer", "neuron", "pole", "probability", "tokens"), rows)


def csv_of_neuron(neuron: dict[str, Any]) -> str:
    """The stored tokens of both poles, one row each."""
    rows = [
        (
            neuron["layer"],
            neuron["neuron"],
            pole["pole"],
            place + 1,
            t["id"],
            t["display"],
            f"{t['logit']:.9g}",
            f"{t['probability']:.9g}",
        )
        for pole in neuron["poles"]
        for place, t in enumerate(pole["tokens"])
    ]
    return _csv(("layer", "neuron", "pole", "place", "token_id", "token", "logit", "probability"), rows)


def _csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return buffer.getvalue()


def neuronpedia(model: str, neuron: dict[str, Any], contexts: dict[str, Any] | None) -> dict[str, Any]:
    """A neuron in the fields of Neuronpedia's feature JSON, as far as a map and a text have them.

    ``pos_str`` and ``neg_str`` are the top tokens of the mapped vector and of its opposite, with their logits; activations,
    their histogram and the greatest one come from the text.
    """
    plus, minus = (pole["tokens"] for pole in neuron["poles"])
    out: dict[str, Any] = {
        "modelId": model,
        "layer": f"{neuron['layer']}-mlp",
        "index": str(neuron["neuron"]),
        "pos_str": [bytes.fromhex(t["bytes"]).decode("utf-8", "replace") or t["display"] for t in plus],
        "pos_values": [t["logit"] for t in plus],
        "neg_str": [bytes.fromhex(t["bytes"]).decode("utf-8", "replace") or t["display"] for t in minus],
        "neg_values": [-t["logit"] for t in minus],
        "explanations": [],
    }
    if contexts is not None:
        edges = contexts["histogram"]["edges"]
        out |= {
            "maxActApprox": contexts["max"],
            "freq_hist_data_bar_values": [(a + b) / 2 for a, b in itertools.pairwise(edges)],
            "freq_hist_data_bar_heights": contexts["histogram"]["counts"],
            "activations": [_activation(place) for place in contexts["highest"]],
        }
    return out


def _activation(place: dict[str, Any]) -> dict[str, Any]:
    values = [0.0] * len(place["tokens"])
    values[place["at"]] = place["value"]
    return {"tokens": place["tokens"], "values": values, "maxValue": place["value"], "maxValueTokenIndex": place["at"]}


def page(title: str, about: str, tables: Sequence[Table]) -> str:
    """A page of tables that loads nothing and runs nothing. All texts are escaped."""
    style = resources.files("interp").joinpath("report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = "\n".join(
        f'<h2>{_text(heading)}</h2>\n<div class="scroll"><table><thead><tr>'
        + "".join(f"<th>{_text(name)}</th>" for name in names)
        + "</tr></thead><tbody>\n"
        + "\n".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        + "\n</tbody></table></div>"
        for heading, names, rows in tables
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_text(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{_text(title)}</title><style>{style}</style></head>\n<body><main>\n<h1>{_text(title)}</h1>\n"
        f"<p>{_text(about)}</p>\n{body}\n</main></body></html>\n"
    )


def _text(value: Any) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def tables_of_matches(found: dict[str, Any]) -> list[Table]:
    """The matches of a search."""
    rows = [
        (f"L{m['layer']}/N{m['neuron']}", m["pole"], m["probability"], "  ".join(t[0] for t in m["tokens"]))
        for m in found["matches"]
    ]
    return [("Neurons", ("neuron", "pole", "probability", "top tokens"), rows)]


def tables_of_neuron(
    neuron: dict[str, Any], decodes: dict[str, Any] | None, near: list[dict[str, Any]] | None, contexts: dict[str, Any] | None
) -> list[Table]:
    """All that is known of a neuron; what was not asked for yet is left out."""
    plus, minus = neuron["poles"]
    blank = {"display": "", "probability": ""}
    longest = max(len(plus["tokens"]), len(minus["tokens"]))
    both = [[(pole["tokens"] + [blank] * longest)[i] for pole in (plus, minus)] for i in range(longest)]
    tables: list[Table] = [
        (
            "Both poles",
            ("+", "p", "−", "p"),
            [(a["display"], a["probability"], b["display"], b["probability"]) for a, b in both],
        ),
        (
            "Statistics",
            ("", "+", "% of layer below", "% of control below", "−", "% of layer below", "% of control below"),
            [(name, *_standing(plus["statistics"][name]), *_standing(minus["statistics"][name])) for name in plus["statistics"]]
            + [(name, *_standing(value), "", "", "") for name, value in neuron["statistics"].items()],
        ),
    ]
    if decodes:
        for site, (up, down) in decodes["decodes"].items():
            pairs = [(a, p, b, q) for (a, p), (b, q) in zip(up, down, strict=False)]
            tables.append((f"Decode of its {site} vector", ("+", "p", "−", "p"), pairs))
    if near:
        rows = [(f"L{n['layer']}/N{n['neuron']}", n["cosine"], "  ".join(t["display"] for t in n["tokens"])) for n in near]
        tables.append(("Nearest neighbours", ("neuron", "cosine", "top tokens"), rows))
    if contexts:
        for name in ("highest", "lowest"):
            places = [(c["value"], c["line"], "".join(_marked(c))) for c in contexts[name]]
            tables.append((f"Contexts, {name} values", ("value", "line", "text"), places))
    return tables


def _standing(standing: dict[str, Any]) -> tuple[Any, Any, Any]:
    control = standing["control"]
    value = "" if standing["value"] is None else standing["value"]
    return value, f"{standing['percentile']:.1f}", "" if control is None else f"{control:.1f}"


def _marked(context: dict[str, Any]) -> list[str]:
    return [f"【{token}】" if i == context["at"] else token for i, token in enumerate(context["tokens"])]

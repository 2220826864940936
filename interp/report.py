"""The map as one page: a single HTML file that opens in any browser, needs no network, and runs no script but its own.

The page is `report.html` with `report.css` and the scripts put in, and two blocks of data: JSON for what is small or text, and
the per-neuron columns as base64 of a gzip of small unsigned integers. Everything that comes from a model or a tokenizer is
data: the script writes it as text, never as HTML, and the page's policy admits only scripts and styles with the known hashes.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from interp import stats
from interp.atlas import DEGENERATE, FLAGS, NEURON_STATISTICS, NO_TOKEN, NONFINITE, STATISTICS, Atlas
from interp.ranking import RANKINGS, Ranking, rank
from jaxllm.files import write_atomically

SCRIPTS = ("report_data.js", "report_picture.js", "report_search.js", "report_charts.js", "report.js")
DETAIL_NEURONS = 48_000  # neurons of which the page holds tokens and exact statistics; all are in the picture
DETAIL_TOKENS = 8  # per pole
BEST_NEURONS = 20  # rows of each table
FREQUENT_LABELS = 16
HISTOGRAM_BINS = 40
CURVE_QUANTILES = (0.5, 0.99)
NO_VALUE = 0  # code of a neuron without a label
COARSE, FINE = 254, 4094  # steps of a statistic in the picture, and in what is told of one neuron
FLOOR = 1e-6  # probabilities below are shown as "under" this

PICTURE = (*RANKINGS, "zmax_sigma", "coherence", "p1", "group_mass", "margin", "entropy", "kurtosis", "read_write")
POLE_DETAIL = ("zmax_sigma", "coherence", "p1", "group_mass", "margin", "entropy")
NEURON_DETAIL = ("skew", "kurtosis", "read_write", "norm_up", "norm_gate", "norm_down")  # skew is the + pole's
LOGARITHMIC = ("p1", "group_mass")


class Arrays:
    """Named arrays of unsigned integers, one after the other in a single block of bytes."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Any]] = {}  # name -> bytes per item, shape, offset, and the scale where there is one
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, name: str, values: np.ndarray, **scale: Any) -> None:
        """Keeps integers from 0 up in the narrowest type that holds them."""
        values = np.asarray(values)
        if values.dtype not in (np.uint8, np.uint16):
            values = values.astype(np.min_scalar_type(int(values.max(initial=0))))
        data = values.astype(values.dtype.newbyteorder("<")).tobytes()
        data += bytes(-len(data) % 8)
        self.table[name] = {"bytes": values.itemsize, "shape": values.shape, "offset": self._size, **scale}
        self._parts.append(data)
        self._size += len(data)

    def add_real(self, name: str, values: np.ndarray, steps: int, *, log: bool = False) -> None:
        """Keeps reals in equal steps between their least and greatest value, or those of their logarithms.

        Code 1 is the least, ``steps + 1`` the greatest; what is not finite becomes `NO_VALUE`.
        """
        reals = np.asarray(values, np.float64)
        reals = np.log(np.maximum(reals, FLOOR)) if log else reals
        known = np.isfinite(reals)
        low, high = (float(reals[known].min()), float(reals[known].max())) if known.any() else (0.0, 1.0)
        codes = np.full(reals.shape, NO_VALUE, np.uint16)
        codes[known] = np.rint((reals[known] - low) / max(high - low, 1e-30) * steps) + 1
        self.add(name, codes if steps > COARSE else codes.astype(np.uint8), low=low, high=high, steps=steps, log=log)

    def encoded(self) -> str:
        return base64.b64encode(gzip.compress(b"".join(self._parts), compresslevel=6, mtime=0)).decode("ascii")


def write(atlas: Atlas, path: str | Path) -> None:
    """Writes the page of a map to ``path``, whole or not at all."""
    write_atomically(Path(path), page(atlas).encode("utf-8"))


def page(atlas: Atlas, *, detail_neurons: int = DETAIL_NEURONS) -> str:
    """The HTML of a map's page; of at most ``detail_neurons`` neurons, the best by either ranking, it holds the tokens."""
    facts, arrays = contents(atlas, detail_neurons)
    files = resources.files("interp")
    template, style, *scripts = ((files / name).read_text("utf-8") for name in ("report.html", "report.css", *SCRIPTS))
    script = "\n".join(scripts)
    allowed = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    parts = {
        "TITLE": html.escape(f"Neuron map of {atlas.meta['model']['name']}"),
        "POLICY": f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        "STYLE": style,
        "SCRIPT": script,
        "FACTS": embedded_json(facts),
        "ARRAYS": arrays.encoded(),
    }
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)


def embedded_json(value: Any) -> str:
    """JSON that cannot end the script block it stands in, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def contents(atlas: Atlas, detail_neurons: int = DETAIL_NEURONS) -> tuple[dict[str, Any], Arrays]:
    """What the page shows: JSON values, and the columns of neurons."""
    rankings = {name: rank(atlas, name) for name in RANKINGS}
    values, control = _picture(atlas, rankings)
    arrays = Arrays()
    for name in PICTURE:
        arrays.add_real(f"picture/{name}", values[name], COARSE, log=name in LOGARITHMIC)
    tokens = _add_detail(arrays, atlas, rankings, detail_neurons)
    meta = atlas.meta
    counts = []
    if atlas.has_control:
        counts = [vars(count) for count in stats.layer_counts(atlas, rankings["specialisation"])]
    facts = {
        "model": {name: meta["model"][name] for name in ("name", "layers", "neurons", "width", "vocabulary")},
        "mapped": atlas.layers,
        "settings": {name: value for name, value in meta["settings"].items() if name != "poles"},
        "control": meta["control"] if atlas.has_control else None,
        "device": meta["device"],
        "versions": meta["versions"],
        "agreement": meta.get("agreement"),
        "weights_sha256": meta.get("weights_sha256"),
        "seconds": sum(record["seconds"] for record in meta["layers"].values()),
        "flags": {name: sum(record[name] for record in meta["layers"].values()) for name in FLAGS},
        "coverage": stats.coverage(atlas),
        "classes": stats.class_shares(atlas),
        "frequent": [[atlas.tokens.display[i], count] for i, count in stats.frequent_labels(atlas, FREQUENT_LABELS)],
        "rankings": RANKINGS,
        "best": BEST_NEURONS,
        "counts": counts,
        "statistics": {name: RANKINGS.get(name) or STATISTICS[name] for name in PICTURE},
        "pole_detail": POLE_DETAIL,
        "neuron_detail": NEURON_DETAIL,
        "explained": STATISTICS,
        "flag_bits": FLAGS,
        "floor": FLOOR,
        "curves": {name: _curve(values[name], control.get(name), log=name in LOGARITHMIC) for name in PICTURE},
        "tokens": tokens,
        "arrays": arrays.table,
    }
    return facts, arrays


def _picture(atlas: Atlas, rankings: Mapping[str, Ranking]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Each statistic at the neuron's better pole, [L, F], NaN without a label; and [L, C] of the control's rows."""
    unlabelled = ((atlas.column("flags") & (DEGENERATE | NONFINITE)) != 0).all(-1)
    first = rankings["specialisation"]
    values = {name: ranking.score.max(-1) for name, ranking in rankings.items()}
    values |= {name: _at_pole(atlas.column(name), first.pole) for name in PICTURE if name not in RANKINGS}
    control: dict[str, np.ndarray] = {}
    if first.control is not None:
        control = {name: ranking.control.max(-1) for name, ranking in rankings.items() if ranking.control is not None}
        drawn = [name for name in PICTURE if name not in RANKINGS and name not in NEURON_STATISTICS]
        control |= {name: _at_pole(atlas.control(name), first.control.argmax(-1)) for name in drawn}
    return {name: np.where(unlabelled, np.nan, column) for name, column in values.items()}, control


def _add_detail(arrays: Arrays, atlas: Atlas, rankings: Mapping[str, Ranking], limit: int) -> list[str]:
    """Adds both poles of the neurons that come first in a ranking; returns the texts of the tokens that they show."""
    places = {name: ranking.place.ravel() for name, ranking in rankings.items()}
    chosen = np.sort(np.argsort(np.minimum(*places.values()), kind="stable")[:limit])

    def detail(name: str) -> np.ndarray:
        column = atlas.column(name)
        return column.reshape(-1, *column.shape[2:])[chosen]

    ids = detail("ids")[..., :DETAIL_TOKENS]
    shown, local = np.unique(ids[ids != NO_TOKEN], return_inverse=True)
    numbers = np.zeros(ids.shape, np.int64)  # 0 is no token, n is the n-th of the tokens on the page
    numbers[ids != NO_TOKEN] = local.ravel() + 1
    logits, lse = detail("logits")[..., :DETAIL_TOKENS], detail("lse")[..., None]
    unlabelled = (detail("flags") & (DEGENERATE | NONFINITE)) != 0
    arrays.add("gaps", np.diff(chosen, prepend=0))
    arrays.add("pole", rankings["specialisation"].pole.ravel()[chosen])
    arrays.add("flags", detail("flags"))
    for name, place in places.items():
        arrays.add(f"place/{name}", place[chosen])
    arrays.add("ids", numbers)
    arrays.add_real("p", np.where(ids == NO_TOKEN, np.nan, np.exp(logits - lse)), COARSE, log=True)
    for name in POLE_DETAIL:
        arrays.add_real(name, np.where(unlabelled, np.nan, detail(name)), FINE, log=name in LOGARITHMIC)
    for name in NEURON_DETAIL:
        arrays.add_real(name, detail(name)[..., 0], FINE)
    arrays.add("token/id", shown)
    arrays.add("token/group", atlas.tokens.group[shown])
    return [atlas.tokens.display[i] for i in shown.tolist()]


def _curve(values: np.ndarray, control: np.ndarray | None, *, log: bool) -> dict[str, Any]:
    """Quantiles by layer, and histograms by layer over a range that both share; None for a layer without labels."""
    scale = (lambda x: np.log(np.maximum(x, FLOOR))) if log else (lambda x: x)
    sides = [scale(values), *([] if control is None else [scale(control)])]
    finite = np.concatenate([side[np.isfinite(side)] for side in sides])
    low, high = np.quantile(finite, (0.0005, 0.9995)).tolist() if finite.size else (0.0, 1.0)
    high = max(high, low + 1e-6)
    out: dict[str, Any] = {"log": log, "low": low, "high": high}
    for name, side in zip(("neurons", "control"), sides, strict=False):
        layers = [row[np.isfinite(row)] for row in side]
        out[name] = {
            "quantiles": [[_short(np.quantile(row, q)) if row.size else None for row in layers] for q in CURVE_QUANTILES],
            "histogram": [np.histogram(row.clip(low, high), HISTOGRAM_BINS, (low, high))[0].tolist() for row in layers],
        }
    return out


def _at_pole(column: np.ndarray, pole: np.ndarray) -> np.ndarray:
    return np.take_along_axis(column, pole[..., None], -1)[..., 0]


def _short(value: Any) -> float:
    return float(f"{value:.5g}")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

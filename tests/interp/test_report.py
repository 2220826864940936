"""The page of a map: it needs nothing but itself, whatever the tokens are, and its numbers are the map's."""

import base64
import gzip
import hashlib
import json
import os
from html.parser import HTMLParser

import numpy as np
import pytest
import tiny

from interp import report
from interp.atlas import NEURON_STATISTICS, NO_TOKEN, POLE_STATISTICS, Atlas, AtlasWriter, Tokens
from interp.ranking import rank
from interp.run import Control, Settings, map_model
from jaxllm.cli import main
from jaxllm.errors import UserError

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "\"'`&amp;&lt;",
    "@FACTS@",
    "\u2028\u2029",
    "\\u003c",
    "javascript:alert(1)",
    "‮evil",
]
L, F, V, K = 3, 40, 90, 12


def synthetic(folder, *, layers=L, neurons=F, vocabulary=V, top_k=K, name="a model", texts=(), control=True):
    """A finished map of random numbers; the first tokens have the given texts, and neuron 0 of layer 0 has no label."""
    rng = np.random.default_rng(0)
    display = [*texts, *(f"t{i}" for i in range(len(texts), vocabulary))]
    tokens = Tokens(
        data=[text.encode() for text in display],
        display=display,
        group=np.arange(vocabulary, dtype=np.int32) // 2,
        kind=["normal"] * vocabulary,
        allowed=np.ones(vocabulary, bool),
        same_row=np.arange(vocabulary, dtype=np.int32),
    )
    about = {
        "model": {"name": name, "layers": layers, "neurons": neurons, "width": 8, "vocabulary": vocabulary},
        "device": {"platform": "cpu", "kind": "cpu", "count": 1},
        "versions": {"jaxllm": "0"},
    }
    settings = {"site": "up", "norm": "rms", "top_k": top_k, "poles": ["+", "-"], "dtype": "float32", "mask_padding": True}
    writer = AtlasWriter(folder, settings, about, tokens)
    if control:
        writer.set_control("gaussian", 16, 0)
    record = dict.fromkeys(("degenerate", "nonfinite", "ambiguous", "duplicate"), 0)
    for layer in range(layers):
        writer.write_layer(layer, columns(rng, neurons, vocabulary, top_k, unlabelled=layer == 0), {**record, "seconds": 0.5})
        if control:
            writer.write_control(layer, columns(rng, 16, vocabulary, top_k, unlabelled=False), record)
    writer.finish(agreement={"rows": 1, "top1": 1.0})
    return Atlas(folder)


def columns(rng, rows, vocabulary, top_k, *, unlabelled):
    logits = np.sort(rng.normal(scale=3, size=(rows, 2, top_k)).astype(np.float32))[..., ::-1].copy()
    lse = np.log(np.exp(logits).sum(-1) * 1.5)
    out = {name: rng.uniform(0.1, 2, (rows, 2)).astype(np.float32) for name in POLE_STATISTICS}
    out |= {name: rng.uniform(0.1, 2, rows).astype(np.float32) for name in NEURON_STATISTICS}
    step = rng.integers(1, vocabulary // top_k, (rows, 2, 1))
    ids = (rng.integers(0, vocabulary, (rows, 2, 1)) + step * np.arange(top_k)) % vocabulary
    out |= {"ids": ids, "logits": logits, "lse": lse, "p1": np.exp(logits[..., 0] - lse), "flags": np.zeros((rows, 2))}
    if unlabelled:
        out["ids"][0], out["flags"][0] = NO_TOKEN, 1
        out["p1"][0] = 0
    return out


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts and styles by id or tag."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.blocks, self._open = [], {}, None
        self.feed(text)
        self.close()
        self.facts = json.loads(self.blocks["facts"])
        packed = gzip.decompress(base64.b64decode(self.blocks["arrays"], validate=True))
        self.arrays = {
            name: np.frombuffer(packed, f"<u{a['bytes']}", int(np.prod(a["shape"])), a["offset"]).reshape(a["shape"])
            for name, a in self.facts["arrays"].items()
        }

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = dict(attrs).get("id", tag) if tag in ("script", "style", "title") else None

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open:
            self.blocks[self._open] = self.blocks.get(self._open, "") + data

    def decoded(self, name):
        """An array's reals, NaN where there is no value; written from the page's description, not from its code."""
        about, codes = self.facts["arrays"][name], self.arrays[name].astype(np.float64)
        reals = about["low"] + (codes - 1) / about["steps"] * (about["high"] - about["low"])
        return np.where(codes == 0, np.nan, np.exp(reals) if about["log"] else reals)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A map whose tokens and model name are attacks, and its page."""
    atlas = synthetic(tmp_path_factory.mktemp("hostile") / "map", texts=HOSTILE, name=HOSTILE[1])
    return atlas, report.page(atlas)


def test_the_page_loads_nothing(hostile):
    text = hostile[1]
    page = Page(text)
    for word in ("https:", "@import", "url(", "<link", "<iframe", "fetch(", "XMLHttpRequest", "import(", "eval(", "innerHTML"):
        assert word not in text, word
    assert text.count("http:") == text.count('"http://www.w3.org/2000/svg"') == 1  # the name of SVG, which is never fetched
    for tag, attributes in page.elements:
        assert not {"src", "href", "action", "data", "srcset", "style"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag


def test_only_the_scripts_and_styles_of_the_page_may_run(hostile):
    page = Page(hostile[1])
    policies = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.blocks[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policies[0]
    assert policies[0].startswith("default-src 'none';")
    assert "unsafe" not in policies[0]


def test_hostile_tokens_stay_text(hostile):
    atlas, text = hostile
    page = Page(text)
    plain = Page(report.page(synthetic(atlas.path.parent / "plain")))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert not set("<>&\u2028\u2029") & set(page.blocks["facts"])
    assert set(HOSTILE) <= set(page.facts["tokens"])
    assert page.facts["model"]["name"] == HOSTILE[1]
    assert page.blocks["title"] == f"Neuron map of {HOSTILE[1]}"


def test_a_lone_surrogate_does_not_break_the_page():
    assert json.loads(report.embedded_json("\ud800<")) == "\ud800<"
    report.embedded_json("\ud800").encode("utf-8")


def test_the_numbers_of_the_page_are_those_of_the_map(hostile):
    atlas, text = hostile
    page, T = Page(text), report.DETAIL_TOKENS
    assert np.cumsum(page.arrays["gaps"]).tolist() == list(range(L * F))
    ids = np.concatenate([[NO_TOKEN], page.arrays["token/id"]])[page.arrays["ids"]]
    np.testing.assert_array_equal(ids.reshape(L, F, 2, T), atlas.column("ids")[..., :T])
    assert [atlas.tokens.display[i] for i in page.arrays["token/id"]] == page.facts["tokens"]
    np.testing.assert_array_equal(page.arrays["token/group"], atlas.tokens.group[page.arrays["token/id"]])
    labelled = atlas.column("ids")[..., 0] != NO_TOKEN
    p = page.decoded("p").reshape(L, F, 2, T)
    assert np.isnan(p[~labelled]).all()
    expected = np.maximum(atlas.probabilities()[labelled][..., :T], report.FLOOR)
    np.testing.assert_allclose(p[labelled], expected, rtol=0.03)  # half of 1/254 of the range of logarithms
    for name in report.POLE_DETAIL:
        want = atlas.column(name)[labelled]
        steps = np.ptp(np.log(np.maximum(want, report.FLOOR)) if name in report.LOGARITHMIC else want) / report.FINE
        got = page.decoded(name).reshape(L, F, 2)[labelled]
        np.testing.assert_allclose(got, want, rtol=steps if name in report.LOGARITHMIC else 0, atol=steps)
    for name in report.NEURON_DETAIL:
        want = atlas.column(name)[..., 0]
        np.testing.assert_allclose(page.decoded(name).reshape(L, F), want, atol=np.ptp(want) / report.FINE)


def test_places_poles_and_the_picture_follow_the_ranking(hostile):
    atlas, text = hostile
    page, ranking = Page(text), rank(atlas)
    np.testing.assert_array_equal(page.arrays["place/specialisation"].reshape(L, F), ranking.place)
    np.testing.assert_array_equal(page.arrays["place/concepts"].reshape(L, F), rank(atlas, "concepts").place)
    np.testing.assert_array_equal(page.arrays["pole"].reshape(L, F), ranking.pole)
    picture = page.decoded("picture/specialisation").reshape(L, F)
    assert np.isnan(picture[0, 0])
    want = ranking.score.max(-1).ravel()[1:]
    np.testing.assert_allclose(picture.ravel()[1:], want, atol=np.ptp(want) / report.COARSE)
    coherence = page.decoded("picture/coherence").reshape(L, F)
    i, j = np.indices((L, F))
    want = atlas.column("coherence")[i, j, ranking.pole].ravel()[1:]
    np.testing.assert_allclose(coherence.ravel()[1:], want, atol=np.ptp(want) / report.COARSE)


def test_curves_compare_the_layers_with_their_control(hostile):
    atlas, text = hostile
    facts, ranking = Page(text).facts, rank(atlas)
    curve = facts["curves"]["specialisation"]
    assert curve["control"]["quantiles"][0] == pytest.approx(np.median(ranking.control.max(-1), axis=1), rel=1e-4)
    assert curve["neurons"]["quantiles"][0][1:] == pytest.approx(np.median(ranking.score.max(-1)[1:], axis=1), rel=1e-4)
    assert [sum(layer) for layer in curve["neurons"]["histogram"]] == [F - 1, F, F]
    assert [sum(layer) for layer in curve["control"]["histogram"]] == [16, 16, 16]
    assert "control" not in facts["curves"]["read_write"]  # a property of the neuron, which a random row has not
    assert [count["layer"] for count in facts["counts"]] == [0, 1, 2]


def test_every_switch_is_on_the_page(tmp_path):
    atlas = map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", Settings(top_k=5), control=Control(rows=9))
    facts = Page(report.page(atlas)).facts
    assert (
        facts["settings"].items()
        >= {"site": "up", "norm": "rms", "fold_input_norm": False, "score": "logit", "top_k": 5}.items()
    )
    assert facts["settings"].keys() >= {"dtype", "mask_padding", "mask_special", "mask_untrained", "mask_bytes"}
    assert facts["control"] == {"kind": "gaussian", "rows": 9, "seed": 0}
    assert facts["arrays"]["ids"]["shape"] == [tiny.L * tiny.F, 2, 5]


def test_the_map_command_writes_the_page_and_says_where(tmp_path, capsys):
    tiny.checkpoint(tmp_path / "model")
    assert main(["map", str(tmp_path / "model"), "--out", str(tmp_path / "map"), "--layers", "1:3"]) == 0
    path = tmp_path / "map" / "report.html"
    assert Page(path.read_text("utf-8")).facts["mapped"] == [1, 2]
    assert f"Report:{path}" in "".join(capsys.readouterr().out.split())  # the terminal may break the line
    Atlas(tmp_path / "map").verify()  # which the page is no part of


def test_a_map_without_control_has_a_page(tmp_path):
    facts = Page(report.page(synthetic(tmp_path / "map", control=False))).facts
    assert facts["control"] is None
    assert facts["counts"] == []
    assert all("control" not in curve for curve in facts["curves"].values())


def test_a_map_without_any_label_has_a_page(tmp_path):
    def empty(weights):
        for layer in range(tiny.L):
            weights[tiny.mlp(layer, "up")][:] = 0

    atlas = map_model(tiny.checkpoint(tmp_path / "model", empty), tmp_path / "map", Settings(top_k=5))
    page = Page(report.page(atlas))
    assert page.facts["tokens"] == []
    assert not page.arrays["ids"].any()


def test_a_large_map_keeps_all_neurons_in_the_picture_and_the_best_in_detail(tmp_path):
    atlas = synthetic(tmp_path / "map", layers=4, neurons=15_000, vocabulary=60_000, top_k=10, control=False)
    text = report.page(atlas)
    page = Page(text)
    assert page.arrays["picture/coherence"].shape == (4, 15_000)
    kept = np.cumsum(page.arrays["gaps"])
    assert len(kept) == report.DETAIL_NEURONS
    for name in ("specialisation", "concepts"):
        assert set(rank(atlas, name).order[:1000]) <= set(kept.tolist())
    assert len(text) < 8 << 20
    small = report.page(atlas, detail_neurons=1000)
    assert len(small) < 60_000 * len(report.PICTURE) * 4 / 3 + (1 << 20)  # a byte for each neuron and statistic, in base64


def test_the_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    atlas, path = synthetic(tmp_path / "map"), tmp_path / "report.html"
    report.write(atlas, path)
    first = path.read_bytes()
    assert first == report.page(atlas).encode()  # and the same each time

    def full(*_):
        raise OSError(28, "No space left on device")

    other = synthetic(tmp_path / "other", name="other")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        report.write(other, path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.glob("*report*")] + [p.name for p in tmp_path.glob(".*")] == ["report.html"]

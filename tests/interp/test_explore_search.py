"""The explorer's search: the same neurons as a walk through every label finds, and no pattern that hangs."""

import contextlib
import time

import numpy as np
import pyarrow as pa
import pytest

from interp import find
from interp.atlas import NO_TOKEN, Tokens
from interp.explore import index as inverted
from interp.explore import search
from interp.explore.search import Words
from jaxllm.errors import UserError

L, F, V, K = 4, 30, 60, 5
TEXTS = ["dog", " dog", "Dog", " dogs", "dogma", " water", "water", "cat", "#1", "ca", "é", "a.b"]


class Map:
    """Random labels over a small vocabulary; neuron 0 of layer 0 has none."""

    def __init__(self):
        rng = np.random.default_rng(1)
        ids = np.stack([rng.permutation(V)[:K] for _ in range(L * F * 2)]).reshape(L, F, 2, K).astype(np.int32)
        logits = np.sort(rng.normal(size=ids.shape).astype(np.float32))[..., ::-1].copy()
        ids[0, 0], logits[0, 0] = NO_TOKEN, -np.inf
        lse = np.log(np.exp(logits).sum(-1) + 1.0).astype(np.float32)
        self.columns = {"ids": ids, "logits": logits, "lse": lse}
        texts = [*TEXTS, *(f"t{i}" for i in range(len(TEXTS), V))]
        keys = {}
        group = np.array([keys.setdefault(t.lstrip(" ").casefold(), len(keys)) for t in texts], np.int32)
        data = [text.encode() for text in texts]
        data[11] = b"\xe2\x80"  # half a character
        display = [t.replace(" ", "␣") for t in texts]
        self.tokens = Tokens(data, display, group, ["normal"] * V, np.ones(V, bool), np.arange(V, dtype=np.int32))
        self.layers, self.num_neurons, self.top_k = list(range(L)), F, K

    def column(self, name):
        return self.columns[name]

    def position(self, layer, neuron):
        if layer >= L or neuron >= F:
            raise UserError("no neuron")
        return layer, neuron


@pytest.fixture(scope="module")
def atlas():
    return Map()


@pytest.fixture(scope="module")
def parts(atlas):
    return inverted.build(atlas), search.words(atlas)


def walk(atlas, ids, pole=None):
    """(score by sum, score by best) of every row, by a loop over all labels."""
    p = np.exp(atlas.column("logits") - atlas.column("lse")[..., None]).reshape(-1, K)
    hit = np.isin(atlas.column("ids").reshape(-1, K), list(ids))
    if pole is not None:
        hit[1 - pole :: 2] = False
    return np.where(hit, p, 0).sum(1), np.where(hit, p, 0).max(1)


@pytest.mark.parametrize("pole", [None, 0, 1])
@pytest.mark.parametrize("few", [inverted.FEW_ENTRIES, 0], ids=["gathered", "scanned"])
@pytest.mark.parametrize("ids", [[0], [0, 1, 2], list(range(40)), list(range(V))], ids=len)
def test_the_index_finds_what_a_walk_finds(atlas, parts, ids, few, pole, monkeypatch):
    monkeypatch.setattr(inverted, "FEW_ENTRIES", few)
    monkeypatch.setattr(inverted, "SCAN", 7)
    index, (sums, bests) = parts[0], walk(atlas, ids, pole)
    wanted = np.array(ids)
    for hits, scores in ((inverted.by_sum(index, wanted, 20, pole), sums), (inverted.by_best(index, wanted, 20, pole), bests)):
        expected = np.sort(scores)[::-1][: min(20, np.count_nonzero(scores))]
        np.testing.assert_allclose(hits.score, expected, rtol=1e-6)
        np.testing.assert_allclose(scores[hits.row], hits.score, rtol=1e-6)
        assert hits.entries == np.isin(atlas.column("ids"), ids).sum()
        assert hits.rows in (np.count_nonzero(scores), None)


def test_no_token_finds_nothing(parts):
    none = np.zeros(0, np.int64)
    assert inverted.by_sum(parts[0], none, 5).row.size == inverted.by_best(parts[0], none, 5).row.size == 0


def test_the_picture_of_a_search_is_the_best_of_each_neuron(atlas, parts):
    _, bests = walk(atlas, [3, 4])
    np.testing.assert_allclose(inverted.of_all(parts[0], np.array([3, 4])), bests.reshape(-1, 2).max(1), rtol=1e-6)


def test_a_word_is_found_in_all_its_spellings_as_by_the_command_line(atlas, parts):
    found = search.search(atlas, *parts, "dog", limit=100)
    expected = find(atlas, [0, 1, 2], limit=100)
    assert [(m["layer"], m["neuron"], m["pole"]) for m in found["matches"]] == [(m.layer, m.neuron, m.pole) for m in expected]
    assert [m["probability"] for m in found["matches"]] == pytest.approx([m.probability for m in expected], rel=1e-5)
    assert {text for text, _ in found["tokens"]} == {"dog", "␣dog", "Dog"}
    assert {text for text, _, _ in found["completions"]} == {" dogs", "dogma"}


def test_a_token_is_found_as_it_stands(atlas, parts):
    for text in (" dog", "␣dog"):
        assert [name for name, _ in search.search(atlas, *parts, text, by="token")["tokens"]] == ["␣dog"]
    assert search.search(atlas, *parts, "DOG", by="token")["matches"] == []


def test_a_beginning_finds_the_tokens_that_go_on(atlas, parts):
    found = search.search(atlas, *parts, "wat", limit=200)
    assert found["note"] == "No token is this word; these begin with it."
    assert {text for text, _ in found["tokens"]} == {"␣water", "water"}
    assert not found["alike"]


def test_regular_expressions_see_the_text_of_tokens(parts):
    texts = parts[1].text

    def tokens(pattern):
        return {texts[i] for i in search.matching(parts[1], pattern)}

    assert tokens("^ ?dog$") == {"dog", " dog"}
    assert tokens("(?i)^dog") == {"dog", "Dog", "dogma"}
    assert tokens("^ ") == {" dog", " dogs", " water"}
    assert tokens("é") == {"é"}
    assert tokens("") == set()


@pytest.mark.parametrize("text", ["L2/N7", "l2 n7", " L2N7 "])
def test_a_neuron_is_a_neuron_however_it_is_asked(atlas, parts, text):
    for by in search.WAYS:
        assert search.search(atlas, *parts, text, by=by)["neuron"] == [2, 7]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("(", {"by": "regex"}, "not a regular expression of RE2: missing"),
        ("(?=x)", {"by": "regex"}, "not a regular expression of RE2"),
        ("a{2000}", {"by": "regex"}, "not a regular expression of RE2"),
        ("x" * 201, {}, "at most 200"),
        ("dog", {"by": "eval"}, "choose one of word, token, regex"),
        ("dog", {"pole": "?"}, r"choose \+ or -"),
        ("L99/N1", {}, "no neuron"),
    ],
)
def test_a_query_that_means_nothing_is_refused(atlas, parts, text, options, message):
    with pytest.raises(UserError, match=message):
        search.search(atlas, *parts, text, **options)


def test_no_pattern_takes_long():
    """Patterns that take backtracking engines for ever, and one as large as RE2 allows, on texts made for them."""
    texts = [f"{'a' * 40}{i % 10}b{'x' * 20}" for i in range(60_000)]
    vocabulary = Words(texts, pa.array(texts, pa.large_string()), [], np.zeros(0, np.int64), {}, np.zeros(0, np.int32))
    for pattern in ("(a*)*$", "(a|a)*c", "(a+)+!", "([a-z]?){500}[0-9]c", "(((a?){9}){9}){9}(((x?){9}){9}){9}y"):
        begun = time.monotonic()
        with contextlib.suppress(UserError):  # too large for RE2, or given up
            search.matching(vocabulary, pattern)
        assert time.monotonic() - begun < 10 * search.REGEX_SECONDS, pattern


def test_a_pattern_that_takes_too_long_is_given_up(parts, monkeypatch):
    monkeypatch.setattr(search, "REGEX_SECONDS", -1.0)
    with pytest.raises(UserError, match="takes more than"):
        search.matching(parts[1], "dog")


def test_a_neuron_without_a_label_is_never_found(atlas, parts):
    found = search.search(atlas, *parts, ".", by="regex", limit=search.MAX_MATCHES)
    assert [0, 0] not in [[m["layer"], m["neuron"]] for m in found["matches"]]
    assert len(found["matches"]) == 2 * L * F - 2

"""Two maps side by side: identities, chance, planted changes with their cause, and what cannot be compared."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import synthetic
import tiny
from reference import dense_decode
from tiny import D, F, L, V, mlp

from interp import compare_files
from interp.alignment import align
from interp.atlas import AMBIGUOUS, DEGENERATE, NO_TOKEN, NONFINITE
from interp.compare import compare
from interp.run import Settings, map_model
from jaxllm.errors import UserError

EPS = tiny.CONFIG.rms_norm_eps
WORDS = [b" dog", b"dog", b"cat", b"bird", b"fish", b"worm", b"<s>"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tiny model, and its map."""
    folder = tmp_path_factory.mktemp("compare")
    checkpoint = tiny.checkpoint(folder / "model")
    return checkpoint, map_model(checkpoint, folder / "map", Settings(top_k=6))


def changed(tmp_path, edit, **settings):
    """A model that ``edit`` changes, and its map."""
    checkpoint = tiny.checkpoint(tmp_path / "model", edit)
    return checkpoint, map_model(checkpoint, tmp_path / "map", Settings(**{"top_k": 6} | settings))


def words(*neurons):
    """[1, F, k] ids of one layer."""
    return np.array([neurons], np.int32)


def test_a_map_equals_itself(base):
    checkpoint, atlas = base
    comparison = compare(atlas, atlas, checkpoints=(checkpoint, checkpoint))
    assert comparison.overall.match.count == comparison.overall.match.total == L * F
    assert comparison.overall.overlap.value == comparison.overall.rbo.value == comparison.minus.share == 1
    assert [layer.match.share for layer in comparison.by_layer] == [1] * L
    assert len(comparison.changed.layer) == 0
    assert all(word.before == word.after for word in comparison.labels)
    weights = comparison.weights
    assert weights.row_cos.value == pytest.approx(1)
    assert weights.js.value == 0
    assert {rate.share for rate in weights.combinations.values()} == {1.0}
    assert [part.shapley for part in weights.parts] == [0, 0, 0]
    assert weights.causes == []


def test_shuffled_neurons_agree_by_chance(tmp_path):
    rng = np.random.default_rng(0)
    vocabulary = synthetic.tokens([b"w%d" % n for n in range(40)])
    ids = np.array([[rng.permutation(40)[:3] for _ in range(900)] for _ in range(2)]) ** 2 // 40  # some labels are frequent
    other = np.stack([rng.permutation(layer) for layer in ids])
    comparison = compare(synthetic.write(tmp_path / "a", vocabulary, ids), synthetic.write(tmp_path / "b", vocabulary, other))
    overall = comparison.overall
    f = np.bincount(ids[..., 0].ravel(), minlength=40) / 1800
    assert overall.chance == pytest.approx((f * f).sum())  # the same labels, in another order
    assert overall.match.low < overall.chance < overall.match.high
    assert overall.shuffled.low < overall.chance < overall.shuffled.high
    for layer, labels in zip(comparison.by_layer, ids[..., 0], strict=True):
        f = np.bincount(labels, minlength=40) / 900
        assert layer.chance == pytest.approx((f * f).sum())
        assert layer.shuffled.low < layer.chance < layer.shuffled.high


def test_a_planted_change_is_the_one_that_is_found(base, tmp_path):
    checkpoint, atlas = base
    head = checkpoint.read("lm_head.weight")

    def edit(weights):
        weights[mlp(1, "up")][4] = head[9] / np.linalg.norm(head[9])

    other, map_b = changed(tmp_path, edit)
    old = dense_decode(checkpoint.read(mlp(1, "up"))[4:5], head, 6, norm="rms", eps=EPS)
    new = dense_decode(other.read(mlp(1, "up"))[4:5], head, 6, norm="rms", eps=EPS)
    assert old.ids[0, 0, 0] != new.ids[0, 0, 0]
    comparison = compare(atlas, map_b, checkpoints=(checkpoint, other))
    found = comparison.changed
    assert (found.layer.tolist(), found.neuron.tolist()) == ([1], [4])
    assert (found.old[0], found.new[0]) == (old.ids[0, 0, 0], new.ids[0, 0, 0])
    assert found.margin_a[0] == pytest.approx(old.logits[0, 0, 0] - old.logits[0, 0, 1], rel=1e-4)
    assert found.margin_b[0] == pytest.approx(new.logits[0, 0, 0] - new.logits[0, 0, 1], rel=1e-4)
    places = {int(token): place for place, token in enumerate(new.ids[0, 0])}
    assert found.old_place[0] == places.get(int(found.old[0]), -1)
    assert comparison.overall.match.count == L * F - 1
    assert comparison.by_layer[1].match.count == F - 1
    assert comparison.weights.causes == ["rows"]
    assert [part.shapley for part in comparison.weights.parts] == [1, 0, 0]
    assert comparison.weights.row_cos_kept.value == pytest.approx(1)
    one, two = (c.read(mlp(1, "up"))[4].astype(np.float64) for c in (checkpoint, other))
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert comparison.weights.row_cos_changed.value == pytest.approx(cosine, abs=1e-6)


def test_a_change_of_the_head_is_the_heads(base, tmp_path):
    def edit(weights):
        weights["lm_head.weight"][[3, 8, 20]] *= 3

    other, map_b = changed(tmp_path, edit)
    comparison = compare(base[1], map_b, checkpoints=(base[0], other))
    count = len(comparison.changed.layer)
    assert count > 10
    assert set(comparison.changed.new.tolist()) <= {3, 8, 20}
    assert comparison.weights.causes == ["head"] * count
    rows, gain, head = comparison.weights.parts
    assert (rows.alone.count, gain.alone.count, head.alone.count) == (0, 0, count)
    assert (rows.without.count, head.without.count) == (count, 0)
    assert (rows.shapley, gain.shapley, head.shapley) == (0, 0, 1)
    assert comparison.weights.row_cos.low == pytest.approx(1)


def test_a_change_of_the_final_gain_counts_under_the_final_norm_alone(tmp_path):
    def edit(weights):
        weights["model.norm.weight"][:4] *= 4

    counts = {}
    for norm in ("rms", "final"):
        one, map_a = changed(tmp_path / norm / "a", lambda _: None, norm=norm)
        two, map_b = changed(tmp_path / norm / "b", edit, norm=norm)
        comparison = compare(map_a, map_b, checkpoints=(one, two))
        counts[norm] = len(comparison.changed.layer)
        assert set(comparison.weights.causes) <= {"gain"}
        norms = {name: rate.count for name, rate in comparison.weights.norms.items()}
        assert norms["rms"] == L * F
    assert counts["rms"] == 0
    assert counts["final"] == L * F - norms["final"] > 0


def test_every_combination_is_that_of_the_dense_decode(tmp_path):
    def edit(weights):
        rng = np.random.default_rng(5)
        for name in ("lm_head.weight", "model.norm.weight", *(mlp(layer, "up") for layer in range(L))):
            weights[name] += (0.4 * rng.normal(size=weights[name].shape)).astype(np.float32)

    one, map_a = changed(tmp_path / "a", lambda _: None, norm="final")
    two, map_b = changed(tmp_path / "b", edit, norm="final")
    weights = compare(map_a, map_b, checkpoints=(one, two)).weights
    models = {"A": one, "B": two}

    def labels(mix):
        rows, gain, head = (models[name] for name in mix)
        up = np.concatenate([rows.read(mlp(layer, "up")) for layer in range(L)])
        gain = gain.read("model.norm.weight")
        return dense_decode(up, head.read("lm_head.weight"), 1, norm="final", eps=EPS, gain=gain).ids[:, 0, 0]

    start = labels("AAA")
    want = {"".join(mix): int((labels(mix) == start).sum()) for mix in itertools.product("AB", repeat=3)}
    assert {mix: rate.count for mix, rate in weights.combinations.items()} == want
    assert sum(part.shapley for part in weights.parts) == pytest.approx(1)
    values = {mix: L * F - count for mix, count in want.items()}  # changed labels
    head = (2 * values["AAB"] + values["BAB"] - values["BAA"] + values["ABB"] - values["ABA"]) / 6
    head += 2 * (values["BBB"] - values["BBA"]) / 6
    assert weights.parts[2].shapley == pytest.approx(head / values["BBB"])


def test_the_distance_of_distributions_is_jensens_and_shannons(base, tmp_path):
    def edit(weights):
        weights["lm_head.weight"] += np.random.default_rng(1).normal(0, 0.3, (V, D)).astype(np.float32)
        weights[mlp(2, "up")][3] = 0

    other, map_b = changed(tmp_path, edit)
    comparison = compare(base[1], map_b, checkpoints=(base[0], other))
    distances = []
    for layer, neuron in itertools.product(range(L), range(F)):
        p, q = (np.zeros(V), np.zeros(V))
        for out, model in ((p, base[0]), (q, other)):
            row = model.read(mlp(layer, "up"))[neuron].astype(np.float64)
            z = model.read("lm_head.weight").astype(np.float64) @ (row / np.sqrt((row**2).mean() + EPS))
            out[:] = np.exp(z) / np.exp(z).sum()
        if (layer, neuron) != (2, 3):
            m = (p + q) / 2
            distances.append(np.sqrt(((p * np.log2(p / m)).sum() + (q * np.log2(q / m)).sum()) / 2))
    assert comparison.weights.js.count == L * F - 1
    assert comparison.weights.js.value == pytest.approx(np.mean(distances), rel=1e-4)
    assert comparison.overall.degenerate == comparison.by_layer[2].degenerate == 1
    assert comparison.overall.match.total == L * F - 1


def test_permuting_the_neurons_of_both_permutes_what_changed(tmp_path):
    order = np.random.default_rng(3).permutation(F)

    def turn(weights):
        weights[mlp(0, "up")][[2, 5]] *= -1

    def permute(weights):
        weights[mlp(0, "up")] = weights[mlp(0, "up")][order]

    def both(weights):
        turn(weights)
        permute(weights)

    edits = {"a": lambda _: None, "b": turn, "c": permute, "d": both}
    a, b, c, d = (changed(tmp_path / name, edit)[1] for name, edit in edits.items())
    plain, permuted = compare(a, b), compare(c, d)
    assert permuted.overall.match == plain.overall.match
    assert sorted(order[permuted.changed.neuron].tolist()) == sorted(plain.changed.neuron.tolist()) == [2, 5]
    assert permuted.overall.rbo.value == pytest.approx(plain.overall.rbo.value)


def test_spellings_of_a_word_are_one_and_flagged_rows_are_apart(tmp_path):
    vocabulary = synthetic.tokens(WORDS)
    none = [NO_TOKEN] * 3
    a = words([0, 2, 3], [2, 3, 4], [3, 4, 5], none, [4, 5, 2], none)
    b = words([1, 2, 3], [2, 4, 3], [4, 3, 5], [0, 1, 2], [4, 2, 5], none)
    flags = np.zeros((1, 6), np.uint8)
    flags[0, 2], flags[0, 3], flags[0, 5] = AMBIGUOUS, DEGENERATE, NONFINITE
    comparison = compare(
        synthetic.write(tmp_path / "a", vocabulary, a, flags=flags), synthetic.write(tmp_path / "b", vocabulary, b)
    )
    overall = comparison.overall
    assert (overall.match.count, overall.match.total) == (2, 4)
    assert overall.match_group.count == 3
    assert (overall.clear.count, overall.clear.total) == (2, 3)
    assert (overall.ambiguous.count, overall.ambiguous.total) == (0, 1)
    assert (overall.degenerate, overall.nonfinite, overall.unmatched) == (1, 1, 0)
    assert comparison.changed.same_group.tolist() == [True, False]
    assert comparison.changed.ambiguous.tolist() == [False, True]
    assert overall.overlap.value == pytest.approx((2 / 3 + 1 + 1 + 1) / 4)


def test_changed_neurons_come_by_the_margin_that_they_had(tmp_path):
    vocabulary = synthetic.tokens(WORDS)
    a, b = words([0, 1], [0, 1], [0, 1], [2, 3]), words([2, 1], [2, 1], [3, 0], [2, 3])
    logits = np.array([[[3.0, 2.5], [4.0, 1.0], [5.0, 4.0], [9.0, 1.0]]], np.float32)
    comparison = compare(
        synthetic.write(tmp_path / "a", vocabulary, a, logits=logits), synthetic.write(tmp_path / "b", vocabulary, b)
    )
    assert comparison.changed.neuron.tolist() == [1, 2, 0]
    assert comparison.changed.margin_a.tolist() == [3.0, 1.0, 0.5]
    assert comparison.changed.margin_b.tolist() == [1.0] * 3
    assert comparison.changed.old_place.tolist() == [-1, 1, -1]
    assert comparison.changed.new_place.tolist() == [-1] * 3


def test_the_smaller_top_k_counts(tmp_path):
    vocabulary = synthetic.tokens(WORDS)
    a = synthetic.write(tmp_path / "a", vocabulary, words([0, 2, 3, 4]))
    b = synthetic.write(tmp_path / "b", vocabulary, words([0, 4]))
    comparison = compare(a, b)
    assert comparison.k == 2
    assert comparison.overall.overlap.value == 0.5


def test_heads_of_other_sizes_are_matched_by_bytes_and_the_rest_is_masked(tmp_path):
    longer = [b"new", *WORDS[::-1], b"<pad>"]  # other ids, one more word, one more special token
    vocabulary_b = synthetic.tokens(longer)
    vocabulary_b.kind[:] = ["normal", "special", *["normal"] * 6, "special"]
    at = {word: i for i, word in enumerate(longer)}
    a = synthetic.write(tmp_path / "a", synthetic.tokens(WORDS, special=1, padding=3), words([2, 3, 4], [0, 1, 2], [3, 4, 5]))
    rows_b = [[b"new", b"cat", b"bird"], [b"dog", b" dog", b"cat"], [b"<pad>", b"new", b"new"]]
    ids = words(*[[at[word] for word in row] for row in rows_b])
    logits = np.array([[[5.0, 3.0, 1.0], [5.0, 4.0, 2.0], [5.0, 4.0, 3.0]]], np.float32)
    b = synthetic.write(tmp_path / "b", vocabulary_b, ids, logits=logits)
    alignment = align(a, b)
    assert [longer[i] for i in alignment.ids_b] == [WORDS[i] for i in alignment.ids_a]
    comparison = compare(a, b)
    assert comparison.masked == (0, 2)
    assert (comparison.overall.match.count, comparison.overall.match.total) == (1, 2)
    assert comparison.overall.unmatched == 1
    assert comparison.overall.match_group.count == 2
    assert comparison.changed.margin_b.tolist() == [1.0]
    assert comparison.deciles[0].match.count + comparison.deciles[1].match.count == 1
    back = compare(b, a)
    assert back.overall.match == comparison.overall.match
    assert back.changed.margin_a.tolist() == [1.0]


class Named:
    """A tokenizer with one made-up word per id."""

    def __init__(self, numbers):
        self.words, self.size = [b"w%d" % n for n in numbers], len(numbers)
        self.used_ids, self.special_ids, self.byte_ids = frozenset(range(self.size)), frozenset(), frozenset()

    def token_bytes(self, i):
        return self.words[i]

    def display(self, i):
        return self.words[i].decode()

    def digest(self):
        return repr(self.words)


def test_a_model_with_more_tokens_in_another_order_is_the_same_model(base, tmp_path):
    numbers = np.random.default_rng(7).permutation(V + 5)  # id -> word; words from V on are new
    config = dataclasses.replace(tiny.CONFIG, vocab_size=V + 5)
    weights = tiny.weights()
    grown = {**weights}
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        more = np.concatenate([weights[name], 4 * np.ones((5, D), np.float32)])
        grown[name] = more[numbers]
    one, two = tiny.save(tmp_path / "a", weights), tiny.save(tmp_path / "b", grown, config=config)
    one.__dict__["_tokenizer"], two.__dict__["_tokenizer"] = Named(range(V)), Named(numbers.tolist())
    a = map_model(one, tmp_path / "map_a", Settings(top_k=5))
    b = map_model(two, tmp_path / "map_b", Settings(top_k=10))
    comparison = compare(a, b, checkpoints=(one, two))
    assert comparison.masked == (0, 5)
    assert comparison.overall.match.count == comparison.overall.match.total == L * F
    assert comparison.overall.overlap.value == 1
    assert comparison.weights.js.value == pytest.approx(0, abs=1e-3)
    assert [part.alone.count for part in comparison.weights.parts] == [0, 0, 0]


@pytest.mark.parametrize(
    ("vocabulary", "options", "message"),
    [
        (synthetic.tokens(WORDS), {"neurons": 9}, "other shapes.*2 neurons a layer.*9 neurons a layer"),
        (synthetic.tokens(WORDS), {"width": 9}, "other shapes"),
        (synthetic.tokens(WORDS), {"settings": {"norm": "final"}}, "other settings: norm is 'rms' and 'final'"),
        (synthetic.tokens(WORDS), {"settings": {"mask_special": True}}, "other settings: mask_special"),
        (synthetic.tokens([*WORDS[:2], b"horse", *WORDS[3:]]), {}, "1 of 7 tokens otherwise, first id 2: cat and horse"),
        (synthetic.tokens([*WORDS[:3], b"horse"]), {}, "heads of 7 and 4 rows.*4 and 1 tokens that the other lacks"),
        (synthetic.tokens([], padding=9), {}, "heads of 7 and 9 rows"),
    ],
)
def test_maps_that_do_not_belong_together_are_refused(tmp_path, vocabulary, options, message):
    a = synthetic.write(tmp_path / "a", synthetic.tokens(WORDS), words([0, 1], [2, 3]))
    b = synthetic.write(tmp_path / "b", vocabulary, words([0, 1], [2, 3]), **options)
    with pytest.raises(UserError, match=message):
        compare(a, b)


def test_the_layers_that_both_maps_hold_are_compared(tmp_path):
    vocabulary, ids = synthetic.tokens(WORDS), np.array([[[0, 1]], [[2, 3]]], np.int32)
    a = synthetic.write(tmp_path / "a", vocabulary, ids, layers=[1, 4])
    b = synthetic.write(tmp_path / "b", vocabulary, ids[::-1], layers=[4, 6])
    comparison = compare(a, b)
    assert comparison.layers == [4]
    assert comparison.overall.match.share == 1
    c = synthetic.write(tmp_path / "c", vocabulary, ids, layers=[7, 8])
    with pytest.raises(UserError, match="none is in both"):
        compare(a, c)


@pytest.mark.parametrize("part", ["lm_head.weight", mlp(1, "gate"), "config"])
def test_weights_of_another_model_are_refused(base, tmp_path, part):
    weights = tiny.weights()
    config = dataclasses.replace(tiny.CONFIG, rope_theta=777.0) if part == "config" else tiny.CONFIG
    if part != "config":
        weights[part][0, 0] += 1
    other = tiny.save(tmp_path / "other", weights, config=config)
    with pytest.raises(UserError, match="is not the model of the map"):
        compare(base[1], base[1], checkpoints=(base[0], other))


@pytest.mark.parametrize(
    ("names", "V", "shown"),
    [
        (("meta-llama/Llama-3.1-8B", "models/Meta-Llama-3.1-8B-Instruct"), 128256, True),
        (("Llama-3.1-8B-Instruct", "Llama-3.1-8B/"), 128256, True),
        (("Llama-3.1-8B", "Llama-3.1-8B"), 128256, False),
        (("Llama-3.1-8B", "my-Llama-3.1-8B-Instruct"), 128256, False),
        (("Llama-3.1-8B", "Llama-3.1-8B-Instruct"), 128255, False),
    ],
)
def test_the_papers_figure_is_for_the_papers_models(names, V, shown):
    from interp.compare import _are_the_papers

    shape = {"layers": 32, "neurons": 14336, "width": 4096, "vocabulary": V}
    a, b = (SimpleNamespace(meta={"model": {"name": name} | shape}) for name in names)
    assert _are_the_papers(a, b) is shown


def test_the_files_hold_all_that_was_found(base, tmp_path):
    def edit(weights):
        weights["lm_head.weight"][[3, 8, 20]] *= 3

    other, map_b = changed(tmp_path, edit)
    comparison = compare(base[1], map_b, checkpoints=(base[0], other))
    paths = compare_files.write(comparison, base[1].tokens, tmp_path / "out")
    assert [path.name for path in paths] == ["comparison.json", "layers.csv", "changed.csv", "comparison.png"]
    facts = json.loads(paths[0].read_text())
    assert facts["overall"]["match"]["count"] == L * F - len(comparison.changed.layer)
    assert facts["changed"][0]["cause"] == "head"
    assert facts["changed"][0]["margin_a"] == comparison.changed.margin_a[0]
    assert len(paths[1].read_text().splitlines()) == 1 + L + 1
    assert len(paths[2].read_text().splitlines()) == 1 + len(comparison.changed.layer)
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="cannot be a folder"):
        compare_files.write(comparison, base[1].tokens, paths[0])

"""Rankings: what they put first, what they refuse to count, and where chance stands."""

import numpy as np
import pytest

from interp import ranking as rankings
from interp import stats
from interp.atlas import DEGENERATE, NEURON_STATISTICS, NO_TOKEN, POLE_STATISTICS, Atlas, AtlasWriter, Tokens
from jaxllm.errors import UserError

WORDS = [
    b" red",
    b"Red",
    b" reddish",
    b" blue",
    b" green",
    b" white",
    b" black",
    b"7",
    b"\xe2",
    b" run",
    b" running",
    b" x",
    b"=",
]
GROUP = np.array([0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], np.int32)
V, K, F = len(WORDS), 4, 6
TOKENS = Tokens(WORDS, [repr(w) for w in WORDS], GROUP, ["normal"] * V, np.ones(V, bool), np.arange(V, dtype=np.int32))


def build(folder, edit=None, *, control=None):
    """One layer of F neurons whose rows are all alike (tokens 11, 12, 7, 8), changed by ``edit``."""
    columns = {name: np.full((F, 2), 0.5, np.float32) for name in POLE_STATISTICS}
    columns |= {name: np.ones(F, np.float32) for name in NEURON_STATISTICS}
    columns["ids"] = np.tile(np.array([11, 12, 7, 8], np.int32), (F, 2, 1))
    columns["logits"] = np.tile(np.array([4, 3, 2, 1], np.float32), (F, 2, 1))
    columns["flags"] = np.zeros((F, 2), np.uint8)
    columns["mean"][:] = 0
    columns["std"][:] = 1
    if edit is not None:
        edit(columns)
    writer = AtlasWriter(folder, {"top_k": K}, {"model": {"neurons": F}}, TOKENS)
    writer.write_layer(0, columns, {})
    if control is not None:
        drawn = {name: values[:1].repeat(50, 0) for name, values in columns.items()}
        control(drawn)
        writer.set_control("gaussian", 50, 0)
        writer.write_control(0, drawn, {})
    writer.finish()
    return Atlas(folder)


def test_a_neuron_stands_where_its_better_pole_stands(tmp_path):
    def edit(columns):
        columns["coherence"][4, 1] = columns["zmax_sigma"][4, 1] = 9
        columns["coherence"][2, 0] = 8

    ranking = rankings.rank(build(tmp_path / "map", edit))
    assert ranking.top(2) == [(0, 4, 1), (0, 2, 0)]
    assert (ranking.place[0, 4], ranking.pole[0, 4]) == (0, 1)
    assert ranking.order.tolist() == [4, 2, 0, 1, 3, 5]  # ties keep the order of the neurons


def test_tokens_that_top_many_rows_count_less(tmp_path):
    """Rows 1 and 2 are equal but for their tokens: those of row 2 head all other rows as well."""

    def edit(columns):
        columns["coherence"][1:3] = columns["zmax_sigma"][1:3] = 5
        columns["ids"][1] = [0, 3, 4, 5]

    ranking = rankings.rank(build(tmp_path / "map", edit))
    assert ranking.place[0, 1] == 0
    assert ranking.place[0, 2] == 1


def test_rows_without_a_label_come_last(tmp_path):
    def edit(columns):
        columns["coherence"][3] = columns["zmax_sigma"][3] = 99
        columns["flags"][3] = DEGENERATE
        columns["ids"][3] = NO_TOKEN

    ranking = rankings.rank(build(tmp_path / "map", edit))
    assert ranking.order[-1] == 3
    assert (ranking.score[0, 3] == -1).all()
    assert rankings.rank(build(tmp_path / "map2", edit), "concepts").order[-1] == 3


def test_spellings_of_one_word_count_once(tmp_path):
    """Row 0 has five spellings and forms of one word, row 1 four colours; all else is equal."""

    def edit(columns):
        columns["ids"][0] = [0, 1, 2, 1]
        columns["ids"][1] = [0, 4, 5, 6]

    atlas = build(tmp_path / "map", edit)
    assert rankings.rank(atlas, "concepts").top(1)[0][1] == 1
    words = rankings.stems(atlas.tokens)
    assert words[0] == words[1] == words[2]
    assert words[9] == words[10]
    assert len({int(words[i]) for i in (0, 3, 4, 5, 6, 9)}) == 6
    assert (words[[7, 8, 11, 12]] == -1).all()  # a digit, half a character, one letter, a mark
    first = rankings.first_of_word(words[[[0, 1, 3, 8, 3, 4]]], np.array([[0, 1, 3, 8, 3, 4]]))
    assert first.tolist() == [[True, False, True, False, False, True]]


def test_percentiles_are_shares_of_smaller_values():
    among = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert rankings.percentiles(np.array([0.0, 1.0, 2.0, 3.0, 9.0]), among).tolist() == [0, 0, 0.25, 0.75, 1]


def test_the_control_sets_the_bar(tmp_path):
    def edit(columns):
        columns["coherence"][4, 1] = columns["zmax_sigma"][4, 1] = 9
        columns["coherence"][2, 0] = 9  # one of two is not enough

    def control(columns):
        columns["coherence"][:] = columns["zmax_sigma"][:] = np.linspace(0, 1, 50)[:, None]

    atlas = build(tmp_path / "map", edit, control=control)
    assert np.argwhere(rankings.specialised(atlas)).tolist() == [[0, 4, 1]]
    assert rankings.control_thresholds(atlas)["coherence"][0] == pytest.approx(
        np.quantile(np.linspace(0, 1, 50).repeat(2), 0.99)
    )
    count = stats.layer_counts(atlas)[0]
    assert (count.layer, count.neurons, count.specialised) == (0, F, 1)
    assert count.specialised_by_chance == pytest.approx(1 / 50)


def test_neurons_above_the_control_score_higher_than_99_percent_of_it(tmp_path):
    def edit(columns):
        columns["coherence"][4, 1] = columns["zmax_sigma"][2, 0] = 9

    def control(columns):
        columns["coherence"][:] = columns["zmax_sigma"][:] = 0.1

    count = stats.layer_counts(build(tmp_path / "map", edit, control=control))[0]
    assert (count.above_control, count.above_control_by_chance) == (2, 0)


def test_counts_against_a_control_need_one(tmp_path):
    atlas = build(tmp_path / "map")
    assert rankings.rank(atlas).control is None
    with pytest.raises(UserError, match="no control rows; run `jaxllm map` with --control"):
        stats.layer_counts(atlas)


def test_labels_are_counted_by_class_and_by_token(tmp_path):
    def edit(columns):
        columns["ids"][0, 0, 0] = 0
        columns["ids"][5] = NO_TOKEN
        columns["flags"][5] = DEGENERATE

    atlas = build(tmp_path / "map", edit)
    assert stats.class_shares(atlas) == {"normal": 1.0}
    assert stats.frequent_labels(atlas) == [(11, 4), (0, 1)]
    assert stats.coverage(atlas) == pytest.approx(2 / V)


def test_the_front_door_has_the_function_also_after_the_module():
    import interp

    assert interp.rank is rankings.rank
    assert all(callable(getattr(interp, name)) for name in interp.__all__)

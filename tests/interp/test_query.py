"""Finding neurons by word and looking at one, on maps small enough to check by hand."""

import dataclasses
import json

import numpy as np
import pytest
import tiny
from reference import dense_decode
from tiny import F, L, V, mlp

from interp import query
from interp.atlas import Atlas
from interp.run import Control, Settings, map_model
from jaxllm.cli import main
from jaxllm.errors import UserError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The tiny model and its map, with a control; row 5 of layer 1 is row 2 of layer 0, negated and half as long."""
    base = tmp_path_factory.mktemp("query")

    def edit(weights):
        weights[mlp(1, "up")][5] = -0.5 * weights[mlp(0, "up")][2]
        weights[mlp(2, "up")][7] = 0

    checkpoint = tiny.checkpoint(base / "model", edit)
    map_model(checkpoint, base / "map", Settings(top_k=8), control=Control(rows=9))
    return base / "model", base / "map"


def test_found_neurons_are_those_of_the_dense_decode_in_order_of_probability(folders):
    model, folder = folders
    checkpoint = tiny.open_checkpoint(model)
    head = checkpoint.read("lm_head.weight")
    group = [3, 17, 40]
    expected = []
    for layer in range(L):
        want = dense_decode(checkpoint.read(mlp(layer, "up")), head, 8, norm="rms", eps=tiny.CONFIG.rms_norm_eps)
        p = np.exp(want.logits - want.lse[..., None])
        for neuron, pole in np.argwhere(np.isin(want.ids, group).any(-1)):
            if (layer, neuron) != (2, 7):
                at = np.isin(want.ids[neuron, pole], group)
                expected.append((p[neuron, pole][at].sum(), layer, neuron, "+-"[pole], int(at.argmax())))
    expected.sort(key=lambda match: -match[0])
    found = query.find(Atlas(folder), group, limit=10_000)
    assert [(m.layer, m.neuron, m.pole, m.place) for m in found] == [match[1:] for match in expected]
    np.testing.assert_allclose([m.probability for m in found], [match[0] for match in expected], rtol=1e-4)
    assert query.find(Atlas(folder), group, limit=3) == found[:3]
    assert query.find(Atlas(folder), group, limit=10_000, pole="-") == [m for m in found if m.pole == "-"]


def test_a_neuron_is_shown_with_both_poles_and_its_standing(folders):
    atlas = Atlas(folders[1])
    neuron = query.show(atlas, 1, 4)
    ids = atlas.column("ids")[1, 4]
    assert [t.id for t in neuron.poles[0].tokens] == ids[0].tolist()
    assert [t.id for t in neuron.poles[1].tokens] == ids[1].tolist()
    column = atlas.column("coherence")[1]
    standing = neuron.poles[1].statistics["coherence"]
    assert standing.value == column[4, 1]
    assert standing.percentile == pytest.approx(100 * np.mean(column < column[4, 1]))
    assert standing.control == pytest.approx(100 * np.mean(atlas.control("coherence")[1] < column[4, 1]))
    assert neuron.poles[0].statistics["skew"].value == -neuron.poles[1].statistics["skew"].value
    assert set(neuron.statistics) == {"read_write", "norm_up", "norm_gate", "norm_down"}
    assert 1 <= neuron.places["specialisation"] <= L * F


def test_a_zero_row_is_shown_without_tokens(folders):
    neuron = query.show(Atlas(folders[1]), 2, 7)
    assert [pole.tokens for pole in neuron.poles] == [(), ()]
    assert [pole.flags for pole in neuron.poles] == [("degenerate",)] * 2
    assert neuron.places["specialisation"] == L * F


def test_the_nearest_neighbour_is_the_planted_copy_with_its_sign(folders):
    model, folder = folders
    atlas, checkpoint = Atlas(folder), tiny.open_checkpoint(model)
    near = query.neighbours(atlas, checkpoint, 0, 2, count=4)
    assert (near[0].layer, near[0].neuron) == (1, 5)
    assert near[0].cosine == pytest.approx(-1)
    assert [t.id for t in near[0].tokens] == atlas.column("ids")[0, 2, 0].tolist()  # its - pole reads what our + pole reads
    rows = np.concatenate([checkpoint.read(mlp(layer, "up")) for layer in range(L)]).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    cosine = rows @ rows[2] / np.maximum(lengths * lengths[2], 1e-30)
    cosine[2] = 0
    best = np.argsort(-np.abs(cosine))[:4]
    assert [n.layer * F + n.neuron for n in near] == best.tolist()
    np.testing.assert_allclose([n.cosine for n in near], cosine[best], rtol=1e-5)


def test_neighbours_of_down_columns_are_columns(tmp_path):
    def edit(weights):
        weights[mlp(2, "down")][:, 3] = 2 * weights[mlp(0, "down")][:, 1]

    checkpoint = tiny.checkpoint(tmp_path / "model", edit)
    atlas = map_model(checkpoint, tmp_path / "map", Settings(site="down"))
    near = query.neighbours(atlas, checkpoint, 0, 1)[0]
    assert (near.layer, near.neuron, near.cosine) == (2, 3, pytest.approx(1))


def test_neighbours_in_another_model_are_refused(folders, tmp_path):
    other = tiny.save(tmp_path / "other", tiny.weights(), config=dataclasses.replace(tiny.CONFIG, rope_theta=777.0))
    with pytest.raises(UserError, match="is not the model of this map"):
        query.neighbours(Atlas(folders[1]), other, 0, 2)


@pytest.mark.parametrize("text", ["12/345", "L12N345", "L/N", "", "L1/N-2", "layer 3", "L1/N2/N3"])
def test_other_ways_to_write_a_neuron_are_refused(text):
    with pytest.raises(UserError, match="as in L12/N345"):
        query.parse_neuron(text)


def test_a_neuron_is_written_with_its_layer_first():
    assert query.parse_neuron("L12/N345") == (12, 345)
    assert query.parse_neuron(" l0/n7 ") == (0, 7)


def test_json_keeps_bytes_and_has_no_nan():
    token = query.Token(3, b"\xff\n", "x", float("nan"), 0.5)
    assert query.as_json((token,)) == [{"id": 3, "bytes": "ff0a", "display": "x", "logit": None, "probability": 0.5}]


def test_the_command_show_prints_what_is_known(folders, capsys):
    folder = folders[1]
    assert main(["show", str(folder), "L0/N2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["neuron"]["layer"] == 0
    assert facts["neighbours"][0]["neuron"] == 5
    assert main(["show", str(folder), "L0/N2"]) == 0
    assert "L1/N5" in capsys.readouterr().out
    assert main(["show", str(folder), f"L0/N{F}"]) == 1
    assert "no neuron L0/N21" in capsys.readouterr().err


def test_the_command_show_says_when_the_model_is_gone(folders, tmp_path, capsys):
    model, folder = folders
    moved = model.rename(tmp_path / "moved")
    try:
        assert main(["show", str(folder), "L0/N2"]) == 0
        out, err = capsys.readouterr()
        assert "coherence" in out
        assert "Give its place with --model" in " ".join(err.split())
        assert main(["show", str(folder), "L0/N2", "--model", str(moved)]) == 0
        assert "L1/N5" in capsys.readouterr().out
    finally:
        moved.rename(model)


def test_finding_a_text_without_a_token_says_so(folders, capsys):
    assert main(["find", str(folders[1]), "dog"]) == 1  # this vocabulary has no text
    assert "no token" in capsys.readouterr().err
    assert len(Atlas(folders[1]).tokens.data) == V

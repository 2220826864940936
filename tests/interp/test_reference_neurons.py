"""SmolLM2-135M-Instruct against 200 neurons decoded in float64 with PyTorch, and its whole map against neurons found by hand.

``tests/data/neurons200.npz``: rows of up_proj and, for each variant, the top ten ids, logits, probabilities and logsumexp.
"""

import csv
import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from interp.atlas import Atlas
from interp.decode import decode
from interp.head import read_head
from interp.ranking import rank
from interp.rows import NORMS, directions, tensor_name
from interp.run import Settings, map_model
from interp.tokens import Masks, parse_query
from interp.vocabulary import describe, prepare
from jaxllm.cli import main
from jaxllm.load import open_checkpoint

DATA = Path(__file__).parents[1] / "data"
VARIANTS = dict(zip(NORMS, ("normed", "normed_gain", "raw"), strict=True))

# Ten rows of up_proj that a reader picked by hand for one clear concept each, as (layer, neuron).
BY_HAND = [(29, 1455), (29, 1426), (29, 812), (29, 1342), (28, 605), (25, 722), (0, 1469), (0, 350), (29, 750), (28, 63)]


@pytest.fixture(scope="module")
def expected():
    with np.load(DATA / "neurons200.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def checkpoint(smollm2):
    return open_checkpoint(smollm2)


@pytest.fixture(scope="module")
def head(checkpoint):
    return read_head(checkpoint)


@pytest.fixture(scope="module")
def vocabulary(checkpoint, head):
    return prepare(head, describe(checkpoint, head, Masks()).tokens)


@pytest.fixture(scope="module")
def rows(checkpoint, expected):
    pairs = zip(expected["layer"].tolist(), expected["index"].tolist(), strict=True)
    return np.concatenate([checkpoint.read(tensor_name(layer, "up"), (slice(j, j + 1),)) for layer, j in pairs])


def test_the_rows_are_the_ones_of_the_reference(rows, expected):
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), expected["weight_l2"], rtol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_200_neurons_have_the_tokens_and_probabilities_of_the_reference(expected, rows, head, vocabulary, norm):
    name = VARIANTS[norm]
    w = directions(rows, norm, eps=0, final_gain=head.gain)  # the reference divides by the root mean square alone
    got = jax.tree.map(np.asarray, decode(w, vocabulary, k=10))
    assert np.array_equal(got.ids[:, 0], expected[f"{name}_ids"])
    np.testing.assert_allclose(got.logits[:, 0], expected[f"{name}_logits"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.lse[:, 0], expected[f"{name}_lse"], rtol=1e-6)
    p = np.exp(got.logits[:, 0] - got.lse[:, :1])
    np.testing.assert_allclose(p, expected[f"{name}_probs"], rtol=1e-4)


def test_the_best_ten_show_the_texts_of_the_reference(checkpoint, expected):
    tokenizer = checkpoint.tokenizer()
    for i, neuron in enumerate(json.loads((DATA / "neurons200.json").read_text())["best"]):
        assert [tokenizer.decode([t]) for t in expected["normed_ids"][i].tolist()] == neuron["tokens"]


@pytest.fixture(scope="module")
def last_layer(checkpoint, tmp_path_factory):
    """A map of layer 29, where most neurons with one concept are."""
    return map_model(checkpoint, tmp_path_factory.mktemp("smollm2") / "map", Settings(), layers=[29])


def test_the_map_holds_the_reference_neurons(last_layer, expected):
    for i in np.flatnonzero(expected["layer"] == 29):
        assert last_layer.column("ids")[0, expected["index"][i], 0, :10].tolist() == expected["normed_ids"][i].tolist()


def test_find_puts_the_dog_neuron_first(last_layer, capsys):
    """L29/N808 stands for dogs at its - pole; its tokens were seen by hand."""
    folder = str(last_layer.path)
    assert main(["find", folder, " dog", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    first = facts["neurons"][0]
    assert (first["layer"], first["neuron"], first["pole"]) == (29, 808, "-")
    assert bytes.fromhex(first["tokens"][0]["bytes"]) in (b"dog", b" dog", b"Dog", b" Dog")
    assert main(["find", folder, "dog", "--csv", "--limit", "3"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (lines[0]["layer"], lines[0]["neuron"], lines[0]["pole"]) == ("29", "808", "-")
    assert len(lines) <= 3


def test_a_word_of_several_tokens_counts_by_its_first(last_layer, capsys):
    tokens = last_layer.tokens
    query = parse_query(" dogmatically speaking", tokens.data, tokens.group)
    assert query.note is not None
    assert main(["find", str(last_layer.path), " dogmatically speaking", "--limit", "1"]) == 0
    assert "more than one token" in capsys.readouterr().out


def test_colours_and_countries_lead_the_concepts_of_the_last_layer(last_layer):
    """By concepts the colours and the countries are among the first ten of 1,536, by specialisation behind spellings."""
    concepts = rank(last_layer, "concepts")
    assert concepts.place[0, 1455] < 10
    assert concepts.place[0, 1426] < 10
    assert (concepts.place[0, [1455, 1426]] < rank(last_layer).place[0, [1455, 1426]]).all()


LAYERS = sorted({layer for layer, _ in BY_HAND})


@pytest.fixture(scope="module")
def four_layers(checkpoint, tmp_path_factory):
    """A map of the layers that the neurons found by hand are in."""
    return map_model(checkpoint, tmp_path_factory.mktemp("four") / "map", Settings(), layers=LAYERS)


def test_neurons_found_by_hand_are_near_the_front(four_layers):
    """Eight of the ten in the first 256 of 6,144 neurons, all in the first 700; a whole map has more before them."""
    place = rank(four_layers).place
    places = np.array([place[LAYERS.index(layer), neuron] for layer, neuron in BY_HAND])
    assert (places < 256).sum() >= 8
    assert (places < 700).all()


def test_months_colours_and_countries_are_in_the_first_fifteen_by_concepts(four_layers):
    first = {(LAYERS[at], neuron) for at, neuron, _ in rank(four_layers, "concepts").top(15)}
    assert {(25, 722), (29, 1455), (29, 1426)} <= first


def test_the_map_is_small_and_its_sample_agrees(four_layers):
    size = sum(file.stat().st_size for file in four_layers.path.rglob("*.parquet"))
    assert size < 16e6 / 4
    assert four_layers.meta["agreement"] == {"rows": 1024, "top1": 1.0}


@pytest.fixture(scope="module")
def whole_map(smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "map"
    assert main(["map", "smollm2", "--out", str(folder)]) == 0
    return Atlas(folder)


@pytest.mark.slow  # test_neurons_found_by_hand_are_near_the_front has four layers
def test_neurons_found_by_hand_are_near_the_front_of_the_whole_map(whole_map):
    """Eight of the ten in the first 1 % of 46,080 neurons, and all in the first 3 %."""
    place = rank(whole_map).place
    places = np.array([place[layer, neuron] for layer, neuron in BY_HAND])
    assert (places < 460).sum() >= 8
    assert (places < 1382).all()


@pytest.mark.slow  # test_months_colours_and_countries_are_in_the_first_fifteen_by_concepts has four layers
def test_months_colours_and_countries_are_in_the_first_twenty_by_concepts(whole_map):
    first = {(layer, neuron) for layer, neuron, _ in rank(whole_map, "concepts").top(20)}
    assert {(25, 722), (29, 1455), (29, 1426)} <= first


@pytest.mark.slow  # test_the_map_is_small_and_its_sample_agrees has four layers
def test_the_whole_map_is_small_and_its_sample_agrees(whole_map):
    size = sum(file.stat().st_size for file in whole_map.path.rglob("*.parquet"))
    assert size < 16e6  # a tenth of what section 10 allows for ten times the neurons, with k = 16 instead of 10
    assert whole_map.meta["agreement"] == {"rows": 1024, "top1": 1.0}

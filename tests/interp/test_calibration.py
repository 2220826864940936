"""The calibration text, and the units that it gives: statistics against a dense computation and against the search."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from interp.acts import activations
from interp.calibration import calibration_text, natural
from interp.windows import Shape
from jaxllm import model as llama
from jaxllm.errors import UserError
from jaxllm.load import load_params, open_checkpoint
from jaxllm.record import Neurons

ROOT = Path(__file__).parents[2]
LOW = [(0, 1469), (1, 7), (0, 350), (0, 1469)]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> SimpleNamespace:
    checkpoint = open_checkpoint(smollm2)
    return SimpleNamespace(params=load_params(checkpoint), cfg=checkpoint.config, tokenizer=checkpoint.tokenizer())


def test_the_text_is_of_fair_length_and_many_kinds():
    text = calibration_text()
    assert 2500 <= len(text.split()) <= 4000
    words = set(re.findall(r"[a-z]+", text.lower()))
    for kind in (
        "red blue green yellow white black purple",
        "january november monday sunday",
        "france germany england japan canada kenya",
        "cat dog horses elephants lion sparrow goose",
        "coffee tea wine milk juice lemonade",
        "space stars planets sun rockets",
        "water rain snow ice river ocean clouds",
        "goalkeeper match ball league",
        "def return select",
        "doctor patient teachers king sailor",
    ):
        assert len(words & set(kind.split())) >= len(kind.split()) - 2, kind
    assert len(re.findall(r"\d", text)) > 200
    assert text.count("\n\n") > 40


def test_the_text_is_installed_with_the_package():
    assert "*.txt" in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]


def test_statistics_are_those_of_every_token_but_the_first(model: SimpleNamespace):
    text = "On Monday the cat drank the milk. On Friday it slept, and the dog was glad."
    ids = model.tokenizer.encode(text)
    neurons = Neurons(*np.array(LOW, np.int32).T)
    found = natural(model.params, model.cfg, model.tokenizer, LOW, text=text)
    _, recorded = jax.jit(lambda p, t: llama.forward(p, model.cfg, t, record=neurons, last_layer=1))(
        model.params, np.array([ids], np.int32)
    )
    values = np.asarray(recorded.up)[0, 1:].astype(np.float64)
    for name in ("mean", "std", "min", "max"):
        statistic = getattr(found, name)
        assert statistic.shape == (4,)
        assert statistic.dtype == np.float32
        np.testing.assert_allclose(statistic, getattr(values, name)(0), rtol=1e-4, atol=1e-5)
        assert statistic[0] == statistic[3]
    pieces = natural(model.params, model.cfg, model.tokenizer, LOW, text=iter(text))
    assert all((getattr(pieces, name) == getattr(found, name)).all() for name in ("mean", "std", "min", "max"))


@pytest.mark.parametrize("site", ["up", "product"])
def test_units_are_the_statistics_of_a_search_over_the_text(site: str, model: SimpleNamespace):
    found = natural(model.params, model.cfg, model.tokenizer, LOW, site)
    shape = Shape(batch=4)
    search = activations(
        model.params, model.cfg, model.tokenizer, LOW, [calibration_text()], site=site, top=1, shape=shape
    ).neurons
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(found, name), [getattr(neuron, name) for neuron in search], rtol=1e-6)


def test_no_neurons_have_no_statistics(model: SimpleNamespace):
    assert natural(model.params, model.cfg, model.tokenizer, []).mean.shape == (0,)


def test_mistakes_are_one_message(model: SimpleNamespace):
    with pytest.raises(UserError, match=r"L30/N0: the model has layers 0 to 29"):
        natural(model.params, model.cfg, model.tokenizer, [(30, 0)])
    with pytest.raises(UserError, match="site 'down' is not known"):
        natural(model.params, model.cfg, model.tokenizer, [(0, 0)], "down")
    with pytest.raises(UserError, match=r"L0/N3: no finite value on the text"):
        natural(model.params, model.cfg, model.tokenizer, [(0, 3)], text="a")

"""The panel on a pair of small random models with SmolLM2's vocabulary, in which both words are planted."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest
from tiny import WORDS as CONFIG

from interp import panel, panel_report
from interp.panel import Options, Panel
from jaxllm import params as params_lib
from jaxllm import save
from jaxllm.load import open_checkpoint
from jaxllm.tokenizer import Tokenizer

DOG, CALIFORNIA = (1, 3), (0, 5)
TURNED = 8  # rows of the second model's first layer that point the other way


@pytest.fixture(scope="module")
def pair(smollm2: Path, smollm2_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory):
    """The folders of both models."""
    like = open_checkpoint(smollm2)
    tree = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params_lib.init(jax.random.key(3), CONFIG))
    head = tree["embed_tokens"]["weight"]
    for (layer, neuron), word, sign in ((DOG, " dog", 1), (CALIFORNIA, " California", -1)):
        row = sign * head[smollm2_tokenizer.encode(word)[0]]
        mlp = tree["layers"][layer]["mlp"]
        mlp["up_proj"]["weight"] = mlp["up_proj"]["weight"].at[neuron].set(row)
        mlp["down_proj"]["weight"] = mlp["down_proj"]["weight"].at[:, neuron].set(row)
    folder = tmp_path_factory.mktemp("pair")
    save.save_params(tree, CONFIG, folder / "base", like=like)
    up = tree["layers"][0]["mlp"]["up_proj"]
    up["weight"] = up["weight"].at[10 : 10 + TURNED].multiply(-1)
    save.save_params(tree, CONFIG, folder / "tuned", like=like)
    return folder / "base", folder / "tuned"


@pytest.fixture(scope="module")
def result(pair, tmp_path_factory: pytest.TempPathFactory) -> Panel:
    base, tuned = map(open_checkpoint, pair)
    options = Options(values=(-30.0, 30.0), controls=1, max_tokens=3, samples=0)
    return panel.run(base, tuned, tmp_path_factory.mktemp("panel"), names=["base", "tuned"], options=options)


def test_planted_words_are_found_at_either_pole(result: Panel):
    dog, california = result.found["R1"].both[0], result.found["R2"].both[0]
    assert (dog.layer, dog.neuron, dog.pole) == (*DOG, "+")
    assert (california.layer, california.neuron, california.pole) == (*CALIFORNIA, "-")
    assert all(match.pole == "+" for match in result.found["R2"].plus)


def test_dose_curves_are_of_the_neurons_found(result: Panel):
    assert set(result.dose) == {"R3 dog", "R3 California", "R4"}
    for check, at in (("R3 dog", DOG), ("R3 California", CALIFORNIA), ("R4", DOG)):
        assert (result.dose[check].neuron.layer, result.dose[check].neuron.neuron) == at
    assert result.dose["R3 dog"].prompts == 16
    assert result.dose["R4"].prompts == 1
    assert "dogs" in result.dose["R4"].concept.words


def test_turned_rows_are_the_ones_that_do_not_match(result: Panel):
    N = CONFIG.num_hidden_layers * CONFIG.intermediate_size
    assert result.match is not None
    for norm in ("rms", "none"):
        assert (result.match[norm].total, round(result.match[norm].share * N)) == (N, N - TURNED)
    assert result.missing == {}


def test_decoding_one_by_one_takes_longer(result: Panel):
    assert result.timing.neurons == CONFIG.num_hidden_layers * CONFIG.intermediate_size
    assert result.timing.naive > result.timing.batched > 0


def test_other_models_are_new_data_without_the_papers_values(result: Panel, tmp_path: Path):
    files = panel_report.write(result, tmp_path)
    assert [file.name for file in files] == ["panel.md", "panel.json", "r3-dog.png", "r3-california.png", "r4.png"]
    text = files[0].read_text(encoding="utf-8")
    assert "New data" in text
    assert "| check | ours |\n" in text
    assert "75.4" not in text
    assert json.loads(files[1].read_text())["paper"] is None


def test_the_papers_models_have_its_values_beside_ours(result: Panel):
    text = panel_report.markdown(dataclasses.replace(result, paper=True))
    assert "| check | ours | paper |" in text
    assert "75.4 % |" in text
    assert "always dogs |" in text


def test_a_table_cell_holds_model_output_as_text():
    assert panel_report._code("a|b`c\n<img src=x>\x1b[0m") == "`a¦bˋc <img src=x>⟨U+001B⟩[0m`"


def test_what_cannot_be_run_is_said(result: Panel):
    alone = dataclasses.replace(
        result, match=None, dose={}, missing={"R5": "needs a second model", "R4": "base has no chat template"}
    )
    text = panel_report.markdown(alone)
    assert "| R5 | not run: needs a second model |" in text
    assert "| R4 | not run: base has no chat template |" in text
    assert "| R3 dog | not run" in text


def test_only_llama_3_1_8b_is_the_papers(pair):
    base = open_checkpoint(pair[0])
    assert not panel._are_the_papers([base], ["meta-llama/Llama-3.1-8B"])  # another shape
    big = dataclasses.replace(
        CONFIG, num_hidden_layers=32, intermediate_size=14336, hidden_size=4096, vocab_size=128256, head_dim=128
    )
    stand_in = type("Checkpoint", (), {"config": big})()
    assert panel._are_the_papers([stand_in, stand_in], ["meta-llama/Llama-3.1-8B", "models/Llama-3.1-8B-Instruct"])
    assert not panel._are_the_papers([stand_in], ["somebody/other-8B"])

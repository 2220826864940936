"""The commands on clamps as a user meets them, on a small random model with SmolLM2's vocabulary."""

import json
import logging
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxllm import cli, params, save
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.cli import runtime
from jaxllm.config import Config
from jaxllm.generate import generate
from jaxllm.load import load_params, open_checkpoint

CONFIG = Config(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=12,
    vocab_size=49152,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)


@pytest.fixture(scope="module")
def small(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its folder."""
    folder = tmp_path_factory.mktemp("models") / "small"
    tree = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params.init(jax.random.key(3), CONFIG))
    save.save_params(tree, CONFIG, folder, like=open_checkpoint(smollm2))
    return str(folder)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "prepare", lambda verbose: logging.getLogger())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clamp", "X", "text"], "no clamp given; set one such as L29/N1342=-30"),
        (["clamp", "X", "--set", "L1/N2", "text"], "'L1/N2' has no value"),
        (["clamp", "X", "--set", "N2=3", "text"], "'N2' is not a neuron; write layer and number as in L12/N345"),
        (["clamp", "X", "--set", "L1/N2=big", "text"], "'big' is not a value; write a number such as -30"),
        (["clamp", "X", "--set", "L1/N2=nan", "text"], "'nan' is not a value"),
        (["clamp", "X", "--set", "L2/N0=1", "text"], "L2/N0: the model has layers 0 to 1 and neurons 0 to 39"),
        (["clamp", "X", "--set", "L1/N40=1", "text"], "L1/N40: the model has layers 0 to 1 and neurons 0 to 39"),
        (["clamp", "X", "--set", "L1/N2=1", "--set", "L1/N2=3", "text"], "L1/N2: two clamps at site up"),
        (["clamp", "X", "--set", "L1/N2=1e39", "text"], "L1/N2: value 1e+39 is not a finite float32 number"),
        (["clamp", "X", "--set", "L1/N2=1", "--positions", "first", "text"], "positions 'first': write all, prompt"),
        (["clamp", "X", "--set", "L1/N2=1", "--positions", "9", "text"], "L1/N2: position 9 is beyond prompt 0"),
        (["clamp", "X", "--set", "L1/N2=2sd", "--site", "gate_pre", "text"], "units are measured at up and product"),
        (["clamp", "X", "--set", "L1/N2=1", ""], "the prompt '' has no tokens"),
        (["clamp", "X", "--set", "L1/N2=1", "--token", "", "text"], "the text to find is empty"),
        (["sweep", "X", "--neuron", "L5/N0"], "L5/N0: the model has layers 0 to 1"),
        (["sweep", "X", "--neuron", "five"], "'five' is not a neuron"),
        (["sweep", "X", "--neuron", "L1/N2", "--values", "1:2"], "write FIRST:LAST:COUNT, such as -100:100:9"),
        (["sweep", "X", "--neuron", "L1/N2", "--sites", "up,down"], "--sites 'up,down': write up, product, or up,product"),
        (["sweep", "X", "--neuron", "L1/N2", "--controls", "-1"], "--controls must be at least 0, found -1"),
        (["sweep", "X", "--neuron", "L1/N2", "--prompts", "absent.txt"], "absent.txt: cannot be read: No such file"),
        (["sweep", "X", "--neuron", "L1/N2", "--samples", "2", "--max-tokens", "0"], "--samples needs --max-tokens"),
        (["bake", "X", "--out", "here"], "no clamp to bake: give at least one"),
        (["bake", "X", "--set", "L9/N0=1", "--out", "here"], "L9/N0: the model has layers 0 to 1"),
        (["panel", "X", "--layers", "5:5"], "--layers '5:5'"),
    ],
)
def test_a_mistake_is_one_message(arguments, message, small, tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert cli.main([small if word == "X" else word for word in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing was begun


@pytest.mark.parametrize("option", [["--site", "down"], ["--mode", "hold"]])
def test_an_unknown_site_or_mode_is_wrong_usage(option, small, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["clamp", small, "--set", "L1/N2=1", *option, "text"]) == 2
    assert "product" in capsys.readouterr().err or option[0] == "--mode"


def test_clamp_as_json(small, capsys: pytest.CaptureFixture[str]):
    arguments = ["--set", "L1/N7=2sd", "--set", "L0/N3=-5", "--max-tokens", "5", "--json"]
    found = json.loads(run(capsys, "clamp", small, *arguments, "She looked at the"))
    checkpoint = open_checkpoint(small)
    ids = checkpoint.tokenizer().encode("She looked at the")
    assert found["ids"] == ids
    first, second = found["clamps"]
    assert (first["written"], first["unit"], second["written"], second["unit"]) == ("2sd", "sd", "-5", "absolute")
    natural = found["neurons"][0]["natural"]
    assert first["value"] == pytest.approx(natural["mean"] + 2 * natural["std"], rel=1e-6)
    clamps = [NeuronClamp(1, 7, first["value"]), NeuronClamp(0, 3, -5.0)]
    expected = generate(
        load_params(checkpoint), CONFIG, [ids, ids], max_tokens=5, stop_ids={2}, clamp=make_clamp(CONFIG, [[], clamps])
    )
    assert [found["plain_ids"], found["clamped_ids"]] == expected
    for neuron, clamp in zip(found["neurons"], clamps, strict=True):
        assert [place["clamped"] for place in neuron["positions"]] == pytest.approx([clamp.value] * len(ids), rel=1e-6)
        assert neuron["sign"]["sign"] in (1, -1)
        assert len(neuron["up"]) == len(neuron["down_opposite"]) == 10
        assert -1 <= neuron["cosine"] <= 1
        p, rank = neuron["effect"]["p"], neuron["effect"]["rank"]
        assert all(0 <= x <= 1 for x in p)
        assert all(x >= 1 for x in rank)
    best = min(found["tokens"], key=lambda token: token["rank"][0])
    assert best["rank"][0] == 1
    assert best["id"] == found["plain_ids"][0]
    assert found["kl"] >= 0


def test_clamp_as_tables(small, capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "clamp", small, "--set", "L1/N7=-20", "--site", "product", "--chat", "--max-tokens", "3", "Hi [/b] there")
    for words in ("plain", "L1/N7 product = -20", "Next token; KL", "up row reads +", "down column writes -", "cos(up, down)",
                  "natural values", "raises its concept", "Hi [/b] there", "silu(gate)"):  # fmt: skip
        assert words in out
    assert "\x1b" not in out


def test_sweep_prints_a_table_and_writes_its_files(small, tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("# two\nOne day\nThe last of the\n")
    arguments = ["--neuron", "L1/N7", "--token", " water", "--values", "-9:9:3", "--prompts", "mine.txt"]
    out = run(capsys, "sweep", small, *arguments, "--controls", "1", "--max-tokens", "3")
    assert "Value set at up" in out
    assert "natural" in out
    folder = tmp_path / "sweeps" / "L1-N7"
    facts = json.loads((folder / "sweep.json").read_text())
    assert facts["concept"]["words"] == ["water"]
    assert facts["prompts"] == 2
    assert {row["kind"] for row in facts["rows"]} == {"plain", "neuron", "other pole", "second best", "random"}
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_baked_model_is_the_clamped_one(small, tmp_path, capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "bake", small, "--set", "L1/N7=-20", "--out", str(tmp_path / "baked"))
    assert "L1/N7 is held at -20" in out
    baked, plain = open_checkpoint(tmp_path / "baked"), open_checkpoint(small)
    ids = [[5, 6, 7, 8]]
    clamp = make_clamp(CONFIG, [NeuronClamp(1, 7, -20.0)])
    expected = generate(load_params(plain), CONFIG, ids, max_tokens=6, clamp=clamp)
    assert generate(load_params(baked), baked.config, ids, max_tokens=6) == expected
    assert np.isfinite(expected[0]).all()

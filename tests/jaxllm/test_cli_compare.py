"""The command that compares two maps, as a user meets it."""

import json
from pathlib import Path

import numpy as np
import pytest

from interp.run import Settings, map_model
from jaxllm import cli, params
from jaxllm.cli import runtime
from jaxllm.config import Config
from jaxllm.load import open_checkpoint, save_params

FILES = {"comparison.json", "layers.csv", "changed.csv", "comparison.png"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_config: Config, tiny_params: params.Params) -> Path:
    """A folder with the models a and b, b's head being another, and their maps."""
    folder = tmp_path_factory.mktemp("compare")
    other = {**tiny_params, "lm_head": {"weight": tiny_params["lm_head"]["weight"].at[np.arange(9)].mul(2.0)}}
    for name, tree in (("a", tiny_params), ("b", other)):
        save_params(tree, tiny_config, folder / name)
        map_model(open_checkpoint(folder / name), folder / f"map_{name}", Settings(top_k=4), name=f"model {name}")
    map_model(open_checkpoint(folder / "a"), folder / "map_final", Settings(top_k=4, norm="final"))
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)


def test_tables_tell_what_changed_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["compare", "map_a", "map_b", "--limit", "3", "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("model a and model b", "same top token", "By layer", "in tenths", "share of the change", "the first 3"):
        assert text in out
    (head,) = [line for line in out.splitlines() if line.split()[:1] == ["head"]]
    assert head.split()[-1] == "100.0%"
    assert "75.4" not in out  # the paper's figure is about other models
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_json_is_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["compare", "map_a", "map_b", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert facts == json.loads((tmp_path / "comparison.json").read_text())
    assert len(facts["by_layer"]) == 3
    assert facts["weights"]["row_cos"]["value"] == pytest.approx(1)
    assert "comparison.png" in " ".join(err.split())


def test_a_map_and_itself_differ_nowhere(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["compare", "map_a", "map_a"]) == 0
    assert "Changed neurons: 0" in capsys.readouterr().out


def test_without_a_model_the_rest_is_told_and_what_is_missing(capsys: pytest.CaptureFixture[str], home: Path):
    (home / "b").rename(home / "moved")
    try:
        assert cli.main(["compare", "map_a", "map_b"]) == 0
        out, err = capsys.readouterr()
        assert "same top token" in out
        assert "cosine" not in out
        assert "give its place with --model-b" in " ".join(err.split())
        assert cli.main(["compare", "map_a", "map_b", "--model-b", "moved"]) == 0
        assert "cosine of the rows" in capsys.readouterr().out
        assert cli.main(["compare", "map_a", "map_b", "--no-weights"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert "cosine" not in out
    finally:
        (home / "moved").rename(home / "b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["map_a", "a"], "a: no meta.json here"),
        (["map_a", "map_final"], "other settings: norm is 'rms' and 'final'"),
        (["map_a", "map_b", "--model-b", "a"], "a is not the model of the map map_b (model b): their heads differ"),
        (["map_a", "map_b", "--model-a", "nowhere"], "nowhere: no such folder"),
        (["map_a", "map_b", "--sample", "0"], "--sample at least 1"),
        (["map_a", "map_b", "--no-weights", "--out", "map_a/meta.json"], "map_a/meta.json: cannot be a folder"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["compare", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith("jaxllm: ")
    assert message in err
    assert err.count("\n") == 1

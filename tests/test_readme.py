"""Every command of the README and of the other pages is tried."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from jaxllm import cli, hub, load, save
from jaxllm.cli import runtime

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LAYERS = [25, 28, 29]  # whose neurons the pages name: the tour goes through a model of these alone
LAYER = "0"  # the one layer that the tour maps here; the neuron that it shows is in it


def commands(page: Path) -> list[str]:
    """The lines of the page's shell blocks, without remarks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]


TOUR = [command for page in PAGES for command in commands(page) if command.startswith("jaxllm ")]
OTHERS = [command for page in PAGES for command in commands(page) if not command.startswith("jaxllm ")]


@pytest.fixture(scope="module")
def model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 without most of its layers."""
    checkpoint, folder = load.open_checkpoint(smollm2), tmp_path_factory.mktemp("model") / "smollm2"
    weights = load.load_params(checkpoint)
    weights["layers"] = {i: weights["layers"][layer] for i, layer in enumerate(LAYERS)}
    cfg = dataclasses.replace(checkpoint.config, num_hidden_layers=len(LAYERS))
    save.save_params(weights, cfg, folder, like=checkpoint)
    return folder


@pytest.fixture(scope="module")
def home(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with maps/smollm2 in it, as `make map` leaves it, but of one layer; and a second model with its map."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "smollm2-bees").symlink_to(model)  # stands for the fine-tuned model of docs/compare.md
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "_smollm2", lambda: model)
        patch.chdir(folder)
        patch.setattr(runtime, "prepare", lambda verbose: None)
        assert cli.main(["map", "smollm2", "--out", "maps/smollm2", "--control", "--layers", LAYER]) == 0
        assert cli.main(["map", "smollm2-bees", "--out", "maps/bees", "--layers", LAYER]) == 0
    (folder / "notes.txt").write_text("There is more room in space than in the harbour, and less water.")
    answers = [{"text": "[100, 100, 200, 150]", "target": [100, 100, 200, 150]}, {"text": "no", "target": [1, 1, 2, 2]}]
    (folder / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return folder


def test_the_pages_have_commands():
    assert len(TOUR) >= 8
    used = {shlex.split(command)[1] for command in TOUR}
    reading, steering = {"map", "find", "show", "acts", "compare", "explore"}, {"clamp", "sweep", "bake"}
    assert used == {*reading, *steering, "generate", "info", "convert", "score", "reward-map", "envs", "train", "plot"}
    assert {"make map", "make test"} <= set(OTHERS)


@pytest.mark.parametrize("command", dict.fromkeys(TOUR))
def test_command_works(
    command: str, model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command = re.sub(r"\bL(\d+)/", lambda found: f"L{LAYERS.index(int(found[1]))}/", command)
    arguments = shlex.split(command)[1:]
    if arguments[0] == "map":
        arguments = [word for word in arguments if not word.startswith("0:")]
        arguments += [LAYER] if arguments[-1] == "--layers" else ["--layers", LAYER]
    if arguments[0] == "explore":  # everything but serving, which would not end
        arguments += ["--port", "0"]
        monkeypatch.setattr("interp.explore.run", lambda *_: None)
    if arguments[0] in ("clamp", "sweep"):
        arguments += ["--max-tokens", "1"]
    if arguments[0] == "sweep":
        arguments += ["--values", "-30:30:2", "--prompts", "notes.txt"]
    if arguments[0] == "train":
        arguments += ["--updates", "1", "--imitate.steps", "1", "--imitate.episodes", "8", "--algo.value-pretrain", "0"]
    monkeypatch.setattr("interp.calibration.calibration_text", lambda: (home / "notes.txt").read_text())
    if arguments[0] == "acts" and "--text" not in arguments:
        arguments += ["--text", "notes.txt"]  # in place of the whole calibration text
    monkeypatch.chdir(home)
    monkeypatch.setattr(hub, "_smollm2", lambda: model)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    assert cli.main(arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", dict.fromkeys(OTHERS))
def test_other_commands_exist(command: str):
    words = shlex.split(command)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        for target in (word for word in words[1:] if "=" not in word):
            assert re.search(rf"^{target}: .*## ", makefile, re.M)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert words[:2] == ["pip", "install"], f"nobody tries {command}"


def test_make_map_is_the_map_of_the_tour():
    assert "jaxllm map smollm2 --out $(MAP) --control" in (ROOT / "Makefile").read_text()
    assert "MAP ?= maps/smollm2" in (ROOT / "Makefile").read_text()
    assert "jaxllm map smollm2 --out maps/smollm2 --control" in TOUR


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"

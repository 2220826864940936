"""What the commands on maps take as arguments, and what they refuse."""

import pytest

from jaxllm import cli
from jaxllm.cli import runtime
from jaxllm.cli.map import parse_layers
from jaxllm.errors import UserError


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0:8", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("29", [29]),
        ("0:4,29", [0, 1, 2, 3, 29]),
        (" 3 , 1:2 ", [3, 1]),
        ("0:1", [0]),
    ],
)
def test_layers_are_ranges_without_their_end_and_single_numbers(text: str, layers: list[int]):
    assert parse_layers(text) == layers


@pytest.mark.parametrize(
    "text", ["", ",", "8:0", "3:3", "-1", "0:", ":4", "0-4", "a:b", "0:4:2", "1,,2", "0:4;5", "999999", "٣"]
)
def test_other_layers_are_refused_with_an_example(text: str):
    with pytest.raises(UserError, match=r"--layers.*such as 0:8 or 0:4,29"):
        parse_layers(text)


@pytest.mark.parametrize("name", ["find", "show"])
def test_a_folder_without_a_map_is_one_message(name: str, tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    assert cli.main([name, str(tmp_path), "L0/N0"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"jaxllm: {tmp_path}: no meta.json here; give the folder that `jaxllm map` wrote\n"


def test_find_prints_one_form_at_a_time(tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    assert cli.main(["find", str(tmp_path), "dog", "--json", "--csv"]) == 1
    assert "--json and --csv exclude each other" in capsys.readouterr().err

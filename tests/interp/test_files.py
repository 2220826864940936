"""Files of a map: whole or absent, and one writer at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from interp.files import only_writer
from jaxllm.errors import UserError
from jaxllm.files import write_atomically

OWNER = """
import sys
from interp.files import only_writer
with only_writer(sys.argv[1]):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text is not bytes")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_has_one_writer_until_its_process_ends(tmp_path: Path):
    folder = tmp_path / "maps" / "one"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER, folder], stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "mine\n"
        with pytest.raises(UserError, match=r"one: another run is writing this map; let it end, or choose another --out"):
            only_writer(folder).__enter__()
        owner.kill()
    with only_writer(folder):
        pass
    with only_writer(folder):
        assert list(folder.iterdir()) == []


def test_what_a_killed_writer_left_goes_and_other_files_stay(tmp_path: Path):
    left = [".meta.json.7.tmp", ".tokens.parquet.7.tmp", "layers/.03.parquet.7.tmp", "control/.03.parquet.7.tmp"]
    kept = ["notes.txt", ".mine.7.tmp", "layers/03.parquet"]
    for name in [*left, *kept]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    with only_writer(tmp_path):  # not yet a map: only the description, which comes first, can be ours
        assert [name for name in left + kept if not (tmp_path / name).exists()] == left[:1]
    (tmp_path / "meta.json").write_text("{}")
    with only_writer(tmp_path):
        assert [name for name in left + kept if not (tmp_path / name).exists()] == left


@pytest.mark.parametrize("place", ["file", "file/map"])
def test_what_cannot_be_a_folder_is_refused(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("words")
    with pytest.raises(UserError, match=r"file.*: cannot be the folder of a map: .*; choose another --out"):
        only_writer(tmp_path / place).__enter__()
    assert (tmp_path / "file").read_text() == "words"

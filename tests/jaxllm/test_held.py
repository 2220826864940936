"""Folders that one process keeps."""

import pytest

from jaxllm.errors import UserError
from jaxllm.files import held


def keep(folder):
    return held(folder, "the folder of a run", "another process runs there")


def fail(folder, *files):
    with keep(folder):
        for name in files:
            (folder / name).touch()
        raise UserError("a mistake")


def test_a_folder_in_which_nothing_was_written_goes_again(tmp_path):
    (tmp_path / "own").mkdir()
    for name, *files in (("own",), ("made",), ("full", "file")):
        with pytest.raises(UserError, match="a mistake"):
            fail(tmp_path / name, *files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "own"]


def test_a_second_one_is_refused_and_harms_nothing(tmp_path):
    with keep(tmp_path / "run"):
        with pytest.raises(UserError, match="another process runs there"), keep(tmp_path / "run"):
            pass
        assert (tmp_path / "run").is_dir()

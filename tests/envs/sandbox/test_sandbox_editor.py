"""The file editor, against the rules of the published tool; and paths that never lead out."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sandbox import Editor, OutsideError, Root
from envs.sandbox.tree import Item, Tree, copy, lay, lay_copy, remove
from jaxllm.errors import UserError


@pytest.fixture
def root(tmp_path):
    (tmp_path / "session").mkdir()
    return Root(tmp_path / "session")


@pytest.fixture
def editor(root):
    return Editor(root)


def text(root, path):
    return (root.folder / path).read_text()


def test_create_refuses_what_exists(editor, root):
    assert editor.run("create", "/desk/a/b.txt", file_text="one\n").ok
    assert text(root, "a/b.txt") == "one\n"
    assert editor.run("create", "a/b.txt", file_text="two\n").error == "exists"
    assert editor.run("create", "/desk/a", file_text="two\n").error == "exists"
    assert editor.run("create", "a/c.txt").error == "missing_argument"
    assert text(root, "a/b.txt") == "one\n"


def test_replace_needs_exactly_one_match(editor, root):
    editor.run("create", "f", file_text="one two\ntwo\n")
    assert editor.run("str_replace", "f", old_str="three", new_str="x").error == "no_match"
    many = editor.run("str_replace", "f", old_str="two", new_str="x")
    assert many.error == "many_matches"
    assert "lines 1, 2" in many.text
    assert editor.run("str_replace", "f", old_str="one two\ntwo", new_str="x").ok
    assert text(root, "f") == "x\n"
    assert editor.run("str_replace", "f", old_str="x").ok  # left out: deleted
    assert text(root, "f") == "\n"
    assert editor.run("str_replace", "f", old_str="").error == "no_match"


@pytest.mark.parametrize(
    ("before", "line", "added", "after"),
    [
        ("a\nb\n", 0, "x\n", "x\na\nb\n"),
        ("a\nb\n", 1, "x\n", "a\nx\nb\n"),
        ("a\nb\n", 2, "x\n", "a\nb\nx\n"),
        ("a\nb", 2, "x", "a\nb\nx"),  # the last line had no newline
        ("a\nb", 1, "x", "a\nx\nb"),
        ("", 0, "x\n", "x\n"),
    ],
)
def test_insert_puts_text_after_the_line(editor, root, before, line, added, after):
    editor.run("create", "f", file_text=before)
    assert editor.run("insert", "f", insert_line=line, new_str=added).ok
    assert text(root, "f") == after
    editor.run("undo_edit", "f")
    assert text(root, "f") == before


def test_insert_outside_the_file_is_refused(editor):
    editor.run("create", "f", file_text="a\nb\n")
    assert editor.run("insert", "f", insert_line=3, new_str="x").error == "bad_line"
    assert editor.run("insert", "f", new_str="x").error == "missing_argument"


def test_view_counts_lines_from_one(editor):
    editor.run("create", "f", file_text="a\nb\nc\n")
    assert editor.run("view", "f").text.endswith("     1\ta\n     2\tb\n     3\tc")
    assert editor.run("view", "f", view_range=[2, -1]).text.endswith(":\n     2\tb\n     3\tc")
    assert editor.run("view", "f", view_range=[2, 2]).text.endswith(":\n     2\tb")
    for wrong in ([0, 1], [3, 2], [1, 4], [1], [1, 2, 3], "12", [1.0, 2.0], [True, 2]):
        assert editor.run("view", "f", view_range=wrong).error == "bad_range"


def test_view_of_a_folder_lists_two_levels(editor):
    editor.run("create", "a/b/c.txt", file_text="")
    editor.run("create", "d.txt", file_text="")
    assert editor.run("view", "/desk").text.split("\n")[1:] == ["/desk/a/", "/desk/a/b/", "/desk/d.txt"]


def test_view_clips_and_refuses_binary_files(editor, root):
    editor.run("create", "long", file_text="line\n" * 20_000)
    view = editor.run("view", "long").text
    assert len(view) < 17_000
    assert "bytes left out" in view
    assert view.endswith("20000\tline")
    for data in (b"a\0b", b"\xff\xfe"):
        (root.folder / "binary").write_bytes(data)
        assert editor.run("view", "binary").error == "binary"


def test_undo_goes_back_edit_by_edit(editor, root):
    editor.run("create", "f", file_text="1")
    editor.run("str_replace", "f", old_str="1", new_str="2")
    editor.run("str_replace", "/desk/./f", old_str="2", new_str="3")
    for expected in ("2", "1"):
        assert editor.run("undo_edit", "f").ok
        assert text(root, "f") == expected
    assert editor.run("undo_edit", "f").ok  # of the creation
    assert not (root.folder / "f").exists()
    assert editor.run("undo_edit", "f").error == "no_edit"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "..", "../x", "a/../../x", "/desk/../etc/passwd", "/workx/a", "//desk/a", "up", "up/passwd", "abs", "loop"],
)
def test_paths_that_lead_out_are_refused(editor, root, path):
    (root.folder / "a").mkdir()
    (root.folder / "up").symlink_to("../..")
    (root.folder / "abs").symlink_to("/etc/passwd")
    (root.folder / "loop").symlink_to("loop")
    for command, given_ in (("view", {}), ("create", {"file_text": "x"}), ("str_replace", {"old_str": "root", "new_str": "x"})):
        assert editor.run(command, path, **given_).error in ("bad_path", "exists")
    assert not editor.run("view", path).ok


def test_links_within_the_folder_are_followed(editor, root):
    editor.run("create", "a/f", file_text="1")
    (root.folder / "relative").symlink_to("a")
    (root.folder / "absolute").symlink_to("/desk/a/f")  # as it reads inside
    assert editor.run("view", "relative/f").ok
    assert editor.run("str_replace", "absolute", old_str="1", new_str="2").ok
    assert text(root, "a/f") == "2"
    assert editor.run("view", "relative/../a/f").ok


def test_special_files_are_not_waited_for(editor, root):
    os.mkfifo(root.folder / "pipe")
    assert editor.run("view", "pipe").error == "bad_path"
    assert editor.run("str_replace", "pipe", old_str="a", new_str="b").error == "bad_path"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "a", "b", "up", "abs", "in", "", "f"]), min_size=1, max_size=7), st.booleans())
def test_no_path_leads_out(tmp_path_factory, parts, absolute):
    """The reference is the kernel's own resolution of the same path below the folder."""
    folder = tmp_path_factory.getbasetemp() / "walks"
    if not folder.exists():
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "f").write_text("inside")
        (folder / "a" / "up").symlink_to("../../..")
        (folder / "abs").symlink_to("/etc")
        (folder / "in").symlink_to("a/b")
    path = "/".join(parts)
    try:
        descriptor = Root(folder).open("/desk/" + path if absolute else path.lstrip("/") or ".", os.O_RDONLY)
    except (OSError, OutsideError):
        return
    found = Path(f"/proc/self/fd/{descriptor}").readlink()
    os.close(descriptor)
    assert found.is_relative_to(folder)
    assert found.samefile(folder / path.lstrip("/"))


def test_a_copy_is_the_same_and_leads_nowhere(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    items = [Item("a/x", 0o640, 10**18, b"\0\xff"), Item("a/closed", 0o500, 10**18), Item("l", 0, 0, None, "/etc/passwd")]
    lay(first, items)
    lay_copy(second, copy(Root(first)))
    assert Tree(Root(first)).summary() == Tree(Root(second)).summary()
    assert Tree(Root(first)).summary()["l"] == ["link", "/etc/passwd"]
    assert (second / "a/x").stat().st_mtime_ns == 10**18
    for wrong in (
        [{"path": "../x", "mode": 420, "time": 0, "data": ""}],
        [{"path": "x"}],
        [{"path": "/x", "mode": 0, "time": 0}],
    ):
        with pytest.raises(UserError, match="no copy"):
            lay_copy(second, wrong)
    through = [{"path": "d", "mode": 0, "time": 0, "target": "/tmp"}, {"path": "d/x", "mode": 420, "time": 0, "data": ""}]
    (tmp_path / "third").mkdir()
    with pytest.raises(UserError):
        lay_copy(tmp_path / "third", through)


def test_closed_and_deep_folders_are_removed(tmp_path):
    folder = tmp_path / "session"
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (folder / "closed").mkdir(mode=0o000)
    remove(folder)
    assert not folder.exists()
    remove(folder)

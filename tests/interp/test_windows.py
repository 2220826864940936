"""Cutting a text of any length: the ids of the whole, each token counted once, and clear words for what is no text."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from interp import windows
from interp.calibration import calibration_text
from interp.windows import NO_ID, Batch, Shape, Windows
from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer

TEXT = calibration_text()


def batches(tokenizer: Tokenizer, ids: list[int], shape: Shape, part: int = 100) -> list[Batch]:
    parts = [ids[i : i + part] for i in range(0, len(ids), part)]
    return list(Windows(tokenizer, shape).batches(parts))


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
def test_ids_of_pieces_are_those_of_the_whole(size: int, smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "PIECE", 300)
    monkeypatch.setattr(windows, "_LOOK_BACK", 40)
    pieces = [TEXT[i : i + size] for i in range(0, len(TEXT), size)]
    parts = list(windows.encode(smollm2_tokenizer, pieces))
    assert len(parts) > 20
    assert [i for part in parts for i in part] == smollm2_tokenizer.encode(TEXT)


def test_ids_of_pieces_are_those_of_the_whole_for_llama_3(llama3_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "PIECE", 300)
    parts = list(windows.encode(llama3_tokenizer, [TEXT]))
    assert [i for part in parts for i in part] == llama3_tokenizer.encode(TEXT, bos=False)


def test_cutting_anywhere_would_change_ids(smollm2_tokenizer: Tokenizer):
    pieces = [TEXT[i : i + 300] for i in range(0, len(TEXT), 300)]
    assert [i for piece in pieces for i in smollm2_tokenizer.encode(piece)] != smollm2_tokenizer.encode(TEXT)


def test_text_without_spaces_is_bounded_too(smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "PIECE", 100)
    parts = list(windows.encode(smollm2_tokenizer, ["空" * 1000]))
    assert max(map(len, parts)) <= 300  # at most three bytes a character
    assert smollm2_tokenizer.decode(i for part in parts for i in part) == "空" * 1000


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11, 16, 17, 18, 100, 101])
@pytest.mark.parametrize("part", [1, 5, 1000])
def test_every_token_but_the_first_is_counted_once(n: int, part: int, smollm2_tokenizer: Tokenizer):
    ids = list(range(100, 100 + n))
    seen: list[int] = []
    for batch in batches(smollm2_tokenizer, ids, Shape(length=10, context=3, batch=2), part):
        assert batch.tokens.shape == batch.index.shape == batch.counted.shape == batch.line.shape == (2, 10)
        real = batch.index != NO_ID
        assert (batch.tokens[real] == 100 + batch.index[real]).all()
        for b, t in np.argwhere(batch.counted):
            position = batch.index[b, t]
            seen.append(int(position))
            # At least three tokens before it, or all there are.
            assert (batch.index[b, max(t - 3, 0) : t] == np.arange(position - min(t, 3), position)).all()
            assert t >= 3 or t == position
    assert seen == list(range(1, n))


def test_begin_of_text_opens_every_window_and_lets_the_first_token_count(llama3_tokenizer: Tokenizer):
    assert llama3_tokenizer.add_bos
    (batch,) = batches(llama3_tokenizer, list(range(100, 112)), Shape(length=10, context=3, batch=2))
    assert batch.tokens.tolist() == [
        [llama3_tokenizer.bos_id, *range(100, 109)],
        [llama3_tokenizer.bos_id, *range(106, 112), 0, 0, 0],
    ]
    assert batch.index[batch.counted].tolist() == list(range(12))
    assert batch.index[:, 0].tolist() == [NO_ID, NO_ID]


def test_lines_and_bytes_are_those_of_the_text(smollm2_tokenizer: Tokenizer):
    ids = smollm2_tokenizer.encode(TEXT)
    found = batches(smollm2_tokenizer, ids, Shape(length=64, context=8, batch=3))
    first = len(smollm2_tokenizer.token_bytes(ids[0]))
    assert sum(batch.size for batch in found) == len(TEXT.encode()) - first
    lines = {int(i): int(n) for batch in found for i, n in zip(batch.index.ravel(), batch.line.ravel(), strict=True)}
    begin = 0
    for i, token in enumerate(ids):
        assert lines[i] == 1 + TEXT.encode()[:begin].count(b"\n")
        begin += len(smollm2_tokenizer.token_bytes(token))


def test_keys_are_the_ids_up_to_each_token(smollm2_tokenizer: Tokenizer):
    (batch,) = batches(smollm2_tokenizer, [5, 6, 7], Shape(length=4, context=1, batch=1))
    assert windows.keys(batch, 2).tolist() == [[[NO_ID, 5], [5, 6], [6, 7], [7, NO_ID]]]


@pytest.mark.parametrize(("length", "context", "batch"), [(10, 0, 1), (10, 9, 1), (2, 1, 1), (10, 3, 0)])
def test_impossible_windows_are_refused(length: int, context: int, batch: int):
    with pytest.raises(UserError, match=r"windows? of|at least one window"):
        Shape(length=length, context=context, batch=batch)


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 16])
def test_a_file_is_read_whole_whatever_the_pieces(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "PIECE", size)
    (tmp_path / "a.txt").write_bytes("\ufeffä€😀\r\nx\ufeff".encode())
    assert "".join(windows.read(tmp_path / "a.txt")) == "ä€😀\r\nx\ufeff"


@pytest.mark.parametrize("size", [1, 4, 1 << 16])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        ("€ caf".encode() + b"\xe9 noir", r"not UTF-8: byte 0xe9 at offset 7; .* iconv"),
        ("ab€".encode()[:-1], r"not UTF-8: byte 0xe2 at offset 2"),
        ("hello".encode("utf-16"), r"not UTF-8: byte 0xff at offset 0"),
    ],
)
def test_what_is_no_text_is_one_message(
    size: int, content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(windows, "PIECE", size)
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=f"a.txt: {message}"):
        list(windows.read(tmp_path / "a.txt"))


def test_missing_files_and_folders_are_one_message(tmp_path: Path):
    with pytest.raises(UserError, match=r"absent.txt: cannot be read: No such file"):
        list(windows.read(tmp_path / "absent.txt"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        list(windows.read(tmp_path))


def test_an_endless_text_is_read_as_it_is_asked_for(smollm2_tokenizer: Tokenizer):
    given = 0

    def endless() -> Iterator[str]:
        nonlocal given
        while True:
            given += 1
            yield "All work and no play makes a dull day. " * 100

    stream = Windows(smollm2_tokenizer, Shape(length=32, context=8, batch=2)).batches(
        windows.encode(smollm2_tokenizer, endless())
    )
    for _ in range(400):
        next(stream)
    assert given < 60

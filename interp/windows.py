"""A text of any length as token windows of one shape, read piece by piece: memory does not grow with the text.

Each window is a text of its own to the model. It begins with a few tokens that the window before has counted already, so that
every counted token has something before it. The very first token of a text is read but not counted, unless the tokenizer puts a
begin-of-text token before it: models park attention on the first position, and its activations say nothing about the token.
"""

import codecs
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer

PIECE = 1 << 16  # characters that are encoded at once
LENGTH = 256  # tokens of a window
CONTEXT = 16  # tokens that a window repeats, not counted
BATCH = 8  # windows of one call
NO_ID = -1  # in `Batch.index` and `keys`: no token of the text

# Between two words, and at the ends of a line, no byte-level vocabulary has a token. Two line ends may be one.
_SPACE_SEAM = re.compile(r"(?<=\S)(?= [^\W\d_])")
_SEAM = re.compile(_SPACE_SEAM.pattern + r"|(?<=[^\W\d_])(?=\n)|(?<=\S\n)(?=[^\W\d_])")
_LOOK_BACK = 4096


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a text is cut. Every batch has the same arrays' shapes, so that one program serves them all."""

    length: int = LENGTH  # T, tokens of a window, with the begin-of-text token where there is one
    context: int = CONTEXT  # tokens repeated from the window before
    batch: int = BATCH  # B, windows of a batch

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"a batch needs at least one window, found {self.batch}")
        if not 1 <= self.context <= self.length - 2:
            raise UserError(f"windows of {self.length} tokens can repeat 1 to {self.length - 2}, not {self.context}")


def shape_for(length: int, batch: int = BATCH) -> Shape:
    """Windows of a length that repeat `CONTEXT` tokens, or a quarter of theirs where they are short."""
    return Shape(length, max(1, min(CONTEXT, length // 4)), batch)


@dataclasses.dataclass(frozen=True)
class Batch:
    """B windows of T tokens; rows of padding come last and count nothing."""

    tokens: np.ndarray  # [B, T] int32, what the model reads; 0 in padding
    index: np.ndarray  # [B, T] int64, which token of the text, from 0; NO_ID for begin-of-text and padding
    line: np.ndarray  # [B, T] int64, the line of the text on which the token begins, from 1
    counted: np.ndarray  # [B, T] bool, each token of the text once
    size: int  # bytes of the text that the counted tokens stand for


def read(path: str | Path) -> Iterator[str]:
    """A UTF-8 file in pieces of at most `PIECE` characters, without a byte order mark.

    Raises:
      UserError: the file is missing, unreadable, empty or not UTF-8 (with the offset of the first wrong byte).
    """
    path, done, begun, empty = Path(path), 0, False, True
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while True:
                data = file.read(PIECE)
                held = len(decoder.getstate()[0])
                try:
                    text = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    at = done - held + error.start
                    raise UserError(
                        f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x} at offset {at:,}; "
                        "convert it first, for example with iconv -f LATIN1 -t UTF-8"
                    ) from None
                done += len(data)
                if text and not begun:
                    begun, text = True, text.removeprefix("\ufeff")
                if text:
                    empty = False
                    yield text
                if not data:
                    break
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give a text file") from None
    if empty:
        raise UserError(f"{path}: the file is empty; give a text")


def encode(tokenizer: Tokenizer, pieces: Iterable[str]) -> Iterator[list[int]]:
    """Token ids, without begin-of-text, of a text that comes in pieces; special tokens in it stay text.

    A text is cut between words, so the ids are those of the whole text. Where `PIECE` characters hold no word's end, as in
    writing without spaces, the cut may fall within what would be one token.
    """
    own_space = _adds_space(tokenizer)
    pattern = _SPACE_SEAM if own_space else _SEAM
    held, first = "", True
    for piece in pieces:
        held += piece
        while len(held) >= PIECE:
            at = _seam(held[:PIECE], pattern)
            yield tokenizer.encode_parts([(held[:at], False)], start=first)
            held, first = held[at:], False
            held = held[1:] if own_space and held.startswith(" ") else held
    if held:
        yield tokenizer.encode_parts([(held, False)], start=first)


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary puts a space before whatever it encodes, so that a piece must come without its own."""
    ids = tokenizer.encode_parts([(" a", False)], start=False)
    return b"".join(map(tokenizer.token_bytes, ids)).startswith(b"  ")


def _seam(text: str, pattern: re.Pattern[str]) -> int:
    """The last place where the text may be cut, else its end."""
    for start in (max(len(text) - _LOOK_BACK, 1), 1):
        places = [match.start() for match in pattern.finditer(text, start)]
        if places:
            return places[-1]
    return len(text)


@functools.lru_cache(maxsize=4)
def _lines_and_bytes(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Newlines and bytes of every token, each int64."""
    values = list(map(tokenizer.token_bytes, range(tokenizer.size)))
    return np.array([value.count(b"\n") for value in values], np.int64), np.array(list(map(len, values)), np.int64)


class Windows:
    """Cuts streams of ids into batches."""

    def __init__(self, tokenizer: Tokenizer, shape: Shape | None = None):
        self.shape = shape or Shape()
        self.bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        if self.shape.context + len(self.bos) >= self.shape.length:
            raise UserError(f"windows of {self.shape.length} tokens have no room beside what they repeat")
        self._lines, self._bytes = _lines_and_bytes(tokenizer)

    def batches(self, ids: Iterable[list[int]]) -> Iterator[Batch]:
        """The windows of one text, in order, B at a time; the last batch is padded."""
        rows: list[tuple[np.ndarray, int, int]] = []
        for row in self._rows(ids):
            rows.append(row)
            if len(rows) == self.shape.batch:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def _rows(self, parts: Iterable[list[int]]) -> Iterator[tuple[np.ndarray, int, int]]:
        """Ids of one window, the place of its first token in the text, and that token's line."""
        room = self.shape.length - len(self.bos)
        step = room - self.shape.context
        held = np.zeros(0, np.int32)
        start, line, fresh = 0, 1, 0  # ``fresh`` tokens of ``held`` are in no window yet
        for part in parts:
            held = np.concatenate([held, np.asarray(part, np.int32)])
            fresh += len(part)
            at = 0
            while len(held) - at >= room:
                yield held[at : at + room], start, line
                line += int(self._lines[held[at : at + step]].sum())
                at, start = at + step, start + step
                fresh = len(held) - at - self.shape.context
            held = held[at:]
        if fresh > 0:
            yield held, start, line

    def _batch(self, rows: list[tuple[np.ndarray, int, int]]) -> Batch:
        B, T, first = self.shape.batch, self.shape.length, len(self.bos)
        tokens, index = np.zeros((B, T), np.int32), np.full((B, T), NO_ID, np.int64)
        line, counted = np.ones((B, T), np.int64), np.zeros((B, T), bool)
        tokens[: len(rows), :first] = self.bos
        for b, (ids, start, begin) in enumerate(rows):
            span = slice(first, first + len(ids))
            tokens[b, span], index[b, span] = ids, start + np.arange(len(ids))
            line[b, span] = begin + np.cumsum(self._lines[ids]) - self._lines[ids]
            skipped = self.shape.context if start else 1 - first
            counted[b, first + skipped : first + len(ids)] = True
        return Batch(tokens, index, line, counted, int(self._bytes[tokens[counted]].sum()))


def keys(batch: Batch, length: int) -> np.ndarray:
    """The last ``length`` ids up to each token within its window, ``[B, T, length]`` int32; NO_ID where there are fewer."""
    ids = np.where(batch.index == NO_ID, NO_ID, batch.tokens)
    before = np.full((len(ids), length - 1), NO_ID, np.int32)
    return np.lib.stride_tricks.sliding_window_view(np.concatenate([before, ids], 1), length, axis=1)

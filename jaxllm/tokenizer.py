"""Text to token ids and back, and how a token is shown to a person.

The Rust library ``tokenizers`` splits and merges; this module decides what it leaves open: where the one begin-of-text token
comes from, that special tokens typed by a user stay text, and what bytes a token stands for.
"""

import codecs
import functools
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from jaxllm.errors import UserError
from jaxllm.tokenizer_files import TokenizerData, read_folder, read_gguf
from jaxllm.tokenizer_json import BYTE_ALPHABET, added_tokens, model_vocab, steps, to_json

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"  # SentencePiece's
_BYTE_OF = {ord(char): chr(byte) for byte, char in BYTE_ALPHABET.items()}
_BYTE_PIECE = re.compile(f"[{re.escape(''.join(BYTE_ALPHABET.values()))}]*")
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥", "\x7f": "␡", **{chr(i): chr(0x2400 + i) for i in range(32) if chr(i) not in "\n\t"}}
_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs"})


class Tokenizer:
    """A byte-level or SentencePiece-style BPE vocabulary. Immutable; safe to use from many threads.

    Attributes:
      size: number of ids, the highest one plus one. The model's head may have more rows.
      bos_id, eos_id, pad_id: begin of text, end of text and padding, or None.
      add_bos: whether `encode` puts ``bos_id`` first unless told otherwise.
      special_ids, special_names: ids, and their texts, that only a chat template (or ``specials=True``) may emit.
      byte_ids: ids that stand for one byte which is no text alone: fallback pieces ``<0xNN>``, or bytes from 0x80 on.
      used_ids: ids that have a token; the others below ``size`` are holes.
      chat_template: the checkpoint's Jinja template, or None.
    """

    def __init__(self, source: TokenizerData) -> None:
        where, data = source.where, {**source.data, "truncation": None, "padding": None}
        added = added_tokens(data, where)
        vocab = model_vocab(data, where)
        data["model"] = {**data["model"], "dropout": None}
        self._data = data
        self._rust = _build(data, where)
        pieces = {token_id: piece for piece, token_id in vocab.items()}
        pieces.update((token["id"], token["content"]) for token in added)
        self.size = max(pieces, default=-1) + 1
        self.used_ids = frozenset(pieces)
        self.bos_id, self.eos_id, self.pad_id = source.bos_id, source.eos_id, source.pad_id
        self.add_bos, self.chat_template = source.add_bos, source.chat_template
        self._special = {token["content"]: token["id"] for token in added if token.get("special")}
        self.special_ids = frozenset(self._special.values())
        self.special_names = frozenset(self._special)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

        kinds = {step.get("type") for key in ("pre_tokenizer", "decoder") for step in steps(data.get(key))}
        byte_level = "ByteLevel" in kinds
        if (
            not byte_level
            and not data["model"].get("byte_fallback")
            and _SPACE_MARK
            not in json.dumps([data.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")], ensure_ascii=False)
        ):
            raise UserError(f"{where}: neither byte-level nor SentencePiece-style; only these two kinds of BPE are supported")
        self._strip_space = not byte_level and any(
            step.get("type") == "Strip" or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in steps(data.get("decoder"))
        )
        # A scheme of "first" marks the start of the text only, so runs after a special token need a twin that never does.
        first = any(step.get("prepend_scheme") == "first" for step in steps(data.get("pre_tokenizer")))
        self._rust_inner = _build(_without_prefix(data), where) if first else self._rust
        added_ids = {token["id"] for token in added}
        spell = _byte_level_bytes if byte_level else _sentencepiece_bytes
        self._bytes = {i: piece.encode("utf-8") if i in added_ids else spell(piece) for i, piece in pieces.items()}
        self._fallback_ids = frozenset(i for piece, i in vocab.items() if not byte_level and _FALLBACK.fullmatch(piece))
        high = (i for i, value in self._bytes.items() if byte_level and len(value) == 1 and value[0] >= 0x80)
        self.byte_ids = self._fallback_ids | frozenset(high)
        lookup = {value[0]: i for i, value in self._bytes.items() if len(value) == 1 and i not in added_ids}
        self._byte_ids = {**lookup, **{self._bytes[i][0]: i for i in self._fallback_ids}}

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Reads a checkpoint folder: ``tokenizer.json`` and its side files, else Meta's ``tokenizer.model``.

        Raises:
          UserError: no tokenizer there, a damaged file, or a kind that is not byte-level or SentencePiece-style BPE.
        """
        return _guarded(lambda: cls(read_folder(Path(folder))), str(folder))

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any], *, where: str = "gguf") -> "Tokenizer":
        """Reads the ``tokenizer.*`` metadata of a GGUF file (key -> plain value). See `tokenizer_files.read_gguf`."""
        return _guarded(lambda: cls(read_gguf(fields, where)), where)

    def encode(self, text: str, *, bos: bool | None = None, specials: bool = False) -> list[int]:
        """Token ids of a text. Characters with bytes for which a vocabulary has no token (a few in SmolLM2's) are left out.

        Args:
          bos: whether the ids start with ``bos_id``; None follows the checkpoint. Never two of them.
          specials: whether special tokens written in the text become their ids. By default they stay text.

        Raises:
          UserError: ``bos`` without such a token, or a text that is not valid Unicode.
        """
        return self.encode_parts([(text, specials)], bos=bos)

    def encode_parts(self, parts: Iterable[tuple[str, bool]], *, bos: bool | None = False, start: bool = True) -> list[int]:
        """Ids of one text given in parts, where special tokens count only in the parts marked True.

        The text between two special tokens is encoded as one run, whatever the parts it came in. ``start`` says whether a text
        begins here, which matters to vocabularies that put a space before it.
        """
        ids: list[int] = []
        run: list[str] = []

        def flush() -> None:
            if text := "".join(run):
                ids.extend(self._encode_text(text, first=start and not ids))
            run.clear()

        for text, trusted in parts:
            done = 0
            for match in self._special_pattern.finditer(text) if trusted and self._special_pattern else ():
                run.append(text[done : match.start()])
                flush()
                ids.append(self._special[match.group()])
                done = match.end()
            run.append(text[done:])
        flush()
        if self.add_bos if bos is None else bos:
            if self.bos_id is None:
                raise UserError("this tokenizer has no begin-of-text token; pass bos=False")
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        return ids

    def _encode_text(self, text: str, *, first: bool) -> list[int]:
        rust = self._rust if first else self._rust_inner
        try:
            ids = rust.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):  # how the library refuses surrogates
            raise UserError(f"the text is not valid Unicode: {text[:40]!r}") from None
        if self.special_ids.isdisjoint(ids):
            return ids
        # A merge, or a word looked up whole, can spell a special token: write those out by bytes. An unknown token stays.
        known = self._special.get(self._data["model"].get("unk_token"))
        return [part for i in ids for part in (self._spell(i) if i in self.special_ids and i != known else (i,))]

    def _spell(self, token_id: int) -> list[int]:
        try:
            return [self._byte_ids[byte] for byte in self._bytes[token_id]]
        except KeyError:
            raise UserError(f"the text spells the special token {self.display(token_id)}, which cannot be text here") from None

    def decode(self, ids: Iterable[int], *, skip_specials: bool = False) -> str:
        """The text of some ids. Bytes that are not UTF-8 become U+FFFD. Raises UserError for an id out of range."""
        decoder = self.stream(skip_specials=skip_specials)
        return "".join([*map(decoder.push, ids), decoder.finish()])

    def stream(self, *, skip_specials: bool = False) -> "StreamDecoder":
        """A decoder that takes ids one by one and gives the same text as `decode`."""
        return StreamDecoder(self, skip_specials=skip_specials)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for; a special token gives its name. Empty for an id below ``size`` without a token.

        Raises:
          UserError: the id is not in [0, size).
        """
        if not 0 <= token_id < self.size:
            raise UserError(f"token id {token_id} is outside the tokenizer's range 0 to {self.size - 1}")
        return self._bytes.get(int(token_id), b"")

    def display(self, token_id: int) -> str:
        """A token as a person can read it: ``␣dog`` for " dog", ``↵`` for a newline, never U+FFFD.

        Invisible characters are shown by a mark or as ``⟨U+200B⟩``, bytes that are no whole character as ``⟨e2 80⟩``, fallback
        pieces as their byte, special tokens by name, and ids without a token as ``⟨no token 49152⟩``. Tokens with different
        bytes look different.
        """
        if token_id not in self._bytes:
            return f"⟨no token {token_id}⟩"
        value = self._bytes[token_id]
        if token_id in self._fallback_ids:
            return f"⟨{value.hex()}⟩"
        return value.decode() if token_id in self.special_ids else show_bytes(value)

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json`` and ``tokenizer_config.json``, from which `load` reads the same tokenizer."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        for kind, token_id in (("bos", self.bos_id), ("eos", self.eos_id), ("pad", self.pad_id)):
            if token_id is not None:
                config[f"{kind}_token"] = self._rust.id_to_token(token_id)
        config["add_bos_token"] = self.add_bos
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        (folder / "tokenizer.json").write_text(to_json(self._data), encoding="utf-8")
        text = json.dumps(config, ensure_ascii=False, indent=2)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    @functools.cached_property
    def _digest(self) -> str:
        model = self._data["model"]
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", ())]
        rules = {key: self._data.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")}
        rules |= {"ignore_merges": bool(model.get("ignore_merges")), "merges": merges, "special": sorted(self.special_ids)}
        rules |= {"bos": self.bos_id, "eos": self.eos_id, "add_bos": self.add_bos}
        tokens = [[i, self._bytes[i].hex()] for i in sorted(self._bytes)]
        return hashlib.sha256(json.dumps([tokens, rules], sort_keys=True).encode()).hexdigest()

    def digest(self) -> str:
        """SHA-256, in hex, of the token table and of the rules by which text is split. Equal after `save` and `load`."""
        return self._digest


class StreamDecoder:
    """Turns ids into text as they come and holds back the bytes of a character until it is whole."""

    def __init__(self, tokenizer: Tokenizer, *, skip_specials: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_specials else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer._strip_space

    def push(self, token_id: int) -> str:
        """The text that this id completes, maybe empty. Raises UserError for an id out of range."""
        value = self._tokenizer.token_bytes(token_id)
        if token_id in self._skip:
            return ""
        if self._at_start and value:
            value, self._at_start = value.removeprefix(b" "), False
        return self._decoder.decode(value)

    def finish(self) -> str:
        """The text of what is still held back: U+FFFD for half a character, else nothing."""
        return self._decoder.decode(b"", final=True)


def show_bytes(value: bytes) -> str:
    """Bytes as visible text: marks for spaces, newlines and control characters, hexadecimal for what is not UTF-8."""
    return _STRAY_OR_CHAR.sub(_show, value.decode("utf-8", errors="surrogateescape"))


_STRAY_OR_CHAR = re.compile("[\udc80-\udcff]+|.", re.DOTALL)  # bytes that are not UTF-8 come as these surrogates


def _show(match: re.Match[str]) -> str:
    char = match[0]
    if "\udc80" <= char[0] <= "\udcff":
        return f"⟨{char.encode('utf-8', errors='surrogateescape').hex(' ')}⟩"
    if char in _SHOWN:
        return _SHOWN[char]
    if char in _MARKS or unicodedata.category(char) in _HIDDEN:
        return f"⟨U+{ord(char):04X}⟩"
    return char


_MARKS = frozenset(_SHOWN.values()) | {"⟨", "⟩", "\ufffd"}  # a token that has one of these in its own text must not mimic it


def _byte_level_bytes(piece: str) -> bytes:
    return piece.translate(_BYTE_OF).encode("latin-1") if _BYTE_PIECE.fullmatch(piece) else piece.encode("utf-8")


def _sentencepiece_bytes(piece: str) -> bytes:
    match = _FALLBACK.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace(_SPACE_MARK, " ").encode("utf-8")


def _guarded(read: Callable[[], Tokenizer], where: str) -> Tokenizer:
    """The result of ``read``; a value of an unexpected type somewhere in the file becomes a UserError."""
    try:
        return read()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{where}: the tokenizer is damaged: {type(error).__name__}: {error}") from None


def _without_prefix(data: dict[str, Any]) -> dict[str, Any]:
    split = json.dumps(data["pre_tokenizer"]).replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    return {**data, "pre_tokenizer": json.loads(split)}


def _build(data: dict[str, Any], where: str) -> tokenizers.Tokenizer:
    try:
        rust = tokenizers.Tokenizer.from_str(to_json(data))
    except BaseException as error:  # the Rust side panics on some damaged files, and a panic is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise UserError(f"{where}: not a tokenizer that can be read: {error}") from None
    rust.encode_special_tokens = True
    return rust

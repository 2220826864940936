"""Reads the three forms in which checkpoints carry a tokenizer into one: the content of a Hugging Face ``tokenizer.json``.

The forms are ``tokenizer.json`` itself with its side files, Meta's ``tokenizer.model`` (tiktoken text: a base64 token and its
rank on each line) and the metadata of a GGUF file. All are untrusted data: sizes are bounded and every fault is a UserError.
"""

import base64
import binascii
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.config import read_json
from jaxllm.errors import UserError
from jaxllm.tokenizer_json import (
    MAX_TOKENS,
    added_token,
    added_tokens,
    bos_template,
    byte_level,
    llama_3_split,
    model_vocab,
    smollm_split,
    spell_bytes,
    steps,
)

MAX_FILE_BYTES = 1 << 26
MAX_TOKEN_BYTES = 1024

LLAMA_3_TEXT_TOKENS = 128_000
_LLAMA_3_NAMED = {
    0: "begin_of_text",
    1: "end_of_text",
    4: "finetune_right_pad_id",
    6: "start_header_id",
    7: "end_header_id",
    8: "eom_id",
    9: "eot_id",
    10: "python_tag",
}
# Added tokens of this form are control marks, whatever the file's flag says; spaces, words and the like are text.
_MARK = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_GGUF_NORMAL, _GGUF_UNKNOWN, _GGUF_CONTROL, _GGUF_USER = 1, 2, 3, 4


@dataclasses.dataclass(frozen=True)
class TokenizerData:
    """A tokenizer as data: what `jaxllm.tokenizer.Tokenizer` is made from."""

    data: dict[str, Any]  # content of tokenizer.json
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    add_bos: bool  # whether a text starts with bos_id by default
    chat_template: str | None
    where: str  # the file, for messages


def read_folder(folder: Path) -> TokenizerData:
    """Reads ``tokenizer.json`` with its side files, else Meta's ``tokenizer.model``. Raises UserError when there is neither."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return _read_hugging_face(path)
    if (folder / "tokenizer.model").is_file():
        return read_tiktoken(folder / "tokenizer.model")
    raise UserError(f"{folder}: no tokenizer.json and no tokenizer.model; copy the tokenizer's files there")


def _read_hugging_face(path: Path) -> TokenizerData:
    data = read_json(path, limit=MAX_FILE_BYTES)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(data).__name__}")
    side = {name: _side_file(path.with_name(f"{name}.json")) for name in ("tokenizer_config", "special_tokens_map", "config")}
    config = side["tokenizer_config"]
    added = added_tokens(data, str(path))
    ids = {**model_vocab(data, str(path)), **{token["content"]: token["id"] for token in added}}
    named = {**side["special_tokens_map"], **config}
    special = {_content(named.get(f"{kind}_token")) for kind in ("bos", "eos", "pad", "unk")}
    for extra in ("additional_special_tokens", "extra_special_tokens"):
        values = named.get(extra)
        special |= {_content(value) for value in (values.values() if isinstance(values, dict) else values or ())}
    declared = config.get("added_tokens_decoder")
    for value in declared.values() if isinstance(declared, dict) else ():
        if isinstance(value, dict) and value.get("special") is True:
            special.add(_content(value))
    for token in added:
        token["special"] = bool(token.get("special")) or token["content"] in special or bool(_MARK.fullmatch(token["content"]))

    def token_id(kind: str) -> int | None:
        name = _content(named.get(f"{kind}_token"))
        if name is not None:
            return ids.get(name)
        value = side["config"].get(f"{kind}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and value in ids.values() else None

    first = _first_of_template(data.get("post_processor"))
    bos = token_id("bos")
    bos = ids.get(first) if bos is None and first is not None else bos
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = first is not None and ids.get(first) == bos
    return TokenizerData(
        data, bos, token_id("eos"), token_id("pad"), add_bos and bos is not None, _template(path.parent, config), str(path)
    )


def read_tiktoken(path: Path) -> TokenizerData:
    """Reads Llama 3's ``tokenizer.model``: 128,000 lines of a base64 token and its rank; the 256 special ids follow.

    Raises:
      UserError: not that format (a SentencePiece file, for one), damaged base64, a rank or token met twice, or a rank absent.
    """
    try:
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise UserError(f"{path}: {size} bytes is too large for a tokenizer (limit {MAX_FILE_BYTES})")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if content[:1] == b"\n" or b"\0" in content[:1024]:
        raise UserError(f"{path}: a SentencePiece model, not Llama 3's text format; put the model's tokenizer.json beside it")
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"{path}, line {number}"
        if len(line) > 2 * MAX_TOKEN_BYTES:
            raise UserError(f"{where}: {len(line)} bytes is too long for a token")
        try:
            text, rank_text = line.split(b" ")
            token, rank = base64.b64decode(text, validate=True), int(rank_text)
        except (ValueError, binascii.Error):
            raise UserError(f"{where}: expected a base64 token and a rank, found {line[:40]!r}") from None
        if not token or rank in tokens:
            raise UserError(f"{where}: {'rank ' + str(rank) + ' is there twice' if token else 'an empty token'}")
        tokens[rank] = token
    if len(tokens) != LLAMA_3_TEXT_TOKENS or set(tokens) != set(range(len(tokens))):
        raise UserError(
            f"{path}: expected the ranks 0 to {LLAMA_3_TEXT_TOKENS - 1} of Llama 3, found {len(tokens)} ranks; "
            "the special tokens of other vocabularies are not known"
        )
    ranks = {token: rank for rank, token in sorted(tokens.items())}
    if len(ranks) != len(tokens):
        raise UserError(f"{path}: {len(tokens) - len(ranks)} tokens have two ranks")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise UserError(f"{path}: no token for the byte {missing[0]}")
    special = llama_3_special_tokens()
    vocab = {spell_bytes(token): rank for token, rank in ranks.items()}
    data = byte_level(
        vocab,
        _merges(vocab),
        [added_token(LLAMA_3_TEXT_TOKENS + i, name, special=True) for i, name in enumerate(special)],
        llama_3_split(),
        ignore_merges=True,
    )
    data["post_processor"] = bos_template(special[0], LLAMA_3_TEXT_TOKENS)
    first = LLAMA_3_TEXT_TOKENS
    return TokenizerData(data, first, first + 1, first + 4, True, _template(path.parent, {}), str(path))


def llama_3_special_tokens() -> list[str]:
    """The 256 special tokens of Llama 3.1 and 3.2 in id order, from 128000 on."""
    reserved = iter(range(256))
    return [f"<|{_LLAMA_3_NAMED.get(i) or f'reserved_special_token_{next(reserved)}'}|>" for i in range(256)]


def read_gguf(fields: Mapping[str, Any], where: str = "gguf") -> TokenizerData:
    """Reads the ``tokenizer.*`` metadata of a GGUF file: byte-level BPE with the splits of SmolLM or Llama 3.

    ``fields`` maps keys such as ``tokenizer.ggml.tokens`` to plain values (strings, numbers, sequences of them).

    Raises:
      UserError: another tokenizer model or pre-tokenizer (its splits are not guessed), a missing key, a wrong type or length,
        a token met twice, or a merge of unknown tokens.
    """
    model, split = (str(fields.get(f"tokenizer.ggml.{key}")) for key in ("model", "pre"))
    if model != "gpt2" or split not in _GGUF_SPLITS:
        raise UserError(
            f"{where}: tokenizer.ggml.model {model!r} with tokenizer.ggml.pre {split!r} is not supported; only 'gpt2' with "
            f"{', '.join(map(repr, _GGUF_SPLITS))} is. Use the model's safetensors folder with its tokenizer.json"
        )
    tokens = [_text(token, where) for token in _list(fields, "tokens", where)]
    if len(tokens) > MAX_TOKENS:
        raise UserError(f"{where}: {len(tokens)} tokens are too many (limit {MAX_TOKENS})")
    kinds = [int(kind) for kind in _list(fields, "token_type", where)]
    if len(kinds) != len(tokens):
        raise UserError(f"{where}: tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} tokens")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
        raise UserError(f"{where}: tokenizer.ggml.tokens has {twice[:80]!r} twice")
    merges = [_text(merge, where).split(" ") for merge in _list(fields, "merges", where)]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocab.keys():
            raise UserError(
                f"{where}: tokenizer.ggml.merges has {' '.join(merge)[:80]!r}, which does not join two tokens to one"
            )
    added = [
        added_token(i, token, special=kind != _GGUF_USER or bool(_MARK.fullmatch(token)))
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_GGUF_UNKNOWN, _GGUF_CONTROL, _GGUF_USER)
    ]
    llama_3 = split != "smollm"
    data = byte_level(vocab, merges, added, llama_3_split() if llama_3 else smollm_split(), ignore_merges=llama_3)
    bos, eos, pad = (_gguf_id(fields, f"{kind}_token_id", len(tokens), where) for kind in ("bos", "eos", "padding"))
    add_bos = fields.get("tokenizer.ggml.add_bos_token", llama_3)
    if bool(add_bos) and bos is not None:
        data["post_processor"] = bos_template(tokens[bos], bos)
    template = fields.get("tokenizer.chat_template")
    return TokenizerData(
        data, bos, eos, pad, bool(add_bos) and bos is not None, None if template is None else _text(template, where), where
    )


_GGUF_SPLITS = ("smollm", "llama-bpe")


def _merges(vocab: Mapping[str, int]) -> list[list[str]]:
    """Every way to make each token of two others, in the order of the ranks: what tiktoken's lookup by rank amounts to."""
    merges: list[list[str]] = []
    for token in vocab:
        pairs = [[token[:i], token[i:]] for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]])) if len(pairs) > 1 else pairs
    return merges


def _first_of_template(post_processor: Any) -> str | None:
    """The special token that the file's own post-processor puts before a text."""
    for step in steps(post_processor):
        single = step.get("single")
        if step.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
            first = single[0].get("SpecialToken") if isinstance(single[0], dict) else None
            return first.get("id") if isinstance(first, dict) and isinstance(first.get("id"), str) else None
    return None


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    try:
        if path.is_file() and path.stat().st_size <= 1 << 20:
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _side_file(path: Path) -> dict[str, Any]:
    content = read_json(path, limit=1 << 24) if path.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _content(value: Any) -> str | None:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _list(fields: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    value = fields.get(f"tokenizer.ggml.{key}")
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise UserError(f"{where}: tokenizer.ggml.{key} must be a list, found {type(value).__name__}")
    return value


def _text(value: Any, where: str) -> str:
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: the tokenizer holds text that is not UTF-8: {error}") from None
    if not isinstance(text, str):
        raise UserError(f"{where}: the tokenizer holds a {type(value).__name__} in place of a text")
    return text


def _gguf_id(fields: Mapping[str, Any], key: str, size: int, where: str) -> int | None:
    value = fields.get(f"tokenizer.ggml.{key}")
    if value is not None and not 0 <= int(value) < size:
        raise UserError(f"{where}: tokenizer.ggml.{key} {value} is not an id of {size} tokens")
    return None if value is None else int(value)

"""The content of a Hugging Face ``tokenizer.json``: its parts written for byte-level BPE, and its fields read with care."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jaxllm.errors import UserError

MAX_TOKENS = 1 << 21

LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def spell_bytes(token: bytes) -> str:
    """The token in the byte alphabet of GPT-2, in which every byte is one printable character."""
    return token.decode("latin-1").translate(BYTE_ALPHABET)


def _byte_alphabet() -> dict[int, str]:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


BYTE_ALPHABET = _byte_alphabet()
"""Byte -> its character in the alphabet of byte-level BPE (printable Latin-1 bytes stand for themselves)."""


def byte_level(
    vocab: dict[str, int], merges: list[list[str]], added: list[dict[str, Any]], split: dict[str, Any], *, ignore_merges: bool
) -> dict[str, Any]:
    """A byte-level BPE tokenizer; ``split`` is its pre-tokenizer, ``ignore_merges`` looks whole words up first."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": _byte_level_step(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _byte_level_step(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def llama_3_split() -> dict[str, Any]:
    """Words by Llama 3's pattern, then the byte alphabet."""
    split = {"type": "Split", "pattern": {"Regex": LLAMA_3_PATTERN}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level_step(use_regex=False)]}


def smollm_split() -> dict[str, Any]:
    """Each digit alone, then the words of GPT-2, then the byte alphabet."""
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, _byte_level_step(use_regex=True)]}


def added_token(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    """One entry of ``added_tokens``."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def bos_template(name: str, token_id: int) -> dict[str, Any]:
    """The post-processor that puts a begin-of-text token before a text."""
    bos = {"SpecialToken": {"id": name, "type_id": 0}}
    text, second = ({"Sequence": {"id": letter, "type_id": i}} for i, letter in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, bos, second],
        "special_tokens": {name: {"id": name, "ids": [token_id], "tokens": [name]}},
    }


def added_tokens(data: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The added tokens of a ``tokenizer.json``, each with an ``id`` and a ``content``. Raises UserError if they are not so."""
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) and token["content"] and _is_id(token.get("id"))
        for token in added
    ):
        raise UserError(f"{where}: added_tokens must be a list of objects with an id under {MAX_TOKENS} and a content")
    return added


def model_vocab(data: Mapping[str, Any], where: str) -> dict[str, int]:
    """The vocabulary of the BPE model in a ``tokenizer.json``. Raises UserError for any other model or a bad id."""
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{where}: the model is not BPE, the only kind that Llama tokenizers use")
    vocab = model["vocab"]
    if not all(map(_is_id, vocab.values())) or len(set(vocab.values())) != len(vocab):
        raise UserError(f"{where}: model.vocab must map tokens to distinct ids under {MAX_TOKENS}")
    return vocab


def steps(step: Any) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer, pre-tokenizer, post-processor or decoder, one by one, with sequences opened."""
    if isinstance(step, dict):
        yield step
        for key in ("normalizers", "pretokenizers", "processors", "decoders"):
            for part in step.get(key) or ():
                yield from steps(part)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKENS


def to_json(data: Mapping[str, Any]) -> str:
    """The text of a ``tokenizer.json``; equal data give equal text."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

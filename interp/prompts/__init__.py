"""The prompts on which clamps are measured: fixed texts with a version in their name, and a user's own files.

A file holds one prompt a line; empty lines and lines that start with # are left out. A changed list gets a new version.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jaxllm.chat import encode_chat
from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer

NEUTRAL = "neutral-v1"  # beginnings of sentences that lead nowhere in particular
QUESTIONS = "questions-v1"  # for models that answer: the first asks for the favourite animal
MAX_BYTES = 1 << 20
MAX_PROMPTS = 1000


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A list of prompts, as text."""

    name: str  # of the shipped list, or the file's path
    texts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Of the texts, one a line."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()


def read(source: str | Path) -> Prompts:
    """A shipped list by its name, or a file. Raises UserError when it cannot be read, is too large, or holds no prompt."""
    if source in (NEUTRAL, QUESTIONS):
        data, name = resources.files("interp.prompts").joinpath(f"{source}.txt").read_bytes(), str(source)
    else:
        path = Path(source)
        name = str(path)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{name}: more than {MAX_BYTES:,} bytes are too many prompts")
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    texts = tuple(line for line in lines if line.strip() and not line.startswith("#"))
    if not 1 <= len(texts) <= MAX_PROMPTS:
        raise UserError(f"{name}: {len(texts)} prompts; a list has from 1 to {MAX_PROMPTS}, one a line")
    return Prompts(name, texts)


def encode(texts: Sequence[str], tokenizer: Tokenizer, *, chat: bool = False, template: str | None = None) -> list[list[int]]:
    """Token ids of each prompt, encoded once, with at most one BOS; with ``chat`` each is a user's message in the template.

    Raises UserError for a prompt without tokens, or a model without a chat template.
    """
    if chat:
        return [encode_chat(tokenizer, template, [{"role": "user", "content": text}]) for text in texts]
    ids = [tokenizer.encode(text) for text in texts]
    for text, row in zip(texts, ids, strict=True):
        if not row:
            raise UserError(f"the prompt {text!r} has no tokens")
    return ids

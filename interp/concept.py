"""What a clamp is meant to bring up: token ids whose probabilities are added, and words that are looked for in texts."""

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from interp.tokens import fold, group_tokens, parse_query
from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer

SHOWN = 4  # tokens in a concept's name


@dataclasses.dataclass(frozen=True)
class Concept:
    """Tokens that count as one thing."""

    ids: tuple[int, ...]  # no two equal, at least one
    words: tuple[str, ...]  # their texts without spaces, case folded; empty when none is a word
    name: str  # for people
    note: str | None = None  # what had to be assumed

    def occurs(self, text: str) -> bool:
        """Whether one of the words stands in the text, whole, in any case. A concept without words never occurs."""
        return self._pattern is not None and self._pattern.search(text.casefold()) is not None

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self.words:
            return None
        longest_first = sorted(self.words, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")


def of_ids(
    ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer, *, name: str | None = None, note: str | None = None
) -> Concept:
    """The concept of some token ids. Raises UserError for none, or one out of range."""
    chosen = tuple(dict.fromkeys(int(i) for i in ids))
    if not chosen:
        raise UserError("a concept needs at least one token")
    texts = [fold(tokenizer.token_bytes(i)) for i in chosen if i not in tokenizer.special_ids]
    words = dict.fromkeys(text.strip() for text in texts if text and any(char.isalnum() for char in text))
    shown = " ".join(tokenizer.display(i) for i in chosen[:SHOWN]) + (" …" if len(chosen) > SHOWN else "")
    return Concept(chosen, tuple(word for word in words if len(word) > 1 or len(words) == 1), name or shown, note)


def of_token(text: str, tokenizer: Tokenizer, V: int) -> Concept:
    """The token that a text names with its spelling variants, as `interp.tokens.parse_query`; V is the number of head rows.

    Raises UserError when the text starts with no token.
    """
    data = [tokenizer.token_bytes(i) if i < tokenizer.size else b"" for i in range(V)]
    query = parse_query(text, data, group_tokens(tokenizer, V).group, encode=lambda text: tokenizer.encode(text, bos=False))
    return of_ids(query.ids, tokenizer, name=tokenizer.display(query.ids[0]), note=query.note)

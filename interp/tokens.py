"""The vocabulary as a map sees it: classes of token ids, which of them may label a neuron, and spelling variants as groups.

Masks follow the classes; a group joins the ids whose texts are equal after trimming leading spaces and folding case.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer, show_bytes

KINDS = ("normal", "byte", "untrained", "special", "padding")
"""Classes of token ids, each one after "normal" taking precedence over those before it."""

# A head row is an outlier at the low end this many robust standard deviations of log norm below the median.
LOW_NORM_SIGMAS = 6.0


@dataclasses.dataclass(frozen=True)
class Masks:
    """Which classes never enter top-k, ``logsumexp`` or the moments."""

    mask_padding: bool = True  # head rows that no token uses
    mask_special: bool = False  # special and reserved tokens
    mask_untrained: bool = False  # rows that training seems not to have touched
    mask_bytes: bool = False  # single bytes that are no text alone


@dataclasses.dataclass(frozen=True)
class Classes:
    """Membership of each of the V head rows, as bool arrays [V]. A token may be in several classes."""

    padding: np.ndarray
    special: np.ndarray
    untrained: np.ndarray
    byte: np.ndarray

    @property
    def kind(self) -> np.ndarray:
        """[V] int8, index into `KINDS`: the class under which a token is counted."""
        kind = np.zeros(len(self.padding), np.int8)
        for code, name in enumerate(KINDS[1:], start=1):
            kind[getattr(self, name)] = code
        return kind

    def allowed(self, masks: Masks) -> np.ndarray:
        """[V] bool: ids outside the union of the masked classes. Raises UserError when none is left."""
        masked = np.zeros(len(self.padding), bool)
        for switch, members in (
            (masks.mask_padding, self.padding),
            (masks.mask_special, self.special),
            (masks.mask_untrained, self.untrained),
            (masks.mask_bytes, self.byte),
        ):
            masked |= members & switch
        if masked.all():
            raise UserError("the masks leave no token that could label a neuron; switch one of them off")
        return ~masked

    def counts(self) -> dict[str, int]:
        """Number of ids of each class, every id counted once, under its `kind`."""
        return dict(zip(KINDS, np.bincount(self.kind, minlength=len(KINDS)).tolist(), strict=True))

    def shares(self, ids: np.ndarray) -> dict[str, float]:
        """Share of the given token ids (top tokens of neurons, any shape; negative ones left out) in each class, in [0, 1]."""
        ids = ids[ids >= 0]
        counts = np.bincount(self.kind[ids], minlength=len(KINDS))
        return {name: float(count) / max(1, ids.size) for name, count in zip(KINDS, counts.tolist(), strict=True)}


def classify(tokenizer: Tokenizer, V: int, untrained: np.ndarray | None = None) -> Classes:
    """Classes of the ids of a head with V rows; ``untrained`` [V] bool is what `untrained_rows` found.

    Raises:
      UserError: the tokenizer has more ids than the head has rows, so that the two do not belong together.
    """
    if tokenizer.size > V:
        raise UserError(f"the tokenizer has {tokenizer.size} ids and the head only {V} rows; they belong to different models")

    def members(ids: frozenset[int]) -> np.ndarray:
        out = np.zeros(V, bool)
        out[sorted(ids)] = True
        return out

    return Classes(
        padding=~members(tokenizer.used_ids),
        special=members(tokenizer.special_ids),
        untrained=np.zeros(V, bool) if untrained is None else np.asarray(untrained, bool),
        byte=members(tokenizer.byte_ids),
    )


def untrained_rows(norms: np.ndarray, same_row: np.ndarray) -> np.ndarray:
    """[V] bool: head rows that repeat another row exactly, are zero, or are low outliers in norm.

    Args:
      norms: [V], L2 norm of each head row.
      same_row: [V] int, an id of a row equal to this one, the same for all equal rows (the row's own id when it is alone).
    """
    norms = np.asarray(norms, np.float64)
    repeated = np.bincount(same_row, minlength=len(norms))[same_row] > 1
    usable = np.isfinite(norms) & (norms > 0) & ~repeated
    if not usable.any():
        return repeated | (norms == 0)
    logs = np.log(norms[usable])
    middle = np.median(logs)
    sigma = 1.4826 * np.median(np.abs(logs - middle))
    return repeated | (norms < np.exp(middle - LOW_NORM_SIGMAS * sigma))


@dataclasses.dataclass(frozen=True)
class Groups:
    """Spelling variants. Every id is in exactly one group, alone if it has no variant."""

    group: np.ndarray  # [V] int32, group of each token id; groups are numbered by their lowest id
    members: np.ndarray  # [number of groups, size of the largest] int32, ids in ascending order, -1 after the last
    text: list[str]  # of each group: what its members share, visibly

    def of(self, token_id: int) -> np.ndarray:
        """Ids of the token's group, itself among them."""
        row = self.members[self.group[token_id]]
        return row[row >= 0]


def group_tokens(tokenizer: Tokenizer, V: int) -> Groups:
    """Groups of the V head rows' ids: " dog", "Dog" and "DOG" are one.

    Special tokens, fallback bytes, parts of a character, tokens of white space alone and ids without a token stay alone.
    """
    alone = tokenizer.special_ids | tokenizer.byte_ids
    keys: dict[str | int, int] = {}
    group = np.empty(V, np.int32)
    text: list[str] = []
    for i in range(V):
        folded = None if i in alone or i >= tokenizer.size else fold(tokenizer.token_bytes(i))
        number = keys.setdefault(i if folded is None else folded, len(keys))
        group[i] = number
        if number == len(text):
            text.append(tokenizer.display(i) if folded is None else show_bytes(folded.encode()))
    return Groups(group, _members(group), text)


def fold(value: bytes) -> str | None:
    """What spelling variants share: the text without leading spaces, case folded. None for a token that has no variants."""
    try:
        text = value.decode("utf-8").lstrip(" ")
    except UnicodeDecodeError:
        return None
    return None if not text or text.isspace() else text.casefold()


def _members(group: np.ndarray) -> np.ndarray:
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    members = np.full((len(sizes), sizes.max(initial=0)), -1, np.int32)
    members[np.arange(members.shape[1]) < sizes[:, None]] = order
    return members


@dataclasses.dataclass(frozen=True)
class Query:
    """What a text asks for, as token ids."""

    ids: list[int]  # the token and its spelling variants, the token first
    note: str | None  # what had to be assumed, for the user


def parse_query(
    text: str, data: Sequence[bytes], group: np.ndarray, *, encode: Callable[[str], Sequence[int]] | None = None
) -> Query:
    """The token that a text names, with its group; a text of several tokens counts by its first one.

    Args:
      data: bytes of each token id, V of them; empty for ids without a token.
      group: [V] int32, group of each id, as in `Groups`.
      encode: text -> ids, for texts that are no token; without it the longest token that starts the text is taken.

    Raises:
      UserError: an empty text, or one that starts with no token.
    """
    if not text:
        raise UserError("the text to find is empty; give a word, such as ' dog'")
    value = text.encode("utf-8", errors="replace")
    # SentencePiece vocabularies hold "A" as a fallback byte and, later, as a piece of text: the later one is meant.
    index = {item: i for i, item in enumerate(data) if item}
    note = None
    token = index.get(value)
    if token is None and (folded := fold(value)) is not None:
        token = next((i for i, item in enumerate(data) if fold(item) == folded), None)
        if token is not None:
            note = f"{text!r} is no token; found by its variant {show_bytes(data[token])}"
    if token is None:
        ids = list(encode(text)) if encode is not None else []
        longest = (index[value[:end]] for end in range(len(value), 0, -1) if value[:end] in index)
        token = ids[0] if ids else next(longest, None)
        if token is None:
            raise UserError(f"{text!r} starts with no token of this vocabulary")
        note = f"{text!r} is more than one token; using its first, {show_bytes(data[token])}"
    variants = np.flatnonzero(group == group[token]).tolist()
    return Query([token, *(i for i in variants if i != token)], note)

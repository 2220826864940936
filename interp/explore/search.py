"""What a person types into the search box, as token ids and then as neurons.

A word is found in all its spellings, a token as it stands, a regular expression by RE2, which has no pattern that takes more
than linear time; it sees the vocabulary only, in pieces, so that even a pattern made to be slow ends at a deadline.
"""

import bisect
import dataclasses
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from interp.atlas import Atlas
from interp.explore import index as inverted
from interp.explore.index import Index
from interp.query import POLES, parse_neuron, pole_tokens
from interp.tokens import fold
from jaxllm.errors import UserError

WAYS = ("word", "token", "regex")
MAX_QUERY = 200  # characters
MAX_MATCHES = 1000
SHOWN_TOKENS = 10  # of each match
SHOWN_COMPLETIONS = 12
REGEX_SECONDS = 1.0
REGEX_PIECE = 8192  # tokens between two looks at the clock
_POOL = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="regex")
_NEURON = re.compile(r"\s*[Ll][0-9]+\s*/?\s*[Nn][0-9]+\s*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Words:
    """The vocabulary as searches compare it, V entries."""

    text: list[str]  # of each token; its display where the bytes are no text
    table: pa.Array  # the same
    folded: list[str]  # of the tokens that have one, ascending
    ids: np.ndarray  # [len(folded)] their ids
    exact: dict[str, tuple[int, ...]]  # text -> ids; tuples, which the garbage collector does not visit
    group: np.ndarray  # [V]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a query means."""

    ids: np.ndarray  # token ids, in no order
    alike: bool  # they are one word, so that their probabilities add up
    note: str | None  # what had to be assumed
    completions: list[int]  # ids of tokens that go on where the query ends


def words(atlas: Atlas) -> Words:
    """Prepares the vocabulary of a map, once."""
    tokens = atlas.tokens
    text = [_text(data, display) for data, display in zip(tokens.data, tokens.display, strict=True)]
    folded = [fold(data) if data else display.casefold() for data, display in zip(tokens.data, tokens.display, strict=True)]
    pairs = sorted((word, i) for i, word in enumerate(folded) if word)
    exact: dict[str, tuple[int, ...]] = {}
    for i, item in enumerate(text):
        exact[item] = (*exact.get(item, ()), i)
    ids = np.array([i for _, i in pairs], np.int64)
    return Words(text, pa.array(text, pa.large_string()), [word for word, _ in pairs], ids, exact, tokens.group)


def _text(data: bytes, display: str) -> str:
    try:
        return data.decode("utf-8") if data else display
    except UnicodeDecodeError:
        return display


def neuron_of(text: str) -> tuple[int, int] | None:
    """``L12/N345``, also ``l12 n345``, as a pair; None for anything else."""
    if not _NEURON.fullmatch(text):
        return None
    return parse_neuron(re.sub(r"\s*/?\s*([Nn])", r"/\1", text.strip(), count=1))


def ask(vocabulary: Words, uses: np.ndarray, text: str, by: str) -> Asked:
    """The tokens that a query means; ``uses`` [V] says how often each is a label. Raises UserError for one that means none."""
    if by not in WAYS:
        raise UserError(f"search by {by!r}: choose one of {', '.join(WAYS)}")
    if len(text) > MAX_QUERY:
        raise UserError(f"the query has {len(text)} characters; at most {MAX_QUERY} are searched")
    text = text.replace("␣", " ")
    if by == "regex":
        return Asked(matching(vocabulary, text), False, None, [])
    if by == "token":
        ids = vocabulary.exact.get(text, ())
        return Asked(np.array(ids, np.int64), True, None if ids else "No token is exactly this.", [])
    key = text.lstrip(" ").casefold()
    if not key:
        return Asked(np.zeros(0, np.int64), True, None, [])
    low = bisect.bisect_left(vocabulary.folded, key)
    high = bisect.bisect_left(vocabulary.folded, key + "\U0010ffff", low)
    end = bisect.bisect_right(vocabulary.folded, key, low)
    equal, begun = vocabulary.ids[low:end], vocabulary.ids[end:high]
    if len(equal):
        chosen = np.zeros(len(vocabulary.group) + 1, bool)
        chosen[vocabulary.group[equal]] = True
        equal = np.flatnonzero(chosen[vocabulary.group])
        return Asked(equal, True, None, _completions(vocabulary, uses, begun))
    note = "No token is this word; these begin with it." if len(begun) else "No token is this word or begins with it."
    return Asked(begun, False, note, _completions(vocabulary, uses, begun))


def matching(vocabulary: Words, pattern: str) -> np.ndarray:
    """Ids of the tokens in which the pattern occurs. Raises UserError when RE2 refuses it, or it takes too long."""
    if not pattern:
        return np.zeros(0, np.int64)
    until = time.monotonic() + REGEX_SECONDS

    def piece(start: int) -> np.ndarray:
        if time.monotonic() > until:
            raise UserError(f"the pattern takes more than {REGEX_SECONDS:.0f} s; write a simpler one")
        hits = pc.match_substring_regex(vocabulary.table.slice(start, REGEX_PIECE), pattern=pattern)
        return hits.to_numpy(zero_copy_only=False)

    try:
        return np.flatnonzero(np.concatenate(list(_POOL.map(piece, range(0, len(vocabulary.table), REGEX_PIECE)))))
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UserError(f"not a regular expression of RE2: {reason}") from None


def most_used(ids: np.ndarray, uses: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` tokens that are labels most often, most often first."""
    if len(ids) > count:
        ids = ids[np.argpartition(-uses[ids], count - 1)[:count]]
    return ids[np.lexsort((ids, -uses[ids]))]


def _completions(vocabulary: Words, uses: np.ndarray, begun: np.ndarray) -> list[int]:
    """The most used of some tokens, one of each group."""
    best = most_used(begun, uses, 16 * SHOWN_COMPLETIONS)
    kept = {int(vocabulary.group[i]): int(i) for i in best[::-1].tolist() if uses[i]}
    return list(kept.values())[::-1][:SHOWN_COMPLETIONS]


def search(
    atlas: Atlas, index: Index, vocabulary: Words, text: str, *, by: str = "word", pole: str = "", limit: int = 50
) -> dict[str, Any]:
    """The answer to a query as JSON values: `Match` rows as of `match`, best first, and how it was understood.

    Args:
      by: one of `WAYS`; ``L12/N345`` is a neuron however it is asked.
      pole: "+", "-", or "" for both.
      limit: matches, at most `MAX_MATCHES`.
    Raises:
      UserError: as `ask` and `interp.atlas.Atlas.position`.
    """
    neuron = neuron_of(text)
    if neuron is not None:
        atlas.position(*neuron)
        return {"neuron": list(neuron), "matches": [], "tokens": [], "completions": [], "note": None, "entries": 0, "rows": 0}
    if pole not in ("", *POLES):
        raise UserError(f"pole {pole!r}: choose + or -, or none for both")
    asked = ask(vocabulary, index.uses, text, by)
    find: Callable[..., inverted.Hits] = inverted.by_sum if asked.alike else inverted.by_best
    hits = find(index, asked.ids, min(limit, MAX_MATCHES), POLES.index(pole) if pole else None)
    wanted, names = np.zeros(len(vocabulary.text), bool), atlas.tokens.display
    wanted[asked.ids] = True
    used = most_used(asked.ids, index.uses, SHOWN_COMPLETIONS)
    return {
        "neuron": None,
        "matches": [match(atlas, row, p, wanted) for row, p in zip(hits.row.tolist(), hits.score.tolist(), strict=True)],
        "tokens": [[names[i], int(index.uses[i])] for i in used.tolist()],
        "token_count": len(asked.ids),
        "completions": [[vocabulary.text[i], names[i], int(index.uses[i])] for i in asked.completions],
        "note": asked.note,
        "entries": hits.entries,
        "rows": hits.rows,
        "alike": asked.alike,
    }


def match(atlas: Atlas, row: int, probability: float, wanted: np.ndarray | None = None) -> dict[str, Any]:
    """One pole of a neuron as JSON values; ``wanted`` [V] bool marks tokens."""
    cell, pole = divmod(row, 2)
    position, neuron = divmod(cell, atlas.num_neurons)
    tokens = pole_tokens(atlas, position, neuron, pole)[:SHOWN_TOKENS]
    return {
        "layer": atlas.layers[position],
        "neuron": neuron,
        "pole": POLES[pole],
        "probability": min(probability, 1.0),
        "tokens": [[t.display, t.probability, wanted is not None and bool(wanted[t.id])] for t in tokens],
    }

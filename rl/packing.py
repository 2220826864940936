"""Several sequences side by side in rows of one width, so that short episodes leave little padding."""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxllm.errors import UserError
from rl.tokens import Row
from rl.types import NO_TURN, PAD

NO_SEGMENT = -1  # `Packed.segments` at padding


@dataclasses.dataclass(frozen=True)
class Packed:
    """R rows of T tokens on the host. Sequences lie whole within a row and one after the other; padding is on the right."""

    tokens: np.ndarray  # [R, T] int32
    mask: np.ndarray  # [R, T] bool, tokens that are trained; never the first of a sequence
    segments: np.ndarray  # [R, T] int32, which of the row's sequences a token belongs to, from 0; NO_SEGMENT at padding
    places: np.ndarray  # [N, 2] int32, the row of each sequence and the position of its first token

    def take(self, rows: np.ndarray) -> "Packed":
        """Some rows, in this order; -1 gives a row of padding. `places` stays as it is."""
        at, there = np.maximum(rows, 0), (rows >= 0)[:, None]
        return dataclasses.replace(
            self,
            tokens=np.where(there, self.tokens[at], PAD),
            mask=self.mask[at] & there,
            segments=np.where(there, self.segments[at], NO_SEGMENT),
        )


def pack(sequences: Sequence[Row], width: int) -> Packed:
    """Lays sequences into as few rows as best fit by falling length finds (at most 11/9 of the fewest possible, plus one).

    Johnson et al., SIAM J. Comput. 3 (1974). The same sequences give the same rows.

    Raises UserError for a sequence longer than ``width``.
    """
    lengths = [len(row.tokens) for row in sequences]
    if max(lengths, default=0) > width:
        i = int(np.argmax(lengths))
        raise UserError(f"sequence {i} has {lengths[i]} tokens, more than a row of {width}")
    rooms: list[tuple[int, int]] = []  # free positions and number of each row, sorted
    places = np.zeros((len(lengths), 2), np.int32)
    count = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect.bisect_left(rooms, (lengths[i], -1))
        room, row = rooms.pop(at) if at < len(rooms) else (width, count)
        count += row == count
        places[i] = row, width - room
        bisect.insort(rooms, (room - lengths[i], row))
    tokens, segments = np.full((count, width), PAD, np.int32), np.full((count, width), NO_SEGMENT, np.int32)
    mask = np.zeros((count, width), bool)
    held = np.zeros(count, np.int32)
    for i in np.lexsort((places[:, 1], places[:, 0])):
        row, start = places[i]
        span = slice(start, start + lengths[i])
        tokens[row, span], segments[row, span] = sequences[i].tokens, held[row]
        mask[row, span] = np.array(sequences[i].turn_id) != NO_TURN
        held[row] += 1
    return Packed(tokens, mask, segments, places)

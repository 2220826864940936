"""From trajectories to arrays: token in, token out, masks by bookkeeping, fixed shapes."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.errors import UserError
from rl.types import NO_GROUP, NO_TURN, PAD, Batch, Trajectory

SMALLEST_BUCKET = 32


def to_tokens(predicted: jax.Array) -> jax.Array:
    """[B, T] about each token, from [B, T-1] whose entry t was computed at token t about token t + 1.

    The only place where the two indices meet. Position 0, which nothing predicts, gets 0.
    """
    return jnp.pad(predicted, ((0, 0), (1, 0)))


def bucket(length: int, buckets: Sequence[int] = (), *, smallest: int = SMALLEST_BUCKET) -> int:
    """The width that holds ``length`` tokens: the smallest of ``buckets``, or a power of two of at least ``smallest``.

    Raises UserError when the longest bucket is too short.
    """
    if not buckets:
        return max(smallest, 1 << max(length - 1, 0).bit_length())
    for width in sorted(buckets):
        if length <= width:
            return width
    raise UserError(f"a row of {length} tokens fits into no bucket; the longest is {max(buckets)}")


@dataclasses.dataclass
class Row:
    """One segment on its way into a batch; lists are of equal length."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    turn_id: list[int] = dataclasses.field(default_factory=list)
    logp_roll: list[float] = dataclasses.field(default_factory=list)
    version: list[int] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)

    def context(self, ids: Sequence[int]) -> None:
        """Adds tokens that the policy did not sample."""
        self.tokens += ids
        for column, filler in ((self.turn_id, NO_TURN), (self.logp_roll, 0.0), (self.version, -1), (self.rewards, 0.0)):
            column += [filler] * len(ids)  # type: ignore[list-item]


def rows(trajectory: Trajectory) -> Iterator[Row]:
    """The segments of a trajectory: one, unless its history was rewritten. Each sampled token is in exactly one of them.

    A turn's reward stands on its last token; that of a turn without tokens on the context before it, from where
    `rl.advantages.place_rewards` moves it.

    Raises:
      ValueError: a segment that begins with a policy token, which nothing predicts; a reward that is not finite.
    """
    row = Row()
    for number, turn in enumerate(trajectory.turns):
        if turn.rewritten and row.tokens:
            yield row
            row = Row()
        row.context(turn.context)
        if not row.tokens:
            raise ValueError("a segment can't begin with a sampled token: nothing predicts it")
        if not np.isfinite(turn.reward):
            raise ValueError(f"turn {number} has a reward of {turn.reward}")
        row.tokens += turn.ids
        row.turn_id += [number] * len(turn.ids)
        row.logp_roll += turn.logp
        row.version += turn.version
        row.rewards += [0.0] * len(turn.ids)
        row.rewards[-1] += turn.reward
    row.context(trajectory.closing)
    if row.tokens:
        yield row


def make_batch(
    trajectories: Sequence[Trajectory],
    groups: Sequence[int],
    *,
    multiple: int = 1,
    buckets: Sequence[int] = (),
    num_rows: int | None = None,
) -> Batch:
    """Lays trajectories out as arrays of the host.

    Args:
      trajectories: of episodes that did not fail.
      groups: the group of each, numbered from 0.
      multiple: B becomes a multiple of it (data-parallel size times micro-batches), by inert rows.
      buckets: widths to choose from; powers of two by default.
      num_rows: B, where the shape must not depend on how many rows there are.

    Raises:
      UserError: a row longer than the longest bucket, or more rows than ``num_rows``.
      ValueError: as `rows`; or a failed episode.
    """
    if any(trajectory.stop.failed for trajectory in trajectories):
        raise ValueError("a failed episode says nothing about the policy: leave it out")
    segments = [(i, k, row) for i, one in enumerate(trajectories) for k, row in enumerate(rows(one))]
    B = num_rows or max(-(-len(segments) // multiple) * multiple, multiple)
    if len(segments) > B or B % multiple:
        raise UserError(f"{len(segments)} rows do not fit into {B}, or {B} is no multiple of {multiple}")
    T = bucket(max((len(row.tokens) for *_, row in segments), default=1), buckets)
    full = functools.partial(_filled, B, T)
    columns: dict[str, Any] = {
        "tokens": full(PAD, np.int32),
        "turn_id": full(NO_TURN, np.int32),
        "logp_roll": full(0, np.float32),
        "version": full(-1, np.int32),
        "rewards": full(0, np.float32),
    }
    lengths, order = np.zeros(B, np.int32), np.zeros(B, np.int32)
    group_id, traj_id = np.full(B, NO_GROUP, np.int32), np.full(B, NO_GROUP, np.int32)
    truncated, success, outcome = np.zeros(B, bool), np.zeros(B, bool), np.zeros(B, np.float32)
    for b, (i, k, row) in enumerate(segments):
        for name, column in columns.items():
            column[b, : len(row.tokens)] = getattr(row, name)
        one = trajectories[i]
        lengths[b] = len(row.tokens)
        truncated[b], success[b], outcome[b] = one.stop.truncated, one.success, one.outcome
        group_id[b], traj_id[b], order[b] = groups[i], i, k
    found = {
        **columns,
        "real": np.arange(T) < lengths[:, None],
        "mask": columns["turn_id"] != NO_TURN,
        "terminated": ~truncated & (traj_id != NO_GROUP),
        "truncated": truncated,
        "outcome": outcome,
        "success": success,
        "group_id": group_id,
        "traj_id": traj_id,
        "order": order,
    }
    return Batch(**found)


def _filled(B: int, T: int, filler: float, dtype: type) -> np.ndarray:
    return np.full((B, T), filler, dtype)

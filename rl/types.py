"""What a rollout leaves behind and what an update reads: turns, trajectories, batches.

Two conventions hold everywhere. Per-token arrays describe the token at their own index: its log-probability and the value of
the state before it come from the hidden state one to the left, and only `rl.tokens.to_tokens` shifts. A mask M is true exactly
at tokens that the policy sampled and that may carry gradient; what stands elsewhere changes nothing.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax

PAD = 0  # the id of padding: any id does, since masks come from bookkeeping and never from ids
NO_TURN = -1  # `Batch.turn_id` outside policy tokens
NO_GROUP = -1  # `Batch.group_id` and `Batch.traj_id` of inert rows


class Stop(enum.Enum):
    """Why an episode ended. Every episode has one."""

    TERMINATED = "terminated"  # the environment says so, or the agent declared the end
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"  # the budget of policy tokens
    CONTEXT_OVERFLOW = "context_overflow"  # the next prompt would not fit into the model
    TIMEOUT = "timeout"  # the wall-clock limit of the whole episode
    ENV_ERROR = "env_error"  # crash, lost session, verifier's failure: no learning signal
    PARSE_ERROR = "parse_error"  # too many answers in a row that could not be read
    CANCELLED = "cancelled"  # stopped from outside: no learning signal

    @property
    def failed(self) -> bool:
        """Whether the episode says nothing about the policy, so that it is never trained (and is not a reward of 0)."""
        return self in (Stop.ENV_ERROR, Stop.CANCELLED)

    @property
    def truncated(self) -> bool:
        """Whether a limit of turns, tokens or time cut the episode short. Unreadable answers are the policy's own doing."""
        return self in (Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.CONTEXT_OVERFLOW, Stop.TIMEOUT)


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer of the policy and what came before it.

    `context` are the ids that were added to the stream before the answer: the task, the last observation with the template's
    scaffolding, a closing token that the harness had to add. Where the history was rewritten (`rewritten`) it is the whole
    prompt instead, and a new segment begins.
    """

    context: tuple[int, ...]
    ids: tuple[int, ...]  # as sampled, never decoded and encoded again; the end-of-turn token only if it was sampled
    logp: tuple[float, ...]  # of the sampled distribution, in nats
    version: tuple[int, ...]  # of the weights that sampled each token
    rewritten: bool = False
    reward: float = 0.0  # of the environment for this turn
    state: str = ""  # digest of the environment's state before the turn; equal states are anchors of GiGPO
    error: str | None = None  # the code of an answer that could not be read
    stopped: bool = True  # whether the answer ended by itself, not at the limit of tokens

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.logp) == len(self.version):
            raise ValueError(f"{len(self.ids)} ids, {len(self.logp)} log-probabilities, {len(self.version)} versions")


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One episode: turns in order, why it ended, and what it earned."""

    turns: tuple[Turn, ...]
    stop: Stop
    env: str = ""
    task: str = ""  # episodes of one task (and seed) are a group
    seed: int = 0
    attempt: int = 0
    outcome: float = 0.0  # the verifier's or the environment's score of the whole episode, without shaping
    success: bool = False
    closing: tuple[int, ...] = ()  # ids after the last answer, if any: context that is never trained
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def policy_tokens(self) -> int:
        """Sampled tokens of all turns."""
        return sum(len(turn.ids) for turn in self.turns)


@flax.struct.dataclass
class Batch:
    """B rows of up to T tokens. A row is a whole trajectory, or a segment of one whose history was rewritten.

    Inert rows fill the batch up to its fixed size: no token is theirs, and they enter no denominator.
    """

    tokens: jax.Array  # [B, T] int32, padded on the right
    real: jax.Array  # [B, T] bool, tokens that are not padding
    mask: jax.Array  # [B, T] bool M; never at position 0, which nothing predicts
    turn_id: jax.Array  # [B, T] int32, the turn's number within the trajectory; NO_TURN outside policy tokens
    logp_roll: jax.Array  # [B, T] float32, recorded when the token was sampled; meaningless at M = 0
    version: jax.Array  # [B, T] int32, of the weights that sampled the token; meaningless at M = 0
    rewards: jax.Array  # [B, T] float32, on the last policy token of the turn that earned them; 0 elsewhere
    terminated: jax.Array  # [B] bool
    truncated: jax.Array  # [B] bool, by `Stop.truncated`; never both
    outcome: jax.Array  # [B] float32, of the whole trajectory
    success: jax.Array  # [B] bool, of the whole trajectory
    group_id: jax.Array  # [B] int32 from 0; NO_GROUP for inert rows
    traj_id: jax.Array  # [B] int32 from 0; NO_GROUP for inert rows
    order: jax.Array  # [B] int32, the row's place within its trajectory

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        B, T = self.tokens.shape
        return B, T

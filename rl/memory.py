"""What of the past stands in a prompt when all of it would be too much: working and episodic memory (UI-TARS-2).

The newest turns stay whole: what was seen, and the answer as it was sampled. Of each older turn a line is left, after the task,
the oldest first. A mark can stand in the place of older observations. The task and the newest observation are always there. The
same history gives the same ids.
"""

import dataclasses
from collections.abc import Sequence

from envs.api import EnvSpec, Obs, StepResult, Task
from rl.codec import Codec
from rl.config import Memory

LEFT_OUT = "[observation left out]"
WHOLE = Memory()


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer as it was sampled."""

    ids: Sequence[int]
    stopped: bool  # whether it ended by itself


def assemble(
    memory: Memory, codec: Codec, spec: EnvSpec, task: Task | None, seen: Sequence[StepResult], answers: Sequence[Answer]
) -> list[int]:
    """The whole prompt of the next turn.

    Args:
      seen: every observation so far, one more than answers; the first is what the reset showed.
      answers: in order; each answered the observation at its place.
    """
    now = len(answers)
    kept = now if memory.turns is None else memory.turns
    for first in range(max(0, now - kept), now + 1):
        prompt = _prompt(memory, codec, spec, task, seen, answers, first)
        if memory.tokens is None or len(prompt) <= memory.tokens:
            break
    return prompt


def _prompt(
    memory: Memory,
    codec: Codec,
    spec: EnvSpec,
    task: Task | None,
    seen: Sequence[StepResult],
    answers: Sequence[Answer],
    first: int,
) -> list[int]:
    """The prompt whose whole turns begin with number ``first``."""
    lines = [f"{i + 1}. {codec.line(answer.ids, seen[i + 1], memory.line_tokens)}" for i, answer in enumerate(answers[:first])]
    shown = [_marked(memory, result, len(answers) - i) for i, result in enumerate(seen)]
    ids = codec.begin(shown[first].obs, spec, task, lines)
    for i in range(first, len(answers)):
        ids = [*ids, *answers[i].ids, *codec.observe(shown[i + 1], stopped=answers[i].stopped)]
    return ids


def _marked(memory: Memory, result: StepResult, age: int) -> StepResult:
    """The result, with a mark for an observation that is too old."""
    if memory.observations is None or age < memory.observations or age == 0:
        return result
    return dataclasses.replace(result, obs=Obs(text=LEFT_OUT))

"""The figures of a run: one JSON object a line, the same as TensorBoard's event files, and means over a batch.

Names are stable: ``reward/outcome``, ``success_rate``, ``turns``, ``policy_tokens_per_turn``, ``entropy``, ``ppo/...``,
``critic/...``, ``gae/...``, ``off/...``, ``groups/...``, ``env/...``, ``stop/...``, ``drift/...``, ``seconds/...``.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import UserError
from jaxllm.files import write_atomically
from rl.types import Stop, Trajectory

FILE = "metrics.jsonl"
MAX_LINE = 1 << 20


def of_episodes(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of episodes that ended by themselves or by a limit; failures are counted apart and enter no mean."""
    kept = [one for one in trajectories if not one.stop.failed]
    stops = Counter(one.stop for one in trajectories)
    figures = {f"stop/{stop.value}": stops[stop] / max(len(trajectories), 1) for stop in Stop}
    figures["env/failed_frac"] = (len(trajectories) - len(kept)) / max(len(trajectories), 1)
    figures["env/timeout"] = figures["stop/timeout"]
    figures["env/retries"] = float(sum(one.attempt for one in trajectories))
    if kept:
        turns = [turn for one in kept for turn in one.turns]
        figures |= {
            "reward/outcome": sum(one.outcome for one in kept) / len(kept),
            "success_rate": sum(one.success for one in kept) / len(kept),
            "turns": len(turns) / len(kept),
            "policy_tokens_per_turn": sum(len(turn.ids) for turn in turns) / max(len(turns), 1),
            "parse_errors": sum(turn.error is not None for turn in turns) / max(len(turns), 1),
            "rewritten": sum(turn.rewritten for turn in turns) / len(kept),
        }
    return figures


class Writer:
    """Writes the figures of a run. A resumed run goes on after the last line that is whole and not beyond its checkpoint."""

    def __init__(self, folder: Path, *, resume_at: int = 0):
        """
        Args:
          folder: of the run; made if it is missing.
          resume_at: the next update; lines from there on, of a run that went further than its checkpoint, are dropped.
        """
        from tensorboardX import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        cut(folder, resume_at)
        self._file = (folder / FILE).open("a", encoding="utf-8")
        self._events = SummaryWriter(str(folder / "events"), purge_step=resume_at)

    def write(self, update: int, figures: Mapping[str, float]) -> None:
        """Adds the figures of one update. A figure that is not finite is written as null."""
        row = {"update": update, **{name: value if math.isfinite(value) else None for name, value in sorted(figures.items())}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in figures.items():
            if math.isfinite(value):
                self._events.add_scalar(name, value, update)

    def close(self) -> None:
        """Flushes and closes both."""
        self._file.close()
        self._events.close()


def cut(folder: Path, resume_at: int, name: str = FILE) -> None:
    """Drops the lines of a run's file, made if it is missing, that are of the update ``resume_at`` or later."""
    kept = [row for row in read(folder, name) if row["update"] < resume_at] if (folder / name).exists() else []
    write_atomically(folder / name, "".join(json.dumps(row) + "\n" for row in kept).encode())


def read(folder: Path, name: str = FILE) -> Iterator[dict[str, Any]]:
    """The lines of a run's file, in order; one that was cut short at the end is left out.

    Raises UserError if the folder holds no run, or a line that is none of its figures.
    """
    try:
        lines = (folder / name).read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{folder / name}: cannot be read: {error.strerror}; is this the folder of a run?") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line) if len(line) < MAX_LINE else None
        except ValueError:
            if number == len(lines):
                return
            row = None
        if not isinstance(row, dict) or type(row.get("update")) is not int:
            raise UserError(f"{folder / name}, line {number}: no figures of an update")
        yield row

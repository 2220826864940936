"""Figures of a batch with known values, and the files of a run that is stopped, cut and gone on with."""

import json
import logging
import math
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxllm.errors import UserError
from rl import metrics
from rl.types import Stop, Trajectory, Turn


def episode(stop: Stop, outcome: float, *lengths: int, context: int = 5, errors: int = 0, attempt: int = 0) -> Trajectory:
    """Turns of so many sampled tokens, each after a context of its own."""
    turns = tuple(
        Turn((1,) * context, (2,) * n, (-0.5,) * n, (0,) * n, error="parse" if i < errors else None)
        for i, n in enumerate(lengths)
    )
    return Trajectory(turns, stop, outcome=outcome, success=outcome == 1, closing=(3,) * 7, attempt=attempt)


@pytest.fixture
def batch() -> list[Trajectory]:
    """Four episodes that count, of 7 turns with 14 sampled tokens, and one that failed."""
    return [
        episode(Stop.TERMINATED, 1.0, 2, 3),
        episode(Stop.TERMINATED, 0.5, 1, context=50),
        episode(Stop.MAX_TURNS, 0.0, 2, 2, 2, errors=1, attempt=1),
        episode(Stop.TIMEOUT, 1.0, 2),
        episode(Stop.ENV_ERROR, 0.0, 9, 9, 9, attempt=2),
    ]


def test_a_batch_with_known_values(batch: list[Trajectory]):
    figures = metrics.of_episodes(batch)
    assert figures["reward/outcome"] == 2.5 / 4
    assert figures["success_rate"] == 2 / 4
    assert figures["turns"] == 7 / 4
    assert figures["policy_tokens_per_turn"] == 2.0  # contexts and closings are not sampled
    assert figures["parse_errors"] == 1 / 7
    assert figures["env/failed_frac"] == 1 / 5
    assert figures["env/retries"] == 3


def test_a_failed_episode_is_no_reward_of_zero(batch: list[Trajectory]):
    with_failure, without = metrics.of_episodes(batch), metrics.of_episodes(batch[:-1])
    for name in ("reward/outcome", "success_rate", "turns", "policy_tokens_per_turn"):
        assert with_failure[name] == without[name]
    assert sum(one.outcome for one in batch) / len(batch) != with_failure["reward/outcome"]  # what counting it would say


def test_reasons_of_stopping_add_up_to_one(batch: list[Trajectory]):
    figures = metrics.of_episodes(batch)
    stops = {name: value for name, value in figures.items() if name.startswith("stop/")}
    assert set(stops) == {f"stop/{stop.value}" for stop in Stop}
    assert sum(stops.values()) == pytest.approx(1)
    assert stops["stop/terminated"] == 2 / 5
    assert stops["stop/env_error"] == 1 / 5


def test_nothing_that_counts_has_no_mean(batch: list[Trajectory]):
    figures = metrics.of_episodes(batch[-1:])
    assert figures["env/failed_frac"] == 1
    assert "reward/outcome" not in figures


def write(folder: Path, updates: range, *, resume_at: int = 0, value: float = 0.5) -> None:
    writer = metrics.Writer(folder, resume_at=resume_at)
    for update in updates:
        writer.write(update, {"success_rate": value, "entropy": update + 0.25})
    writer.close()


def events(folder: Path) -> list[Event]:
    """All records of the event files, in the order of the files; each is a length, two checksums and a message."""
    found = []
    for file in sorted((folder / "events").iterdir()):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def test_lines_and_events_say_the_same(tmp_path: Path):
    write(tmp_path, range(3))
    rows = list(metrics.read(tmp_path))
    assert [row["update"] for row in rows] == [0, 1, 2]
    assert rows[2] == {"update": 2, "success_rate": 0.5, "entropy": 2.25}
    scalars = {(value.tag, event.step): value.simple_value for event in events(tmp_path) for value in event.summary.value}
    assert scalars == {(name, row["update"]): row[name] for row in rows for name in ("success_rate", "entropy")}


def test_a_resumed_run_drops_what_is_beyond_its_checkpoint(tmp_path: Path):
    write(tmp_path, range(7), value=0.1)  # killed after update 7; the checkpoint is of update 5
    write(tmp_path, range(5, 8), resume_at=5, value=0.9)
    rows = list(metrics.read(tmp_path))
    assert [row["update"] for row in rows] == [*range(5), 5, 6, 7]
    assert [row["success_rate"] for row in rows] == [0.1] * 5 + [0.9] * 3
    starts = [event.step for event in events(tmp_path) if event.session_log.status == 1]  # TensorBoard hides what came later
    assert starts == [5]


def test_a_line_that_was_cut_at_the_end_is_left_out(tmp_path: Path):
    write(tmp_path, range(3))
    file = tmp_path / metrics.FILE
    whole = file.read_bytes()
    for cut in (1, 2, 20):
        file.write_bytes(whole[:-cut])
        assert len(list(metrics.read(tmp_path))) == (3 if cut == 1 else 2)  # without its newline alone it is whole
    write(tmp_path, range(2, 4), resume_at=2)
    assert [row["update"] for row in metrics.read(tmp_path)] == [0, 1, 2, 3]


def test_what_is_not_a_number_is_null(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    writer = metrics.Writer(tmp_path)
    writer.write(0, {"entropy": math.nan, "turns": math.inf, "success_rate": 1.0})
    writer.close()
    text = (tmp_path / metrics.FILE).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"update": 0, "entropy": None, "turns": None, "success_rate": 1.0}


@pytest.mark.parametrize("line", ["[]", "{}", '{"update": "0"}', '{"update": true}', "nonsense"])
def test_a_line_that_is_no_figures_is_named(tmp_path: Path, line: str):
    write(tmp_path, range(1))
    file = tmp_path / metrics.FILE
    file.write_text(file.read_text() + line + "\n" + file.read_text())
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: no figures of an update"):
        list(metrics.read(tmp_path))


def test_a_folder_without_a_run(tmp_path: Path):
    with pytest.raises(UserError, match="is this the folder of a run"):
        list(metrics.read(tmp_path))

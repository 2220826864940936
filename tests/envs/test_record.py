"""Recorded episodes: what the files hold, that a run goes on where it was, and that a replay sees every change."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envs import episode, record_folder, registry
from envs.api import Action, Invalid
from envs.digest import digest, session_seed
from envs.record import record
from envs.record_folder import SCHEMA, Run, parts
from envs.replay import Difference, replay
from jaxllm.errors import UserError
from tests.envs.toys import Toy


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FAMILIES, "toys", ("tests.envs.toys", "toys"))


def rows(path: Path) -> list[dict[str, Any]]:
    return sorted(pq.read_table(path / "steps").to_pylist(), key=lambda row: (row["episode"], row["step"]))


COUNT = Run("toys/count", "oracle", 7)


def test_a_row_is_what_was_seen_what_was_done_and_what_it_earned(tmp_path: Path):
    assert record(COUNT, 3, tmp_path / "out") == 3
    held = rows(tmp_path / "out")
    assert {row["episode"] for row in held} == {0, 1, 2}
    env = Toy("count")
    for number in range(3):
        own = [row for row in held if row["episode"] == number]
        seed = session_seed(7, "toys/count", number)
        obs = env.reset(seed=seed)
        for step, row in enumerate(own):
            assert (row["step"], row["seed"], row["name"], row["options"]) == (step, seed, "toys/count", "{}")
            assert row["text"] == obs.text
            assert row["digest"] == digest(env.state())
            assert row["task"] == f"count to {env.goal}"
            if step == len(own) - 1:
                assert [row[name] for name in SCHEMA.names[12:]] == [None] * 6
                break
            action = json.loads(row["action"])
            assert row["response"] == f"Action: add(n={action['arguments']['n']})"
            result = env.step(Action(action["name"], action["arguments"]))
            assert (row["reward"], row["terminated"], row["truncated"]) == (result.reward, result.terminated, result.truncated)
            assert json.loads(row["info"])["effect"] == "changed"
            obs = result.obs
        assert own[-2]["terminated"]
        assert sum(row["reward"] for row in own[:-1]) == 1
        assert json.loads(own[-2]["info"])["success"] is True


def test_pictures_are_kept_once_under_their_hash(tmp_path: Path):
    record(Run("toys/screen", "oracle"), 4, tmp_path)
    files = sorted((tmp_path / "images").iterdir())
    assert len(files) == 2  # before and after the click, whatever the seed
    for file in files:
        assert file.name == f"{hashlib.sha256(file.read_bytes()).hexdigest()}.png"
    held = rows(tmp_path)
    assert {row["image"] for row in held} == {file.stem for file in files}
    assert json.loads(held[0]["elements"])[0] == {
        "id": 1,
        "role": "button",
        "text": "it",
        "box": [20.0, 30.0, 60.0, 50.0],
        "attributes": {"focused": False},
    }
    assert held[0]["response"] == "Action: click(point='<point>40.0 40.0</point>')"


def test_arrays_are_kept_under_the_hash_of_their_values(tmp_path: Path):
    record(Run("toys/arrays", "random"), 2, tmp_path)
    for row in rows(tmp_path):
        with np.load(tmp_path / "arrays" / f"{row['arrays']}.npz", allow_pickle=False) as held:
            assert record_folder.arrays_hash(held) == row["arrays"]
            assert set(held) == {"value", "grid"}
    one = {"x": np.arange(6)}
    assert record_folder.arrays_hash(one) == record_folder.arrays_hash({"x": np.arange(6)})
    others = ({"y": np.arange(6)}, {"x": np.arange(6).reshape(2, 3)}, {"x": np.arange(6.0)}, {"x": np.arange(6)[::-1]})
    assert len({record_folder.arrays_hash(arrays) for arrays in (one, *others)}) == 5


def test_refused_actions_are_rows_without_a_response(tmp_path: Path):
    run = Run("toys/count", "oracle")
    answers = iter([Action("fly"), Invalid("no_action", "said nothing"), Action("add", {"n": 1}), None])
    turns = episode.run_episode(Toy("count"), lambda state, obs: next(answers), seed=run.episode_seed(0))
    with record_folder.open_folder(tmp_path, run, registry.describe("toys/count")) as folder:
        folder.add(0, turns)
    held = rows(tmp_path)
    assert [row["response"] for row in held] == [None, None, "Action: add(n=1)", None]
    assert [row["action"] and json.loads(row["action"]).get("error") for row in held] == [None, "no_action", None, None]
    assert json.loads(held[0]["info"])["error"] == "unknown_action"
    assert replay(tmp_path) == (1, [])


def test_a_run_goes_on_where_it_was(tmp_path: Path):
    told: list[int] = []

    def report(number: int, end: episode.Outcome) -> None:
        told.append(number)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(COUNT, 5, tmp_path, report=report)
    assert sorted({row["episode"] for row in rows(tmp_path)}) == [0, 1, 2]
    assert record(COUNT, 5, tmp_path) == 2
    assert record(COUNT, 5, tmp_path) == 0
    assert record(COUNT, 6, tmp_path) == 1
    once = rows(tmp_path)
    assert len(parts(tmp_path)) == 3
    record(COUNT, 6, tmp_path / "other")
    steady = [{**row, "info": None} for row in once]
    assert steady == [{**row, "info": None} for row in rows(tmp_path / "other")]


def test_the_same_episodes_come_from_many_environments_at_once(tmp_path: Path):
    run = Run("tests.envs.toys:Toy", "random", 7)
    record(run, 5, tmp_path / "one")
    record(run, 5, tmp_path / "many", num_envs=3, workers=1)
    columns = [name for name in SCHEMA.names if name != "info"]
    one, many = ([{name: row[name] for name in columns} for row in rows(tmp_path / name)] for name in ("one", "many"))
    assert one == many
    assert replay(tmp_path / "many") == (5, [])


def test_stopping_early_is_kept_and_replayed(tmp_path: Path):
    record(Run("toys/count", "random", max_steps=2), 3, tmp_path)
    assert max(row["step"] for row in rows(tmp_path)) <= 2
    assert replay(tmp_path) == (3, [])


def test_options_are_those_of_the_environment(tmp_path: Path):
    record(Run("toys/count", "oracle", options={"start": 4}), 1, tmp_path)
    first = rows(tmp_path)[0]
    assert first["options"] == '{"start": 4}'
    assert first["text"].startswith("4 of ")
    assert replay(tmp_path) == (1, [])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Run("toys/count", "oracle", 8), "holds episodes with seed 7, not 8"),
        (Run("toys/count", "random", 7), "policy 'oracle', not 'random'"),
        (Run("toys/count", "oracle", 7, {"start": 1}), "options {}, not {'start': 1}"),
        (Run("toys/count", "oracle", 7, {}, 3), "max steps None, not 3"),
        (Run("toys/screen", "oracle", 7), "name 'toys/count', not 'toys/screen'"),
    ],
)
def test_episodes_of_another_kind_are_not_mixed(other: Run, message: str, tmp_path: Path):
    record(COUNT, 1, tmp_path)
    with pytest.raises(UserError, match=message):
        record(other, 1, tmp_path)


@pytest.mark.parametrize(
    ("run", "count", "message"),
    [
        (Run("toys/count", "oracle"), 0, "must be at least 1"),
        (Run("toys/count", "wise"), 1, "there is no policy 'wise'; there are oracle, random"),
        (Run("toys/arrays", "oracle"), 1, "has no oracle; play it with --policy random"),
        (Run("toys/none", "oracle"), 1, "there is no toys/none"),
        (Run("toys/count", "oracle", options={"x": 1}), 1, "has the option start, not x"),
        (Run("toys/lost", "random"), 1, "episode 0 was lost 3 times: its process is gone"),
    ],
)
def test_wrong_requests_are_one_message(run: Run, count: int, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        record(run, count, tmp_path)


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files, such as thesis\.txt"):
        record(COUNT, 1, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_one_writer_at_a_time(tmp_path: Path):
    spec = registry.describe("toys/count")
    with (
        record_folder.open_folder(tmp_path, COUNT, spec),
        pytest.raises(UserError, match="another run is writing"),
        record_folder.open_folder(tmp_path, COUNT, spec),
    ):
        pass
    with record_folder.open_folder(tmp_path, COUNT, spec):
        pass


def test_a_replay_of_the_same_is_the_same(tmp_path: Path):
    for number, name in enumerate(("count", "screen")):
        record(Run(f"toys/{name}", "oracle"), 2, tmp_path / str(number))
        assert replay(tmp_path / str(number)) == (2, [])
    record(Run("toys/arrays", "random"), 2, tmp_path / "arrays")
    assert replay(tmp_path / "arrays") == (2, [])


def test_an_environment_that_drifts_is_found_out(tmp_path: Path):
    record(Run("toys/drift", "random"), 2, tmp_path)
    count, differences = replay(tmp_path)
    assert count == 2
    assert [(one.episode, one.step, one.column) for one in differences] == [(0, 0, "text"), (1, 0, "text")]


def change(column: str, value: Any, step: int = 0) -> Callable[[Path], None]:
    """Overwrites a value of the second episode."""

    def tamper(path: Path) -> None:
        (part,) = parts(path)
        held = pq.read_table(part).to_pylist()
        (row,) = [row for row in held if (row["episode"], row["step"]) == (1, step)]
        row[column] = value(row[column]) if callable(value) else value
        pq.write_table(pa.Table.from_pylist(held, SCHEMA), part)

    return tamper


def other_picture(path: Path) -> None:
    first, second = sorted((path / "images").iterdir())
    first.write_bytes(second.read_bytes())


def no_picture(path: Path) -> None:
    for file in (path / "images").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("tamper", "column"),
    [
        (change("reward", 0.5), "reward"),
        (change("terminated", False), "terminated"),
        (change("truncated", True), "truncated"),
        (change("info", '{"effect": "unchanged", "stuck_steps": 0, "success": true}'), "info"),
        (change("digest", "0" * 64), "digest"),
        (change("digest", "0" * 64, step=1), "digest"),
        (change("elements", None), "elements"),
        (change("text", "said"), "text"),
        (change("t_virtual", 0.1), "t_virtual"),
        (change("image", None), "image"),
        (change("image", "f" * 64), "file"),
        (change("action", '{"name": "wait", "arguments": {}}'), "reward"),
        (change("action", "{"), "action"),
        (change("action", "[]"), "action"),
        (change("action", None), "action"),
        (change("step", 5, step=1), "action"),
        (other_picture, "file"),
        (no_picture, "file"),
    ],
)
def test_a_tampered_record_is_noticed(tamper: Callable[[Path], None], column: str, tmp_path: Path):
    record(Run("toys/screen", "oracle"), 2, tmp_path)
    tamper(tmp_path)
    count, differences = replay(tmp_path)
    assert count == 2
    assert differences
    assert {one.column for one in differences} == {column}
    assert differences[-1].episode == 1
    assert all(isinstance(one, Difference) and one.recorded != one.found for one in differences)


def test_what_differs_from_run_to_run_is_no_difference(tmp_path: Path):
    record(Run("toys/screen", "oracle"), 2, tmp_path)
    change("info", lambda info: json.dumps({**json.loads(info), "latency": 1e6}))(tmp_path)
    assert replay(tmp_path) == (2, [])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "record.json").unlink(), "name a folder that `jaxllm envs record` wrote"),
        (lambda path: (path / "record.json").write_text("{"), "no JSON"),
        (lambda path: (path / "record.json").write_text("[]"), "not of the format 'jaxllm episodes'"),
        (lambda path: (path / "record.json").write_bytes(b" " * (2 << 20)), "too large"),
        (lambda path: parts(path)[0].write_bytes(b"PAR1" + b"x" * 100), "cannot be read"),
        (lambda path: parts(path)[0].write_bytes(parts(path)[0].read_bytes()[:-20]), "cannot be read"),
        (lambda path: pq.write_table(pa.table({"a": [1]}), parts(path)[0]), "its columns are not those"),
        (lambda path: parts(path)[0].unlink(), "holds no episodes yet"),
    ],
)
def test_a_damaged_folder_is_one_message(damage: Callable[[Path], Any], message: str, tmp_path: Path):
    record(COUNT, 1, tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        replay(tmp_path)


@pytest.mark.parametrize("key", ["name", "policy", "seed", "options", "max_steps"])
def test_a_damaged_description_names_the_key(key: str, tmp_path: Path):
    record(COUNT, 1, tmp_path)
    file = tmp_path / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: [1]}))
    with pytest.raises(UserError, match=f"{key} is "):
        replay(tmp_path)


def test_text_that_unicode_cannot_hold_is_kept_readable(tmp_path: Path):
    turns = episode.run_episode(Toy("count"), lambda state, obs: None)
    odd = [episode.Turn(record_folder.Obs(text="half \ud83d"), turns[0].digest, None, None)]
    with record_folder.open_folder(tmp_path, COUNT, registry.describe("toys/count")) as folder:
        folder.add(0, odd, "half \ud83d")
    assert rows(tmp_path)[0]["text"] == "half ?"

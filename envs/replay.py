"""Replay: recorded episodes are done again, and every hash, digest and reward must come out as recorded."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.api import Env, Json, LostError
from envs.base import decode
from envs.browser.errors import CrashedError, HungError
from envs.digest import digest
from envs.record_folder import VOLATILE, image_name, led_to, parts, read_part, read_run, seen
from envs.registry import make
from jaxllm.errors import UserError

SEEN_COLUMNS = ("text", "image", "elements", "arrays", "t_virtual", "digest")
RESULT_COLUMNS = ("reward", "terminated", "truncated", "info")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where a replay leaves its record. One an episode: what follows from it is not followed."""

    episode: int
    step: int
    column: str  # of the record, or "file", "action", "environment"
    recorded: str
    found: str


def replay(path: Path, report: Callable[[int], Any] = lambda _: None) -> tuple[int, list[Difference]]:
    """Plays all episodes of a folder again; returns how many there are and the differences, by episode.

    Pictures are checked against their names first, then each observation, digest, reward and end against its row.

    Args:
      report: told the number of each episode that is done.

    Raises:
      UserError: no folder of episodes, a damaged file, or an environment that can't be made here.
    """
    run = read_run(path)
    differences: list[Difference] = []
    count = 0
    env: Env | None = None
    try:
        for part in parts(path):
            for episode, rows in by_episode(read_part(part).to_pylist()):
                found = files_differ(path, rows)
                if found is None:
                    env = env or make(run.name, **run.options)
                    try:
                        found = _again(env, episode, rows)
                    except (LostError, CrashedError, HungError) as error:
                        found = Difference(episode, len(rows) - 1, "environment", "alive", f"lost: {error}")
                        env.close()
                        env = None
                if found is not None:
                    differences.append(found)
                count += 1
                report(episode)
    finally:
        if env is not None:
            env.close()
    if not count:
        raise UserError(f"{path}: holds no episodes yet; record some with `jaxllm envs record`")
    return count, sorted(differences, key=lambda difference: difference.episode)


def by_episode(rows: list[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The rows of each episode, in order of their steps."""
    episodes: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        episodes.setdefault(row["episode"], []).append(row)
    for episode, own in episodes.items():
        yield episode, sorted(own, key=lambda row: row["step"])


def files_differ(path: Path, rows: list[dict[str, Any]]) -> Difference | None:
    """The first picture or set of arrays of these rows that is missing, or not what its name says."""
    for row in rows:
        if row["image"] is not None:
            held = [path / "images" / image_name(row["image"], head) for head in (b"", bytes([0xFF, 0xD8]))]
            file = next((name for name in held if name.is_file()), None)
            if file is None:
                return Difference(row["episode"], row["step"], "file", row["image"], "no such picture")
            with file.open("rb") as data:
                found = hashlib.file_digest(data, "sha256").hexdigest()
            if found != row["image"]:
                return Difference(row["episode"], row["step"], "file", row["image"], f"{file.name} holds {found}")
        if row["arrays"] is not None and not (path / "arrays" / f"{row['arrays']}.npz").is_file():
            return Difference(row["episode"], row["step"], "file", row["arrays"], "no such arrays")
    return None


def _again(env: Env, episode: int, rows: list[dict[str, Any]]) -> Difference | None:
    """Plays one episode; the first difference."""
    for place, row in enumerate(rows):
        last = place == len(rows) - 1
        if row["step"] != place or (row["action"] is None) != last:
            return Difference(
                episode, row["step"], "action", "a row for each step, the last without an action", "another order"
            )
    obs = env.reset(None, rows[0]["seed"])
    for row in rows:
        if difference := _compare(row, seen(obs, digest(env.state())), SEEN_COLUMNS):
            return difference
        if row["action"] is None:
            break
        try:
            action = decode(json.loads(row["action"]))
        except (ValueError, UserError) as error:
            return Difference(episode, row["step"], "action", row["action"][:200], str(error))
        result = env.step(action)
        if difference := _compare(row, led_to(result), RESULT_COLUMNS):
            return difference
        obs = result.obs
    return None


def _compare(row: Mapping[str, Any], found: Mapping[str, Any], columns: tuple[str, ...]) -> Difference | None:
    for column in columns:
        there, here = row[column], found[column]
        if column == "info":
            there, here = steady(there), steady(here)
        if there != here:
            return Difference(row["episode"], row["step"], column, str(there), str(here))
    return None


def steady(info: str | None) -> Json:
    """What an action's info says, without what differs from run to run."""
    try:
        data = json.loads(info or "null")
    except ValueError:
        return info
    return {key: data[key] for key in data if key not in VOLATILE} if isinstance(data, dict) else data

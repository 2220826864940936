"""Episodes on disk: a row for each turn as Parquet, and pictures beside them by their hash.

    record.json              what was asked for: environment, options, policy, seed, limits, and the actions it understands
    steps/00000.parquet      the rows of some whole episodes; see `SCHEMA`
    images/<sha256>.png      each screenshot once (.jpg where the environment gives JPEG)
    arrays/<sha256>.npz      each set of arrays once, of environments without screen or text

A row holds what the agent saw, what it answered, and what that earned; the last row of an episode is the sight of its end,
without an action. Every file appears whole or not at all, and a run that was ended is gone on with.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from envs.api import EnvSpec, Json, Obs, StepResult
from envs.base import encode
from envs.digest import session_seed
from envs.episode import Turn
from envs.files import only_writer
from envs.policies import response, signature
from jaxllm.errors import UserError
from jaxllm.files import write_atomically

FORMAT = "jaxllm episodes"
VERSION = 1
PART_EPISODES = 256  # most episodes of one Parquet file
PART_SECONDS = 20.0  # after which the finished episodes are written
MAX_META_BYTES = 1 << 20
MAX_PART_BYTES = 4 << 30
VOLATILE = ("latency",)  # of `info`: differs from run to run

SCHEMA = pa.schema(
    [
        ("episode", pa.int64()),  # from 0
        ("step", pa.int32()),  # actions taken before
        ("name", pa.string()),  # of the environment
        ("options", pa.string()),  # of `envs.make`, JSON
        ("seed", pa.int64()),  # of the reset
        ("task", pa.string()),  # the instruction, where the environment tells it
        ("text", pa.string()),  # what the agent saw; null without
        ("image", pa.string()),  # sha256 of the screenshot's file; null without
        ("elements", pa.string()),  # JSON; null without
        ("arrays", pa.string()),  # sha256; null without
        ("t_virtual", pa.float64()),  # seconds
        ("digest", pa.string()),  # of the state, see `envs.digest`
        ("action", pa.string()),  # JSON; null on the last row, as all that follows
        ("response", pa.string()),  # the same in the agent's language; null for an action that was refused
        ("reward", pa.float64()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("info", pa.string()),  # JSON
    ]
)


@dataclasses.dataclass(frozen=True)
class Run:
    """What was asked for: the same for every episode of a folder."""

    name: str
    policy: str
    seed: int = 0
    options: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    max_steps: int | None = None  # None: the environment's own limit

    def episode_seed(self, episode: int) -> int:
        """The seed of one episode: the same whoever plays it, and in any order."""
        return session_seed(self.seed, self.name, episode)


class Folder:
    """A folder of episodes, opened for writing or for reading.

    Raises UserError where the folder holds something else, or episodes that were asked for in another way.
    """

    def __init__(self, path: Path, run: Run, spec: EnvSpec) -> None:
        self.path, self.run, self.spec = path, run, spec
        self._waiting: list[list[dict[str, Any]]] = []
        self._written = time.monotonic()
        if (path / "record.json").exists():
            _same(path, read_run(path), run)
            self.done = episodes(path)
        else:
            _empty(path)
            for name in ("steps", "images", "arrays"):
                (path / name).mkdir(exist_ok=True)
            write_atomically(path / "record.json", _meta(run, spec))
            self.done = set()

    def add(self, episode: int, turns: Sequence[Turn], task: str | None = None) -> None:
        """Takes a whole episode. Its pictures are written now, its rows with those of others."""
        common = {
            "episode": episode,
            "name": self.run.name,
            "options": _json(self.run.options),
            "seed": self.run.episode_seed(episode),
            "task": _text(task),
        }
        rows = []
        for step, turn in enumerate(turns):
            rows.append({**common, "step": step, **seen(turn.obs, turn.digest), **_done(turn, self.spec)})
            self._keep(turn.obs, rows[-1])
        self._waiting.append(rows)
        self.done.add(episode)
        if len(self._waiting) >= PART_EPISODES or time.monotonic() - self._written > PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait."""
        if self._waiting:
            rows = [row for episode in self._waiting for row in episode]
            data = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), data, compression="zstd")
            number = max((int(part.stem) for part in parts(self.path)), default=-1) + 1
            write_atomically(self.path / "steps" / f"{number:05}.parquet", data.getvalue())
            self._waiting = []
        self._written = time.monotonic()

    def _keep(self, obs: Obs, row: Mapping[str, Any]) -> None:
        if obs.screenshot is not None:
            path = self.path / "images" / image_name(row["image"], obs.screenshot)
            if not path.exists():
                write_atomically(path, obs.screenshot)
        if obs.arrays:
            path = self.path / "arrays" / f"{row['arrays']}.npz"
            if not path.exists():
                data = io.BytesIO()
                arrays: Any = dict(obs.arrays)
                np.savez_compressed(data, **arrays)
                write_atomically(path, data.getvalue())


@contextlib.contextmanager
def open_folder(path: Path, run: Run, spec: EnvSpec) -> Iterator[Folder]:
    """The folder for one writer; what waits is written at the end, also after Ctrl-C."""
    with only_writer(path):
        folder = Folder(path, run, spec)
        try:
            yield folder
        finally:
            folder.flush()


def seen(obs: Obs, digest: str) -> dict[str, Any]:
    """The columns of an observation."""
    elements = [dataclasses.asdict(element) for element in obs.elements]
    return {
        "text": _text(obs.text),
        "image": None if obs.screenshot is None else hashlib.sha256(obs.screenshot).hexdigest(),
        "elements": _json(elements) if elements else None,
        "arrays": arrays_hash(obs.arrays) if obs.arrays else None,
        "t_virtual": float(obs.t_virtual),
        "digest": digest,
    }


def led_to(result: StepResult) -> dict[str, Any]:
    """The columns of what an action led to."""
    return {
        "reward": float(result.reward),
        "terminated": bool(result.terminated),
        "truncated": bool(result.truncated),
        "info": _json(dict(result.info)),
    }


def _done(turn: Turn, spec: EnvSpec) -> dict[str, Any]:
    if turn.action is None or turn.result is None:
        return {}
    return {"action": _json(encode(turn.action)), "response": _text(response(turn.action, spec)), **led_to(turn.result)}


def arrays_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 over the names, types, shapes and values of arrays."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(json.dumps([name, array.dtype.str, list(arrays[name].shape)]).encode())
        found.update(array.tobytes())
    return found.hexdigest()


def image_name(sha256: str, data: bytes) -> str:
    """The name of a picture's file."""
    return f"{sha256}.{'jpg' if data[:2] == bytes([0xFF, 0xD8]) else 'png'}"


def parts(path: Path) -> list[Path]:
    """The Parquet files of a folder, in order."""
    return sorted(part for part in (path / "steps").glob("*.parquet") if re.fullmatch(r"[0-9]{5,}", part.stem))


def read_part(part: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one file. Raises UserError where it is damaged or has other columns than `SCHEMA`."""
    try:
        if part.stat().st_size > MAX_PART_BYTES:
            raise UserError(f"{part}: {part.stat().st_size} bytes is too large for a file of episodes")
        with pq.ParquetFile(part) as file:
            if not file.schema_arrow.equals(SCHEMA):
                raise UserError(f"{part}: its columns are not those of {FORMAT}, version {VERSION}")
            return file.read(columns)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{part}: cannot be read: {error}; remove it and record again: its episodes are made anew") from None


def episodes(path: Path) -> set[int]:
    """The numbers of the episodes that a folder holds."""
    return {number for part in parts(path) for number in read_part(part, ["episode"])["episode"].unique().to_pylist()}


def read_run(path: Path) -> Run:
    """What a folder's episodes were asked for with. Raises UserError where it is not a folder of episodes."""
    file = path / "record.json"
    try:
        if file.stat().st_size > MAX_META_BYTES:
            raise UserError(f"{file}: too large; it is not one that `jaxllm envs record` wrote")
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; name a folder that `jaxllm envs record` wrote") from None
    except ValueError as error:
        raise UserError(f"{file}: no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise UserError(f"{file}: it is not of the format {FORMAT!r}, version {VERSION}")
    kinds = {"name": str, "policy": str, "seed": int, "options": dict, "max_steps": int | None}
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind) or isinstance(data.get(key), bool):
            raise UserError(f"{file}: {key} is {str(data.get(key))[:80]!r}")
    return Run(**{key: data[key] for key in kinds})


def _same(path: Path, found: Run, asked: Run) -> None:
    for field in dataclasses.fields(Run):
        there, here = getattr(found, field.name), getattr(asked, field.name)
        if there != here:
            raise UserError(
                f"{path} holds episodes with {field.name.replace('_', ' ')} {there!r}, not {here!r}; choose another --out"
            )


def _empty(path: Path) -> None:
    if found := sorted(entry.name for entry in path.iterdir()):
        raise UserError(f"{path} holds other files, such as {found[0]}; choose an empty folder or one of recorded episodes")


def _meta(run: Run, spec: EnvSpec) -> bytes:
    facts = {
        "format": FORMAT,
        "version": VERSION,
        **dataclasses.asdict(run),
        "about": spec.about,
        "actions": {signature(action): action.about for action in spec.actions},
        "screen_wh": spec.screen_wh,
        "supports": sorted(spec.supports),
        "success": spec.success,
    }
    return (json.dumps(facts, indent=1) + "\n").encode()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _text(value: str | None) -> str | None:
    """Text that UTF-8 can hold: a page may show half of a surrogate pair."""
    return None if value is None else value.encode(errors="replace").decode()

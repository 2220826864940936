"""The ScreenSpot benchmarks: their annotation files as data.

Four sets with three habits: ScreenSpot and its second version give a box as x, y, width, height, ScreenSpot-Pro as its two
corners, a mirror as corners in shares of the picture. Which one a file has is stated, never guessed, and a box that would only
make sense the other way is refused.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import UserError
from rewards.picture_size import picture_size

MAX_FILE = 256 << 20  # bytes of one annotation file
SLACK = 1.0  # pixels by which a box may leave its picture
PIXELS = 1000.0  # of a picture whose size is not known, where a box in shares is checked
PLATFORMS = {
    "windows": "desktop",
    "macos": "desktop",
    "ios": "mobile",
    "android": "mobile",
}  # data_source -> platform; else web
NO_SIZE = 0  # width and height of a picture whose size is not known
KINDS = ("text", "icon")
BOX_FORMATS = {
    "xywh": "left, top, width, height in pixels",
    "xyxy": "left, top, right, bottom in pixels",
    "xyxy01": "left, top, right, bottom in shares of the picture",
}


@dataclasses.dataclass(frozen=True)
class Set:
    """How the files of one benchmark are laid out."""

    pattern: str  # of the annotation files
    box_format: str  # in which its published files give boxes
    cell: str  # what makes a row of its table: "platform" or "group"
    rows: tuple[str, ...]  # in the order of the published table; others follow
    count: int | None  # samples of the whole set, where published
    source: str


SETS = {
    "screenspot": Set("screenspot_*.json", "xywh", "platform", ("mobile", "desktop", "web"), 1272, "arXiv 2401.10935"),
    "screenspot-v2": Set("screenspot_*_v2.json", "xywh", "platform", ("mobile", "desktop", "web"), 1272, "arXiv 2410.23218"),
    "screenspot-v2-variants": Set("*.json", "xyxy", "platform", (), None, "screenspot_v2 with instructions in several styles"),
    "screenspot-pro": Set(
        "*.json", "xyxy", "group", ("CAD", "Dev", "Creative", "Scientific", "Office", "OS"), 1581, "arXiv 2504.07981"
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Annotations:
    """The samples of a set, N of them."""

    which: str  # a name of `SETS`
    ids: tuple[str, ...]  # the file's own, or else "<platform>/<place in its file, from 0>"
    boxes: np.ndarray  # float64 [N, 4] x1, y1, x2, y2
    frame: str  # of the boxes: "orig", or "norm01" where the files have shares
    size_wh: np.ndarray  # int64 [N, 2]; NO_SIZE where it is not known
    rows: tuple[str, ...]  # platform or group: the row of the table
    kinds: tuple[str, ...]  # "text" or "icon"
    instructions: tuple[str, ...]
    pictures: tuple[str, ...]  # names of the picture files

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True)
class _Entry:
    place: str  # file and position, for messages
    id: str
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    row: str
    kind: str
    instruction: str
    picture: str


def read_annotations(folder: str | Path, which: str, *, box_format: str, pictures: str | Path | None = None) -> Annotations:
    """Reads a set's annotation files.

    Args:
      folder: the folder that holds the JSON files, or one such file.
      which: a name of `SETS`.
      box_format: a name of `BOX_FORMATS`; ``SETS[which].box_format`` for the published files.
      pictures: folder of the pictures, for sets whose files do not give their size. Only the first bytes are read.

    Raises:
      UserError: no file, a damaged one, a missing field, an id twice, a box that is none, or one that leaves its picture in the
        stated format and would fit in the other.
    """
    if which not in SETS:
        raise UserError(f"set {which!r} is unknown; there are {', '.join(SETS)}")
    if box_format not in BOX_FORMATS:
        raise UserError(f"box format {box_format!r} is unknown; there are {', '.join(BOX_FORMATS)}")
    folder = Path(folder)
    files = [folder] if folder.is_file() else sorted(folder.glob(SETS[which].pattern))
    if which == "screenspot":
        files = [file for file in files if not file.stem.endswith("_v2")]
    if not files:
        raise UserError(f"{folder}: no file {SETS[which].pattern} here")
    size_of = _sizes(Path(pictures)) if pictures is not None else lambda name: (NO_SIZE, NO_SIZE)
    entries = [entry for file in files for entry in _file(file, which, size_of)]
    seen: dict[str, str] = {}
    for entry in entries:
        if entry.id in seen:
            raise UserError(f"{entry.place}: the id {entry.id} is also at {seen[entry.id]}")
        seen[entry.id] = entry.place
    return Annotations(
        which=which,
        ids=tuple(entry.id for entry in entries),
        boxes=_boxes(entries, box_format),
        frame="norm01" if box_format == "xyxy01" else "orig",
        size_wh=np.array([entry.size for entry in entries], np.int64).reshape(-1, 2),
        rows=tuple(entry.row for entry in entries),
        kinds=tuple(entry.kind for entry in entries),
        instructions=tuple(entry.instruction for entry in entries),
        pictures=tuple(entry.picture for entry in entries),
    )


def _file(path: Path, which: str, size_of: Callable[[str], tuple[int, int]]) -> Iterator[_Entry]:
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"{path}: more than {MAX_FILE >> 20} MB is no annotation file")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON: {error}") from None
    if not isinstance(data, list):
        raise UserError(f"{path}: a list of samples is expected")
    platform = path.stem.removeprefix("screenspot_").removesuffix("_v2")
    for i, values in enumerate(data):
        place = f"{path}, sample {i}"
        if not isinstance(values, dict):
            raise UserError(f"{place}: an object is expected")
        picture = _field(values, place, "img_filename", "file_name")
        size = _size(values, place) or size_of(picture)
        row = _field(values, place, SETS[which].cell) if SETS[which].cell in values else platform
        if row == platform and SETS[which].rows and platform not in SETS[which].rows and "data_source" in values:
            row = PLATFORMS.get(_field(values, place, "data_source"), "web")
        kind = _field(values, place, "ui_type", "data_type")
        if kind not in KINDS:
            raise UserError(f"{place}: ui_type must be text or icon, not {kind!r}")
        own = values.get("id")
        name = own if isinstance(own, str) and own else f"{platform}/{i}"
        box = _box(values, place)
        instruction = values.get("instruction")
        styles = instruction if isinstance(instruction, dict) else {"": instruction}
        for style, text in styles.items():
            if not isinstance(text, str):
                raise UserError(f"{place}: instruction must be text")
            yield _Entry(place, f"{name}/{style}" if style else name, box, size, row, kind, text, picture)


def _field(values: dict[str, Any], place: str, *names: str) -> str:
    for name in names:
        if name in values:
            if not isinstance(values[name], str):
                raise UserError(f"{place}: {name} must be text")
            return values[name]
    raise UserError(f"{place}: {' or '.join(names)} is missing")


def _size(values: dict[str, Any], place: str) -> tuple[int, int] | None:
    size = values.get("img_size")
    if size is None:
        return None
    if not (isinstance(size, list) and len(size) == 2 and all(type(x) is int and x > 0 for x in size)):
        raise UserError(f"{place}: img_size must be [width, height]")
    return size[0], size[1]


def _box(values: dict[str, Any], place: str) -> tuple[float, float, float, float]:
    box = values.get("bbox")
    if not (isinstance(box, list) and len(box) == 4 and all(type(x) in (int, float) and math.isfinite(x) for x in box)):
        raise UserError(f"{place}: bbox must be a list of four finite numbers")
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])


def _sizes(folder: Path) -> Callable[[str], tuple[int, int]]:
    known: dict[str, tuple[int, int]] = {}

    def size_of(name: str) -> tuple[int, int]:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{name}: leads out of the folder of pictures {folder}")
        if name not in known:
            known[name] = picture_size(path)
        return known[name]

    return size_of


def _boxes(entries: list[_Entry], box_format: str) -> np.ndarray:
    """Corners [N, 4]. Raises UserError at the first box that is none within its picture."""
    raw = np.array([entry.box for entry in entries], np.float64).reshape(-1, 4)
    size = np.array([entry.size for entry in entries], np.float64).reshape(-1, 2)
    corners, fits = _read_as(raw, size, box_format)
    if box_format != "xyxy01" and len(raw) and raw.max() <= 1:
        fits[:] = False  # all of them smaller than a pixel
    for i in np.flatnonzero(~fits).tolist():
        box, place, (width, height) = list(entries[i].box), entries[i].place, entries[i].size
        picture = f"the picture of {width} x {height}" if width != NO_SIZE else "any picture"
        message = f"{place}: the box {box} lies in no way within {picture} as {box_format} ({BOX_FORMATS[box_format]})"
        others = [
            f"{name} ({why})" for name, why in BOX_FORMATS.items() if _read_as(raw[i : i + 1], size[i : i + 1], name)[1][0]
        ]
        if others:
            message += f"; it would as {' or '.join(others)}: are these the files of another set?"
        raise UserError(message)
    return corners


def _read_as(raw: np.ndarray, size: np.ndarray, box_format: str) -> tuple[np.ndarray, np.ndarray]:
    """Corners [N, 4] of boxes in a format, and which are proper and within their picture, up to a pixel."""
    corners = np.concatenate([raw[:, :2], raw[:, :2] + raw[:, 2:]], axis=1) if box_format == "xywh" else raw
    if box_format == "xyxy01":
        far, slack = np.ones_like(size), SLACK / np.where(size == NO_SIZE, PIXELS, size)
    else:
        far, slack = np.where(size == NO_SIZE, np.inf, size), np.full_like(size, SLACK)
    low, high = corners[:, :2], corners[:, 2:]
    return corners, np.all((high > low) & (low >= -slack) & (high <= far + slack), axis=1)

"""The ScreenSpot readers and metric: files in the published layouts, and the published counts."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.errors import UserError
from jaxllm.frames import PRESETS
from jaxllm.intervals import rate
from rewards.picture_size import picture_size
from rewards.screenspot import NO_SIZE, SETS, Annotations, read_annotations
from rewards.screenspot_metric import Cell, Clicks, Reader, evaluate, facts, inside, read_predictions, table

# Cell -> correct, total; the averages printed with them (section 7.3 of the specification, arXiv 2507.15846). The printed mean
# of the cells is that of figures which were rounded to one decimal before.
Counts = dict[tuple[str, str], tuple[int, int]]
V1 = {
    ("mobile", "text"): (264, 273),
    ("mobile", "icon"): (208, 229),
    ("desktop", "text"): (186, 194),
    ("desktop", "icon"): (124, 140),
    ("web", "text"): (209, 230),
    ("web", "icon"): (179, 206),
}
V2 = {
    ("mobile", "text"): (285, 290),
    ("mobile", "icon"): (194, 211),
    ("desktop", "text"): (185, 194),
    ("desktop", "icon"): (125, 140),
    ("web", "text"): (220, 234),
    ("web", "icon"): (178, 203),
}
PRO = {
    (group, kind): counts
    for group, both in {
        "CAD": ((110, 197), (8, 64)),
        "Dev": ((106, 154), (25, 145)),
        "Creative": ((113, 198), (22, 143)),
        "Scientific": ((111, 144), (27, 110)),
        "Office": ((131, 177), (17, 53)),
        "OS": ((62, 107), (19, 89)),
    }.items()
    for kind, counts in zip(("text", "icon"), both, strict=True)
}
PUBLISHED = [
    ("screenspot", V1, (1170, 1272), 91.98, 91.63),
    ("screenspot-v2", V2, (1187, 1272), 93.32, 92.77),
    ("screenspot-pro", PRO, (751, 1581), 47.50, None),
]


@pytest.mark.parametrize(("which", "cells", "total", "micro", "macro"), PUBLISHED)
def test_published_averages(which: str, cells: Counts, total: tuple[int, int], micro: float, macro: float | None):
    result = table({name: Cell(rate(*counts)) for name, counts in cells.items()})
    assert (result.micro.correct.count, result.micro.correct.total) == total
    assert total[1] == SETS[which].count
    assert round(100 * result.micro.correct.share, 2) == micro
    if macro is not None:
        assert result.macro == pytest.approx(np.mean([correct / count for correct, count in cells.values()]), abs=1e-12)
        assert round(np.mean([round(100 * cell.correct.share, 1) for cell in result.cells.values()]), 2) == macro
    assert result.micro.correct.low < result.micro.correct.share < result.micro.correct.high
    if which == "screenspot-pro":
        kinds = {kind: (cell.correct.count, cell.correct.total) for kind, cell in result.kinds.items()}
        assert kinds == {"text": (633, 977), "icon": (118, 604)}


@pytest.mark.parametrize(("which", "cells", "total", "micro", "macro"), PUBLISHED)
def test_samples_add_up_to_them(which: str, cells: Counts, total: tuple[int, int], micro: float, macro: float | None):
    """The same from single clicks: as many in the box as counted, the others just outside, unparsed or missing."""
    rows, kinds, points = [], [], []
    for (row, kind), (correct, count) in cells.items():
        rows += [row] * count
        kinds += [kind] * count
        points += [(20.0, 10.0)] * correct + [(20.001, 10.0)] * (count - correct)
    N = len(rows)
    boxes = np.tile([10.0, 10, 20, 30], (N, 1))
    annotations = Annotations(
        which,
        tuple(map(str, range(N))),
        boxes,
        "orig",
        np.zeros((N, 2), np.int64),
        tuple(rows),
        tuple(kinds),
        ("",) * N,
        ("",) * N,
    )
    clicks = np.array(points)
    wrong = np.flatnonzero(clicks[:, 0] > 20)
    parsed, answered = np.ones(N, bool), np.ones(N, bool)
    parsed[wrong[:7]] = False
    answered[wrong[:3]] = False
    clicks[~parsed] = np.nan
    result = evaluate(annotations, Clicks(clicks, parsed, answered))
    assert {name: (cell.correct.count, cell.correct.total) for name, cell in result.cells.items()} == cells
    assert list(result.rows) == list(dict.fromkeys(row for row, _ in cells))  # in the paper's order
    assert round(100 * result.micro.correct.share, 2) == micro
    assert (result.micro.unparsed, result.micro.unanswered) == (4, 3)
    json.dumps(facts(result), allow_nan=False)


def test_borders_are_inside_and_centres_are_floats():
    box = np.array([[10.0, 10, 20, 31]] * 5)
    points = np.array([[10, 10], [20, 31], [20.0001, 15], [np.nan, np.nan], [15, 20.5]])
    assert inside(points, box).tolist() == [True, True, False, False, True]


def png(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))


def jpeg(width: int, height: int, marker: int = 0xC2) -> bytes:
    comment = b"\xff\xfe" + struct.pack(">H", 5002) + b"\xff\xc0" * 2500
    return b"\xff\xd8" + comment + bytes([0xFF, 0xFF, marker]) + struct.pack(">HBHH", 17, 8, height, width) + b"\0" * 20


def test_sizes_of_pictures(tmp_path: Path):
    for name, data in (("a.png", png(1920, 1080)), ("b.jpg", jpeg(1920, 1080)), ("c.jpg", jpeg(1920, 1080, 0xC0))):
        (tmp_path / name).write_bytes(data)
        assert picture_size(tmp_path / name) == (1920, 1080)
    for data in (b"", b"GIF89a", png(0, 5), png(1, 1)[:20], b"\xff\xd8" + b"\xff\xe0\0\0" * 100, jpeg(5, 5)[:5008]):
        (tmp_path / "bad").write_bytes(data)
        with pytest.raises(UserError, match="no PNG or JPEG"):
            picture_size(tmp_path / "bad")
    with pytest.raises(UserError, match="cannot be read"):
        picture_size(tmp_path / "none")


def sample(**other: Any) -> dict[str, Any]:
    return {
        "img_filename": "a.png",
        "bbox": [100, 200, 50, 40],
        "instruction": "save the file",
        "data_type": "text",
        "data_source": "windows",
        **other,
    }


def pro(**other: Any) -> dict[str, Any]:
    return {
        "id": "cad_1",
        "img_filename": "cad/a.png",
        "bbox": [100, 200, 150, 240],
        "img_size": [3840, 2160],
        "instruction": "save the file",
        "instruction_cn": "保存",
        "platform": "windows",
        "application": "autocad",
        "group": "CAD",
        "ui_type": "icon",
        **other,
    }


def write(path: Path, samples: object) -> Path:
    path.write_text(json.dumps(samples), encoding="utf-8")
    return path.parent


def test_version_1_and_2(tmp_path: Path):
    write(tmp_path / "screenspot_desktop.json", [sample(), sample(data_type="icon", instruction="é")])
    write(tmp_path / "screenspot_mobile.json", [sample(data_source="ios")])
    write(tmp_path / "screenspot_web_v2.json", [sample(bbox=[1.5, 2, 3, 4])])
    one = read_annotations(tmp_path, "screenspot", box_format="xywh")
    assert one.ids == ("desktop/0", "desktop/1", "mobile/0")
    assert (one.rows, one.kinds) == (("desktop", "desktop", "mobile"), ("text", "icon", "text"))
    assert one.boxes.tolist() == [[100, 200, 150, 240]] * 3  # corners
    assert one.frame == "orig"
    assert (one.size_wh == NO_SIZE).all()
    assert one.instructions[1] == "é"
    two = read_annotations(tmp_path, "screenspot-v2", box_format="xywh")
    assert (two.ids, two.boxes.tolist()) == (("web/0",), [[1.5, 2, 4.5, 6]])


def test_pro_and_variants(tmp_path: Path):
    write(tmp_path / "autocad_windows.json", [pro(), pro(id="cad_2", ui_type="text")])
    found = read_annotations(tmp_path, "screenspot-pro", box_format="xyxy")
    assert (found.ids, found.rows, found.kinds) == (("cad_1", "cad_2"), ("CAD", "CAD"), ("icon", "text"))
    assert found.size_wh.tolist() == [[3840, 2160]] * 2
    assert found.boxes[0].tolist() == [100, 200, 150, 240]
    styled = tmp_path / "styled"
    styled.mkdir()
    write(styled / "a.json", [pro(instruction={"original": "save", "functional": "keep it"})])
    variants = read_annotations(styled / "a.json", "screenspot-v2-variants", box_format="xyxy")
    assert variants.ids == ("cad_1/original", "cad_1/functional")
    assert variants.rows == ("windows", "windows")
    assert variants.instructions == ("save", "keep it")


def test_the_mirrors_shares(tmp_path: Path):
    entry = sample(bbox=[0.25, 0.5, 0.5, 0.75], data_source="android")
    entry["file_name"] = entry.pop("img_filename")
    write(tmp_path / "test.json", [entry, {**entry, "data_source": "shop"}])
    found = read_annotations(tmp_path / "test.json", "screenspot", box_format="xyxy01")
    assert (found.frame, found.rows) == ("norm01", ("mobile", "web"))
    assert found.boxes[0].tolist() == [0.25, 0.5, 0.5, 0.75]


def test_sizes_come_from_the_pictures(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png(1920, 1080))
    write(tmp_path / "screenspot_desktop_v2.json", [sample()])
    found = read_annotations(tmp_path, "screenspot-v2", box_format="xywh", pictures=tmp_path)
    assert found.size_wh.tolist() == [[1920, 1080]]
    write(tmp_path / "screenspot_desktop_v2.json", [sample(img_filename="../../etc/passwd")])
    with pytest.raises(UserError, match="leads out of the folder"):
        read_annotations(tmp_path, "screenspot-v2", box_format="xywh", pictures=tmp_path)


@pytest.mark.parametrize(
    ("which", "box_format", "entry", "message"),
    [
        # Corners read as sides leave the picture; sides read as corners are inside out; both fit the other way.
        ("screenspot-pro", "xywh", pro(bbox=[3000, 2000, 3100, 2040]), "3840 x 2160 as xywh .* it would as xyxy"),
        ("screenspot-pro", "xyxy", pro(bbox=[3000, 2000, 100, 40]), "as xyxy .* it would as xywh .* files of another set"),
        ("screenspot-v2", "xyxy", sample(), "any picture as xyxy .* it would as xywh"),
        ("screenspot-pro", "xyxy", pro(bbox=[0.25, 0.5, 0.5, 0.75]), "as xyxy .* it would as .*xyxy01"),
        ("screenspot-pro", "xyxy01", pro(), "as xyxy01 .* it would as xywh .* or xyxy"),
        ("screenspot-pro", "xyxy", pro(bbox=[3800, 2000, 3842, 2040]), "lies in no way within"),
        ("screenspot-pro", "xyxy", pro(bbox=[100, 200, 100, 240]), "lies in no way within"),
        ("screenspot-pro", "xyxy", pro(bbox=[-3, 200, 100, 240]), "lies in no way within"),
    ],
)
def test_boxes_in_another_format_are_refused(tmp_path: Path, which: str, box_format: str, entry: dict[str, Any], message: str):
    name = "screenspot_web_v2.json" if which == "screenspot-v2" else "a.json"
    folder = write(tmp_path / name, [entry])
    with pytest.raises(UserError, match=f"sample 0: the box .* {message}"):
        read_annotations(folder, which, box_format=box_format)


def test_a_pixel_beyond_the_edge_is_forgiven(tmp_path: Path):
    folder = write(tmp_path / "a.json", [pro(bbox=[3800, 2000, 3841, 2161]), pro(id="b", bbox=[-1, 0, 5, 5])])
    assert len(read_annotations(folder, "screenspot-pro", box_format="xyxy")) == 2


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"a": 1}, "a list of samples is expected"),
        ([1], "sample 0: an object is expected"),
        ([{**pro(), "bbox": [1, 2, 3]}], "bbox must be a list of four"),
        ([{**pro(), "bbox": [1, 2, 3, "4"]}], "bbox must be a list of four"),
        ([{**pro(), "img_size": [0, 3]}], "img_size must be"),
        ([{**pro(), "ui_type": "button"}], "ui_type must be text or icon, not 'button'"),
        ([{**pro(), "instruction": None}], "instruction must be text"),
        ([{**pro(), "img_filename": 3}], "img_filename must be text"),
        ([{"bbox": [1, 2, 3, 4]}], "img_filename or file_name is missing"),
        ([pro(), pro()], "sample 1: the id cad_1 is also at .*sample 0"),
    ],
)
def test_damaged_annotations_are_told(tmp_path: Path, samples: object, message: str):
    with pytest.raises(UserError, match=message):
        read_annotations(write(tmp_path / "a.json", samples), "screenspot-pro", box_format="xyxy")


def test_other_mistakes_are_told(tmp_path: Path):
    (tmp_path / "a.json").write_text("[" * 3000)
    for call, message in (
        (lambda: read_annotations(tmp_path, "screenspot-pro", box_format="xyxy"), "no JSON"),
        (lambda: read_annotations(tmp_path, "screenspot", box_format="xywh"), "no file screenspot_"),
        (lambda: read_annotations(tmp_path, "mind2web", box_format="xywh"), "'mind2web' is unknown; there are screenspot"),
        (lambda: read_annotations(tmp_path, "screenspot", box_format="cxcywh"), "'cxcywh' is unknown; there are xywh"),
    ):
        with pytest.raises(UserError, match=message):
            call()


@pytest.fixture
def annotations(tmp_path: Path) -> Annotations:
    """Six samples of a picture of 1920 x 1080, the target at 960 540 1152 648."""
    entries = [pro(id=f"s{i}", img_size=[1920, 1080], bbox=[960, 540, 1152, 648]) for i in range(6)]
    return read_annotations(write(tmp_path / "a.json", entries), "screenspot-pro", box_format="xyxy")


def predictions(folder: Path, rows: list[object]) -> Path:
    path = folder / "predictions.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_predictions_of_every_kind(tmp_path: Path, annotations: Annotations):
    rows: list[object] = [
        {"id": "s0", "text": "[950, 540, 1150, 640]"},
        {"id": "s1", "point": [1152, 648]},
        {"id": "s2", "box": [0, 0, 10, 10]},
        {"id": "s3", "text": "somewhere"},
        {"id": "s4", "point": None},
    ]
    clicks = read_predictions(predictions(tmp_path, rows), annotations, Reader(frame="orig"))
    assert clicks.points[:3].tolist() == [[1050, 590], [1152, 648], [5, 5]]
    assert clicks.parsed.tolist() == [True, True, True, False, False, False]
    assert clicks.answered.tolist() == [True] * 5 + [False]
    cell = evaluate(annotations, clicks).micro
    assert (cell.correct.count, cell.correct.total, cell.unparsed, cell.unanswered) == (2, 6, 2, 1)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (Reader("qwen25", resize=PRESETS["qwen25"]), '{"bbox_2d": [966, 546, 1159, 655]}'),
        (Reader("qwen3"), '{"bbox_2d": [500, 500, 600, 600]}'),
        (Reader("norm01"), "(0.55, 0.55)"),
        (Reader("stepgui"), "point:550,550"),
        (Reader("uitars1"), "click(start_box='(550,550)')"),
        (Reader("bracket", frame="rel1000"), "[550, 550]"),
    ],
)
def test_frames_are_brought_to_pixels(tmp_path: Path, annotations: Annotations, reader: Reader, text: str):
    clicks = read_predictions(predictions(tmp_path, [{"id": "s0", "text": text}]), annotations, reader)
    np.testing.assert_allclose(clicks.points[0], [1056, 594], rtol=2e-3)
    assert evaluate(annotations, clicks).micro.correct.count == 1


def test_numbers_count_pixels_unless_a_frame_is_named(tmp_path: Path, annotations: Annotations):
    path = predictions(tmp_path, [{"id": "s0", "point": [1056, 594]}])
    assert read_predictions(path, annotations, Reader("qwen3")).points[0].tolist() == [1056, 594]
    path = predictions(tmp_path, [{"id": "s0", "point": [0.5, 0.5]}])
    assert read_predictions(path, annotations, Reader(frame="norm01")).points[0].tolist() == [960, 540]


def test_lines_of_no_use_are_told(tmp_path: Path, annotations: Annotations):
    rows: list[object] = [
        "nonsense",
        {"text": "x"},
        {"id": 3, "text": "x"},
        {"id": "s9", "text": "x"},
        {"id": "s0"},
        {"id": "s0", "text": 5},
        {"id": "s0", "point": [1]},
        {"id": "s0", "point": [1056, 594]},
        {"id": "s0", "point": [1, 2]},
    ]
    clicks = read_predictions(predictions(tmp_path, rows), annotations, Reader())
    expected = [
        "no JSON",
        "id is missing",
        "id must be",
        "no sample has",
        "none of them",
        "text must be",
        "point must be",
        "second",
    ]
    assert [problem.line for problem in clicks.problems] == [1, 2, 3, 4, 5, 6, 7, 9]
    for problem, message in zip(clicks.problems, expected, strict=True):
        assert message in problem.why
    assert evaluate(annotations, clicks).micro.correct.count == 1
    with pytest.raises(UserError, match="no prediction is of use; line 1: id is missing"):
        read_predictions(predictions(tmp_path, [{"text": "x"}]), annotations, Reader())


def test_a_size_that_is_needed_may_come_with_the_prediction(tmp_path: Path):
    write(tmp_path / "screenspot_web_v2.json", [sample()])
    found = read_annotations(tmp_path, "screenspot-v2", box_format="xywh")
    row: dict[str, object] = {"id": "web/0", "point": [0.0625, 0.2]}
    with pytest.raises(UserError, match=r"web/0: the answer is in the frame norm01 .* give the pictures' width"):
        read_predictions(predictions(tmp_path, [row]), found, Reader(frame="norm01"))
    clicks = read_predictions(predictions(tmp_path, [{**row, "image_wh": [1920, 1080]}]), found, Reader(frame="norm01"))
    assert clicks.points.tolist() == [[120, 216]]
    assert evaluate(found, clicks).micro.correct.count == 1

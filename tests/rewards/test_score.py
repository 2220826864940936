"""Text to reward, one by one and in files, against the kernel called by hand and the vectors of the specification."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rewards
from jaxllm.errors import UserError
from jaxllm.frames import PRESETS
from rewards import jsonl, score_files
from rewards.score import Scorer, given, moved
from rewards.score_files import facts, score_file

G0 = [100, 100, 200, 150]
GUI_G2 = rewards.get("gui_g2")
ORIG = Scorer(GUI_G2, frame="orig")


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def test_texts_become_rewards():
    scored = ORIG(["[150, 100, 250, 150]", "[100,100,200,150]", "?", "[150, 125]"], [G0] * 4)
    np.testing.assert_allclose(scored.parts.reward, [1.48902756230, 2, 0, 1], rtol=1e-6)
    assert scored.parts.format.tolist() == [1, 1, 0, 0]
    assert scored.parts.valid.tolist() == [True, True, False, True]


def test_answers_are_brought_into_the_frame_of_the_target():
    """Vectors V19 and V20 of the specification: the same answer without and with the way back from resized pixels."""
    text, target = ["[1910, 1070, 1922, 1082]"], [[1898, 1058, 1910, 1070]]
    unmapped = ORIG(text, target).parts
    for scorer, sizes in (
        (Scorer(GUI_G2, resize=PRESETS["qwen25"]), {"size_wh": (1920, 1080)}),
        (Scorer(GUI_G2), {"size_wh": (1920, 1080), "resized_wh": (1932, 1092)}),
        (Scorer(GUI_G2, resize=PRESETS["qwen25"]), {"size_wh": [[1920, 1080]]}),
    ):
        scored = scorer(text, target, **sizes)
        assert scored.parsed.frame == "orig"
        assert scored.parts.point[0] == pytest.approx(0.999433628463, abs=5e-6)
        assert scored.parts.coverage[0] == pytest.approx(0.999816755115, abs=5e-6)
    assert unmapped.point[0] == pytest.approx(0.0183156388887, rel=1e-5)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("qwen3", '{"bbox_2d": [500, 250, 750, 500]}'),
        ("norm01", "[0.5, 0.25, 0.75, 0.5]"),
        ("qwen2_box", "(500,250),(750,500)"),
    ],
)
def test_relative_answers_need_the_pictures_size(dialect: str, text: str):
    scorer = Scorer(GUI_G2, dialect)
    target = [[960, 270, 1440, 540]]
    assert scorer([text], target, size_wh=(1920, 1080)).parts.reward.tolist() == [2]
    with pytest.raises(UserError, match="give the pictures' width and height"):
        scorer([text], target)
    both = Scorer(GUI_G2, dialect, target_frame="norm01")([text], [[0.5, 0.25, 0.75, 0.5]])
    assert both.parts.reward[0] == pytest.approx(2, abs=1e-6)


def test_rewards_that_look_at_the_picture_get_its_size_in_the_targets_frame():
    reward = rewards.get("se_gui")
    boxes = np.array([[150, 100, 250, 150]], np.float32), np.array([G0], np.float32)
    by_hand = reward(*boxes, image_wh=np.array([[1920, 1080]]), format_ok=np.array([True]))
    assert Scorer(reward, frame="orig")(["[150,100,250,150]"], [G0], size_wh=(1920, 1080)).parts.reward == by_hand.reward
    assert by_hand.reward[0] == pytest.approx(1 + 1.999584397, abs=5e-6)  # section 6 of the specification, and the format


def test_mistakes_are_told():
    with pytest.raises(UserError, match=r"targets must be \[1, 4\], one box for each answer, not \[2, 4\]"):
        ORIG(["[1,2,3,4]"], [G0, G0])
    with pytest.raises(UserError, match="how the pictures were resized"):
        Scorer(GUI_G2)(["[1,2,3,4]"], [G0], size_wh=(1920, 1080))
    with pytest.raises(UserError, match="'px' is unknown"):
        Scorer(GUI_G2, frame="px")


def test_numbers_that_were_given_are_answers_without_a_format():
    answers = given([[1, 2, 3, 4], [5, 6], None], "norm01")
    assert answers.kind.tolist() == [2, 1, 0]
    assert answers.point[:2].tolist() == [[2, 3], [5, 6]]
    assert not answers.format_ok.any()
    assert moved(answers, "orig", size_wh=(10, 100)).box[0].tolist() == [10, 200, 30, 400]


ROWS = [
    {"id": 1, "text": "[150, 100, 250, 150]", "target": G0, "note": {"kept": [1, None]}},
    {"id": 2, "box": [125, 112.5, 175, 137.5], "target": G0},
    {"id": 3, "point": [150, 125], "target": G0},
    {"id": 4, "point": None, "target": G0},
    {"id": 5, "text": "I do not know", "target": G0},
    {"id": 6, "text": None, "target": G0},
]
EXPECTED = [1.48902756230, 1.8, 1, 0, 0, 0]


def test_every_row_gets_every_part(tmp_path: Path):
    out = tmp_path / "out.jsonl"
    summary = score_file(write(tmp_path / "in.jsonl", ROWS), ORIG, out=out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{key: row[key] for key in before} for row, before in zip(rows, ROWS, strict=True)] == ROWS
    np.testing.assert_allclose([row["gui_g2.reward"] for row in rows], EXPECTED, rtol=1e-6)
    assert {f"gui_g2.{part}" for part in GUI_G2.parts} < set(rows[0])
    assert rows[0]["gui_g2.log_point"] == pytest.approx(-0.5)
    assert rows[4]["gui_g2.log_reward"] is None  # the logarithm of 0
    assert [row["parsed.kind"] for row in rows] == ["box", "box", "point", "nothing", "nothing", "nothing"]
    assert [row["parsed.numbers"] for row in rows[:4]] == [[150, 100, 250, 150], [125, 112.5, 175, 137.5], [150, 125], None]
    assert [row["parsed.format_ok"] for row in rows] == [True, False, False, False, False, False]
    assert summary.rows == 6
    assert summary.means["reward"] == pytest.approx(sum(EXPECTED) / 6)
    assert (summary.unparsed.count, summary.zero.count) == (3, 3)
    assert (summary.formatted.count, summary.formatted.total) == (1, 3)
    assert [worst.line for worst in summary.worst] == [4, 5, 6, 3, 1, 2]
    assert sum(summary.counts) == 6
    assert summary.counts[0] == 3
    assert (summary.edges[0], summary.edges[-1]) == (0, 2)


def test_parquet_holds_the_same(tmp_path: Path):
    out = tmp_path / "out.parquet"
    score_file(write(tmp_path / "in.jsonl", [*ROWS, {"id": "seven", "text": "[1,2]", "target": G0}]), ORIG, out=out)
    table = pq.read_table(out)
    np.testing.assert_allclose(table["gui_g2.reward"].to_numpy()[:6], EXPECTED, rtol=1e-6)
    assert math.isinf(table["gui_g2.log_reward"][4].as_py())
    assert table["parsed.numbers"].to_pylist()[2:4] == [[150, 125], None]
    assert table["id"].to_pylist() == ["1", "2", "3", "4", "5", "6", '"seven"']  # of two types: as JSON


BAD = [
    ("nonsense", "no JSON"),
    ("[1, 2]", "no JSON object"),
    ('{"text": "[1,2]"', "no JSON"),
    ("[" * 5000, "no JSON"),
    ({"text": "x"}, "target must be a list of 4 finite numbers; it is not there"),
    ({"text": "x", "target": [1, 2, 3]}, "target must be a list of 4 finite numbers"),
    ('{"text": "x", "target": [1, 2, 3, NaN]}', "4 finite numbers"),
    ({"text": "x", "target": [1, 2, 3, 10**400]}, "4 finite numbers"),
    ({"text": "x", "target": [True, 2, 3, 4]}, "4 finite numbers"),
    ({"text": 3, "target": G0}, "text must be a string"),
    ({"target": G0}, "not none of them"),
    ({"text": "x", "box": [1, 2, 3, 4], "target": G0}, "not text and box"),
    ({"box": [1, 2], "target": G0}, "box must be a list of 4"),
    ({"text": "x", "target": G0, "image_wh": [0, 10]}, "image_wh must be width and height in whole pixels"),
]


def test_rows_that_cannot_be_read_are_told_and_cost_no_other(tmp_path: Path):
    rows: list[object] = []
    for bad, _ in BAD:
        rows += [bad, "", {"text": "[100,100,200,150]", "target": G0}]
    summary = score_file(write(tmp_path / "in.jsonl", rows), ORIG)
    assert summary.rows == len(BAD)
    assert summary.means["reward"] == 2
    assert [problem.line for problem in summary.problems] == [1 + 3 * i for i in range(len(BAD))]
    for problem, (_, message) in zip(summary.problems, BAD, strict=True):
        assert message in problem.why


def test_frames_that_lack_a_size_cost_that_row_alone(tmp_path: Path):
    rows = [
        {"text": "[1910,1070,1922,1082]", "target": [1898, 1058, 1910, 1070], "image_wh": [1920, 1080]},
        {"text": "[1910,1070,1922,1082]", "target": [1898, 1058, 1910, 1070], "width": 1920, "height": 1080},
        {"text": "[1910,1070,1922,1082]", "target": [1898, 1058, 1910, 1070]},
        {"box": [1898, 1058, 1910, 1070], "target": [1898, 1058, 1910, 1070]},
    ]
    path = write(tmp_path / "in.jsonl", rows)
    summary = score_file(path, Scorer(GUI_G2, resize=PRESETS["qwen25"]))
    assert (summary.rows, [problem.line for problem in summary.problems]) == (3, [3])
    assert summary.means["point"] == pytest.approx((0.999433628463 * 2 + 1) / 3, abs=1e-5)
    with pytest.raises(UserError, match=r"no row can be rewarded; line 1: .* how the pictures were resized"):
        score_file(write(path, rows[:1]), Scorer(GUI_G2))


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"text": f"[{i}, 100, 200, 150]", "target": G0} for i in range(50)]
    path = write(tmp_path / "in.jsonl", rows)
    whole = score_file(path, ORIG, out=tmp_path / "a.jsonl")
    monkeypatch.setattr(score_files, "BLOCK", 7)
    pieces = score_file(path, ORIG, out=tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert pieces.worst == whole.worst
    assert pieces.counts == whole.counts
    assert pieces.means == pytest.approx(whole.means)
    assert [worst.line for worst in whole.worst] == list(range(1, 11))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, out = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    out.write_text("old")

    def fail(*_: object) -> list[dict[str, object]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(score_files, "_with_rewards", fail)
    with pytest.raises(KeyboardInterrupt):
        score_file(path, ORIG, out=out)
    assert out.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl"}


def test_text_of_any_kind_comes_back(tmp_path: Path):
    text = "[1,2] \ud800 \u2028 é \0"
    path, out = write(tmp_path / "in.jsonl", [{"text": text, "target": G0}]), tmp_path / "out.jsonl"
    score_file(path, ORIG, out=out)
    assert json.loads(out.read_text())["text"] == text
    score_file(path, ORIG, out=tmp_path / "out.parquet")


def test_a_line_without_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jsonl, "MAX_LINE", 1000)
    path = write(tmp_path / "in.jsonl", [{"text": "x" * 3000, "target": G0}, {"text": "[1,2]", "target": G0}])
    summary = score_file(path, ORIG)
    assert [(problem.line, problem.why[:11]) for problem in summary.problems] == [(1, "longer than")]
    assert summary.rows == 1


def test_facts_are_json(tmp_path: Path):
    summary = score_file(write(tmp_path / "in.jsonl", ROWS[1:4]), ORIG)
    plain = json.loads(json.dumps(facts(summary), allow_nan=False))
    assert plain["formatted"]["share"] is None  # no text, so no share of texts
    assert plain["rows"] == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: score_file(folder / "none.jsonl", ORIG), "none.jsonl: cannot be read: No such file"),
        (lambda folder: score_file(write(folder / "a.jsonl", []), ORIG), "no row can be rewarded"),
        (
            lambda folder: score_file(write(folder / "a.jsonl", ROWS), ORIG, out=folder / "a.csv"),
            "must end in .jsonl",
        ),
        (lambda folder: score_file(write(folder / "a.jsonl", ROWS), ORIG, out=folder / "x" / "a.jsonl"), "cannot be written"),
        (lambda folder: score_file(write(folder / "a.jsonl", ROWS[:1]), ORIG, text="answer"), "one of answer, box and point"),
    ],
)
def test_files_of_no_use_are_told(tmp_path: Path, call, message: str):
    with pytest.raises(UserError, match=message):
        call(tmp_path)


def test_the_published_codes_infinities_are_counted_apart(tmp_path: Path):
    """Two equal coordinates of hundreds of digits become inf - inf there (section 2.6 of the specification)."""
    long = "[" + ",".join(4 * ["9" * 400]) + "]"
    path = write(tmp_path / "in.jsonl", [{"text": text, "target": G0} for text in (long, "[100,100,200,150]")])
    release = Scorer(rewards.get("gui_g2", compat="gui_g2_release"), "gui_g2_release", frame="orig")
    summary = score_file(path, release, out=tmp_path / "out.jsonl")
    assert (summary.nonfinite, sum(summary.counts)) == (1, 1)
    assert json.loads(json.dumps(facts(summary), allow_nan=False))["means"]["reward"] is None
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["gui_g2.reward"] is None
    ours = score_file(path, ORIG)
    assert (ours.nonfinite, ours.means["reward"]) == (0, 1)

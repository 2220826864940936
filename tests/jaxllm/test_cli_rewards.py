"""The commands score and eval, as a user meets them."""

import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jaxllm import cli
from jaxllm.cli import runtime

G0 = [100, 100, 200, 150]
EVAL = ["eval", "screenspot-v2", "--annotations", "annotations", "--predictions"]
ROWS = [
    {"text": "[100, 100, 200, 150]", "target": G0},
    {"text": "[150, 100, 250, 150]", "target": G0},
    {"text": "nowhere\u001b[2J\n", "target": G0},
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file of answers, and ScreenSpot-v2 in small with predictions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "nonsense\n")
    folder = Path("annotations")
    folder.mkdir()
    for platform, kinds in (("mobile", ("text", "icon")), ("desktop", ("text",)), ("web", ("icon", "icon"))):
        samples = [
            {"img_filename": "a.png", "bbox": [100, 100, 100, 50], "instruction": "x", "data_type": kind} for kind in kinds
        ]
        (folder / f"screenspot_{platform}_v2.json").write_text(json.dumps(samples))
    predictions = [
        {"id": "mobile/0", "text": "[100, 100, 200, 150]"},
        {"id": "mobile/1", "point": [200, 150]},
        {"id": "desktop/0", "text": "no idea"},
        {"id": "web/0", "box": [0, 0, 10, 10]},
        {"id": "web/7", "point": [1, 1]},
    ]
    Path("predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in predictions))


def test_score_sums_up_and_writes_every_part(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["score", "answers.jsonl", "--reward", "gui_g2", "--frame", "orig", "--out", "out.jsonl"]) == 0
    out, err = capsys.readouterr()
    for text in ("gui_g2: 3 rows", "mean reward", "1.1630", "nothing parsed", "33.33%", "Rewards", "The least rewarded"):
        assert text in out
    assert "nowhere�[2J⏎" in out  # what a model wrote does not move the cursor
    assert "answers.jsonl, line 4: no JSON" in err
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [round(row["gui_g2.reward"], 4) for row in rows] == [2, 1.489, 0]
    assert [row["text"] for row in rows] == [row["text"] for row in ROWS]


def test_score_as_json_and_parquet(capsys: pytest.CaptureFixture[str]):
    arguments = ["--frame", "orig", "--option", "alpha=1", "--option", "phi=1", "--json", "--out", "out.parquet"]
    assert cli.main(["score", "answers.jsonl", *arguments]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert summary["rows"] == 3
    assert summary["problems"][0]["line"] == 4
    # V22 of the specification, and the format
    assert pq.read_table("out.parquet")["gui_g2.reward"][1].as_py() == pytest.approx(
        0.882496902585 + 0.969233234476 + 1, abs=1e-5
    )
    assert "Written: out.parquet" in err


def test_score_maps_resized_answers_back(capsys: pytest.CaptureFixture[str]):
    """Vectors V19 and V20 of the specification."""
    row = {"text": '{"bbox_2d": [1910, 1070, 1922, 1082]}', "target": [1898, 1058, 1910, 1070], "image_wh": [1920, 1080]}
    Path("one.jsonl").write_text(json.dumps(row))
    for arguments in (["--max-pixels", "12845056"], ["--preset", "qwen25"], ["--frame", "resized", "--preset", "qwen25"]):
        assert cli.main(["score", "one.jsonl", "--dialect", "qwen25", "--reward", "point_only", *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["means"]["point"] == pytest.approx(0.999433628463, abs=5e-6)
    assert cli.main(["score", "one.jsonl", "--dialect", "qwen25", "--frame", "orig", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["means"]["point"] == pytest.approx(0.0183156388887, rel=1e-5)


def test_eval_prints_the_papers_table(capsys: pytest.CaptureFixture[str]):
    arguments = [
        "eval",
        "screenspot-v2",
        "--annotations",
        "annotations",
        "--predictions",
        "predictions.jsonl",
        "--frame",
        "orig",
    ]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    lines = {line.strip().split("  ")[0]: line for line in out.splitlines()}
    assert "100.00% (1/1)" in lines["mobile"]
    assert "40.00% (2/5)" in lines["all, micro"]
    assert "50.00%" in lines["mean of the 4 cells, macro"]
    assert lines["desktop"].split()[-2:] == ["1", "0"]  # unparsed, unanswered
    assert lines["web"].split()[-2:] == ["0", "1"]
    assert list(lines).index("mobile") < list(lines).index("desktop") < list(lines).index("web")  # the paper's order
    assert "predictions.jsonl, line 5: no sample has the id 'web/7'" in err
    assert "The whole set has 1,272 samples; these are 5." in err
    assert "give --pictures" in err
    assert cli.main([*arguments, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["micro"]["correct"]["count"] == 2
    assert table["cells"]["web, icon"]["correct"]["total"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["score", "answers.jsonl"], "line 1: the answer is in the frame resized"),
        (["score", "answers.jsonl", "--reward", "gui_g3"], "there is no reward 'gui_g3'; did you mean gui_g2"),
        (["score", "answers.jsonl", "--option", "beta=1"], "has no option beta"),
        (["score", "answers.jsonl", "--option", "alpha"], "--option alpha: give it as name=value"),
        (["score", "answers.jsonl", "--option", "order=up"], "order"),
        (["score", "answers.jsonl", "--reward", "rcpo_voting"], "rewards a group of answers together"),
        (["score", "answers.jsonl", "--reward", "ui_r1"], "needs action_ok"),
        (["score", "answers.jsonl", "--dialect", "latin"], "dialect 'latin' is unknown; there are bracket"),
        (["score", "answers.jsonl", "--preset", "mine"], "--preset mine is unknown; there are qwen25"),
        (["score", "answers.jsonl", "--min-pixels", "9"], "need --max-pixels or --preset"),
        (["score", "answers.jsonl", "--frame", "orig", "--out", "out.csv"], "must end in .jsonl or .parquet"),
        (["eval", "screenspot", "--annotations", ".", "--predictions", "predictions.jsonl"], "no file screenspot_*.json here"),
        ([*EVAL, "predictions.jsonl", "--box-format", "xyxy"], "it would as xywh"),
        ([*EVAL, "answers.jsonl"], "no prediction is of use"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("jaxllm: ")
    assert message in err
    assert err.count("\n") == 1


PAGE = (Path(__file__).parents[2] / "docs" / "scoring.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ jaxllm (.*)$", PAGE, re.M)


def test_the_page_has_commands():
    assert {shlex.split(command)[0] for command in COMMANDS} == {"score", "eval"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_work(command: str, capsys: pytest.CaptureFixture[str]):
    (answers,) = [block for block in re.findall(r"^```json\n(.*?)^```$", PAGE, re.M | re.S) if '"target"' in block]
    Path("answers.jsonl").write_text(answers)
    Path("resized.jsonl").write_text('{"text": "[1, 2, 3, 4]", "target": [1, 2, 3, 4], "image_wh": [1920, 1080]}')
    assert cli.main(shlex.split(command)) == 0
    out = capsys.readouterr().out
    if "answers.jsonl" in command:  # the page shows what comes out
        shown = PAGE.partition(f"$ jaxllm {command}\n")[2].partition("...")[0]
        for line in shown.splitlines():
            assert line.strip() in out

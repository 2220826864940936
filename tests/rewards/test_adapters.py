"""The adapters, called as the trainers call them, against the kernels called by hand."""

import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import rewards
from jaxllm.errors import UserError
from rewards.adapters import openrlhf, verl
from rewards.adapters.common import make_scorer
from rewards.adapters.trl import reward_function

G0 = [100, 100, 200, 150]
TEXTS = ["[150, 100, 250, 150]", "[100,100,200,150]", "I do not know", "[150, 125]"]
BOXES = np.array([[150, 100, 250, 150], G0, [np.nan] * 4, [150, 125, 150, 125]], np.float32)
EXPECTED = [1.48902756230, 2, 0, 1]  # vectors V02 and V01 of the specification, nothing, a point in the middle


@pytest.mark.parametrize("name", ["trl", "verl", "openrlhf"])
def test_the_examples_run(name: str):
    assert doctest.testmod(importlib.import_module(f"rewards.adapters.{name}")).failed == 0


def test_trl_calls_with_strings_and_columns():
    reward = reward_function("gui_g2", frame="orig")
    found = reward(prompts=["?"] * 4, completions=TEXTS, completion_ids=[[1]] * 4, trainer_state=object(), target=[G0] * 4)
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)
    assert all(type(value) is float for value in found)
    assert reward.__name__ == "gui_g2"  # the name in TRL's logs


def test_trl_calls_with_messages():
    chats = [[{"role": "assistant", "content": text}] for text in TEXTS]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in TEXTS]
    turns = [[{"role": "user", "content": "[1,2,3,4]"}, *chat] for chat in chats]
    reward = reward_function("gui_g2", frame="orig")
    for completions in (chats, parts, turns, [*turns[:2], [], *turns[3:]]):
        np.testing.assert_allclose(reward(completions=completions, target=[G0] * 4), EXPECTED, rtol=1e-6)


def test_trl_rows_of_another_task_get_none():
    reward = reward_function("gui_g2", frame="orig", target="box")
    assert reward(completions=TEXTS[:2], box=[None, G0]) == [None, 2.0]
    assert reward(completions=TEXTS[:2], box=[None, None]) == [None, None]
    assert reward(completions=[], box=[]) == []


def test_trl_returns_one_part_and_takes_options():
    reward = reward_function("gui_g2", frame="orig", part="coverage", alpha=1.0)
    assert reward(completions=TEXTS[:1], target=[G0])[0] == pytest.approx(0.969233234476, rel=1e-6)  # V22
    assert reward.__name__ == "gui_g2_coverage"


def test_resized_answers_are_mapped_back():
    """Vectors V19 and V20: a perfect answer in resized pixels is worth 0.02 if nobody maps it back."""
    target, text = [1898, 1058, 1910, 1070], "[1910,1070,1922,1082]"
    mapped = reward_function("point_only", resize="qwen25")
    unmapped = reward_function("point_only", frame="orig")
    sizes = {"width": [1920], "height": [1080]}
    assert mapped(completions=[text], target=[target], **sizes)[0] == pytest.approx(0.999433628463, abs=5e-6)
    assert mapped(completions=[text], target=[target], image_wh=[[1920, 1080]])[0] == pytest.approx(0.999433628463, abs=5e-6)
    assert unmapped(completions=[text], target=[target], **sizes)[0] == pytest.approx(0.0183156388887, rel=1e-5)
    truth = json.dumps({"bbox": target, "image_wh": [1920, 1080]})
    assert verl.compute_score("x", text, truth, reward="point_only", resize="qwen25") == pytest.approx(0.99943, abs=1e-5)


@pytest.mark.parametrize(
    ("truth", "extra"),
    [
        (G0, None),
        (tuple(G0), {}),
        (np.array(G0), {"index": 3}),
        (json.dumps(G0), None),
        ({"target": G0}, None),
        ('{"bbox": [100, 100, 200, 150]}', None),
    ],
)
def test_verl_takes_targets_of_every_kind(truth: object, extra: dict[str, object] | None):
    assert verl.compute_score("gui", TEXTS[0], truth, extra, frame="orig") == pytest.approx(EXPECTED[0])


def test_verl_batched_is_the_single_one_many_times():
    calls = [("gui", text, G0, None) for text in TEXTS]
    names = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
    found = verl.compute_score_batched(**dict(zip(names, map(list, zip(*calls, strict=True)), strict=True)), frame="orig")
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)
    assert found == [verl.compute_score(*call, frame="orig") for call in calls]
    assert all(type(value) is float for value in found)


def test_verl_logs_the_parts():
    found = verl.compute_score("gui", TEXTS[0], G0, frame="orig", parts=True)
    expected = rewards.get("gui_g2")(BOXES[:1], np.array([G0], np.float32), format_ok=np.array([True]))
    assert found["score"] == pytest.approx(1.48902756230)
    assert {name: found[name] for name in expected._fields} == {
        name: getattr(expected, name).tolist()[0] for name in expected._fields
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reward_function("gui_g3"), "did you mean"),
        (lambda: reward_function("gui_g2", beta=1), "has no option beta"),
        (lambda: reward_function("gui_g2", part="iou"), "its parts are point, coverage"),
        (lambda: reward_function("rcpo_voting"), "a group of answers at once"),
        (lambda: reward_function("ui_r1"), "needs action_ok"),
        (lambda: reward_function(dialect="latin"), "'latin' is unknown"),
        (lambda: reward_function(frame="px"), "'px' is unknown"),
        (lambda: reward_function(resize="mine"), "'mine' is unknown; there are qwen25"),
        (
            lambda: reward_function(frame="orig")(completions=["x"], solution=["y"]),
            "no column 'target'.*columns are solution",
        ),
        (lambda: reward_function(frame="orig")(completions=["x"], target=[[1, 2]]), "target of row 0: 4 finite numbers"),
        (lambda: reward_function(frame="orig")(completions=[3], target=[G0]), "completion 0: a completion must be text"),
        (lambda: reward_function()(completions=["x"], target=[G0]), "frame resized .* the target in orig: give"),
        (lambda: reward_function()(completions=["x"], target=[G0], image_wh=[[9, 9]]), "how the pictures were resized"),
        (lambda: verl.compute_score("gui", "x", "the save button", frame="orig"), "ground truth of sample 0: 4 finite numbers"),
        (lambda: verl.compute_score("gui", "x", [1, 2, 3, float("nan")], frame="orig"), "4 finite numbers"),
        (lambda: verl.compute_score("gui", "x", "[" * 70000, frame="orig"), "4 finite numbers"),
    ],
)
def test_mistakes_are_told(call, message: str):
    with pytest.raises(UserError, match=message):
        call()


PROMPT = "<|im_start|>user\nlike [1,2,3,4]<|im_end|>\n<|im_start|>assistant\n"
PAYLOAD = {
    "query": [PROMPT + text + "<|im_end|>" for text in TEXTS],
    "prompts": [PROMPT] * 4,
    "labels": [json.dumps(G0), json.dumps({"target": G0}), json.dumps(G0), json.dumps(G0)],
}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(openrlhf.create_app(make_scorer(frame="orig")), base_url="http://127.0.0.1:5000")


def test_openrlhf_gets_its_rewards(client: TestClient):
    for payload in (PAYLOAD, {key: PAYLOAD[key] for key in ("query", "labels")}):  # the parser finds the last turn, too
        response = client.post("/get_reward", json=payload)
        assert response.status_code == 200
        found = response.json()
        np.testing.assert_allclose(found["rewards"], EXPECTED, rtol=1e-6)
        assert found["scores"] == found["rewards"]
        assert found["extra_logs"]["valid"] == [1, 1, 0, 1]
        assert found["extra_logs"]["log_reward"][2] is None


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([], "an object with query"),
        ({"query": "x"}, "query must be a list of texts"),
        ({"query": ["x"]}, "labels must be a list of 1 targets"),
        ({"query": ["x"], "labels": ["[1,2]"]}, "label 0: 4 finite numbers"),
        ({"query": ["x"], "labels": [G0], "prompts": []}, "prompts has 0 texts"),
    ],
)
def test_openrlhf_hears_what_is_wrong(client: TestClient, payload: object, message: str):
    response = client.post("/get_reward", json=payload)
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_the_server_refuses_strangers(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    assert client.post("/get_reward", content="[[", headers={"content-type": "application/json"}).status_code == 422
    assert client.post("/get_reward", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/get_reward", json=PAYLOAD, headers={"host": "evil.example"}).status_code == 403
    monkeypatch.setattr(openrlhf, "MAX_BODY", 100)
    assert client.post("/get_reward", json=PAYLOAD).status_code == 413
    assert client.get("/get_reward").status_code == 405


def test_other_machines_need_the_token():
    scorer, token = make_scorer(frame="orig"), "0123456789abcdef"
    with pytest.raises(UserError, match="lets other machines in"):
        openrlhf.create_app(scorer, host="0.0.0.0")
    with pytest.raises(UserError, match="at least 16"):
        openrlhf.create_app(scorer, host="0.0.0.0", token="short")
    client = TestClient(openrlhf.create_app(scorer, host="0.0.0.0", token=token), base_url="http://10.0.0.1:5000")
    assert client.post("/get_reward", json=PAYLOAD).status_code == 401
    assert client.post("/get_reward?token=wrong", json=PAYLOAD).status_code == 401
    assert client.post(f"/get_reward?token={token}", json=PAYLOAD).status_code == 200
    assert client.post("/get_reward", json=PAYLOAD, headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_a_wrong_setting_ends_the_server_at_once(capsys: pytest.CaptureFixture[str]):
    assert openrlhf.main(["--reward", "gui_g3"]) == 1
    assert "there is no reward 'gui_g3'" in capsys.readouterr().err


def test_no_trainer_and_no_jax_is_imported():
    modules = "rewards.adapters.trl, rewards.adapters.verl, rewards.adapters.openrlhf"
    code = f"import sys, {modules}; sys.exit(bool({{'jax', 'torch', 'trl', 'verl', 'openrlhf'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_examples_of_the_page_run():
    page = (Path(__file__).parents[2] / "docs" / "scoring.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, {})

"""What the soak of `benchmarks/env_soak.py` calls amiss, each by a journal that is; and a short one that must pass."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SENT = ["s 1-1 logged reset", "a 1-1 OK", "s 1-2 logged step", "a 1-2 OK", "s 1-3 logged step", "a 1-3 LOST", "end"]


@pytest.fixture
def judge(monkeypatch, tmp_path):
    """Judges a journal of learner 1 and the steps that environments wrote down."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from environments import soak_report, soak_watch

    monkeypatch.setattr(soak_report, "SECONDS", 0.0)

    def judged(journal, done, *, killed=False, seen=(), memory=None, left=None):
        for name in ("logs", "tmp"):
            (tmp_path / name).mkdir()
        (tmp_path / "journal-1").write_text("".join(f"{line}\n" for line in journal))
        (tmp_path / "learner-1.log").write_text("")
        (tmp_path / "logs" / "done-7").write_text("".join(f"{token}\n" for token in done))
        if left:
            (tmp_path / "tmp" / left).mkdir()
        watch = soak_watch.Watch()
        watch.seen |= set(seen)
        watch.memory = memory or {}
        soak = SimpleNamespace(
            folder=tmp_path, logs=tmp_path / "logs", temporary=tmp_path / "tmp", prefix="there-is-none", marks=set(),
            ended=[(1, killed)], watch=watch,
        )  # fmt: skip
        return soak_report.judge(soak, [])

    return judged


def test_what_is_in_order_is_not_amiss(judge):
    assert judge(SENT, ["1-2"], memory={"router": [10, 20, 20, 21, 21, 21, 21, 21]}) == []  # the warm-up does not count


def test_a_learner_that_was_killed_may_lack_answers(judge):
    assert judge(SENT[:3], ["1-2"], killed=True) == []


@pytest.mark.parametrize(
    ("journal", "done", "message"),
    [
        (SENT, ["1-2", "1-2"], "step 1-2 was done 2 times"),
        (SENT, ["1-2", "1-3", "1-3"], "step 1-3 was done 2 times"),  # also where the answer was LOST
        (SENT, [], "step 1-2 is OK and was done 0 times"),
        (SENT, ["1-2", "9-9"], "1 steps were done that nobody sent, such as 9-9"),
        ([*SENT[:4], "a 1-2 OK", *SENT[4:]], ["1-2"], "1-2 was answered twice"),
        ([*SENT[:5], "end"], ["1-2"], "no answer for ['1-3']"),
        (SENT[:6], ["1-2"], "did not end in order"),
        (["bad step 3 after 1", *SENT], ["1-2"], "step 3 after 1"),
    ],
    ids=["twice", "twice-lost", "not-done", "not-sent", "two-answers", "no-answer", "no-end", "bad"],
)
def test_what_is_amiss_is_said(judge, journal, done, message):
    assert message in judge(journal, done)[0]


def test_what_is_left_is_amiss(judge):
    from envs.server.arena import start_time

    said = judge(
        SENT,
        ["1-2"],
        seen=[(os.getpid(), start_time(os.getpid())), (os.getpid(), 1)],  # the second is another process of that number
        memory={"router": [10, 20, 20, 20, 22.1, 22.1, 22.1, 22.1]},
        left="jaxllm-browser-1-2-x",
    )
    assert said == [
        f"processes are left: [{os.getpid()}]",
        "a folder is left: jaxllm-browser-1-2-x",
        "the memory of the router grew from 20.0 to 22.1 MB",
    ]


@pytest.mark.slow
def test_a_short_soak_loses_nothing():
    command = [sys.executable, str(BENCHMARKS / "env_soak.py"), "--minutes", "0.2", "--steps", "300"]
    run = subprocess.run([*command, "--families", "logged", "games"], stdout=subprocess.PIPE, text=True, timeout=300)
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["amiss"] == []
    assert run.returncode == 0
    assert result["steps"] >= 300
    assert result["operations"] == result["answers"] + result["lost_with_their_learner"]

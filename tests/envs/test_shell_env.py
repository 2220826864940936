"""Tasks on files: every kind is solvable, not solved by doing nothing, the same anywhere, and checked with care."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import envs
from envs.api import Action, Invalid
from envs.digest import digest
from envs.sandbox import Limits
from envs.shell.env import KINDS, TASKS
from envs.shell.scripts import SCRIPTS, inputs
from envs.shell.tools import Session
from jaxllm.errors import UserError

FINISHED = Action("finished", {"content": ""})


def bash(command):
    return Action("execute_bash", {"command": command})


def summary(kind, level, seed, split="train"):
    """A digest of a problem's instruction and files, without starting anything."""
    made = TASKS.problem(TASKS.draw(kind, level, split, seed))
    files = {path: [file.data.hex(), file.mode] for path, file in made.files.items()}
    return digest({"instruction": made.instruction, "files": files})


def play(env, name, seed):
    """The oracle's last result."""
    obs = env.reset(seed=seed)
    policy = envs.oracle(f"shell/{name}", seed)
    while True:
        result = env.step(policy(env.state(), obs))
        obs = result.obs
        if result.terminated or result.truncated:
            return result


def check_kind(kind, level, seeds):
    env = envs.make(f"shell/{kind}", level=level)
    try:
        for seed in seeds:
            env.reset(seed=seed)
            nothing = env.step(FINISHED)
            assert (nothing.reward, nothing.terminated, nothing.info["success"]) == (0.0, True, False)
            solved = play(env, kind, seed)
            assert (solved.reward, solved.terminated, solved.info["success"]) == (1.0, True, True)
    finally:
        env.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_oracle_solves_it_and_doing_nothing_does_not(kind):
    check_kind(kind, 1, (0, 4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_large_ones_are_solved_too(kind):
    check_kind(kind, 2, (1,))
    check_kind(kind, 3, (2, 5))


def test_there_are_enough_kinds():
    assert len(KINDS) >= 12
    assert list(envs.names("shell/*")) == sorted(f"shell/{kind}" for kind in [*KINDS, "any"])
    assert {TASKS.draw("any", None, "train", seed).data["kind"] for seed in range(150)} == set(KINDS)


def test_the_same_seed_gives_the_same_task_in_another_process():
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_shell_env import KINDS, envs, digest, summary
made = [summary(kind, level, 5) for kind in sorted(KINDS, reverse=True) for level in (1, 2)]
env = envs.make("shell/config", level=2)
env.reset(seed=3)
env.step(envs.Action("execute_bash", {"command": "cd /tmp; export A=1; echo $RANDOM > /desk/r; chmod 600 /desk/r"}))
print(json.dumps([made, digest(env.state())]))
env.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    made, state = json.loads(done.stdout)
    assert made == [summary(kind, level, 5) for kind in sorted(KINDS, reverse=True) for level in (1, 2)]
    env = envs.make("shell/config", level=2)
    env.reset(seed=8)
    env.reset(seed=3)
    env.step(bash("cd /tmp; export A=1; echo $RANDOM > /desk/r; chmod 600 /desk/r"))
    assert digest(env.state()) == state
    env.step(bash("chmod 644 /desk/r"))
    assert digest(env.state()) != state
    env.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_seeds_levels_and_splits_differ(kind):
    train = {summary(kind, 1, seed) for seed in range(12)}
    test = {summary(kind, 1, seed, "test") for seed in range(12)}
    assert len(train) == len(test) == 12
    assert not train & test
    sizes = [
        sum(len(file.data) for file in TASKS.problem(TASKS.draw(kind, level, "train", 0)).files.values()) for level in (1, 3)
    ]
    assert sizes[0] < sizes[1] or kind == "script"


@pytest.mark.parametrize("kind", ["find", "count", "largest", "log"])
def test_only_one_answer_is_right(kind):
    env = envs.make(f"shell/{kind}", level=1)
    solved = play(env, kind, 1)
    assert solved.reward == 1
    right = env.state()["answer"]
    other = str(int(right) + 1) if right.isdigit() else right[:-1]
    for answer, reward in (
        (right, 1),
        (f" /desk/{right}\n", 1),
        (f"`{right}`", 1),
        (other, 0),
        ("", 0),
        (f"{right} {other}", 0),
    ):
        env.reset(seed=1)
        assert env.step(Action("finished", {"content": answer})).reward == reward
    env.close()


def test_a_part_of_the_work_earns_a_part():
    env = envs.make("shell/rename", level=1)
    env.reset(seed=2)
    env.step(bash('cd /desk/photos; ls *.JPG | head -5 | while read -r f; do n=${f,,}; mv "$f" "${n// /-}"; done'))
    assert env.step(FINISHED).reward == 0.5
    env.reset(seed=2)
    env.step(bash("rm /desk/photos/*.JPG"))
    assert env.step(FINISHED).reward == 0
    env.close()


@pytest.mark.parametrize(
    "trap",
    [
        "mkfifo all.txt",
        "ln -s /etc/passwd all.txt",
        "mkdir all.txt",
        "head -c 3M /dev/zero > all.txt",
        "printf '\\377' > all.txt",
    ],
)
def test_checks_do_not_trust_what_they_read(trap):
    env = envs.make("shell/merge", level=1)
    env.reset(seed=0)
    env.step(bash(trap))
    assert env.step(FINISHED).reward == 0
    env.close()


def test_a_check_of_a_script_ends():
    env = envs.make("shell/script", level=1)
    env.reset(seed=0)
    env.step(bash("printf 'yes; sleep 1000 &' > tool.sh"))
    assert env.step(FINISHED).reward == 0
    env.close()


def test_every_mistake_in_a_script_shows(tmp_path):
    """Run by bash itself: a script is right without mistakes, and wrong with any of them."""
    for script in SCRIPTS:
        files = inputs(random.Random(3), script)
        for i, lines in enumerate(files):
            (tmp_path / f"{i}.txt").write_text("".join(line + "\n" for line in lines))
        expected = "".join("\n".join(script.expected(lines)) + "\n" for lines in files)
        mistakes = [chosen for n in range(4) for chosen in itertools.combinations(script.mistakes, n)]
        for chosen in mistakes:
            text = script.text
            for right, wrong in chosen:
                assert right in text
                text = text.replace(right, wrong, 1)
            (tmp_path / "tool.sh").write_text(text)
            done = subprocess.run(
                ["bash", "-c", "for i in 0 1 2 3; do (. ./tool.sh $i.txt); done"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
            )
            assert (done.stdout == expected) == (not chosen), (script.about, chosen)


def test_what_the_agent_sees():
    env = envs.make("shell/find", level=1, timeout=1.0)
    first = env.reset(seed=0)
    assert "/desk" in first.text
    assert (first.step, first.t_virtual) == (0, 0.0)
    seen = env.step(bash("echo out; exit_with() { return 3; }; exit_with"))
    assert seen.obs.text == "out\n[exit code 3]"
    assert seen.info["exit_code"] == 3
    assert (seen.obs.step, seen.obs.t_virtual) == (1, 0.1)
    slow = env.step(bash("echo begun; sleep 60"))
    assert slow.obs.text == "begun\n[still running]\n[exit code -1]"
    assert env.step(bash("C-c")).info["exit_code"] == 130
    assert env.step(Action("wait")).obs.t_virtual == pytest.approx(5.3)
    cell = env.step(Action("JupyterCI", {"code": "import os; sorted(os.environ)[:1]"}))
    assert cell.info["exit_code"] == 0
    edit = env.step(Action("str_replace_editor", {"command": "view", "path": "/etc/passwd"}))
    assert edit.info["error"] == "bad_path"
    assert env.step(Invalid("no_action", "nothing was written")).info["error"] == "no_action"
    assert env.step(Action("click", {"point": [1, 2]})).info["error"] == "unknown_action"
    asked = env.step(Action("call_user"))
    assert (asked.reward, asked.terminated) == (0.0, True)
    assert env.step(bash("ls")).info["error"] == "episode_over"
    env.close()
    env.close()


def test_a_save_goes_on_in_another_environment():
    first, second = envs.make("shell/config", level=1), envs.make("shell/config", level=1)
    first.reset(seed=6)
    first.step(Action("str_replace_editor", {"command": "create", "path": "n/a", "file_text": "1\n"}))
    first.step(bash("cd n; export A=5; B=6; ln -s a l; chmod 600 a; false"))
    blob = first.save()
    obs = second.restore(blob)
    assert (obs.text, obs.step) == ("[exit code 1]", 2)
    assert digest(second.state()) == digest(first.state())
    rest = [
        bash("pwd; echo $A $B $RANDOM; ls -l | cut -c 1-10"),
        Action("str_replace_editor", {"command": "undo_edit", "path": "n/a"}),
    ]
    rest += [
        bash("cat l"),
        Invalid("no_action"),
        bash("cd ..; ls -A"),
        *TASKS.problem(TASKS.draw("config", 1, "train", 6)).solution,
    ]
    for action in rest:
        here, there = first.step(action), second.step(action)
        assert (here.obs.text, here.reward, here.terminated) == (there.obs.text, there.reward, there.terminated)
        assert {**here.info, "latency": 0} == {**there.info, "latency": 0}
        assert digest(first.state()) == digest(second.state())
    assert here.reward == 1
    for wrong in (b"", b"{}", blob.replace(b'"shell/config"', b'"shell/count"'), blob.replace(b'"cwd"', b'"cwx"', 1)):
        with pytest.raises(UserError):
            second.restore(wrong)
    first.close()
    second.close()


def test_a_save_with_live_processes_is_refused():
    env = envs.make("shell/count", level=1, timeout=0.3)
    with pytest.raises(UserError, match="before the first reset"):
        env.save()
    env.reset(seed=0)
    env.step(bash("sleep 100 &"))
    with pytest.raises(UserError, match="end it first"):
        env.save()
    env.step(bash("kill %1; wait"))
    env.save()
    env.step(Action("JupyterCI", {"code": "x = 1"}))
    with pytest.raises(UserError, match="interpreter"):
        env.save()
    env.close()


def test_a_session_beyond_its_limits_is_over(tmp_path):
    session = Session(tmp_path, limits=Limits(disk=1 << 20))
    reply = session.act(bash("for i in 1 2 3; do head -c 1M /dev/zero > $i; done; sleep 60"))
    assert (reply.over, reply.info["status"]) == (True, "DISK_LIMIT")
    session.close()


def test_wrong_names_and_options():
    for name, options in (
        ("nothing", {}),
        ("find", {"level": 4}),
        ("find", {"split": "dev"}),
        ("find", {"timeout": 0}),
        ("find", {"x": 1}),
    ):
        with pytest.raises(UserError):
            envs.make(f"shell/{name}", **options)
    env = envs.make("shell/find")
    with pytest.raises(UserError, match="kind, level, split and seed"):
        env.reset(envs.Task("mine", "do it", {"kind": "find"}))
    env.close()


def test_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = envs.make("shell/permissions", level=1)
    for seed in range(2):
        env.reset(seed=seed)
        env.step(bash("mkdir closed; touch closed/x; chmod 000 closed; sleep 100 &"))
    env.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_dead_is_swept_at_the_next_reset(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    owner = """if True:
        import os, signal, sys, envs
        envs.make("shell/permissions", level=1).reset(seed=0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", owner], env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (dead,) = tmp_path.iterdir()
    assert any(dead.iterdir())
    foreign = tmp_path / "jaxllm-shell-notes"
    foreign.mkdir()
    env = envs.make("shell/permissions", level=1)
    env.reset(seed=0)
    assert not dead.exists()
    env.close()
    assert list(tmp_path.iterdir()) == [foreign]

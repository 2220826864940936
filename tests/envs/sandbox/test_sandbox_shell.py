"""A shell that stays: state from command to command, timeouts, interrupts, output caps, saves."""

import subprocess

import pytest

from envs.sandbox import RUNNING, Sandbox, Shell
from envs.sandbox.channel import KEPT, Clip
from jaxllm.errors import UserError


def test_state_stays_from_command_to_command(shell):
    assert shell.run("cd /tmp; A=1; f() { echo called; }; false").exit_code == 1
    assert shell.run("echo $?; pwd; echo $A; f").text == "1\n/tmp\n1\ncalled\n"
    assert shell.cwd == "/tmp"
    assert shell.run("cd /desk; unset A").text == ""


def test_standard_error_comes_in_order(shell):
    assert shell.run("echo a; echo b >&2; echo c").text == "a\nb\nc\n"


@pytest.mark.parametrize(
    "command", ["echo 'it''s'\necho \"$HOME\"", "cat <<X\n$((1+2))\nX", "printf 'a\\0b' | wc -c", "# no command"]
)
def test_any_text_is_a_command(shell, command):
    """The reference is bash itself, outside."""
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={"HOME": "/desk", "PATH": "/usr/bin"}, timeout=60
    )
    assert (shell.run(command).text, shell.run(command).exit_code) == (done.stdout, done.returncode)


def test_an_unfinished_command_is_an_error_and_no_end(shell):
    assert shell.run("if true").exit_code == 2
    assert shell.run("echo 'open").exit_code > 0
    assert shell.run("echo ok").text == "ok\n"


def test_a_running_command_is_polled_and_interrupted(shell):
    begun = shell.run("echo begun; sleep 100; echo never", 0.3)
    assert (begun.exit_code, shell.running) == (RUNNING, True)
    refused = shell.run("echo second", 0.3)
    assert (refused.exit_code, refused.text) == (RUNNING, "")
    assert "still running" in refused.note
    assert shell.run("", 0.1).exit_code == RUNNING
    ended = shell.run("C-c")
    assert ended.exit_code == 130  # 128 + SIGINT
    assert "never" not in begun.text + ended.text
    assert shell.run("echo ok").text == "ok\n"
    assert not shell.live()


def test_what_comes_later_is_polled(shell):
    first = shell.run("echo one; sleep 0.5; echo two", 0.05)
    assert first.exit_code == RUNNING
    second = shell.run("", 30.0)
    assert (first.text + second.text, second.exit_code) == ("one\ntwo\n", 0)


def test_a_command_that_waits_for_input_is_interrupted(shell):
    assert shell.run("read answer; echo $answer", 0.2).exit_code == RUNNING
    assert shell.run("C-c").exit_code == 130
    assert shell.run("cat", 0.2).exit_code == RUNNING
    assert shell.run("C-c").exit_code == 130


def test_a_loop_of_the_shell_itself_is_interrupted(shell):
    shell.run("KEPT=1")
    assert shell.run("while :; do :; done", 0.2).exit_code == RUNNING
    assert shell.run("C-c").exit_code == 130
    assert shell.run("echo $KEPT").text == "1\n"


def test_a_command_that_ignores_the_interrupt_is_killed(shell):
    assert shell.run("(trap '' INT; sleep 100)", 0.3).exit_code == RUNNING
    assert shell.run("C-c").exit_code == 137  # 128 + SIGKILL
    assert shell.run("echo ok").text == "ok\n"


def test_nothing_to_poll_or_interrupt(shell):
    for command in ("", "  ", "C-c"):
        assert shell.run(command).note == "no command is running"


def test_a_command_that_ends_the_shell_leaves_a_new_one(shell):
    shell.run("LOST=1; cd /tmp")
    ended = shell.run("exit 7")
    assert ended.exit_code == 7
    assert "new one was started in /desk" in ended.note
    assert shell.run("pwd; echo ${LOST-none}").text == "/desk\nnone\n"


def test_output_keeps_head_and_tail(shell):
    output = shell.run("seq 100000")
    whole = "".join(f"{i}\n" for i in range(1, 100_001))
    assert output.text.startswith(whole[:8000])
    assert output.text.endswith(whole[-8000:])
    assert len(output.text) < KEPT + 100
    assert output.omitted == len(whole) - KEPT
    assert f"[... {output.omitted} bytes left out ...]" in output.text


def test_a_flood_is_killed(shell):
    output = shell.run("yes", 60.0)
    assert output.exit_code == 137
    assert "printed more than 16 MiB" in output.note
    assert shell.run("echo ok").text == "ok\n"


def test_bytes_that_are_no_text(shell):
    assert shell.run("printf 'a\\xff\\xc3b\\n'").text == "a��b\n"


@pytest.mark.parametrize("character", ["é", "→", "𝄞"])
def test_no_character_is_cut_in_two(character):
    for shift in range(4):
        clip = Clip()
        clip.add(("x" * shift + character * 20_000).encode())
        assert "�" not in clip.text()


def test_commands_that_are_refused(shell):
    for command in ("a\0b", "x" * 200_000):
        with pytest.raises(UserError, match="NUL"):
            shell.run(command)


def test_background_output_comes_with_the_next_command(shell):
    shell.run("(sleep 0.1; echo late) &")
    assert "late" in shell.run("sleep 1; echo now").text


def test_a_save_goes_on_elsewhere(tmp_path):
    set_up = (
        "cd /tmp; A=$'two\\nlines'; export E='x y'; L=(1 2 3); declare -A M=([k]=v); f() { echo \"f$1\"; }; alias ll='ls -a'"
    )
    set_up += "; set -o pipefail; shopt -s nullglob; umask 077; IFS=:; unset PAGER; readonly R=9"
    probe = (
        'echo $RANDOM $RANDOM; pwd; echo "$A|$E|${L[2]}|${M[k]}|$R|${PAGER-none}"; f 1; alias ll; false | true; echo $?; umask'
    )
    probe += '; echo *.none; printf %q "$IFS"'
    with Sandbox(tmp_path) as first, Sandbox(tmp_path) as second:
        shell = Shell(first, seed=5)
        shell.run(set_up)
        saved = shell.save()
        other = Shell(second, saved=saved)
        assert other.exported == shell.exported
        assert other.cwd == shell.cwd == "/tmp"
        here = shell.run(probe)
        assert other.run(probe).text == here.text
        assert here.text.split("\n")[1:] == [
            "/tmp",
            "two",
            "lines|x y|3|v|9|none",
            "f1",
            "alias ll='ls -a'",
            "1",
            "0077",
            "",
            ":",
        ]
        shell.run("sleep 100 &")
        with pytest.raises(UserError, match="end it first"):
            shell.save()
        other.run("mkdir /tmp/gone; cd /tmp/gone")
        with pytest.raises(UserError, match="not kept"):
            other.save()


def test_random_numbers_come_from_the_seed(tmp_path):
    with Sandbox(tmp_path) as sandbox:
        drawn = [Shell(sandbox, seed=seed).run("echo $RANDOM $RANDOM $RANDOM").text for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_forged_report_is_only_a_wrong_exit_code(tmp_path):
    """Commands can reach the pipe of the reports; what they write there is data."""
    with Sandbox(tmp_path) as sandbox:
        shell = Shell(sandbox)
        number = shell._number + 1
        for field in ("9" * 5000, "x", "", "-1"):
            forged = f"printf '%s\\0' {number} '{field}' /nowhere env '' >&{shell._reports_number}; sleep 0.2"
            assert 0 <= shell.run(forged).exit_code <= 255
            number += 1
            shell.run("true")
            number += 1
        assert shell.run("echo ok").text == "ok\n"


def test_a_session_that_prints_too_much_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr("envs.sandbox.channel.PER_SESSION", 100_000)
    with Sandbox(tmp_path) as sandbox:
        shell = Shell(sandbox)
        assert shell.run("seq 10000").exit_code == 0
        assert "the session printed more" in shell.run("seq 20000").note
        assert sandbox.ended == "output"

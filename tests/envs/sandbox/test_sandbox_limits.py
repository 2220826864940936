"""What a session may use, and that nothing of it is left when it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_help import alive, wait_until

from envs.sandbox import Limits, Sandbox, Shell, bubblewrap, capabilities, missing, quota
from envs.sandbox.cgroups import PREFIX, Group
from jaxllm.errors import UserError

MIB = 1 << 20
# Starts sleepers until that fails, 60 at most; prints how many.
BOMB = """
import subprocess
count = 0
try:
    while count < 60:
        subprocess.Popen(["sleep", "60"])
        count += 1
except OSError:
    pass
print(count, flush=True)
"""
# Makes folders in folders, until their path is too long to be opened from outside.
DEEP = """
import os
for i in range(40):
    os.mkdir("x" * 200)
    os.chdir("x" * 200)
"""


def test_a_fork_bomb_stops_at_the_limit(tmp_path):
    bomb = "python3 -c '" + BOMB + "'"
    with Sandbox(tmp_path, Limits(processes=32)) as sandbox:
        bombed = int(Shell(sandbox).run(bomb, 60.0).text.split()[0])
        pids = sandbox.pids()
    bounded = capabilities()["processes"] != "none"
    assert (10 < bombed <= 32) if bounded else "processes is not bounded" in str(capabilities()["warnings"])
    assert not any(alive(pid) for pid in pids)
    with Sandbox(tmp_path, Limits(processes=100)) as sandbox:  # the control: it would have been 60
        assert Shell(sandbox).run(bomb, 60.0).text.split()[0] == "60"


def test_memory_of_the_whole_sandbox(tmp_path):
    hog = "head -c 200M /dev/zero | tail | wc -c"  # tail keeps all of it
    with Sandbox(tmp_path, Limits(memory=64 * MIB)) as sandbox:
        shell = Shell(sandbox)
        bounded = shell.run(hog).text.split()[-1]
        assert shell.run("echo alive").text == "alive\n"
    if capabilities()["memory"] == "none":
        assert "memory" in str(capabilities()["warnings"])
    else:
        assert bounded == "0"
    with Sandbox(tmp_path, Limits(memory=512 * MIB)) as sandbox:
        assert Shell(sandbox).run(hog).text.split()[-1] == str(200 * MIB)


def test_limits_of_one_process(tmp_path):
    with Sandbox(tmp_path, Limits(address_space=512 * MIB, file_size=MIB, open_files=64, cpu=1)) as sandbox:
        shell = Shell(sandbox)
        assert "MemoryError" in shell.run("python3 -c 'x = bytearray(600 << 20)'").text
        assert shell.run("python3 -c 'x = bytearray(100 << 20)'").exit_code == 0
        assert shell.run("head -c 2M /dev/zero > big").exit_code != 0
        assert (tmp_path / "big").stat().st_size == MIB
        assert shell.run("ulimit -n").text == "64\n"
        assert shell.run("bash -c 'while :; do :; done'", 60.0).exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "limits", "reason"),
    [
        ("for i in 1 2 3 4 5 6; do head -c 1M /dev/zero > f$i; done; sleep 60", Limits(disk=4 * MIB), "disk"),
        ("exec 9> f; rm f; head -c 6M /dev/zero >&9; sleep 60", Limits(disk=4 * MIB), "disk"),  # deleted, but still open
        ("for i in $(seq 300); do : > $i; done; sleep 60", Limits(files=200), "files"),
        (f"python3 -c '{DEEP}'; sleep 60", Limits(), "files"),
    ],
)
def test_filling_the_disk_ends_the_session(command, limits, reason, tmp_path):
    folder = tmp_path / "session"
    folder.mkdir()
    with Sandbox(folder, limits) as sandbox:
        shell = Shell(sandbox)
        output = shell.run(command, 50.0)
        assert sandbox.ended == reason
        assert output.exit_code == -1
        assert "the session is over" in output.note
        assert "over" in shell.run("ls").note
        assert not sandbox.pids()
        with pytest.raises(UserError, match="ended"):
            sandbox.popen(["true"])
    subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=60)


def test_the_limit_does_not_end_a_session_below_it(tmp_path):
    with Sandbox(tmp_path, Limits(disk=4 * MIB, files=200)) as sandbox:
        assert Shell(sandbox).run("head -c 3M /dev/zero > f; for i in $(seq 150); do : > $i; done; sleep 0.5").exit_code == 0
        assert sandbox.ended is None


def test_usage_counts_files_once_and_deleted_ones_too(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    once = quota.usage(tmp_path)
    assert once.files == 1
    assert 100_000 <= once.bytes <= 120_000
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert quota.usage(tmp_path) == (once.bytes, 2)
    with (tmp_path / "c").open("wb") as file:
        file.write(b"x" * 200_000)
        file.flush()
        (tmp_path / "c").unlink()
        assert quota.usage(tmp_path).bytes == once.bytes  # a walk alone does not see it
        assert quota.usage(tmp_path, [os.getpid()]).bytes >= once.bytes + 200_000


def test_tmp_and_shared_memory_are_small(tmp_path):
    with Sandbox(tmp_path, Limits(tmp=MIB)) as sandbox:
        for place in ("/tmp", "/dev/shm"):
            assert "No space left" in Shell(sandbox).run(f"head -c 2M /dev/zero > {place}/x").text


def test_nothing_survives_the_end_of_a_session(tmp_path):
    sandbox = Sandbox(tmp_path)
    shell = Shell(sandbox)
    shell.run("(trap '' HUP TERM INT; setsid nohup sleep 1000 >/dev/null 2>&1 &) ; sleep 1000 & disown -a")
    wait_until(lambda: sum(alive(pid) for pid in sandbox.pids()) >= 5)  # two of bubblewrap, bash, two sleepers
    pids = sandbox.pids()
    assert shell.live()
    sandbox.close()
    assert not any(alive(pid) for pid in pids)
    sandbox.close()
    shell.close()
    # The control: on the host the same leaves a process behind, though its shell is killed with its whole group.
    control = "(trap '' HUP TERM INT; setsid nohup bash -c 'echo $$; exec sleep 1000 >/dev/null' 2>/dev/null &) ; sleep 1000"
    host = subprocess.Popen(["bash", "-c", control], stdout=subprocess.PIPE, text=True, start_new_session=True)
    left = int(host.stdout.readline())
    os.killpg(host.pid, signal.SIGKILL)
    host.communicate(timeout=60)
    assert alive(left)
    os.kill(left, signal.SIGKILL)
    wait_until(lambda: not alive(left))


def test_nothing_survives_its_killed_server(tmp_path):
    program = (
        "import sys; from envs.sandbox import Sandbox, Shell; s = Sandbox(sys.argv[1]); sh = Shell(s); "
        "sh.run('setsid sleep 1000 &'); print(*s.pids(), flush=True); sys.stdin.read()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pids = [int(pid) for pid in server.stdout.readline().split()]
    assert len(pids) >= 4
    assert all(alive(pid) for pid in pids)
    server.kill()
    server.communicate(timeout=60)
    wait_until(lambda: not any(alive(pid) for pid in pids))
    Group(Limits()).close()  # the next server on this host removes the empty groups


def test_no_descriptor_process_or_group_is_left(tmp_path):
    group = Group(Limits())
    try:
        parents = {folder.parent for folder in group.folders}
    finally:
        group.close()

    def left():
        groups = [folder for parent in parents for folder in parent.glob(f"{PREFIX}-{os.getpid()}-*")]
        return len(list(Path("/proc/self/fd").iterdir())), groups

    before = left()
    for _ in range(3):
        with Sandbox(tmp_path) as sandbox:
            shell = Shell(sandbox)
            shell.run("sleep 100 &")
            shell.close()
    assert left() == before


def test_a_host_without_namespaces_is_refused(tmp_path, monkeypatch):
    assert missing() is None
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (fake / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    problem = missing.__wrapped__()
    assert "No permissions to create new namespace" in problem
    assert "never run outside" in problem
    monkeypatch.setattr(bubblewrap, "missing", lambda: problem)
    with pytest.raises(UserError, match="No permissions"):
        Sandbox(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install bubblewrap" in missing.__wrapped__()


def test_wrong_folders_and_limits_are_refused(tmp_path):
    with pytest.raises(UserError, match="folder that exists"):
        Sandbox(tmp_path / "none")
    with pytest.raises(UserError, match="processes"):
        Limits(processes=0)
    with pytest.raises(UserError, match="disk"):
        Limits(disk=1.5)


def test_a_command_line_for_others(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("bound\n")
    session = tmp_path / "session"
    session.mkdir()
    with Sandbox(session, Limits(address_space=None)) as sandbox:
        line = sandbox.command(
            ["bash", "-c", "cat /data/x; : > /data/y; echo $A; pwd; ulimit -v"],
            binds=[(str(tmp_path / "data"), "/data")],
            env={"A": "b c"},
            cwd="/tmp",
        )
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "bound\nb c\n/tmp\nunlimited\n"
        assert "Read-only" in done.stderr
        child = sandbox.popen(["bash", "-c", ": > /data/y"], binds=[(str(tmp_path / "data"), "/data", True)])
        assert child.wait(60) == 0
    assert (tmp_path / "data" / "y").exists()

"""Ways out of the sandbox, each of which fails; and the same way outside, where it does not, so that the attempt is real."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from envs.sandbox import Editor, Root, Sandbox

# Tries calls of the kernel by number (x86_64, aarch64) and prints the error of each, 0 for none.
CALLS = textwrap.dedent("""
    import ctypes, errno, os, platform, socket, sys
    column = 0 if platform.machine() == "x86_64" else 1
    libc = ctypes.CDLL(None, use_errno=True)
    def call(numbers, *arguments):
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(numbers[column]), *[ctypes.c_long(a) for a in arguments])
        return 0 if result != -1 else ctypes.get_errno()
    print("keyctl", call((250, 219), 0, -3, 0))            # KEYCTL_GET_KEYRING_ID of the session
    print("io_uring", call((425, 425), 0, 0))
    print("bpf", call((321, 280), 0, 0, 0))
    print("perf", call((298, 241), 0, 0, -1, -1, 0))
    print("setns", call((308, 268), -1, 0))
    print("clone3", call((435, 435), 0, 0))
    print("ptrace", call((101, 117), 0, 0, 0, 0))           # PTRACE_TRACEME
    try:
        socket.socket(40, socket.SOCK_STREAM).close()       # AF_VSOCK: to the host of a virtual machine
        print("vsock 0")
    except OSError as error:
        print("vsock", error.errno)
""")
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97


def outside(command, **options):
    """The control: the same command on the host."""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "secret.txt"
    path.write_text("the host's secret\n")
    return path


def test_read_a_host_file(shell, secret):
    assert "secret" in outside(f"cat {secret}").stdout
    assert shell.run(f"cat {secret}").exit_code == 1
    assert shell.run(f"cat /etc/shadow {Path.home()}/.bashrc /home/*/.bashrc 2>/dev/null").text == ""
    assert not {"root", "home", "var", "sys", "run", "mnt", "opt", "boot", "srv"} & set(shell.run("ls /").text.split())
    assert shell.run("cat /etc/passwd").text == "nobody:x:65534:65534:nobody:/desk:/bin/bash\n"


def test_read_a_host_file_through_a_process(shell, secret):
    assert shell.run(f"cat /proc/1/root{secret} /proc/*/root{secret} /proc/*/cwd/secret.txt 2>/dev/null").text == ""


def test_follow_a_link_out(shell, folder, secret):
    assert shell.run(f"ln -sf {secret} link && ln -sfn {secret.parent} dir").exit_code == 0
    assert "secret" in (folder / "link").read_text()  # from outside, the link leads there
    assert shell.run("cat link dir/secret.txt").exit_code == 1
    editor = Editor(Root(folder))
    for path in ("link", "/desk/link", "dir/secret.txt", "dir", f"../host0/{secret.name}"):
        assert editor.run("view", path).error == "bad_path"
    assert editor.run("str_replace", "link", old_str="secret", new_str="public").error == "bad_path"
    assert not editor.run("create", "dir/new.txt", file_text="x").ok
    assert secret.read_text() == "the host's secret\n"
    assert [path.name for path in secret.parent.iterdir()] == ["secret.txt"]
    assert shell.run("rm link dir").exit_code == 0


def test_a_host_variable(tmp_path, monkeypatch, shell):
    monkeypatch.setenv("HOST_TOKEN", "hidden-4711")
    assert "4711" in outside("env").stdout
    with Sandbox(tmp_path) as fresh:
        child = fresh.popen(["env"], stdout=subprocess.PIPE)
        assert b"4711" not in child.communicate(timeout=60)[0]


def test_open_a_socket_to_the_host(shell, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = f"timeout 5 bash -c 'exec 5<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}'"
        assert outside(probe).returncode == 0
        assert shell.run(probe).exit_code == 1
        with Sandbox(tmp_path) as open_one:  # with the host's network the same program does get there
            assert open_one.popen(["bash", "-c", probe], network=True).wait(60) == 0


def test_open_a_socket_by_an_abstract_name(shell):
    name = f"jaxllm-test-{os.getpid()}"
    probe = f'import socket; socket.socket(socket.AF_UNIX).connect("\\0{name}")'
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen(4)
        assert subprocess.run([sys.executable, "-c", probe], timeout=60).returncode == 0
        assert "ConnectionRefusedError" in shell.run(f"python3 -c '{probe}'").text


def test_only_a_loopback(shell):
    devices = [line.split(":")[0].strip() for line in shell.run("tail -n +3 /proc/net/dev").text.splitlines()]
    assert devices == ["lo"]


def test_see_and_signal_other_processes(shell):
    probe = f"kill -0 {os.getpid()}"
    assert outside(probe).returncode == 0
    assert shell.run(probe).exit_code == 1 or os.getpid() < 10
    numbers = [name for name in shell.run("ls /proc").text.split() if name.isdigit()]
    assert len(numbers) <= 4  # bubblewrap's own, bash, ls
    assert len([path for path in Path("/proc").iterdir() if path.name.isdigit()]) > len(numbers)


def test_calls_of_the_kernel(shell, folder):
    (folder / "calls.py").write_text(CALLS)
    inside = dict(line.split() for line in shell.run("python3 calls.py").text.splitlines())
    host = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=60).stdout
    control = dict(line.split() for line in host.splitlines())
    refused = {int(inside[name]) for name in ("keyctl", "io_uring", "bpf", "perf", "setns", "ptrace")}
    assert refused == {EPERM}
    assert (int(inside["clone3"]), int(inside["vsock"])) == (ENOSYS, EAFNOSUPPORT)
    assert control["ptrace"] == "0"  # outside the same program may
    assert control["setns"] not in ("0", "1")  # and gets as far as a bad descriptor
    (folder / "calls.py").unlink()


def test_mount_and_namespaces(shell, tmp_path):
    assert outside(f"unshare -Urm mount -t tmpfs none {tmp_path}").returncode == 0
    assert outside("unshare -U true").returncode == 0
    assert shell.run("mkdir -p m; mount -t tmpfs none m").exit_code != 0
    assert shell.run("umount /tmp").exit_code != 0
    for flags in ("-U", "-Ur", "-n", "-m", "-p", "-i", "-u", "-C"):
        assert shell.run(f"unshare {flags} true").exit_code != 0
    shell.run("rmdir m")


def test_capabilities_and_privileges(shell):
    status = dict(line.split(":\t", 1) for line in shell.run("cat /proc/self/status").text.splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert shell.run("id -u").text == "65534\n"
    assert shell.run("chroot / true").exit_code != 0
    assert shell.run("touch t && chown 0:0 t").exit_code != 0
    shell.run("rm t")


def test_settings_of_the_kernel(shell):
    """bubblewrap leaves /proc/sys to the host's root, who needs no capability to write there: a program to run on the host."""
    probe = ": >> /proc/sys/vm/swappiness"  # opens for writing, and writes nothing
    assert outside(probe).returncode == (0 if os.geteuid() == 0 else 1)
    assert "Read-only file system" in shell.run(probe).text
    found = "find /proc -path '/proc/[0-9]*' -prune -o -not -path '/proc/*self*' -type f -writable -print 2>/dev/null"
    assert shell.run(found).text == ""
    assert shell.run(found.replace("-writable", "-readable")).text.count("\n") > 50  # it does look


def test_write_outside_the_folder(shell):
    for path in ("/x", "/dev/x", "/etc/x", "/usr/x", "/usr/bin/x", "/proc/x"):
        assert shell.run(f": > {path}").exit_code == 1
    for path in ("/desk/x", "/tmp/x", "/dev/shm/x"):
        assert shell.run(f": > {path} && rm {path}").exit_code == 0


def test_descriptors_of_the_host(sandbox, tmp_path):
    with (tmp_path / "open.txt").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        probe = "readlink /proc/self/fd/*"
        child = sandbox.popen(["bash", "-c", probe], stdout=subprocess.PIPE)
        assert b"open.txt" not in child.communicate(timeout=60)[0]
        assert "open.txt" in outside(probe, pass_fds=(file.fileno(),)).stdout

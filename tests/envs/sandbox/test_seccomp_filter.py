"""The call filter, run by an interpreter of classic BPF written here from the kernel's description of it."""

import errno
import functools
import struct

import pytest

from envs.sandbox.filter import program

X86_64, AARCH64 = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of linux/audit.h
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSED = 0x00050000 | errno.EPERM


@functools.cache
def lines_of(machine: str) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("=HBBI", program(machine)))


def verdict(machine: str, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would do with a call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = lines_of(machine)
    at = accumulator = 0
    while True:
        code, true, false, k = lines[at]
        at += 1
        if code == 0x20:  # load the word at k
            accumulator = struct.unpack_from("=I", data, k)[0]
        elif code == 0x06:  # return k
            return k
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            at += true if holds else false


# Numbers from the manual's table of calls (syscalls(2)) and the kernels' asm/unistd_64.h and asm-generic/unistd.h.
@pytest.mark.parametrize(
    ("name", "x86_64", "aarch64"),
    [
        ("ptrace", 101, 117),
        ("mount", 165, 40),
        ("umount2", 166, 39),
        ("unshare", 272, 97),
        ("setns", 308, 268),
        ("keyctl", 250, 219),
        ("add_key", 248, 217),
        ("bpf", 321, 280),
        ("perf_event_open", 298, 241),
        ("io_uring_setup", 425, 425),
        ("kexec_load", 246, 104),
        ("open_by_handle_at", 304, 265),
        ("process_vm_writev", 311, 271),
        ("userfaultfd", 323, 282),
    ],
)
def test_calls_are_refused_on_both_machines(name, x86_64, aarch64):
    assert verdict("x86_64", X86_64, x86_64) == REFUSED
    assert verdict("aarch64", AARCH64, aarch64) == REFUSED


@pytest.mark.parametrize(("machine", "arch", "clone"), [("x86_64", X86_64, 56), ("aarch64", AARCH64, 220)])
def test_clone_makes_processes_and_threads_but_no_namespaces(machine, arch, clone):
    thread = 0x3D0F00  # the flags of pthread_create in the C library
    assert verdict(machine, arch, clone, thread) == ALLOW
    assert verdict(machine, arch, clone, 17) == ALLOW  # fork: SIGCHLD alone
    for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x04000000, 0x08000000, 0x02000000):  # USER PID NET NS UTS ..
        assert verdict(machine, arch, clone, 17 | flag) == REFUSED
    assert verdict(machine, arch, 435) == 0x00050000 | errno.ENOSYS  # clone3, so that libraries fall back to clone


@pytest.mark.parametrize(("machine", "arch", "socket"), [("x86_64", X86_64, 41), ("aarch64", AARCH64, 198)])
def test_sockets_of_few_families(machine, arch, socket):
    allowed = {family for family in range(64) if verdict(machine, arch, socket, family) == ALLOW}
    assert allowed == {1, 2, 10, 16}  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK


def test_text_is_not_put_into_terminals():
    assert verdict("x86_64", X86_64, 16, 0, 0x5412) == REFUSED  # ioctl TIOCSTI
    assert verdict("x86_64", X86_64, 16, 0, 0x5413) == ALLOW  # ioctl TIOCGWINSZ


def test_another_architecture_is_killed():
    assert verdict("x86_64", 0x40000003, 20) == KILL  # 32-bit calls have numbers of their own
    assert verdict("x86_64", X86_64, 0x40000000 | 101) == 0x00050000 | errno.ENOSYS  # and so has x32


def test_a_machine_without_a_table_has_no_filter():
    assert program("riscv64") is None


def test_what_programs_need_is_allowed():
    # read write open close fstat mmap munmap brk rt_sigaction pipe getpid fork execve exit wait4 kill fcntl futex ...
    for number in (0, 1, 2, 3, 5, 9, 11, 12, 13, 22, 39, 57, 59, 60, 61, 62, 72, 202, 231, 257, 262, 318):
        assert verdict("x86_64", X86_64, number) == ALLOW

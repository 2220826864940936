"""A seccomp filter: system calls that no task needs and that kernel holes or escapes start from.

The program is classic BPF over ``struct seccomp_data`` (linux/seccomp.h): the call's number at offset 0, the architecture at 4,
the arguments, 64 bits each, from 16 on. Most refused calls fail with EPERM, as they would without the privilege.
"""

import errno
import platform
import struct

# Operations of classic BPF (linux/bpf_common.h).
LOAD, EQUAL, GREATER_OR_EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

# Verdicts (linux/seccomp.h).
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
X32 = 0x40000000  # x86_64's second table of calls starts here
NAMESPACES = 0x7E020080  # CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
FAMILIES = (1, 2, 10, 16)  # sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK; AF_VSOCK would reach a virtual machine's host
TERMINAL = (0x5412, 0x541C)  # ioctl requests: TIOCSTI and TIOCLINUX put text into a terminal's input

# Refused calls: numbers on x86_64 (asm/unistd_64.h) and aarch64 (asm-generic/unistd.h).
REFUSED: dict[str, tuple[int, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
CLONE, CLONE3, SOCKET, IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)


def program(machine: str = "") -> bytes | None:
    """The filter as ``struct sock_filter`` records, 8 bytes each; None for a machine whose calls are not in the table.

    clone3 fails with ENOSYS, because its flags lie in memory that a filter can't see: C libraries then use clone.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column = list(ARCHITECTURES).index(machine)
    lines = [_line(LOAD, 4), _line(EQUAL, ARCHITECTURES[machine], 1, 0), _line(RETURN, KILL_PROCESS), _line(LOAD, 0)]
    if machine == "x86_64":
        lines += [_line(GREATER_OR_EQUAL, X32, 0, 1), _refuse(errno.ENOSYS)]
    for numbers in REFUSED.values():
        lines += [_line(EQUAL, numbers[column], 0, 1), _refuse(errno.EPERM)]
    lines += [_line(EQUAL, CLONE3[column], 0, 1), _refuse(errno.ENOSYS)]
    flags = [_line(ANY_BIT, NAMESPACES, 0, 1), _refuse(errno.EPERM)]
    families = [_line(EQUAL, family, len(FAMILIES) - i, 0) for i, family in enumerate(FAMILIES)] + [_refuse(errno.EAFNOSUPPORT)]
    requests = [line for request in TERMINAL for line in (_line(EQUAL, request, 0, 1), _refuse(errno.EPERM))]
    for number, argument, body in ((CLONE, 0, flags), (SOCKET, 0, families), (IOCTL, 1, requests)):
        block = [_line(LOAD, 16 + 8 * argument), *body, _line(RETURN, ALLOW)]
        lines += [_line(EQUAL, number[column], 0, len(block)), *block]
    return b"".join([*lines, _line(RETURN, ALLOW)])


def _line(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, k)


def _refuse(number: int) -> bytes:
    return _line(RETURN, ERRNO | number)

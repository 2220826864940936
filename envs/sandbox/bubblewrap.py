"""A sandbox around one session's folder: bubblewrap with every namespace, no capabilities, a call filter and limits.

Inside, the folder is /desk, /usr is read-only, /tmp lives in memory, and nothing else of the host is there: no home, no /etc,
no network, no processes. What runs is nobody, which outside is whoever runs the server: best an ordinary user.
"""

import contextlib
import functools
import os
import platform
import shlex
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from envs.sandbox import filter as seccomp
from envs.sandbox import processes, quota
from envs.sandbox.cgroups import Group
from envs.sandbox.limits import Limits
from jaxllm.errors import UserError

HOME = "/desk"  # the session's folder as it is seen inside
HOST = "sandbox"
USER = 65534
PATH = "/usr/local/bin:/usr/bin:/bin"
ENVIRONMENT = {
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "nobody",
    "PAGER": "cat",
    "PATH": PATH,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "nobody",
}
START_TIMEOUT = 20.0  # seconds that the trial start may take
PASSWD = f"nobody:x:{USER}:{USER}:nobody:{HOME}:/bin/bash"
GROUP = f"nogroup:x:{USER}:"
# Parts of /proc that the host's root may write without a capability; bubblewrap itself covers only some of them.
READ_ONLY = ("/proc/sys", "/proc/acpi", "/proc/driver", "/proc/fs", "/proc/mtrr", "/proc/pressure", "/proc/scsi")


class Bind(NamedTuple):
    """A file or folder of the host that is seen inside."""

    source: str  # on the host; left out silently where it does not exist
    target: str = ""  # inside; "" for the same path
    writable: bool = False


class Sandbox:
    """One session: its folder, its limits, and all processes started in it.

    ``ended`` is None, or why everything in it was killed: "disk", "files" or "host" (see `quota.Watch`), or "closed".
    Start processes from a thread that lives as long as they do: they die with it. Usable as a context manager.
    """

    def __init__(self, folder: str | os.PathLike[str], limits: Limits | None = None):
        """Args: the session's folder, which must exist; what it may use.

        Raises UserError where sandboxes can't be made (see `missing`), or the folder or the disk won't do.
        """
        if problem := missing():
            raise UserError(problem)
        self.folder = Path(folder).resolve()
        self.limits = limits or Limits()
        self.ended: str | None = None
        self.printed = 0  # bytes of output that were read from its shells and interpreters
        if not self.folder.is_dir():
            raise UserError(f"a sandbox needs a folder that exists; {self.folder} is none")
        if quota.free(self.folder) < 2 * quota.KEEP_FREE:
            raise UserError(f"less than {2 * quota.KEEP_FREE >> 20} MiB are free at {self.folder}; make room, or set TMPDIR")
        self._children: list[subprocess.Popen[bytes]] = []
        self._group: Group | None = None
        self._watch: quota.Watch | None = None
        self._lock = threading.Lock()

    def command(
        self,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind | tuple[str, ...]] = (),
        network: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
    ) -> list[str]:
        """The command line that runs ``argv`` inside, for your own Popen.

        Descriptors that the caller passes on keep their numbers inside. The process belongs to the sandbox's control groups
        where there are some, so that `close` ends it; without them that is up to the caller.

        Args:
          binds: what else of the host is seen inside, see `Bind`.
          network: True shares the host's network.
          env: variables beside `ENVIRONMENT`.
          cwd: the working folder inside.
        """
        if self.ended:
            raise UserError(f"the sandbox has ended ({self.ended})")
        if self._group is None:
            self._group = Group(self.limits)
        return _command(argv, self.folder, self.limits, self._group, binds, network, env, cwd)

    def popen(
        self,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind | tuple[str, ...]] = (),
        network: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.DEVNULL,
        stderr: int | IO[Any] | None = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts ``argv`` inside; the arguments are those of `command` and of subprocess.Popen. The pid is bubblewrap's."""
        line = self.command(argv, binds=binds, network=network, env=env, cwd=cwd)
        child = subprocess.Popen(
            line, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=tuple(pass_fds), start_new_session=True
        )
        with self._lock:
            self._children = [old for old in self._children if old.poll() is None] + [child]
            if self._watch is None and not (self.limits.disk is None and self.limits.files is None):
                self._watch = quota.Watch(self.folder, self.limits.disk, self.limits.files, self.pids, self._exceeded)
        return child

    def pids(self) -> set[int]:
        """Every living process of the sandbox, as the host numbers them, bubblewrap's own among them."""
        found = self._group.members() if self._group else set()
        with self._lock:
            children = [child.pid for child in self._children if child.poll() is None]
        for child in children:
            found |= {child, *processes.descendants(child)}
        return found

    def kill(self) -> None:
        """Ends every process in it. The sandbox can be used further."""
        with self._lock:
            children, self._children = self._children, []
        for child in children:
            end(child)
        if self._group:
            self._group.close()
            self._group = None

    def close(self) -> None:
        """Ends every process in it, and the watch over its folder, which itself stays. May be called twice."""
        self.ended = self.ended or "closed"
        if self._watch:
            self._watch.close()
            self._watch = None
        self.kill()

    def _exceeded(self, reason: str) -> None:
        self.ended = reason
        self.kill()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def end(child: subprocess.Popen[bytes], deadline: float = 5.0) -> None:
    """Kills a process started by `Sandbox.popen` and waits until all below it are gone, ``deadline`` seconds at most."""
    # The namespace's first process comes before bubblewrap outside: that one's end then tells that all others are gone.
    for pid in [pid for pid in processes.descendants(child.pid) if processes.inner_pid(pid) == 1]:
        processes.end(pid)
    try:
        child.wait(deadline if child.poll() is None and processes.descendants(child.pid) else 0.05)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(deadline)


def _command(
    argv: Sequence[str],
    folder: Path,
    limits: Limits,
    group: Group | None,
    binds: Sequence[Bind | tuple[str, ...]],
    network: bool,
    env: Mapping[str, str] | None,
    cwd: str,
) -> list[str]:
    # Bash opens what bubblewrap reads (at numbers above 9 that are free), joins the groups, and becomes bubblewrap.
    script = [f"exec {{passwd}}<<<{shlex.quote(PASSWD)} {{group}}<<<{shlex.quote(GROUP)}"]
    filtered = ""
    if program := seccomp.program():
        octal = "".join(f"\\{byte:03o}" for byte in program)
        script[0] += f" {{filter}}< <(printf '{octal}')"
        filtered = "--seccomp $filter "
    script += [f"echo 0 >{shlex.quote(str(path / 'cgroup.procs'))} || exit 125" for path in (group.folders if group else ())]
    sizes = {"as": limits.address_space, "cpu": limits.cpu, "nofile": limits.open_files, "fsize": limits.file_size, "core": 0}
    bounds = " ".join(f"--{name}={value}" for name, value in sizes.items() if value is not None)
    data = f"{filtered}--ro-bind-data $passwd /etc/passwd --ro-bind-data $group /etc/group"
    script.append(f'exec env --default-signal=INT,QUIT,TERM,HUP prlimit {bounds} bwrap {data} "$@"')
    inner = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(USER), "--gid", str(USER)),
        *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv", "--hostname", HOST),
        *(("--share-net",) if network else ()),
    ]
    for name, value in {**ENVIRONMENT, **(env or {})}.items():
        inner += ["--setenv", name, value]
    inner += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            inner += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            inner += ["--ro-bind", str(path), str(path)]
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        inner += ["--ro-bind-try", name, name]
    inner += ["--proc", "/proc"]
    for name in READ_ONLY:
        inner += ["--ro-bind-try", name, name]
    inner += ["--dev", "/dev", "--size", str(limits.tmp), "--tmpfs", "/dev/shm", "--size", str(limits.tmp), "--tmpfs", "/tmp"]
    inner += ["--bind", str(folder), HOME]
    for bind in (Bind(*given) for given in binds):
        inner += ["--bind-try" if bind.writable else "--ro-bind-try", bind.source, bind.target or bind.source]
    inner += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd, "--"]
    if limits.processes is not None and os.geteuid() != 0 and not (group and "pids" in group.controllers):
        inner += ["prlimit", f"--nproc={limits.processes}"]  # counted within the namespace of users; it never binds root
    return ["bash", "-p", "-c", "\n".join(script), "bash", *inner, *argv]


@functools.cache
def missing() -> str | None:
    """Why no sandbox can be made here, with the remedy; None if one can. Found by making one, once."""
    for program, package in (("bwrap", "bubblewrap (0.8 or later)"), ("prlimit", "util-linux"), ("bash", "bash")):
        if not shutil.which(program):
            return f"shells need {program}; install {package}, for example: apt-get install {package.split()[0]}"
    done = _trial("true")
    if done is None:
        return f"bubblewrap did not start within {START_TIMEOUT:.0f} s on this machine"
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[:300]
        return (
            f"bubblewrap can't make a sandbox here ({said or f'exit code {done.returncode}'}); it needs user namespaces: allow "
            "them on this host (in a container, with a seccomp profile that permits unshare and mount), and bubblewrap 0.8 or "
            "later. Shells never run outside a sandbox"
        )
    return None


def _trial(command: str) -> subprocess.CompletedProcess[bytes] | None:
    line = _command(["bash", "-c", command], Path("/usr"), Limits(), None, (), False, None, "/")
    try:
        return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None


@functools.cache
def capabilities() -> dict[str, Any]:
    """Which protections work here, for people to read.

    Keys: ``sandbox`` (bool), ``version`` of bubblewrap, ``seccomp`` (bool), ``processes`` and ``memory`` (what binds a whole
    sandbox: "cgroup v1", "cgroup v2", "rlimit" or "none"), ``root`` (the server runs as root), ``python`` (there is a Python
    inside, which the interpreter tool needs), ``warnings`` (sentences).
    """
    if problem := missing():
        return {"sandbox": False, "warnings": [problem]}
    version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, timeout=START_TIMEOUT).stdout.split()[-1]
    done = _trial("cat /proc/self/status; command -v python3")
    lines = done.stdout.decode(errors="replace").split() if done else []
    group = Group(Limits())
    group.close()
    root = os.geteuid() == 0
    found = {
        "sandbox": True,
        "version": version,
        "seccomp": "Seccomp:" in lines and lines[lines.index("Seccomp:") + 1] == "2",
        "processes": group.controllers.get("pids", "none" if root else "rlimit"),
        "memory": group.controllers.get("memory", "none"),
        "root": root,
        "python": bool(lines) and lines[-1].endswith("python3"),
    }
    warnings = []
    if not found["seccomp"]:
        warnings.append(f"no filter of system calls on {platform.machine()}")
    if found["processes"] == "none":
        warnings.append("the number of processes is not bounded: make the pids cgroup writable, or run as an ordinary user")
    if found["memory"] == "none":
        warnings.append("memory is bounded by process, not by sandbox: make the memory cgroup writable")
    if root:
        warnings.append("sandboxes run as root, confined; an ordinary user is safer")
    if not found["python"]:
        warnings.append("no python3 under /usr: the interpreter tool will not work")
    return {**found, "warnings": warnings}

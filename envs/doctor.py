"""What works on this machine: the browser, the sandbox, shared memory, libraries, and each family of environments.

Every check runs in a process of its own, so that one that hangs or crashes is a finding and not an accident.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from envs.registry import FAMILIES

STATES = ("ok", "degraded", "missing")
PATIENCE = 60.0  # seconds that a check may take
AT_ONCE = 3
SHARED_MEMORY = 1 << 30  # bytes from which on shared memory is no worry
LEAST_SHARED_MEMORY = 64 << 20  # what containers have by default: a few sessions with pictures fill it
OPEN_FILES = 4096  # descriptors that some hundred sessions need
MOST_OUTPUT = 1 << 16
EXTRA = "pip install 'jaxllm[envs]'"


@dataclasses.dataclass(frozen=True)
class Check:
    """What was found of one thing."""

    name: str
    state: str  # one of `STATES`
    detail: str  # what there is
    remedy: str = ""  # what to do, where it is not ok


def machine() -> Check:
    """Processors, memory, and how many files a process may open."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"Python {sys.version.split()[0]}, {cores} processors, {memory / 1e9:.0f} GB of memory, {files} open files"
    if files < OPEN_FILES:
        remedy = f"raise the limit before many sessions: ulimit -n {most if 0 < most < 1 << 20 else OPEN_FILES}"
        return Check("machine", "degraded", detail, remedy)
    return Check("machine", "ok", detail)


def shared_memory(folder: Path = Path("/dev/shm")) -> Check:
    """Room for large observations between a server and a learner on one host."""
    try:
        free = os.statvfs(folder)
    except OSError as error:
        remedy = "observations go by message instead, which is slower; mount a tmpfs there"
        return Check("shared memory", "degraded", f"{folder}: {error.strerror}", remedy)
    size, left = free.f_blocks * free.f_frsize, free.f_bavail * free.f_frsize
    detail = f"{folder}: {left / 1e6:,.0f} of {size / 1e6:,.0f} MB free"
    if not os.access(folder, os.W_OK):
        return Check("shared memory", "degraded", f"{detail}, not writable", f"make {folder} writable")
    if left < LEAST_SHARED_MEMORY or size < SHARED_MEMORY:
        remedy = "what does not fit goes by message; give the container more, such as --shm-size=1g, or remove stale files"
        return Check("shared memory", "degraded", detail, remedy)
    return Check("shared memory", "ok", detail)


def browser() -> Check:
    """Starts the browser."""
    from envs import browser as driver

    if missing := driver.missing():
        return Check("browser", "missing", "", missing)
    found = driver.capabilities()
    good = ["time stands still by begin-frame control"] * found["begin_frame"] + ["in bubblewrap, without network"] * found[
        "sandboxed"
    ]
    detail = ", ".join([f"{found['version']} ({found['path']})", *good])
    remedies = []
    if not found["begin_frame"]:
        remedies.append("frames are drawn in real time; for begin-frame control: apt-get install chromium-headless-shell")
    if not found["sandboxed"]:
        remedies.append("pages run in the browser's own sandbox alone, if any; see sandbox")
    return Check("browser", "degraded" if remedies else "ok", detail, "; ".join(remedies))


def sandbox() -> Check:
    """Makes a sandbox."""
    from envs import sandbox as box

    if missing := box.missing():
        return Check("sandbox", "missing", "", missing)
    found = box.capabilities()
    parts = [
        f"bubblewrap {found['version']}",
        "user namespaces",
        "system calls filtered" if found["seccomp"] else "system calls not filtered",
        f"processes bounded by {found['processes']}",
        f"memory bounded by {found['memory']}",
    ]
    warnings = list(found["warnings"])
    harmless = not warnings or (found["root"] and len(warnings) == 1)
    return Check("sandbox", "ok" if harmless else "degraded", ", ".join(parts), "; ".join(warnings))


def step_server() -> Check:
    """ZeroMQ, with the encryption that other hosts need, and msgpack."""
    absent = [name for name in ("zmq", "msgpack", "psutil") if importlib.util.find_spec(name) is None]
    if absent:
        return Check("step server", "missing", f"without {', '.join(absent)}", EXTRA)
    import zmq

    detail = f"ZeroMQ {zmq.zmq_version()}, pyzmq {zmq.__version__}"
    if not zmq.has("curve"):
        remedy = "this build of ZeroMQ can't encrypt: servers listen on this host alone; install pyzmq's own wheel"
        return Check("step server", "degraded", detail, remedy)
    return Check("step server", "ok", f"{detail}, with encryption")


def pictures() -> Check:
    """Pillow, for film strips."""
    return _library("pictures", "PIL", "pillow", EXTRA, "film strips and animations")


def ray() -> Check:
    """Ray, for fleets."""
    return _library("ray", "ray", "ray", "pip install 'jaxllm[ray]'", "servers on several machines by `jaxllm envs fleet`")


def _library(name: str, module: str, distribution: str, remedy: str, use: str) -> Check:
    from importlib.metadata import version

    if importlib.util.find_spec(module) is None:
        return Check(name, "missing", f"{distribution} is not installed: no {use}", remedy)
    return Check(name, "ok", f"{distribution} {version(distribution)}")


def family(name: str) -> Check:
    """Whether a family's environments can be made here, and how many there are."""
    from envs.registry import family as module_of

    module: Any = module_of(name)
    if missing := module.missing():
        return Check(f"{name}/*", "missing", "", missing)
    names = module.names()
    detail = f"{len(names)} environments" if names else "any that you name"
    closed = {group: why for group, why in module.groups().items() if why} if hasattr(module, "groups") else {}
    if closed:
        reasons = "; ".join(f"{group}: {why}" for group, why in closed.items())
        return Check(f"{name}/*", "degraded", f"{detail}, without {', '.join(closed)}", reasons)
    return Check(f"{name}/*", "ok", detail)


# What is looked at: a name, and the function with its arguments, which runs in a process of its own.
CHECKS: dict[str, tuple[Callable[..., Check], tuple[str, ...]]] = {
    "machine": (machine, ()),
    "shared memory": (shared_memory, ()),
    "browser": (browser, ()),
    "sandbox": (sandbox, ()),
    "step server": (step_server, ()),
    "pictures": (pictures, ()),
    "ray": (ray, ()),
    **{f"{name}/*": (family, (name,)) for name in FAMILIES},
}


def examine(
    tick: Callable[[], Any] = lambda: None,
    checks: Mapping[str, tuple[Callable[..., Check], tuple[str, ...]]] = CHECKS,
    patience: float = PATIENCE,
) -> list[Check]:
    """Every check, in order.

    Args:
      tick: called as each is done.
      patience: seconds that each may take; a slower one is a finding.
    """

    def one(item: tuple[str, tuple[Callable[..., Check], tuple[str, ...]]]) -> Check:
        name, (function, arguments) = item
        found = _apart(name, f"{function.__module__}:{function.__name__}", arguments, patience)
        tick()
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, checks.items()))


def _apart(name: str, function: str, arguments: tuple[str, ...], patience: float) -> Check:
    """The check in a process of its own, with all that it starts."""
    command = [sys.executable, "-P", "-m", "envs.doctor", function, *arguments]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            return Check(name, "missing", f"no answer within {patience:g} s", "try again on an idle machine, with -v")
        finally:
            _end(process)
    try:
        return dataclasses.replace(Check(**json.loads(out[-MOST_OUTPUT:].splitlines()[-1])), name=name)
    except (ValueError, TypeError, IndexError):
        said = " ".join(err.decode(errors="replace").split())[-200:]
        ending = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        return Check(name, "missing", f"the check died ({ending}) {said}".strip(), "reinstall what it names")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what a check left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(function: str, *arguments: str) -> None:
    """Runs one check and prints it as JSON: what `examine` starts."""
    module, _, name = function.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)(*arguments)
    except Exception as error:
        found = Check(
            arguments[0] if arguments else name, "missing", f"{type(error).__name__}: {error}"[:300], "see the message"
        )
    print(json.dumps(dataclasses.asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])

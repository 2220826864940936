"""Control groups, versions 1 and 2: what binds the processes and the memory of a whole sandbox, root's too."""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from envs.sandbox import processes
from envs.sandbox.limits import Limits

PREFIX = "jaxllm"
# Controller -> (version 1, version 2): the file that bounds it.
FILES = {"pids": ("pids.max", "pids.max"), "memory": ("memory.limit_in_bytes", "memory.max")}
SWAP = ("memory.memsw.limit_in_bytes", "memory.swap.max")  # version 1: memory and swap together

_count = itertools.count()


class Group:
    """The groups of one sandbox: one folder per hierarchy. `folders` are those that a process has to join, before exec."""

    def __init__(self, limits: Limits):
        self.folders: list[Path] = []
        self.controllers: dict[str, str] = {}  # of "pids" and "memory", those that bind, and by which version
        name = f"{PREFIX}-{os.getpid()}-{next(_count)}"
        wanted = {"pids": limits.processes, "memory": limits.memory}
        for controller, value in wanted.items():
            if value is None:
                continue
            for version, parent in _parents(controller):
                if self._make(controller, version, parent / name, value):
                    self.controllers[controller] = f"cgroup v{version}"
                    break

    def _make(self, controller: str, version: int, folder: Path, value: int) -> bool:
        made = folder not in self.folders
        try:
            if made:
                _sweep(folder.parent)
                folder.mkdir()
            (folder / FILES[controller][version - 1]).write_text(str(value))
        except OSError:
            if made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            return False
        if controller == "memory":
            with contextlib.suppress(OSError):  # kernels without accounting of swap
                (folder / SWAP[version - 1]).write_text(str(value if version == 1 else 0))
        if made:
            self.folders.append(folder)
        return True

    def members(self) -> set[int]:
        """Every process in it."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return found

    def close(self, deadline: float = 5.0) -> None:
        """Kills every member and removes the groups. Gives up silently after the deadline, in seconds."""
        until = time.monotonic() + deadline
        while (left := self.members()) and time.monotonic() < until:
            for pid in left:
                processes.end(pid)
            time.sleep(0.002)
        while self.folders and time.monotonic() < until:
            try:
                self.folders[-1].rmdir()
                self.folders.pop()
            except FileNotFoundError:
                self.folders.pop()
            except OSError:  # the last member is still being buried
                time.sleep(0.002)


def _parents(controller: str) -> Iterator[tuple[int, Path]]:
    """Version and folder of the groups under which one for this controller may be made: our own first, then its parent."""
    mounts = _mounts()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        for kind, root, point, options in mounts:
            if kind != version or (version == 1 and not (controller in controllers.split(",") and controller in options)):
                continue
            inside = path[len(root.rstrip("/")) :] if path.startswith(root.rstrip("/") + "/") or path == root else path
            own = point / inside.strip("/")
            for folder in dict.fromkeys([own] if version == 1 else [own, own.parent if own != point else own]):
                if version == 1 or _enabled(folder, controller):
                    yield version, folder


def _mounts() -> list[tuple[int, str, Path, list[str]]]:
    """Version, root within the hierarchy, mount point and options of every mounted hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind = {"cgroup": 1, "cgroup2": 2}.get(right.split()[0])
        if kind:
            found.append((kind, left.split()[3], Path(left.split()[4]), right.split()[-1].split(",")))
    return found


def _enabled(folder: Path, controller: str) -> bool:
    """Whether groups under this one of version 2 have the controller; it is switched on if that is allowed."""
    control = folder / "cgroup.subtree_control"
    try:
        if controller in control.read_text().split():
            return True
        if controller in (folder / "cgroup.controllers").read_text().split():
            control.write_text(f"+{controller}")
            return True
    except OSError:  # not ours, or it holds processes of its own
        return False
    return False


def parents() -> list[Path]:
    """The folders in which groups made from here may be, each named ``PREFIX-PID-NUMBER`` after its maker."""
    return list(dict.fromkeys(parent for controller in FILES for _, parent in _parents(controller)))


def _sweep(parent: Path) -> None:
    """Removes empty groups whose maker was killed before it could."""
    for folder in parent.glob(f"{PREFIX}-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()

"""Temporary folders that bear their owner's name, so that a later process can remove what a killed one left."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def make(kind: str) -> Path:
    """A new folder for this process, in TMPDIR: ``jaxllm-KIND-PID-START-...``."""
    return Path(tempfile.mkdtemp(prefix=f"jaxllm-{kind}-{os.getpid()}-{started(os.getpid())}-"))


def left(kind: str) -> Iterator[Path]:
    """Folders of this kind and user whose owners have died. Whoever removes them need not be alone at it."""
    prefix = f"jaxllm-{kind}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*-*"):
        pid, _, rest = folder.name.removeprefix(prefix).partition("-")
        start = rest.partition("-")[0]
        if not (pid.isascii() and pid.isdigit()) or started(int(pid)) == start:
            continue
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
                yield folder


def started(pid: int) -> str:
    """When a process was started, in clock ticks since boot, which tells it from a later one of the same id; "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat[stat.rindex(")") :].split()[20]

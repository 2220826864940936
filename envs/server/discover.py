"""Which step servers run on this host, for whoever may read their tokens."""

import dataclasses
import os
import tempfile
from pathlib import Path

from envs.server import arena

NOTE = "address"  # file of a server's private folder: its address, and the path of its token on the next line
MOST = 4096  # bytes of it


@dataclasses.dataclass(frozen=True)
class Running:
    """A server of this host."""

    pid: int
    address: str
    token_file: Path


def note(folder: Path, address: str, token_file: Path) -> None:
    """Leaves word of a server in its folder, which goes with it."""
    (folder / NOTE).write_text(f"{address}\n{token_file.absolute()}\n")


def running(base: Path | None = None) -> list[Running]:
    """The servers of this user that live, by process number. ``base``: where their folders are; None for the usual places."""
    found = {}
    for place in {Path(tempfile.gettempdir()), Path("/tmp")} if base is None else {base}:
        for folder in place.glob(f"{arena.PREFIX}-*"):
            pid, _, start = folder.name.removeprefix(f"{arena.PREFIX}-").rpartition("-")[0].partition("-")
            if not (pid.isdigit() and start.isdigit()) or arena.start_time(int(pid)) != int(start):
                continue
            try:
                if folder.stat().st_uid != os.geteuid():
                    continue
                with (folder / NOTE).open() as file:
                    address, token_file, *_ = file.read(MOST).splitlines()
            except (OSError, ValueError):
                continue
            found[int(pid)] = Running(int(pid), address, Path(token_file))
    return [found[pid] for pid in sorted(found)]

"""What the soak looks at from outside: processes, their memory and descriptors, and what is left of them."""

import contextlib
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from envs.server.arena import start_time

from .common import processes


def alive(pid: int, start: int) -> bool:
    """Whether this very process runs, not a later one of its number; zombies do not count."""
    return start_time(pid) == start


def rss(pid: int) -> float:
    """Resident memory in MB; 0 for none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def descriptors(pid: int) -> int:
    """Open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def command(pid: int) -> list[str]:
    """The command line; empty for none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


class Watch:
    """Remembers every process that was ever below the given ones, and the memory of some."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.memory: dict[str, list[float]] = {}

    def look(self, roots: list[int], measured: dict[str, int]) -> None:
        """One look."""
        for pid in processes(roots):
            if (start := start_time(pid)) is not None:
                self.seen.add((pid, start))
        for name, pid in measured.items():
            self.memory.setdefault(name, []).append(rss(pid))

    def left(self, seconds: float) -> list[int]:
        """Those that still run after so many seconds."""
        deadline = time.monotonic() + seconds
        while (there := [pid for pid, start in self.seen if alive(pid, start)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return there

    def growth(self) -> dict[str, tuple[float, float]]:
        """Median memory in MB after the warm-up, a quarter of the time, and in the last quarter."""
        found = {}
        for name, samples in self.memory.items():
            quarter = max(1, len(samples) // 4)
            found[name] = (statistics.median(samples[quarter : 2 * quarter] or samples), statistics.median(samples[-quarter:]))
        return found


class Killer:
    """Kills at random, by a seed: workers, browsers (or a page's process), learners."""

    def __init__(self, seed: int, gap: float, server: int, clients: Callable[[], list[int]]):
        self._random = random.Random(seed)
        self._gap, self._server, self._clients = gap, server, clients
        self.killed: Counter[str] = Counter()
        self.pids: set[int] = set()  # of those killed
        self._next = time.monotonic() + self._random.expovariate(1 / gap)

    def turn(self) -> None:
        """Kills if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._random.expovariate(1 / self._gap)
        kind = self._random.choices(("worker", "browser", "page", "client"), (5, 2, 1, 2))[0]
        victims = sorted(self._victims(kind))
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim := self._random.choice(victims), signal.SIGKILL)
                self.killed[kind] += 1
                self.pids.add(victim)

    def _victims(self, kind: str) -> list[int]:
        if kind == "client":
            return self._clients()
        found = []
        for pid in processes([self._server]) - {self._server}:
            words = command(pid)
            if kind == "worker" and "envs.server.worker" in words:
                found.append(pid)
            browser = any(word.startswith("--user-data-dir=") for word in words) and "bwrap" not in words[0]
            renderer = "--type=renderer" in " ".join(words)  # which writes its command line as one word
            if kind == "browser" and browser and not any(word.startswith("--type=") for word in words):
                found.append(pid)
            if kind == "page" and renderer:
                found.append(pid)
        return found

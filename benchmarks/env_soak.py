"""A step server under fire: workers, browsers, pages and learners are killed at random while mixed environments are stepped.

    python benchmarks/env_soak.py --minutes 5                  and at least 20,000 steps
    python benchmarks/env_soak.py --minutes 0.4 --steps 500 --families logged games

Three learners step environments of every family on one server; two of them are killed now and then and begin again, one lives
to the end. What is checked: every operation has exactly one answer, unless its learner was killed; no step was done twice, and
every step that was answered OK was done once (an environment writes down outside what it did); in the other families the number
of the step is the one that comes next; afterwards no process, shared memory, control group, session or profile folder is left,
the router has no more descriptors than before, and the memory of router and learner has grown by no more than a tenth after the
warm-up. Prints a table and a line of JSON; exit code 1 if anything is amiss.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

from environments.soak_report import judge, report
from environments.soak_watch import Killer, Watch, descriptors
from envs.server import Client, Server

HERE = Path(__file__).parent
FAMILIES = {  # name of a family -> environments of each learner
    "logged": ["environments.soak_env:Logged"] * 4,
    "games": ["games/sokoban", "games/slide-merge", "games/loop-rotate"],
    "shell": ["shell/any"],
    "miniwob": ["miniwob/click-checkboxes"],
    "hybrid": ["hybrid/any"],
}
LEARNERS = 3  # the first of them lives to the end
LEASE = 6.0  # seconds after which a killed learner's sessions are ended
GAP = 1.5  # seconds between two kills, on average
LONGEST = 3  # times as long as it was told it goes on for the steps


class Soak:
    """One run in a folder of its own, in which everything temporary lies."""

    def __init__(self, folder: Path, families: list[str], seed: int, rate: float):
        self.folder, self._seed, self._rate = folder, seed, rate
        self._names = [name for family in families for name in FAMILIES[family]]
        self._heavy = sum(name.startswith(("shell", "miniwob", "hybrid")) for name in self._names)
        self.temporary = folder / "tmp"
        self.logs = folder / "logs"
        self.temporary.mkdir()
        self.logs.mkdir()
        self.learners: list[subprocess.Popen[str]] = []
        self.ended: list[tuple[int, bool]] = []  # number of a learner, whether we killed it
        self._numbers: dict[int, int] = {}  # pid -> number
        self._count = 0
        self.watch = Watch()
        self.marks: set[str] = set()  # tokens that were sent

    def start(self) -> None:
        """The server, in its own temporary folder, with what it says in a file."""
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)
        patterns = sorted({name.split(":")[0] + ":*" if ":" in name else name for name in self._names})
        stderr = os.dup(2)
        log = os.open(self.folder / "server.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        try:
            self.server = Server(
                patterns, workers=2, heavy=max(1, 2 * LEARNERS * self._heavy), max_sessions=8 * LEARNERS * len(self._names),
                lease=LEASE, restarts=10**6, window=5.0,
            )  # fmt: skip
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            os.close(log)
        self.prefix = Path(self.server.address.removeprefix("ipc://")).parent.name
        self.client = Client(self.server.address, self.server.token, alive=self.server.alive)

    def learner(self) -> subprocess.Popen[str]:
        """A new learner."""
        self._count += 1
        options = [{"folder": str(self.logs)} if ":" in name else {} for name in self._names]
        settings = {
            "number": self._count, "seed": 1000 * self._seed + self._count, "rate": self._rate, "names": self._names,
            "options": options, "address": self.server.address, "token": self.server.token,
            "journal": str(self.folder / f"journal-{self._count}"),
        }  # fmt: skip
        with (self.folder / f"learner-{self._count}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "environments.soak_client"], cwd=HERE, stdin=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        self._numbers[process.pid] = self._count
        return process

    def finish(self, learners: list[subprocess.Popen[str]], killed: Set[int] = frozenset()) -> None:
        """Lets learners end in order, but for those that were killed a moment ago."""
        for process in learners:
            assert process.stdin is not None
            process.stdin.close()
        for process in learners:
            try:
                process.wait(240)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.ended.append((self._numbers[process.pid], process.pid in killed))

    def quiet(self) -> tuple[int, int]:
        """The router's descriptors and the number of its workers when no session is left."""
        deadline = time.monotonic() + 60
        while True:
            stats = self.client.stats(timeout=30)
            if not sum(stats["sessions"].values()) and stats["clients"] <= 2:
                return descriptors(self.server.pid), stats["workers"]["all"]
            if time.monotonic() > deadline:
                raise RuntimeError(f"sessions are left: {stats['sessions']}, clients {stats['clients']}")
            time.sleep(0.2)

    def steps(self) -> int:
        """Done by all learners so far."""
        return int(self.client.stats(timeout=30)["operations"].get("step", 0))

    def fire(self, seconds: float, least: int) -> Killer:
        """Kills and watches until the time is over and the steps are made."""
        self.learners = [self.learner() for _ in range(LEARNERS)]
        killer = Killer(self._seed, GAP, self.server.pid, lambda: [process.pid for process in self.learners[1:]])
        begun = looked = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds or (self.steps() < least and passed < LONGEST * seconds):
            time.sleep(0.05)
            killer.turn()
            for place, process in enumerate(self.learners):
                if process.poll() is not None:
                    self.ended.append((self._numbers[process.pid], process.pid in killer.pids))
                    self.learners[place] = self.learner()
            if time.monotonic() - looked > 0.5:
                looked = time.monotonic()
                roots = [self.server.pid, *(process.pid for process in self.learners)]
                self.watch.look(roots, {"router": self.server.pid, "learner": self.learners[0].pid})
                if sys.stderr.isatty():
                    print(f"\r{passed:5.0f} s, {self.steps():,} steps, {dict(killer.killed)}", end="", file=sys.stderr)
        return killer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="at least; three times as long for the steps, if need be")
    parser.add_argument("--steps", type=int, default=20_000, help="at least")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), help="all that work here by default")
    parser.add_argument("--rate", type=float, default=150.0, help="steps a second of each learner, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the kills and the actions")
    parser.add_argument("--keep", type=Path, help="a folder for journals and logs, which are deleted otherwise")
    arguments = parser.parse_args()
    if arguments.minutes <= 0 or arguments.rate <= 0:
        parser.error("minutes and rate are above 0")
    families = arguments.families or working()
    print(f"families: {', '.join(families)}; seed {arguments.seed}, load {os.getloadavg()[0]:.1f}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        folder.mkdir(parents=True, exist_ok=True)
        result = run(Soak(folder.resolve(), families, arguments.seed, arguments.rate), arguments)
    print(json.dumps(result))
    sys.exit(0 if result["met"] else 1)


def working() -> list[str]:
    """The families that can be made on this machine."""
    from envs.registry import family

    return [name for name in FAMILIES if name == "logged" or family(name).missing() is None]


def run(soak: Soak, arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole of it: a quiet turn to compare with, the fire, and what is left."""
    amiss: list[str] = []
    soak.start()
    try:
        first = soak.learner()
        time.sleep(2.0)
        soak.finish([first])
        before = soak.quiet()
        begun = time.monotonic()
        killer = soak.fire(60 * arguments.minutes, arguments.steps)
        seconds = time.monotonic() - begun
        soak.watch.look([soak.server.pid, *(process.pid for process in soak.learners)], {})
        soak.finish(soak.learners, killer.pids)
        after = soak.quiet()
        stats = soak.client.stats(timeout=30)
        soak.watch.look([soak.server.pid], {})
    finally:
        soak.client.close_all()
        soak.server.close()
        for process in soak.learners:
            if process.poll() is None:
                process.kill()
                process.wait()
    if after[0] > before[0] + 4 * max(0, after[1] - before[1]) + 4:
        amiss.append(f"the router has {after[0]} descriptors, {before[0]} before, with {after[1]} and {before[1]} workers")
    return report(judge(soak, amiss), soak, killer.killed, stats, seconds, arguments)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # everything is ended by now

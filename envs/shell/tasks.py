"""What a task on files is made of: files to start from, an instruction, a check of the result, and a way to solve it.

A kind of task is a function of a random generator and a level from 1 to 3 (about 10, 40 and 150 things to look at). The same
generator gives the same problem on any host. A check never runs what the agent wrote outside a sandbox.
"""

import dataclasses
import random
import stat
from collections.abc import Callable, Mapping, Sequence

from envs.api import Action, Obs
from envs.sandbox import HOME, OutsideError, Root

SIZES = {1: 10, 2: 40, 3: 150}  # things to look at, by level
MAX_ANSWER = 1 << 20  # bytes of a file with an answer

Step = Action | Callable[[Obs], Action]
# Runs the agent's script in a sandbox of its own on each input file; what it prints for each, None where that fails.
Trial = Callable[[bytes, Sequence[bytes]], list[str] | None]


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the set-up."""

    data: bytes
    mode: int = 0o644


@dataclasses.dataclass(frozen=True)
class View:
    """What a check sees."""

    root: Root
    answer: str  # what the agent declared by finished; "" without
    trial: Trial

    def text(self, path: str) -> str | None:
        """A file's text; None if there is no such file, or it is not text."""
        data = self.data(path)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return None

    def data(self, path: str) -> bytes | None:
        """A file's bytes; None if there is no such file in the folder, or it is too long for an answer."""
        try:
            return self.root.read(path, MAX_ANSWER)
        except (OSError, OutsideError):
            return None

    def lines(self, path: str) -> list[str] | None:
        """A file's lines without blanks at their ends and empty lines at the end; None if there is no such text."""
        text = self.text(path)
        return None if text is None else [line.rstrip() for line in text.rstrip().split("\n")] if text.strip() else []

    def files(self, path: str = "") -> dict[str, bytes] | None:
        """Path from /desk on -> bytes, of every file below a folder; None if there is no such folder, or a link in it."""
        found = {}
        try:
            for entry in self.root.walk(path):
                if entry.target:
                    return None
                if not stat.S_ISDIR(entry.info.st_mode):
                    found[entry.path] = self.root.read_entry(entry, MAX_ANSWER)
        except (OSError, OutsideError):
            return None
        return found

    def modes(self) -> dict[str, int]:
        """Path -> permissions, of everything but links."""
        return {entry.path: entry.info.st_mode & 0o7777 for entry in self.root.walk() if not entry.target}


@dataclasses.dataclass(frozen=True)
class Problem:
    """One task, ready to be set up."""

    instruction: str
    files: Mapping[str, File]  # path from /desk on -> file
    check: Callable[[View], float]  # the reward, in [0, 1]; 1 is solved; nothing done gives 0
    solution: tuple[Step, ...]  # the oracle's actions, each an action or made from what was seen last


def bash(command: str) -> Action:
    """An action of the shell."""
    return Action("execute_bash", {"command": command})


def finish(content: str = "") -> Action:
    """The end."""
    return Action("finished", {"content": content})


def finish_with_output(obs: Obs) -> Action:
    """The end, with the first line that was printed as the answer."""
    return finish((obs.text or "").split("\n", 1)[0].strip())


def same_lines(path: str, expected: Sequence[str]) -> Callable[[View], float]:
    """1 if the file's lines are these, 0 otherwise."""
    return lambda view: float(view.lines(path) == list(expected))


def same_answer(expected: str) -> Callable[[View], float]:
    """1 if the answer is this, 0 otherwise; quotes, blanks and a leading /desk/ or ./ are not looked at."""

    def check(view: View) -> float:
        given = view.answer.strip().strip("`'\"").strip()
        return float(given.removeprefix(HOME + "/").removeprefix("./").rstrip("/") == expected)

    return check


def same_files(path: str, expected: Mapping[str, bytes]) -> Callable[[View], float]:
    """1 if the folder has exactly these files, 0 otherwise."""
    return lambda view: float(view.files(path) == dict(expected))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    "amber brisk calm dusty eager faint gentle hollow icy jolly keen lively mellow narrow olive plain quiet rapid"
)
NOUNS = _words(
    "anchor bridge candle desert engine forest garden harbor island jacket kettle ladder meadow needle orchard pillow"
)
WORDS = _words(
    "about account after again always answer before between budget careful center change clear cloud common copper "
    "corner cotton county cover daily danger delay deliver detail during early effort either empty energy enough "
    "equal evening event every exact fabric factor fallen famous figure finger follow formal former fourth future "
    "glass global ground growth guide handle happen height hidden honest import income inside island itself junior "
    "kitchen later leader legal letter little local lumber manner market matter member method middle minute mirror "
    "modern moment morning motion narrow nature nearby"
)
PEOPLE = _words(
    "alice bruno chloe david elena felix grace henry irene jonas karin louis maria nadia oscar paula quinn rosa simon tessa"
)


def names(rng: random.Random, count: int, suffix: str = "") -> list[str]:
    """Different file names such as ``calm-kettle-37.txt``."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}-{rng.randint(10, 99)}{suffix}"] = None
    return list(found)


def sentence(rng: random.Random) -> str:
    """Some words with a capital and a full stop."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 11))).capitalize() + "."


def prose(rng: random.Random, lines: int) -> list[str]:
    """Lines of words."""
    return [sentence(rng) for _ in range(lines)]


def folders(rng: random.Random, count: int) -> list[str]:
    """Different folders, some of them within others."""
    found = [rng.choice(NOUNS)]
    while len(found) < count:
        path = rng.choice(NOUNS)
        if rng.random() < 0.5:
            path = f"{rng.choice(found)}/{path}"
        if path not in found and path.count("/") < 4:
            found.append(path)
    return found


def code(rng: random.Random) -> str:
    """A number to look for, such as ``QX-4821``."""
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2)) + f"-{rng.randint(1000, 9999)}"


def lines_of(lines: Sequence[str]) -> bytes:
    """A text file of these lines."""
    return "".join(line + "\n" for line in lines).encode()

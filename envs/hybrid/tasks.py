"""What a task of browser and shell is made of: a page, files, a check of both, and a way to solve it.

A kind of task is a function of a random generator and a level from 1 to 3. The same generator gives the same problem on any
host. A check looks at the files and at what the page took for sent; it runs nothing.
"""

import dataclasses
import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from envs.api import Action, Element, Json, Obs
from envs.sandbox.tree import Item
from envs.shell.tasks import File, View

BEGIN = 1_767_225_600 * 10**9  # 2026-01-01 00:00 UTC in nanoseconds: the time of all files of the set-up
PAGES = Path(__file__).with_name("pages")

Plan = Generator[Action, None, None]


@dataclasses.dataclass(frozen=True)
class Seen(View):
    """What a check sees: the session's files, the agent's answer, and what the page took for sent."""

    sent: Json = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """One task, ready to be set up."""

    instruction: str
    page: str  # a name of `PAGES`
    data: Mapping[str, Json]  # the page's part of the task
    downloads: Mapping[str, bytes]  # what the page has below files/
    files: Mapping[str, File]  # path from /desk on -> file
    check: Callable[[Seen], float]  # the reward, in [0, 1]; 1 is solved; nothing done gives 0
    plan: Callable[["Sight"], Plan]  # the oracle's actions

    def site(self) -> list[Item]:
        """The files of the browser's site."""
        files = {name: (PAGES / name).read_bytes() for name in ("common.css", "common.js")}
        files["index.html"] = (PAGES / f"{self.page}.html").read_bytes()
        files["data.js"] = f"const DATA = {json.dumps(self.data)};\n".encode()
        files |= {f"files/{name}": data for name, data in self.downloads.items()}
        return [Item(name, 0o644, BEGIN, data) for name, data in files.items()]

    def items(self) -> list[Item]:
        """The files of the session's folder."""
        return [Item(path, file.mode, BEGIN, file.data) for path, file in self.files.items()]


class Sight:
    """What an oracle has in view: the last observation, and the page as it was seen last."""

    def __init__(self) -> None:
        self.obs = Obs()
        self.elements: tuple[Element, ...] = ()

    def look(self, obs: Obs) -> None:
        """Takes an observation."""
        self.obs = obs
        self.elements = obs.elements or self.elements

    def all(self, **attributes: Json) -> list[Element]:
        """The page's elements with these attributes, "role" among them; those of ``class_`` have that class alone."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [e for e in self.elements if all({**e.attributes, "role": e.role}.get(n) == v for n, v in wanted.items())]

    def click(self, id: str) -> Action:
        """A click on the element with this id. Raises LookupError where it is not in view."""
        found = self.all(id=id)
        if not found:
            raise LookupError(f"no {id} on the page")
        x1, y1, x2, y2 = found[0].box
        return Action("click", {"point": ((x1 + x2) / 2, (y1 + y2) / 2)})

    def output(self) -> list[str]:
        """The lines that the last command printed, without the exit code."""
        return [line for line in (self.obs.text or "").split("\n") if not line.startswith("[")]


def write(text: str) -> Action:
    """Types."""
    return Action("type", {"content": text})


def upload(sight: Sight, path: str) -> Plan:
    """Gives a file to the page's field and sends it."""
    yield sight.click("file")
    yield write(path)
    yield sight.click("envs-files-open")
    yield sight.click("send")


def sent_text(lines: list[str]) -> Callable[[Seen], float]:
    """1 if a file with exactly these lines was sent, 0 otherwise; blanks at the ends of lines and of the file do not count."""

    def check(seen: Seen) -> float:
        text = seen.sent.get("text") if isinstance(seen.sent, dict) else None
        return float(isinstance(text, str) and [line.rstrip() for line in text.rstrip().split("\n")] == lines)

    return check

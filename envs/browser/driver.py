"""The interface between `Browser` and the ways to drive a page, and what a browser is opened with."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol

from envs.api import Action, Invalid, Json
from envs.browser.network import Reach

REMEMBERED = 100  # of the last refused URLs


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a browser is opened with: see `Browser.open`."""

    size_wh: tuple[int, int]
    files: Path | None
    downloads: Path | None
    reach: Reach
    slice_ms: float
    backend: str
    patience: float


@dataclasses.dataclass
class Log:
    """What happened in the page beside what was asked for."""

    dialogs: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # kind and message; each was accepted at once
    refused: list[str] = dataclasses.field(default_factory=list)  # URLs that the page asked for and did not get
    downloads: list[str] = dataclasses.field(default_factory=list)  # names of files that came whole
    navigations: int = 0
    url: str = "about:blank"

    def refuse(self, url: str) -> None:
        """Remembers a URL."""
        self.refused = [*self.refused[1 - REMEMBERED :], url[:2000]]


class Driver(Protocol):
    """One page in one browser process. Every method may raise `HungError` and `CrashedError`; none closes by itself."""

    backend: str
    log: Log

    @property
    def granted(self) -> float:
        """ms of the page's time since the start."""

    @property
    def chooser(self) -> bool:
        """Whether the page waits for files."""

    def main_pid(self) -> int:
        """The browser's main process."""

    def memory(self) -> int:
        """Bytes of memory of all its processes."""

    def go(self, url: str) -> str:
        """Opens a place that may be reached; returns why it could not be opened, or ""."""

    def act(self, action: Action) -> Invalid | None:
        """Does a checked action."""

    def advance(self, ms: float) -> None:
        """Lets page time pass."""

    def evaluate(self, expression: str) -> Json:
        """The value of an expression. Raises ScriptError."""

    def add_script(self, source: str) -> None:
        """Runs a script before those of each page."""

    def screenshot(self, form: str) -> bytes:
        """The page as an image file."""

    def walk(self) -> list[Any]:
        """What `elements.script` returns."""

    def set_files(self, selector: str, paths: list[str]) -> None:
        """Gives files to an input. Raises UserError without such an input."""

    def choose_files(self, paths: list[str]) -> None:
        """Gives files to the input that waits for them."""

    def close(self) -> None:
        """Ends the browser and deletes its folder."""

    def kill(self) -> None:
        """Likewise, for one that does not answer."""

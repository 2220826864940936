"""One session of a browser and a shell over one folder: what the page downloads is in /desk, and /desk can be uploaded.

The browser and the shell are sandboxed apart. The browser never sees the folder itself: a download is moved there, and a file
that is chosen for the page is copied for it, so that neither a page nor a link planted in the folder leads anywhere else.
"""

import contextlib
import errno
import itertools
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from envs.actions import shown
from envs.api import Action, Invalid, Json
from envs.browser import Browser, HungError, profile
from envs.browser.inputs import BUDGET
from envs.sandbox import HOME, OutsideError
from envs.sandbox.tree import Item, lay, remove
from envs.shell.tools import Reply, Session

SITE = "http://desk.test/"  # where the session's pages are, for its browser alone
SCREEN_WH = (800, 600)
TOOLS = ("execute_bash", "str_replace_editor", "JupyterCI")
MAX_UPLOAD = 8 << 20  # bytes of a file that is given to the page
MAX_LISTED = 200  # files in the dialog's list; any other can be typed
MAX_SAME = 1000  # downloads of one name
PATIENCE = 20.0  # seconds for the browser to answer: a shell may be busy beside it
ARRIVING = 10.0  # seconds for what the page asked for, a download or a file, to show; then it is not waited for
READING = 20.0  # seconds for the page to read a file that it was given
HERE = Path(__file__).parent
SCRIPTS = (HERE.parent / "page.js", HERE / "dialog.js")

_VIEW = """({
  ...envsPage.state(), url: location.href, title: document.title, sent: (window.desk && desk.sent) ?? null,
  choosing: envsFiles.outcome() !== null,
})"""


class Desk:
    """A session. Use it from one thread; `close` it.

    Attributes:
      browser: shows the session's pages.
      session: the shell, the editor and the interpreter.
      arrived: paths below /desk of all downloads, in order.
    """

    browser: Browser
    session: Session

    def __init__(
        self,
        site: Sequence[Item],
        items: Sequence[Item] = (),
        *,
        seed: int = 0,
        timeout: float = 30.0,
        backend: str = "auto",
    ):
        """Lays the files, starts both, and opens index.html.

        Args:
          site: the pages, and what they offer to download; seen by the browser under `SITE`.
          items: what is in /desk from the start.
          seed, timeout: see `envs.shell.tools.Session`.
          backend: see `envs.browser.Browser.open`.

        Raises UserError where there is no browser or no sandbox.
        """
        self.arrived: list[str] = []
        self._staged = self._taken = 0
        self._root = profile.make()  # which the next browser sweeps, should this process be killed
        self._open: list[Any] = []
        try:
            for name in ("site", "folder", "downloads", "uploads"):
                (self._root / name).mkdir()
            lay(self._root / "site", site)
            lay(self._root / "folder", items)
            self.session = Session(self._root / "folder", seed=seed, timeout=timeout)
            self._open.append(self.session)
            self.browser = Browser.open(
                SCREEN_WH,
                files=self._root / "uploads",
                downloads=self._root / "downloads",
                sites={SITE: self._root / "site"},
                backend=backend,
                patience=PATIENCE,
            )
            self._open.append(self.browser)
            for script in SCRIPTS:
                self.browser.add_script(script.read_text(encoding="utf-8"))
            self.browser.navigate(f"{SITE}index.html")
        except BaseException:
            self.close()
            raise

    def gui(self, action: Action) -> Invalid | None:
        """Does an action in the page, as `envs.browser.Browser.act`; returns why not, where it was refused.

        Where the page asks for a file, a dialog opens in it; what is chosen there is given to the page.
        """
        if action.name == "navigate" and not action.arguments["url"].strip().startswith(SITE):
            return Invalid("not_allowed", f"{shown(action.arguments['url'])} can't be reached from here; {SITE} can")
        refused = self.browser.act(action)
        self._attend()
        return refused

    def tool(self, action: Action) -> Reply:
        """Does an action of a tool; the page's clock goes on meanwhile, by as much as for a click."""
        reply = self.session.act(action)
        self.browser.advance(BUDGET)
        self._attend()
        return reply

    def view(self) -> dict[str, Json]:
        """What the page holds: html, values, scrolled, focus, selection, url, title, ``choosing`` (a dialog is open), and
        ``sent`` (what it took for sent; None for nothing)."""
        return self.browser.evaluate(_VIEW)

    def close(self) -> None:
        """Ends everything and removes all files. May be called twice."""
        while self._open:
            self._open.pop().close()
        remove(self._root)

    def _attend(self) -> None:
        """Sees to downloads that have come and to files that are asked for."""
        until = time.monotonic() + ARRIVING
        while self.browser.evaluate(f"window.desk ? (desk.wanted = Math.max(0, desk.wanted - {self._take_downloads()})) : 0"):
            if time.monotonic() > until:
                self.browser.evaluate("void (desk.wanted = 0)")
            self.browser.advance(0)  # a download takes real time, and none of the page's
        while self.browser.evaluate("Boolean(window.desk && desk.asking)") and not self.browser.asks_for_files:
            if time.monotonic() > until:
                self.browser.evaluate("void (desk.asking = false)")
            self.browser.advance(0)  # nor does this
        if self.browser.asks_for_files:
            outcome = self.browser.evaluate("envsFiles.outcome()")
            if outcome is None:
                self.browser.evaluate(f"window.desk && (desk.asking = false), envsFiles.open({_listed(self.session)})")
            elif outcome:
                self._choose(outcome)
        until = time.monotonic() + READING
        while self.browser.evaluate("Boolean(window.desk && desk.busy)"):  # reading takes real time, and none of the page's
            if time.monotonic() > until:
                raise HungError(f"the page did not read its file within {READING:g} s")

    def _take_downloads(self) -> int:
        """Moves what has come into the session's folder; returns how many."""
        new = self.browser.downloaded[self._taken :]
        for name in new:
            source = self._root / "downloads" / name
            source.chmod(0o644)
            self.arrived.append(self._move(source))
        self._taken += len(new)
        return len(new)

    def _move(self, source: Path) -> str:
        """Moves a file into the session's folder, under another name where there is one of the same; returns the name."""
        path = PurePosixPath(source.name)
        for number in range(MAX_SAME):
            name = f"{path.stem} ({number}){path.suffix}" if number else path.name
            with contextlib.suppress(FileExistsError):
                os.link(source, self._root / "folder" / name)  # replaces nothing and follows no link
                source.unlink()
                return name
        raise OSError(errno.EEXIST, f"{MAX_SAME} files of this name", source.name)

    def _choose(self, outcome: Mapping[str, Json]) -> None:
        chosen = []
        if not outcome.get("cancelled"):
            path = str(outcome.get("path", "")).strip()
            try:
                chosen = [self._stage(path)]
            except (OSError, OutsideError, ValueError):
                problem = f"{path or 'nothing'}: no file in {HOME} that can be read, of at most {MAX_UPLOAD >> 20} MiB"
                self.browser.evaluate(f"envsFiles.refuse({json.dumps(problem)})")
                return
        self.browser.evaluate("envsFiles.close()")
        self.browser.choose_files(chosen)

    def _stage(self, path: str) -> Path:
        """A copy for the browser of a file of the session."""
        data = self.session.root.read(path, MAX_UPLOAD)
        self._staged += 1
        folder = self._root / "uploads" / str(self._staged)
        folder.mkdir()
        copied = folder / PurePosixPath(path).name
        copied.write_bytes(data)
        return copied


def _listed(session: Session) -> str:
    """Names of the session's files as a JavaScript array."""
    entries = session.root.walk(max_entries=10_000)
    names = (entry.path for entry in entries if stat.S_ISREG(entry.info.st_mode) and entry.path.isprintable())
    return json.dumps(list(itertools.islice(names, MAX_LISTED)))

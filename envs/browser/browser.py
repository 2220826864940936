"""A page in a browser whose time stands still between steps."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from envs.actions import COMPUTER, check_against
from envs.api import Action, Element, Invalid, Json
from envs.browser import elements
from envs.browser.chromium import Chromium
from envs.browser.clock import FORMATS
from envs.browser.driver import Driver, Settings
from envs.browser.errors import CrashedError, HungError
from envs.browser.network import Reach
from jaxllm.errors import UserError

Result = TypeVar("Result")

MAX_NAVIGATIONS = 200  # after which a browser is worn
MAX_GROWTH = 150 << 20  # bytes of memory, likewise
PATIENCE = 8.0  # s


class Browser:
    """One page in a browser process of its own. Use it from one thread; `close` it, or use it as a context manager.

    The page's time moves by `act` and `advance` alone (and as far as a page needs to load). After `CrashedError` or `HungError`
    the process is gone, and only `close` and `recycle` are left.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._scripts: list[str] = []
        self._memory = 0
        self._driver: Driver | None = self._start()

    @staticmethod
    def open(
        size_wh: tuple[int, int],
        *,
        files: str | Path | None = None,
        downloads: str | Path | None = None,
        network: Iterable[str] = (),
        sites: Mapping[str, str | Path] | None = None,
        animated: bool = False,
        backend: str = "auto",
        patience: float = PATIENCE,
    ) -> "Browser":
        """Starts a browser with one empty page.

        Args:
          size_wh: the page's, in pixels, which are those of the screenshot.
          files: the folder that file: pages may come from. Nothing else of the file system can be reached.
          downloads: the folder that downloads go to; without one they are refused.
          network: URL prefixes that the page may reach, as ``http://host:port/path``. The browser itself has no network: this
            process makes these requests. Web sockets are not among them.
          sites: URL prefix -> folder: pages that need a web address come from that folder under it, without any network.
          animated: draws 60 frames in a second of the page's time in place of 20.
          backend: ``beginframe`` (everything stands still between steps), ``screenshot`` (dates and timers do, but for 20 to
            400 ms in a screenshot; animations run), ``playwright`` (dates and timers do, by that package), or ``auto``: the
            first where the browser has it, else the second.
          patience: seconds without an answer after which the page's script is stopped; the second time, the page is given up.

        Raises:
          UserError: no browser, a folder that is not there, a bad prefix or size, or a backend that does not work here.
        """
        if backend not in ("auto", "beginframe", "screenshot", "playwright"):
            raise UserError(f"backend={backend!r}: there are auto, beginframe, screenshot and playwright")
        if not all(isinstance(side, int) and 1 <= side <= 8192 for side in size_wh):
            raise UserError(f"size_wh={size_wh}: a page has 1 to 8192 pixels a side")
        reach = Reach(
            tuple(Path(folder).resolve() for folder in (files, downloads) if folder is not None),
            tuple(network),
            {prefix: Path(folder) for prefix, folder in (sites or {}).items()},
        )
        for name, folder in (("files", files), ("downloads", downloads), *((prefix, at) for prefix, at in reach.sites.items())):
            if folder is not None and not Path(folder).is_dir():
                raise UserError(f"{name}: {folder} is no folder")
        return Browser(
            Settings(
                size_wh=(size_wh[0], size_wh[1]),
                files=_absolute(files),
                downloads=_absolute(downloads),
                reach=reach,
                slice_ms=1000 / 60 if animated else 50.0,
                backend=backend,
                patience=patience,
            )
        )

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def time(self) -> float:
        """The page's time since the browser was opened, in seconds."""
        return self._live().granted / 1000

    @property
    def pid(self) -> int:
        """The browser's main process. Raises CrashedError if it has ended."""
        return self._live().main_pid()

    @property
    def backend(self) -> str:
        """Which way the page is driven: "beginframe", "screenshot" or "playwright"."""
        return self._live().backend

    @property
    def size_wh(self) -> tuple[int, int]:
        """Of the page and its screenshot, in pixels."""
        return self._settings.size_wh

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._live().log.url

    @property
    def navigations(self) -> int:
        """How often the page was replaced by another since the process began."""
        return self._live().log.navigations

    @property
    def dialogs(self) -> tuple[tuple[str, str], ...]:
        """What `alert`, `confirm`, `prompt` and `beforeunload` said since `navigate`: (kind, message). Accepted at once."""
        return tuple(self._live().log.dialogs)

    @property
    def refused(self) -> tuple[str, ...]:
        """URLs that pages asked for and did not get, the last 100."""
        return tuple(self._live().log.refused)

    @property
    def downloaded(self) -> tuple[str, ...]:
        """Names of the files that the page has put into the folder for downloads, in order."""
        return tuple(self._live().log.downloads)

    @property
    def worn(self) -> bool:
        """Whether the process should be replaced (`recycle`): it has navigated often, or its memory has grown."""
        return self.navigations >= MAX_NAVIGATIONS or self.memory() - self._memory > MAX_GROWTH

    def memory(self) -> int:
        """Bytes of memory of all the browser's processes, with what they share counted in parts."""
        return self._live().memory()

    def recycle(self) -> None:
        """Replaces the process by a fresh one with an empty page; scripts of `add_script` stay. Also after a crash."""
        self.close()
        self._driver = self._start()

    def navigate(self, url: str) -> None:
        """Opens a page and waits until it has loaded.

        Raises:
          UserError: a place that may not be reached, or that can't be opened, with the browser's reason.
        """
        if not self._settings.reach.allows(url):
            raise UserError(f"{url}: out of reach; name its folder in files, or its prefix in network")
        self._live().log.dialogs.clear()
        if error := self._do(lambda driver: driver.go(url)):
            raise UserError(f"{url}: can't be opened ({error})")

    def evaluate(self, expression: str) -> Json:
        """The value of a JavaScript expression in the page, as JSON. The page's time does not move.

        Raises:
          ScriptError: an exception in the script, no JSON, or a script that was stopped because it did not end.
        """
        return self._do(lambda driver: driver.evaluate(expression))

    def add_script(self, source: str) -> None:
        """Runs a script before the page's own ones, on each navigation from now on."""
        self._scripts.append(source)
        self._do(lambda driver: driver.add_script(source))

    def act(self, action: Action) -> Invalid | None:
        """Does an action of `envs.actions.COMPUTER`, then lets its share of the page's time pass: 150 ms, `wait` 5 s.

        Returns:
          What was wrong with the action, which then changed nothing: see `envs.actions.check_against`; ``not_allowed`` for a
          place out of reach, ``no_history`` where there is nothing to go back to. `finished`, `call_user` and `open_computer`
          do nothing.
        """
        checked = check_against(action, COMPUTER, self._settings.size_wh)
        if isinstance(checked, Invalid):
            return checked
        if checked.name in ("finished", "call_user", "open_computer"):
            return None
        return self._do(lambda driver: driver.act(checked))

    def advance(self, ms: float) -> None:
        """Lets some milliseconds of the page's time pass."""
        if not 0 <= ms < float("inf"):
            raise ValueError(f"ms={ms}: time moves forward")
        self._do(lambda driver: driver.advance(ms))

    def screenshot(self, format: str = "png") -> bytes:
        """The page as an image file, "png" or "jpeg"."""
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: there are {', '.join(FORMATS)}")
        return self._do(lambda driver: driver.screenshot(format))

    def elements(self) -> tuple[Element, ...]:
        """What can be seen and named on the page, in the document's order, at most `elements.MAX_ELEMENTS`."""
        return elements.from_page(self._do(lambda driver: driver.walk()))

    def set_files(self, selector: str, paths: Iterable[str | Path]) -> None:
        """Gives files to an ``input type=file``, named by a CSS selector.

        Raises UserError for a file outside the browser's folders, and where the selector finds no such input.
        """
        chosen = self._readable(paths)
        self._do(lambda driver: driver.set_files(selector, chosen))

    @property
    def asks_for_files(self) -> bool:
        """Whether the page opened a file chooser, which waits for `choose_files`."""
        return self._live().chooser

    def choose_files(self, paths: Iterable[str | Path]) -> None:
        """Gives files to the input whose file chooser the page has opened. Raises UserError without one."""
        if not self.asks_for_files:
            raise UserError("the page has not asked for files: click its input first")
        chosen = self._readable(paths)
        self._do(lambda driver: driver.choose_files(chosen))

    def close(self) -> None:
        """Ends the browser and deletes its profile. May be called twice."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _live(self) -> Driver:
        if self._driver is None:
            raise CrashedError("the browser is closed")
        return self._driver

    def _start(self) -> Driver:
        if self._settings.backend == "playwright":
            from envs.browser.playwright_driver import Playwright

            driver: Driver = Playwright(self._settings)
        else:
            driver = Chromium(self._settings)
        try:
            for source in self._scripts:
                driver.add_script(source)
            self._memory = driver.memory()
        except BaseException:
            driver.kill()
            raise
        return driver

    def _do(self, step: Callable[[Driver], Result]) -> Result:
        """Does a step; a browser that died or hung is closed at once."""
        driver = self._live()
        try:
            return step(driver)
        except (CrashedError, HungError):
            self._driver = None
            driver.kill()
            raise

    def _readable(self, paths: Iterable[str | Path]) -> list[str]:
        chosen = [Path(path).resolve() for path in paths]
        for path in chosen:
            if not path.is_file() or not any(path.is_relative_to(folder) for folder in self._settings.reach.folders):
                raise UserError(f"{path}: not a file of the browser's folders")
        return [str(path) for path in chosen]


def _absolute(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    path = Path(folder)
    return path.resolve() if ".." in path.parts else path.absolute()

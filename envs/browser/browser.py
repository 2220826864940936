"""A page in a browser whose time stands still between steps."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from envs.actions import COMPUTER, check_against, shown
from envs.api import Action, Element, Invalid, Json
from envs.browser import elements
from envs.browser.clock import FORMATS, Clock
from envs.browser.errors import CrashedError, HungError, ScriptError
from envs.browser.inputs import BUDGET, Inputs
from envs.browser.launch import Launched, Settings, launch
from envs.browser.network import Answer, Reach
from envs.browser.pipe import Message, RefusedError
from jaxllm.errors import UserError

MAX_NAVIGATIONS = 200  # after which a browser is worn
MAX_GROWTH = 150 << 20  # bytes of memory, likewise
PATIENCE = 8.0  # s
# How far the page's own clock is ahead of its frames', in ms.
_LAG = "document.timeline.currentTime === null ? 0 : Math.max(0, performance.now() - document.timeline.currentTime)"


class Browser:
    """One page in a browser process of its own. Use it from one thread; `close` it, or use it as a context manager.

    The page's time moves by `act` and `advance` alone (and as far as a page needs to load). After `CrashedError` or `HungError`
    the process is gone, and only `close` and `recycle` are left.

    Attributes:
      dialogs: what `alert`, `confirm`, `prompt` and `beforeunload` said since the last navigation by `navigate`, as (kind,
        message). They were accepted at once.
      navigations: of the page, since the process began.
      refused: URLs that the page asked for and did not get, the last 100.
      backend: "beginframe", "screenshot" or "playwright".
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._scripts: list[str] = []
        self._launched: Launched | None = None
        self._start()

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
          backend: ``beginframe`` (everything stands still between steps), ``screenshot`` (dates and timers do, animations run),
            ``playwright`` (likewise, through that package), or ``auto``: the first where the browser has it, else the second.
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
        settings = Settings(
            size_wh=tuple(size_wh),
            files=None if files is None else Path(os.path.abspath(files)),
            downloads=None if downloads is None else Path(os.path.abspath(downloads)),
            reach=reach,
            slice_ms=1000 / 60 if animated else 50.0,
            backend=backend,
            patience=patience,
        )
        if backend == "playwright":
            from envs.browser.playwright_backend import PlaywrightBrowser

            return PlaywrightBrowser(settings)
        return Browser(settings)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def time(self) -> float:
        """The page's time since the browser was opened, in seconds."""
        return self._clock.granted / 1000

    @property
    def pid(self) -> int:
        """The browser's main process. Raises CrashedError if it has ended."""
        return self._page.main_pid()

    @property
    def backend(self) -> str:
        """Which way the page is driven."""
        return self._page.backend

    @property
    def size_wh(self) -> tuple[int, int]:
        """Of the page and its screenshot, in pixels."""
        return self._settings.size_wh

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._url

    @property
    def worn(self) -> bool:
        """Whether the process should be replaced (`recycle`): it has navigated often, or its memory has grown."""
        return self.navigations >= MAX_NAVIGATIONS or self._page.memory() - self._memory > MAX_GROWTH

    def memory(self) -> int:
        """Bytes of memory of all the browser's processes, with what they share counted in parts."""
        return self._page.memory()

    def recycle(self) -> None:
        """Replaces the process by a fresh one with an empty page; scripts of `add_script` stay. Also after a crash."""
        self.close()
        self._start()

    def navigate(self, url: str) -> None:
        """Opens a page and waits until it has loaded.

        Raises:
          UserError: a place that may not be reached, or that can't be opened, with the browser's reason.
          CrashedError, HungError: as everywhere.
        """
        if not self._settings.reach.allows(url):
            raise UserError(f"{url}: out of reach; name its folder in files, or its prefix in network")
        self.dialogs.clear()
        if error := self._guarded(lambda: self._go(url)):
            raise UserError(f"{url}: can't be opened ({error})")

    def evaluate(self, expression: str) -> Json:
        """The value of a JavaScript expression in the page, as JSON. The page's time does not move.

        Raises:
          ScriptError: an exception in the script, no JSON, or a script that was stopped because it did not end.
        """
        return self._guarded(lambda: self._evaluate(expression))

    def add_script(self, source: str) -> None:
        """Runs a script before the page's own ones, on each navigation from now on."""
        self._scripts.append(source)
        self._guarded(lambda: self._call("Page.addScriptToEvaluateOnNewDocument", source=source))

    def act(self, action: Action) -> Invalid | None:
        """Does an action of `envs.actions.COMPUTER`, then lets its share of the page's time pass: 150 ms, `wait` 5 s.

        Returns:
          What was wrong with the action, which then changed nothing: see `envs.actions.check_against`; ``not_allowed`` for a
          place out of reach, ``no_history`` where there is nothing to go back to. `finished`, `call_user` and `open_computer` do
          nothing.
        """
        checked = check_against(action, COMPUTER, self._settings.size_wh)
        if isinstance(checked, Invalid) or checked.name in ("finished", "call_user", "open_computer"):
            return checked if isinstance(checked, Invalid) else None
        return self._guarded(lambda: self._act(checked))

    def advance(self, ms: float) -> None:
        """Lets some milliseconds of the page's time pass."""
        if not 0 <= ms < float("inf"):
            raise ValueError(f"ms={ms}: time moves forward")
        self._guarded(lambda: self._advance(ms))

    def screenshot(self, format: str = "png") -> bytes:
        """The page as an image file, "png" or "jpeg"."""
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: there are {', '.join(FORMATS)}")
        return self._guarded(lambda: self._clock.screenshot(format))

    def elements(self) -> tuple[Element, ...]:
        """What can be seen and named on the page, in the document's order, at most `elements.MAX_ELEMENTS`."""
        return elements.from_page(self._guarded(self._walk))

    def set_files(self, selector: str, paths: Iterable[str | Path]) -> None:
        """Gives files to an ``input type=file``, named by a CSS selector.

        Raises UserError for a file outside the browser's folders, and where the selector finds no such input.
        """
        chosen = self._readable(paths)
        self._guarded(lambda: self._set_files(selector, chosen))

    @property
    def asks_for_files(self) -> bool:
        """Whether the page opened a file chooser, which waits for `choose_files`."""
        return self._chooser is not None

    def choose_files(self, paths: Iterable[str | Path]) -> None:
        """Gives files to the input whose file chooser the page has opened. Raises UserError without one."""
        if self._chooser is None:
            raise UserError("the page has not asked for files: click its input first")
        node, self._chooser = self._chooser, None
        chosen = self._readable(paths)
        self._guarded(lambda: self._call("DOM.setFileInputFiles", files=chosen, backendNodeId=node))

    def close(self) -> None:
        """Ends the browser and deletes its profile. May be called twice."""
        if self._launched is not None:
            self._launched.close()

    # The process and its events.

    @property
    def _page(self) -> Launched:
        if self._launched is None or self._launched.closed:
            raise CrashedError("the browser is closed")
        return self._launched

    def _start(self) -> None:
        self.dialogs: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.navigations = 0
        self._url = "about:blank"
        self._loading = False
        self._popup = ""
        self._chooser: int | None = None
        self._world: int | None = None
        self._launched = launch(self._settings)
        self._pipe = self._launched.pipe
        self._clock: Clock = self._launched.clock
        self._inputs = Inputs(self._pipe, self._clock)
        self._pipe.handlers.update(
            {
                "Fetch.requestPaused": self._on_request,
                "Inspector.targetCrashed": self._on_crash,
                "Page.fileChooserOpened": self._on_chooser,
                "Page.frameNavigated": self._on_navigated,
                "Page.frameStartedLoading": lambda event: self._on_loading(event, True),
                "Page.frameStoppedLoading": lambda event: self._on_loading(event, False),
                "Page.javascriptDialogOpening": self._on_dialog,
                "Page.windowOpen": self._on_popup,
                "Runtime.executionContextsCleared": self._on_cleared,
            }
        )

        def prepare() -> None:
            for method in ("Page.enable", "Runtime.enable", "Inspector.enable", "DOM.enable"):
                self._call(method)
            self._call("Fetch.enable", patterns=[{"urlPattern": "*"}])
            self._call("Page.setInterceptFileChooserDialog", enabled=True)
            for source in self._scripts:
                self._call("Page.addScriptToEvaluateOnNewDocument", source=source)
            self._clock.start()

        self._guarded(prepare)
        self._memory = self._page.memory()

    def _guarded(self, step: Callable[[], Any]) -> Any:
        """Does a step; a browser that died or hung is closed at once."""
        page = self._page
        try:
            return step()
        except (CrashedError, HungError):
            page.kill()
            raise

    def _call(self, method: str, **parameters: Any) -> Message:
        number = self._pipe.send(method, **parameters)
        self._clock.until(lambda: self._pipe.arrived(number), method)
        return self._pipe.reply(number)

    def _on_crash(self, _: Message) -> None:
        raise CrashedError("the page's process has died")

    def _on_navigated(self, event: Message) -> None:
        if "parentId" not in event["frame"]:
            self.navigations += 1
            self._url = event["frame"]["url"]
            self._chooser = None

    def _on_cleared(self, _: Message) -> None:
        self._world = None

    def _on_loading(self, event: Message, loading: bool) -> None:
        if event["frameId"] == self._page.target:
            self._loading = loading

    def _on_dialog(self, event: Message) -> None:
        self.dialogs.append((event["type"], event["message"][:1000]))
        self._pipe.post("Page.handleJavaScriptDialog", accept=True, promptText=event.get("defaultPrompt", ""))

    def _on_popup(self, event: Message) -> None:
        self._popup = event["url"]

    def _on_chooser(self, event: Message) -> None:
        self._chooser = event.get("backendNodeId")

    def _on_request(self, event: Message) -> None:
        url = event["request"]["url"]
        if url.startswith(("http:", "https:")) and self._settings.reach.allows(url):
            self._pipe.post(
                "Network.getCookies",
                urls=[url],
                then=lambda reply: self._answer(event, reply.get("result", {}).get("cookies", [])),
            )
        else:
            self._answer(event, [])

    def _answer(self, event: Message, cookies: list[Message]) -> None:
        number = event["requestId"]
        text = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in cookies)
        answer: Answer = self._settings.reach.answer(event["request"], text)
        if answer.go_on:
            self._pipe.post("Fetch.continueRequest", requestId=number)
        elif answer.error:
            self.refused = [*self.refused[-99:], event["request"]["url"][:2000]]
            self._pipe.post("Fetch.failRequest", requestId=number, errorReason=answer.error)
        else:
            self._pipe.post("Fetch.fulfillRequest", requestId=number, **answer.fields())

    # Steps.

    def _go(self, url: str) -> str:
        """Opens a place; returns why it could not be opened, or ""."""
        self._popup = ""
        number = self._pipe.send("Page.navigate", url=url)
        self._clock.until(lambda: self._pipe.arrived(number), f"opening {url}")
        reply = self._pipe.reply(number)
        self._settle()
        return "" if reply.get("isDownload") else reply.get("errorText", "")

    def _settle(self) -> None:
        """Waits until the page has loaded, and lets the frames go on from the new page's time."""
        self._clock.settle(lambda: not self._loading, f"loading {self._url}")
        self._clock.align(self._evaluate(_LAG))

    def _advance(self, ms: float) -> None:
        before = self.navigations
        self._clock.advance(ms)
        self._follow(before)

    def _follow(self, navigations: int) -> None:
        """Sees to what a step led to: a window that wanted to open is opened in the page, and a page loads to its end."""
        popup, self._popup = self._popup, ""
        if popup and self._settings.reach.allows(popup):
            self._go(popup)
        elif popup:
            self.refused = [*self.refused[-99:], popup[:2000]]
        elif self._loading or navigations != self.navigations:
            self._settle()

    def _act(self, action: Action) -> Invalid | None:
        before = self.navigations
        if action.name == "navigate":
            url = action.arguments["url"].strip()
            if not self._settings.reach.allows(url):
                return Invalid("not_allowed", f"{shown(url)} can't be reached from here")
            if error := self._go(url):
                return Invalid("not_allowed", f"{shown(url)} can't be opened ({error})")
            self._clock.advance(BUDGET)
        elif action.name == "navigate_back":
            history = self._call("Page.getNavigationHistory")
            last = history["currentIndex"] - 1
            if last < 0 or history["entries"][last]["url"] == "about:blank":
                return Invalid("no_history", "there is no page to go back to")
            self._call("Page.navigateToHistoryEntry", entryId=history["entries"][last]["id"])
            self._clock.settle(lambda: self.navigations > before and not self._loading, "going back")
            self._clock.advance(BUDGET)
        else:
            self._inputs.do(action)
        self._follow(before)
        return None

    def _evaluate(self, expression: str, **parameters: Any) -> Json:
        hangs = self._clock.hangs
        try:
            reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, **parameters)
        except RefusedError as error:
            raise ScriptError(str(error)) from None
        if details := reply.get("exceptionDetails"):
            if self._clock.hangs > hangs:
                raise ScriptError("the script did not end and was stopped")
            thrown = details.get("exception", {})
            raise ScriptError(str(thrown.get("description") or thrown.get("value") or details.get("text"))[:2000])
        return reply["result"].get("value")

    def _walk(self) -> list[Any]:
        if self._world is None:
            world = self._call("Page.createIsolatedWorld", frameId=self._page.target, worldName="driver")
            self._world = world["executionContextId"]
            self._evaluate(f"globalThis.walk = {elements.script()};0", contextId=self._world)
        return self._evaluate(f"walk({elements.MAX_ELEMENTS})", contextId=self._world)

    def _set_files(self, selector: str, paths: list[str]) -> None:
        try:
            root = self._call("DOM.getDocument", depth=0)["root"]["nodeId"]
            node = self._call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
            self._call("DOM.setFileInputFiles", files=paths, nodeId=node)
        except RefusedError as error:
            raise UserError(f"{selector!r} finds no input for files on the page ({error})") from None

    def _readable(self, paths: Iterable[str | Path]) -> list[str]:
        chosen = [Path(os.path.abspath(path)) for path in paths]
        for path in chosen:
            inside = any(path.resolve().is_relative_to(folder) for folder in self._settings.reach.folders)
            if not inside or not path.is_file():
                raise UserError(f"{path}: not a file of the browser's folders")
        return [str(path) for path in chosen]

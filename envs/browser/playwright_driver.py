"""The second choice of driver: the package playwright, with the same browser, limits and sandbox.

Dates and timers stand still, by functions that playwright puts in place of the page's; animations run on. A page that hangs is
given up the first time. Playwright's calls belong to the thread that opened the browser, outside of any event loop.
"""

import base64
import importlib
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from envs.actions import shown
from envs.api import Action, Invalid, Json
from envs.browser import confine, elements, profile
from envs.browser.clock import EPOCH
from envs.browser.driver import Driver, Log, Settings
from envs.browser.errors import CrashedError, HungError, ScriptError
from envs.browser.find import find
from envs.browser.flags import flags
from envs.browser.inputs import BUDGET, Inputs
from envs.browser.launch import is_main, memory, sandbox, tree
from jaxllm.errors import UserError

Result = TypeVar("Result")

_START = 60.0  # seconds for a browser to answer at all
_OWN = ("--user-data-dir", "--remote-debugging", "about:")  # flags that playwright gives itself


class Playwright(Driver):
    """See `Driver`."""

    backend = "playwright"
    granted = 0.0

    def __init__(self, settings: Settings):
        try:
            api = importlib.import_module("playwright.sync_api")  # no dependency: only who asks for this driver needs it
        except ImportError:
            raise UserError("backend='playwright' needs the package: pip install playwright") from None
        self.log = Log()
        self._settings = settings
        self._error: type[Exception] = api.Error
        self._hung = False
        self._crashed = False
        self._popup = ""
        self._chooser: Any = None
        self._downloads: list[Any] = []
        self._playwright: Any = None
        self._context: Any = None
        profile.sweep()
        self._folder = profile.make()
        try:
            self._playwright = _start(api)
            self._context = self._launch(settings, find())
            self._page = self._context.pages[0]
            self._session = self._context.new_cdp_session(self._page)
            self._prepare()
        except api.Error as error:
            self.kill()
            raise CrashedError(f"playwright: {str(error).splitlines()[0]}") from None
        except BaseException:
            self.kill()
            raise

    def _launch(self, settings: Settings, executable: Path) -> Any:
        """The browser, by a script that puts it into our sandbox."""
        starter = self._folder / "browser"
        command = [*(sandbox(settings, executable, self._folder) if confine.works() else ()), str(executable)]
        starter.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
        starter.chmod(0o700)
        width, height = settings.size_wh
        ours = flags(executable, self._folder / "profile", settings.size_wh, begin_frame=False, no_sandbox=False)
        return self._playwright.chromium.launch_persistent_context(
            str(self._folder / "profile"),
            executable_path=str(starter),
            args=[flag for flag in ours if not flag.startswith(_OWN)],
            chromium_sandbox=not confine.works() and os.geteuid() != 0,
            viewport={"width": width, "height": height},
            accept_downloads=settings.downloads is not None,
            downloads_path=str(self._folder / "downloads"),
            env={"HOME": str(self._folder), "LANG": "C.UTF-8", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)},
            timeout=_START * 1000,
        )

    def _prepare(self) -> None:
        self._context.set_default_timeout(self._settings.patience * 1000)
        self._context.route("**/*", self._on_route)
        self._context.clock.install(time=EPOCH)
        self._context.clock.pause_at(EPOCH)
        self._session.send("Page.enable")
        self._session.on("Page.windowOpen", self._on_popup)
        self._page.on("crash", self._on_crash)
        self._page.on("dialog", self._on_dialog)
        self._page.on("download", self._on_download)
        self._page.on("filechooser", self._on_chooser)
        self._page.on("framenavigated", self._on_navigated)
        self._inputs = Inputs(self, self)

    @property
    def chooser(self) -> bool:
        """See `Driver`."""
        return self._chooser is not None

    def main_pid(self) -> int:
        """See `Driver`."""
        found = [pid for pid in tree(os.getpid()) if is_main(pid, self._folder / "profile")]
        if not found:
            raise CrashedError("the browser has ended")
        return found[-1]

    def memory(self) -> int:
        """See `Driver`."""
        return sum(memory(pid) for pid in tree(self.main_pid()))

    def go(self, url: str) -> str:
        """See `Driver`."""
        self._popup = ""
        try:
            self._safely(lambda: self._page.goto(url))
        except ScriptError as error:
            return "" if "Download is starting" in str(error) else str(error).splitlines()[0]
        return ""

    def act(self, action: Action) -> Invalid | None:
        """See `Driver`."""
        if action.name == "navigate":
            url = action.arguments["url"].strip()
            if not self._settings.reach.allows(url):
                return Invalid("not_allowed", f"{shown(url)} can't be reached from here")
            if error := self.go(url):
                return Invalid("not_allowed", f"{shown(url)} can't be opened ({error})")
            self.advance(BUDGET)
        elif action.name == "navigate_back":
            history = self._safely(lambda: self._session.send("Page.getNavigationHistory"))
            last = history["currentIndex"] - 1
            if last < 0 or history["entries"][last]["url"] == "about:blank":
                return Invalid("no_history", "there is no page to go back to")
            self._safely(self._page.go_back)
            self.advance(BUDGET)
        else:
            self._inputs.do(action)
        self._follow()
        return None

    def advance(self, ms: float) -> None:
        """See `Driver`, and `Clock`."""
        self.granted += ms
        self._safely(lambda: self._context.clock.run_for(ms))

    def evaluate(self, expression: str) -> Json:
        """See `Driver`."""
        return self._safely(lambda: self._page.evaluate(expression))

    def add_script(self, source: str) -> None:
        """See `Driver`."""
        self._safely(lambda: self._page.add_init_script(source))

    def screenshot(self, form: str) -> bytes:
        """See `Driver`."""
        return self._safely(lambda: self._page.screenshot(type=form, **({"quality": 80} if form == "jpeg" else {})))

    def walk(self) -> list[Any]:
        """See `Driver`."""
        return self._safely(lambda: self._page.evaluate(f"({elements.script()})({elements.MAX_ELEMENTS})"))

    def set_files(self, selector: str, paths: list[str]) -> None:
        """See `Driver`."""
        try:
            self._safely(lambda: self._page.locator(selector).first.set_input_files(paths, timeout=1000))
        except ScriptError as error:
            raise UserError(f"{selector!r} finds no input for files on the page ({str(error).splitlines()[0]})") from None

    def choose_files(self, paths: list[str]) -> None:
        """See `Driver`."""
        chooser, self._chooser = self._chooser, None
        self._safely(lambda: chooser.set_files(paths))

    def close(self) -> None:
        """See `Driver`."""
        with _Watch(self._settings.patience, self._end_processes):
            try:
                if self._context is not None:
                    self._context.close()
            except self._error:
                self._end_processes()  # it was dead already, or it does not close
            finally:
                if self._playwright is not None:
                    self._playwright.stop()
                self._context = self._playwright = None
        profile.remove(self._folder)

    def kill(self) -> None:
        """See `Driver`."""
        self._end_processes()
        self.close()

    # What `Inputs` takes for its pipe and its clock: playwright's session answers each call at once.

    def send(self, method: str, /, **parameters: Any) -> int:
        """See `Pipe`."""
        self._safely(lambda: self._session.send(method, parameters))
        return 0

    def stamp(self) -> float:
        """See `Clock`."""
        return time.time()

    def complete(self, numbers: list[int], what: str) -> None:
        """See `Clock`."""

    def _safely(self, step: Callable[[], Result]) -> Result:
        """One call of playwright, none of which takes longer than the page's patience."""
        watch = _Watch(2 * self._settings.patience, self._end_processes)
        try:
            with watch:
                return step()
        except self._error as error:
            if watch.fired:
                raise HungError(f"no answer in {2 * self._settings.patience:g} s") from None
            if self._crashed or self._page.is_closed() or not self._alive():
                raise CrashedError("the browser or its page has died") from None
            raise ScriptError(str(error)[:2000]) from None

    def _follow(self) -> None:
        """Sees to what a step led to."""
        popup, self._popup = self._popup, ""
        if popup and self._settings.reach.allows(popup):
            self.go(popup)
        elif popup:
            self.log.refuse(popup)
        while self._downloads and self._settings.downloads is not None:
            download = self._downloads.pop(0)
            name = Path(download.suggested_filename).name
            path = self._settings.downloads / name
            self._safely(lambda download=download, path=path: download.save_as(path))  # type: ignore[misc]
            self.log.downloads.append(name)

    def _alive(self) -> bool:
        try:
            return self.main_pid() > 0
        except CrashedError:
            return False

    def _end_processes(self) -> None:
        for pid in [pid for pid in tree(os.getpid()) if is_main(pid, self._folder / "profile")]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _on_route(self, route: Any) -> None:
        request = route.request
        body = [{"bytes": base64.b64encode(request.post_data_buffer).decode()}] if request.post_data_buffer else []
        data = {"url": request.url, "method": request.method, "headers": request.headers, "postDataEntries": body}
        answer = self._settings.reach.answer(data, request.headers.get("cookie", ""))
        if answer.go_on:
            route.continue_()
        elif answer.error:
            self.log.refuse(request.url)
            route.abort("accessdenied")
        else:
            route.fulfill(status=answer.status, headers=dict(answer.headers), body=answer.body)

    def _on_navigated(self, frame: Any) -> None:
        if frame.parent_frame is None:
            self.log.navigations += 1
            self.log.url = frame.url
            self._chooser = None

    def _on_dialog(self, dialog: Any) -> None:
        self.log.dialogs.append((dialog.type, dialog.message[:1000]))
        dialog.accept(dialog.default_value)

    def _on_popup(self, event: dict[str, Any]) -> None:
        self._popup = event["url"]

    def _on_chooser(self, chooser: Any) -> None:
        self._chooser = chooser

    def _on_download(self, download: Any) -> None:
        self._downloads.append(download)

    def _on_crash(self, _: Any) -> None:
        self._crashed = True


def _start(api: Any) -> Any:
    try:
        return api.sync_playwright().start()
    except api.Error as error:  # within an event loop
        raise UserError(f"playwright can't be started here: {' '.join(str(error).split())}") from None


class _Watch:
    """Ends the browser where a block takes too long; playwright's own calls have no deadline for scripts."""

    def __init__(self, seconds: float, end: Callable[[], None]):
        self.fired = False
        self._end = end
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def _fire(self) -> None:
        self.fired = True
        self._end()

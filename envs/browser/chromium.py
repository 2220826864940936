"""Our own driver: Chromium over its debugging pipe."""

from pathlib import Path
from typing import Any

from envs.actions import shown
from envs.api import Action, Invalid, Json
from envs.browser import elements
from envs.browser.clock import Clock
from envs.browser.driver import Driver, Log, Settings
from envs.browser.errors import CrashedError, ScriptError
from envs.browser.inputs import BUDGET, Inputs
from envs.browser.launch import Launched, launch
from envs.browser.pipe import Message, RefusedError
from jaxllm.errors import UserError

_TURNS = 5.0  # s in which a document that was answered becomes a page or a download; one that may be neither is not waited for
_EMPTY = (204, 205)  # statuses of answers after which a page stays as it is
_STOPPED = "the script did not end and was stopped"


class Chromium(Driver):
    """See `Driver`."""

    def __init__(self, settings: Settings):
        self.log = Log()
        self._settings = settings
        self._loading = False
        self._popup = ""
        self._chooser: int | None = None  # the input that waits for files
        self._downloads: dict[str, str] = {}  # those on their way: id -> file name
        self._opening: list[str] = []  # frames in which a document was answered: a page, or a download, that has not begun
        self._world: int | None = None  # where the walk runs, apart from the page's own scripts
        self._launched: Launched = launch(settings)
        self.backend = self._launched.backend
        self._pipe = self._launched.pipe
        self._clock: Clock = self._launched.clock
        self._inputs = Inputs(self._pipe, self._clock)
        self._pipe.handlers.update(
            {
                "Browser.downloadProgress": self._on_progress,
                "Browser.downloadWillBegin": self._on_download,
                "Fetch.requestPaused": self._on_request,
                "Inspector.targetCrashed": self._on_crash,
                "Page.fileChooserOpened": self._on_chooser,
                "Page.frameDetached": lambda event: self._opened(event["frameId"], every=True),
                "Page.frameNavigated": self._on_navigated,
                "Page.frameStartedLoading": lambda event: self._on_loading(event, True),
                "Page.frameStoppedLoading": lambda event: self._on_loading(event, False),
                "Page.javascriptDialogOpening": self._on_dialog,
                "Page.windowOpen": self._on_popup,
                "Runtime.executionContextsCleared": self._on_cleared,
            }
        )
        try:
            for domain in ("Page", "Runtime", "Inspector", "DOM"):
                self._call(f"{domain}.enable")
            self._call("Fetch.enable", patterns=[{"urlPattern": "*"}])
            self._call("Page.setInterceptFileChooserDialog", enabled=True)
            self._clock.start()
        except BaseException:
            self.kill()
            raise

    @property
    def granted(self) -> float:
        """See `Driver`."""
        return self._clock.granted

    @property
    def chooser(self) -> bool:
        """See `Driver`."""
        return self._chooser is not None

    def main_pid(self) -> int:
        """See `Driver`."""
        return self._launched.main_pid()

    def memory(self) -> int:
        """See `Driver`."""
        return self._launched.memory()

    def go(self, url: str) -> str:
        """See `Driver`."""
        self._popup = ""
        number = self._pipe.send("Page.navigate", url=url)
        self._clock.until(lambda: self._pipe.arrived(number), f"opening {url}")
        reply = self._pipe.reply(number)
        self._settle()
        if not reply.get("isDownload"):
            return reply.get("errorText", "")
        self._await_downloads()
        return ""

    def act(self, action: Action) -> Invalid | None:
        """See `Driver`."""
        before = self.log.navigations
        if action.name == "navigate":
            url = action.arguments["url"].strip()
            if not self._settings.reach.allows(url):
                return Invalid("not_allowed", f"{shown(url)} can't be reached from here")
            if error := self.go(url):
                return Invalid("not_allowed", f"{shown(url)} can't be opened ({error})")
            self._clock.advance(BUDGET)
        elif action.name == "navigate_back":
            history = self._call("Page.getNavigationHistory")
            last = history["currentIndex"] - 1
            if last < 0 or history["entries"][last]["url"] == "about:blank":
                return Invalid("no_history", "there is no page to go back to")
            self._call("Page.navigateToHistoryEntry", entryId=history["entries"][last]["id"])
            self._clock.settle(lambda: self.log.navigations > before and not self._loading, "going back")
            self._clock.advance(BUDGET)
        else:
            self._inputs.do(action)
        self._follow(before)
        return None

    def advance(self, ms: float) -> None:
        """See `Driver`."""
        before = self.log.navigations
        self._clock.advance(ms)
        self._follow(before)

    def evaluate(self, expression: str) -> Json:
        """See `Driver`."""
        return self._evaluate(expression)

    def add_script(self, source: str) -> None:
        """See `Driver`."""
        self._call("Page.addScriptToEvaluateOnNewDocument", source=source)

    def screenshot(self, form: str) -> bytes:
        """See `Driver`."""
        return self._clock.screenshot(form)

    def walk(self) -> list[Any]:
        """See `Driver`."""
        if self._world is None:
            world = self._call("Page.createIsolatedWorld", frameId=self._launched.target, worldName="driver")
            self._world = world["executionContextId"]
            self._evaluate(f"globalThis.walk = {elements.script()};0", contextId=self._world)
        return self._evaluate(f"walk({elements.MAX_ELEMENTS})", contextId=self._world)

    def set_files(self, selector: str, paths: list[str]) -> None:
        """See `Driver`."""
        try:
            root = self._call("DOM.getDocument", depth=0)["root"]["nodeId"]
            node = self._call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
            self._call("DOM.setFileInputFiles", files=paths, nodeId=node)
        except RefusedError as error:
            raise UserError(f"{selector!r} finds no input for files on the page ({error})") from None

    def choose_files(self, paths: list[str]) -> None:
        """See `Driver`."""
        node, self._chooser = self._chooser, None
        self._call("DOM.setFileInputFiles", files=paths, backendNodeId=node)

    def close(self) -> None:
        """See `Driver`."""
        self._launched.close()

    def kill(self) -> None:
        """See `Driver`."""
        self._launched.kill()

    def _call(self, method: str, **parameters: Any) -> Message:
        number = self._pipe.send(method, **parameters)
        self._clock.until(lambda: self._pipe.arrived(number), method)
        return self._pipe.reply(number)

    def _evaluate(self, expression: str, **parameters: Any) -> Json:
        hangs = self._clock.hangs
        try:
            reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, **parameters)
        except RefusedError as error:
            raise ScriptError(_STOPPED if self._clock.hangs > hangs else str(error)) from None
        if details := reply.get("exceptionDetails"):
            if self._clock.hangs > hangs:
                raise ScriptError(_STOPPED)
            thrown = details.get("exception", {})
            raise ScriptError(str(thrown.get("description") or thrown.get("value") or details.get("text"))[:2000])
        return reply["result"].get("value")

    def _settle(self) -> None:
        """Waits until the page has loaded."""
        self._clock.settle(lambda: not self._loading, f"loading {self.log.url}")
        self._clock.begin()

    def _follow(self, navigations: int) -> None:
        """Sees to what a step led to: a window that wanted to open is opened in the page, and a page loads to its end."""
        popup, self._popup = self._popup, ""
        if popup and self._settings.reach.allows(popup):
            self.go(popup)
        elif popup:
            self.log.refuse(popup)
        elif self._loading or navigations != self.log.navigations:
            self._settle()
        if self._settings.downloads is not None:
            self._await_downloads()

    def _await_downloads(self) -> None:
        """Waits until what the page wanted to download has come."""
        self._pipe.call("Browser.getVersion", self._settings.patience, browser=True)  # what began by now has been said
        self._pipe.wait(lambda: not self._opening, _TURNS)
        self._opening.clear()
        self._clock.until(lambda: not self._downloads, "a download")

    def _opened(self, frame: str, every: bool = False) -> None:
        """One document of a frame, or every, has become a page or a download, or will be neither."""
        count = self._opening.count(frame)
        for _ in range(count if every else min(count, 1)):
            self._opening.remove(frame)

    # Events. Their handlers send, but never wait.

    def _on_crash(self, _: Message) -> None:
        raise CrashedError("the page's process has died")

    def _on_navigated(self, event: Message) -> None:
        self._opened(event["frame"]["id"], every=True)
        if "parentId" not in event["frame"]:
            self.log.navigations += 1
            self.log.url = event["frame"]["url"]
            self._chooser = None

    def _on_cleared(self, _: Message) -> None:
        self._world = None

    def _on_loading(self, event: Message, loading: bool) -> None:
        if event["frameId"] == self._launched.target:
            self._loading = loading

    def _on_dialog(self, event: Message) -> None:
        self.log.dialogs.append((event["type"], event["message"][:1000]))
        self._pipe.post("Page.handleJavaScriptDialog", accept=True, promptText=event.get("defaultPrompt", ""))

    def _on_popup(self, event: Message) -> None:
        self._popup = event["url"]

    def _on_chooser(self, event: Message) -> None:
        self._chooser = event.get("backendNodeId")

    def _on_download(self, event: Message) -> None:
        self._opened(event["frameId"])
        self._downloads[event["guid"]] = event["suggestedFilename"]

    def _on_progress(self, event: Message) -> None:
        if event["state"] != "inProgress":
            name = self._downloads.pop(event["guid"], "")
            if event["state"] == "completed":
                self.log.downloads.append(Path(event.get("filePath", name)).name)

    def _on_request(self, event: Message) -> None:
        url = event["request"]["url"]
        if not url.startswith(("http:", "https:")) or not self._settings.reach.allows(url):
            self._answer(event, [])
            return

        def answer(reply: Message) -> None:
            self._answer(event, reply.get("result", {}).get("cookies", []))

        self._pipe.post("Network.getCookies", urls=[url], then=answer)

    def _answer(self, event: Message, cookies: list[Message]) -> None:
        text = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in cookies)
        answer = self._settings.reach.answer(event["request"], text)
        if event["resourceType"] == "Document":
            if "redirectedRequestId" in event:
                self._opened(event["frameId"])
            if not answer.error and answer.status not in _EMPTY:
                self._opening.append(event["frameId"])
        if answer.go_on:
            self._pipe.post("Fetch.continueRequest", requestId=event["requestId"])
        elif answer.error:
            self.log.refuse(event["request"]["url"])
            self._pipe.post("Fetch.failRequest", requestId=event["requestId"], errorReason=answer.error)
        else:
            self._pipe.post("Fetch.fulfillRequest", requestId=event["requestId"], **answer.fields())

"""Any page as an environment: a file, or an address and all that lies under it.

    env = envs.make("page/shop.html", verifier="my_checks:bought", task="Buy the cheapest lamp.")

A page may also be its own judge. Without any option, a page that sets ``window.TASK`` (what the agent is told),
``window.REWARD`` (the score so far) and ``window.DONE`` is an environment. Its problem should follow from ``window.SEED``
or ``Math.random``, which the seed sets before its scripts run.
"""

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envs import browser as driver
from envs.actions import COMPUTER, with_names
from envs.api import Action, Env, EnvSpec, Json, Obs, Policy, StepResult, Task
from envs.base import BaseEnv, judging
from envs.digest import task_seed
from envs.elements import listing
from jaxllm.errors import UserError

# Called with the verifier's view (see `PageEnv.state`, and ``text``, ``elements``, ``answer``); returns the score so far, True
# or False, or an object with ``reward`` and, where it wants to say so, ``done`` and ``success``.
Verifier = Callable[[Mapping[str, Json]], Any]

_HANDS = ("click", "left_double", "right_single", "middle_click", "hover", "drag", "mouse_down", "mouse_up")
_KEYS = ("hotkey", "press", "release", "type", "scroll", "wait", "finished", "call_user")
ACTIONS = with_names(COMPUTER, *_HANDS, *_KEYS)
WEB_ACTIONS = with_names(COMPUTER, *_HANDS, "navigate", "navigate_back", *_KEYS)
OPTIONS = {
    "animated": False,
    "backend": "auto",
    "done": "window.DONE",
    "files": None,
    "max_steps": 100,
    "network": [],
    "reward": "window.REWARD",
    "screenshot": True,
    "seed_as": "SEED",
    "size": [1024, 768],
    "state": "null",
    "success": 1.0,
    "task": None,
    "verifier": None,
}


class PageEnv(BaseEnv):
    """A page with a judge. `task` is that of the present episode."""

    def __init__(self, page: str, options: Mapping[str, Json]):
        """Starts nothing yet: the browser starts at the first reset.

        Args:
          page: a file's path, or an address with http: or https:, which is also the prefix that may be reached.
          options: what differs from `OPTIONS`:
            verifier: "module:function", a `Verifier` on Python's path. It takes the place of ``reward`` and ``done``.
            reward: JavaScript, the score so far (a number; nothing counts as 0). A step earns what it adds.
            done: JavaScript, whether the task is over.
            success: from which score on it counts as solved, or JavaScript that says so.
            state: JavaScript, anything as JSON that the verifier and the digest should see.
            task: what the agent is told; by default ``window.TASK``, else the page's title.
            size: width and height of the screen in pixels.
            files: the folder that the page may load files from; by default the file's own.
            network: URL prefixes that the page may reach besides its own.
            seed_as: the name of the window's variable that holds the episode's seed.
            animated: draws 60 frames in a second of its time, not 20.
            screenshot: False leaves the picture out.
            backend, max_steps: of the browser, and of an episode.

        Raises:
          UserError: no such file, an unknown option or one of another kind, or a verifier that can't be imported.
        """
        self._set = _checked(page, options)
        super().__init__(describe(page, **options), dict(options))
        self._verifier = _load(self._set["verifier"])
        self._url = page if _is_web(page) else Path(page).resolve().as_uri()
        self._files = self._set["files"] or (None if _is_web(page) else str(Path(page).resolve().parent))
        self._browser: driver.Browser | None = None
        self._since = 0.0
        self._view: dict[str, Any] = {}
        self._total = 0.0
        self._ended = False

    @property
    def task(self) -> Task | None:
        """The task of the present episode, and the seed that sets it again."""
        return self._task

    def _reset(self, task: Task | None, seed: int) -> Obs:
        if task is not None:
            seed = task_seed(task, seed)
        try:
            browser = self._open()
            browser.add_script(f"window.{self._set['seed_as']} = {seed}; Math.random = envsPage.random({seed});")
            browser.navigate(self._url)
            self._since = browser.time
            self._total, self._ended = 0.0, False
            told = task.instruction if task is not None else self._set["task"]
            if told is None:
                told = str(browser.evaluate("window.TASK || document.title || ''"))
            self._task = Task(f"{self.spec.name}-{seed}", told, {"seed": seed})
            obs = self._look(browser)
        except (driver.CrashedError, driver.HungError):
            self.close()
            raise
        except driver.ScriptError as error:
            raise UserError(
                f"{self.spec.name}: reward, done, state or success is no JavaScript expression ({error})"
            ) from error
        self._judge(None)
        return obs

    def _act(self, action: Action) -> StepResult:
        browser = self._browser
        if browser is None:
            raise driver.CrashedError(f"{self.spec.name}: the browser is gone; reset first")
        try:
            refused = browser.act(action)
            obs = self._look(browser)
            reward, info = self._judge(None)
        except driver.ScriptError as error:  # the page has lost its way: its script never ends
            return StepResult(
                self._last, 0.0, False, True, {"error": "page_error", "message": str(error), "status": "PAGE_ERROR"}
            )
        except (driver.CrashedError, driver.HungError):
            self.close()
            raise
        if refused is not None:
            info["error"], info["message"] = refused.error, refused.message
        return StepResult(obs, reward, self._ended, False, info)

    def _finish(self, action: Action) -> StepResult:
        """The agent says that it is done: the verifier sees its answer."""
        reward, info = self._judge(str(action.arguments.get("content", "")))
        return StepResult(self._last, reward, True, False, info)

    def _look(self, browser: driver.Browser) -> Obs:
        image = browser.screenshot() if self._set["screenshot"] else None
        elements = browser.elements()
        self._view = browser.evaluate(_VIEW % {name: self._set[name] for name in ("reward", "done", "state")})
        instruction = self._task.instruction if self._task else ""
        return Obs(text=f"{instruction}\n{listing(elements)}", screenshot=image, elements=elements, t_virtual=self._elapsed())

    def _judge(self, answer: str | None) -> tuple[float, dict[str, Any]]:
        """What the last step earned, and what to say of it; whether it was the end is in `_ended`."""
        view, info = self._view, {"elapsed": self._elapsed()}
        total, done, success = view["reward"], view["done"], None
        if self._verifier is not None:
            seen = [{"role": e.role, "text": e.text, "box": list(e.box), **e.attributes} for e in self._seen()]
            given = {**self.state(), "text": view["text"], "elements": seen, "answer": answer}
            with judging(self.spec.name):
                told = self._verifier(given)
            total, done, success = _verdict(told, self._set["success"])
        if not isinstance(total, int | float) or not math.isfinite(total):
            raise UserError(f"{self.spec.name}: the score is {total!r}; it must be a finite number")
        earned, self._total, self._ended = float(total) - self._total, float(total), bool(done)
        if self._ended or answer is not None:
            if isinstance(self._set["success"], str) and self._browser is not None:
                success = bool(self._browser.evaluate(self._set["success"]))
            info["success"] = success if success is not None else self._total >= self.spec.success
        return earned, info

    def _seen(self) -> tuple[Any, ...]:
        return self._browser.elements() if self._browser else ()

    def _state(self) -> dict[str, Any]:
        held = {name: value for name, value in self._view.items() if name not in ("text", "reward", "done")}
        return {**held, "score": self._total, "done": self._ended}

    def state(self) -> dict[str, Any]:
        """See `Env.state`: url, title, html, values, scrolling, focus, selection, score, and ``own`` (of the option state)."""
        return {**super().state(), "time": self._elapsed()}

    def _elapsed(self) -> float:
        return round(self._browser.time - self._since, 4) if self._browser else 0.0

    def _open(self) -> driver.Browser:
        if self._browser is not None and self._browser.worn:
            self.close()
        if self._browser is None:
            width, height = self._set["size"]
            web = [self._url] if _is_web(self._url) else []
            self._browser = driver.Browser.open(
                (width, height),
                files=self._files,
                network=(*web, *self._set["network"]),
                animated=self._set["animated"],
                backend=self._set["backend"],
            )
            self._browser.add_script(Path(__file__).with_name("page.js").read_text(encoding="utf-8"))
        return self._browser

    def close(self) -> None:
        """Ends the browser. The last observation stays."""
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.close()


_VIEW = """({
  ...envsPage.state(), url: location.href, title: document.title, text: document.body ? document.body.innerText : "",
  reward: (%(reward)s) ?? 0, done: Boolean(%(done)s), own: (%(state)s) ?? null,
})"""


def _is_web(page: str) -> bool:
    return page.startswith(("http://", "https://"))


def _checked(page: str, options: Mapping[str, Json]) -> dict[str, Any]:
    """All options, those given in the place of the defaults."""
    unknown = sorted(options.keys() - OPTIONS.keys())
    if unknown:
        raise UserError(f"page/{page}: there is no option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    values = {**OPTIONS, **options}
    expected = {
        **dict.fromkeys(("backend", "done", "reward", "seed_as", "state"), (str,)),
        **dict.fromkeys(("animated", "screenshot"), (bool,)),
        **{name: (str, type(None)) for name in ("files", "task", "verifier")},
        **dict.fromkeys(("network", "size"), (list, tuple)),
        "max_steps": (int,),
        "success": (int, float, str),
    }
    for name, kinds in expected.items():
        if not isinstance(values[name], kinds):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"page/{page}: {name} is {words}, not {values[name]!r}")
    size = values["size"]
    if len(size) != 2 or not all(isinstance(side, int) and 1 <= side <= 8192 for side in size):
        raise UserError(f"page/{page}: size is a width and a height in pixels, not {size!r}")
    if not re.fullmatch(r"[A-Za-z_$][\w$]*", values["seed_as"]):
        raise UserError(f"page/{page}: seed_as is a name of a variable, not {values['seed_as']!r}")
    if not _is_web(page) and not Path(page).is_file():
        raise UserError(f"page/{page}: there is no such file; give a path to an HTML file, or an address with http:")
    return values


def _load(name: str | None) -> Verifier | None:
    if name is None:
        return None
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function or "verify")
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"verifier {name!r}: {error}; name it module:function, with the module on Python's path") from error
    if not callable(found):
        raise UserError(f"verifier {name!r} is no function")
    return found


def _verdict(told: Any, success: float | str) -> tuple[Any, bool, bool | None]:
    """Score, whether it is the end, and whether it is solved, if the verifier says so."""
    if isinstance(told, Mapping):
        unknown = sorted(told.keys() - {"reward", "done", "success"})
        if unknown or "reward" not in told:
            raise UserError(
                f"a verifier returns a score, or an object with reward, done and success, not {json.dumps(dict(told))}"
            )
        return told["reward"], bool(told.get("done", False)), told.get("success")
    total = float(told) if isinstance(told, bool) else told
    enough = isinstance(success, int | float) and isinstance(total, int | float) and total >= success
    return total, enough, None


# The family (see `envs.api.Family`).


def names() -> list[str]:
    """None: the user names a page."""
    return []


def describe(name: str, **options: Any) -> EnvSpec:
    """See `envs.api.Family.describe`."""
    values = _checked(name, options)
    web = _is_web(name) or bool(values["network"])
    success = values["success"]
    return EnvSpec(
        name=f"page/{name}",
        about=values["task"] or f"the page {name}",
        actions=WEB_ACTIONS if web else ACTIONS,
        screen_wh=tuple(values["size"]),
        max_steps=values["max_steps"],
        supports=frozenset({"save", "clock"} | (set() if web else {"deterministic"})),
        success=1.0 if isinstance(success, str) else float(success),
        weight="heavy",
    )


def make(name: str, **options: Any) -> Env:
    """See `PageEnv` for the options."""
    return PageEnv(name, options)


def oracle(name: str, seed: int = 0) -> Policy | None:
    """None: nobody knows the page but its user."""
    return None


def missing() -> str | None:
    """What this machine lacks: a browser."""
    return driver.missing()

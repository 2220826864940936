"""MiniWoB++: 130 web pages with a task each, in a real browser whose time stands still while the agent thinks.

The pages are those of the `miniwob` package (Liu et al. 2018, arXiv 1802.08802; Shi et al. 2017). An episode is one problem,
drawn by the page itself from the seed: the same seed gives the problem that the package's own environment gives. The reward
is the page's raw one, in [-1, 1]; the time it took is told apart from it.
"""

import functools
import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs import browser as driver
from envs.actions import COMPUTER, with_names
from envs.api import Action, Element, Env, EnvSpec, Json, Obs, Policy, StepResult, Task
from envs.base import BaseEnv
from envs.digest import task_seed
from envs.elements import listing
from envs.miniwob.pages import PAGES
from jaxllm.errors import UserError

SCREEN_WH = (160, 210)  # the pages are laid out for exactly this
MODES = ("train", "test", "default")  # which part of their problems five pages draw from
OPTIONS = {"backend": "auto", "reset": "navigate", "mode": "train", "screenshot": True}
BACKENDS = ("auto", "beginframe", "screenshot", "playwright")
RESETS = ("navigate", "page")
STEP = 0.15  # virtual seconds that an action takes
SETTLE = 50.0  # ms of page time before the first look, in which its pictures come
READY = 20  # times that a page is asked, so far apart, whether its problem is ready
ACTIONS = with_names(
    COMPUTER,
    *("click", "left_double", "right_single", "hover", "drag", "mouse_down", "mouse_up", "hotkey", "press", "release"),
    *("type", "scroll", "wait", "finished", "call_user"),
)


class MiniwobEnv(BaseEnv):
    """One page. `task` is the problem of the present episode: its instruction is what the page asks for."""

    def __init__(self, page: str, options: Mapping[str, Json]):
        """Starts nothing yet: the browser starts at the first reset.

        Args:
          page: a name of `PAGES`.
          options: what differs from `OPTIONS`:
            backend: of the browser: auto, beginframe, screenshot or playwright (see `envs.browser`).
            reset: "navigate" loads the page anew for each episode; "page" seeds it again, which is 7 to 25 times as fast.
            mode: "train", "test" or "default": which problems the pages with a split draw from.
            screenshot: False leaves the picture out of observations.

        Raises:
          UserError: no such page or option, another value, or ``reset="page"`` on a page that does not reset cleanly.
        """
        self._set = _checked(page, options)
        super().__init__(describe(page, **options), dict(options))
        self.page, self.facts = page, PAGES[page]
        self._url = (html_folder() / "miniwob" / f"{page}.html").as_uri()
        self._browser: driver.Browser | None = None
        self._view: dict[str, Any] = {}
        self._since = 0.0  # the browser's clock at the start of the episode

    @property
    def task(self) -> Task | None:
        """The problem of the present episode, and the seed that draws it again."""
        return self._task

    def _reset(self, task: Task | None, seed: int) -> Obs:
        if task is not None:
            seed = task_seed(task, seed)
        try:
            browser = self._open()
            browser.evaluate(f"miniwobPage.start({seed}, {json.dumps(self._set['mode'])})")
            for _ in range(READY):
                browser.advance(SETTLE)
                if browser.evaluate("miniwobPage.ready()"):
                    break
            else:
                raise driver.HungError(f"{self.spec.name}: no problem after {READY * SETTLE / 1000:g} s")
            self._since = browser.time
            obs = self._look(browser)
        except (driver.CrashedError, driver.HungError):
            self.close()
            raise
        self._task = Task(f"{self.page}-{seed}", self._view["utterance"], {"seed": seed})
        return obs

    def _act(self, action: Action) -> StepResult:
        browser = self._browser
        if browser is None:
            raise driver.CrashedError(f"{self.spec.name}: the browser is gone; reset first")
        try:
            refused = browser.act(action)
            obs = self._look(browser)
        except driver.ScriptError as error:  # the page has lost its way: it went elsewhere, or never ends
            return StepResult(
                self._last, 0.0, False, True, {"error": "page_error", "message": str(error), "status": "PAGE_ERROR"}
            )
        except (driver.CrashedError, driver.HungError):
            self.close()
            raise
        view = self._view
        info = {"elapsed": self._elapsed(), "raw_reward": view["raw"], "time_reward": view["scaled"], "reason": view["reason"]}
        if refused is not None:
            info["error"], info["message"] = refused.error, refused.message
        if not view["done"]:
            return StepResult(obs, 0.0, False, False, info)
        if view["raw"] is None:  # a page divides by zero where two points coincide
            info["error"], info["message"] = "reward_not_finite", "the page paid no number; it counts as -1"
        return StepResult(obs, -1.0 if view["raw"] is None else float(view["raw"]), True, False, info)

    def _look(self, browser: driver.Browser) -> Obs:
        """What is seen now; keeps the page's own account in `_view`."""
        image = browser.screenshot() if self._set["screenshot"] else None
        view = self._view = browser.evaluate("miniwobPage.view()")
        elements = tuple(
            Element(number, role, text, (box[0], box[1], box[2], box[3]), attributes)
            for number, (role, text, box, attributes) in enumerate(view.pop("elements"), 1)
        )
        text = f"{view['utterance']}\n{listing(elements)}"
        return Obs(text=text, screenshot=image, elements=elements, t_virtual=self._elapsed())

    def _state(self) -> dict[str, Any]:
        view = self._view
        fields = view["fields"] if view["fields"] is not None else fields_of(self.page, view["utterance"])
        told = {name: view[name] for name in ("utterance", "done", "reason")}
        return {**told, "raw_reward": view["raw"], "fields": fields, **view["state"]}

    def state(self) -> dict[str, Any]:
        """See `Env.state`: what the page asks for and holds, its raw reward, and the time since the reset."""
        return {**super().state(), "time": self._elapsed()}

    def _elapsed(self) -> float:
        return round(self._browser.time - self._since, 4) if self._browser else 0.0

    def _open(self) -> driver.Browser:
        """A browser with the page loaded."""
        if self._browser is not None and self._browser.worn:
            self.close()
        if self._browser is None:
            self._browser = driver.Browser.open(
                SCREEN_WH, files=html_folder(), animated=self.facts.animated, backend=self._set["backend"]
            )
            self._browser.add_script(page_script())
            self._browser.navigate(self._url)
        elif self._set["reset"] == "navigate":
            self._browser.navigate(self._url)
        return self._browser

    def close(self) -> None:
        """Ends the browser. The last observation stays."""
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.close()


def html_folder() -> Path:
    """Where the pages of the installed `miniwob` package are. Raises UserError without it. Does not import it."""
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.origin:
        raise UserError("the pages of MiniWoB++ are missing: pip install 'jaxllm[envs]'")
    return Path(found.origin).parent / "html"


@functools.cache
def page_script() -> str:
    """What runs in a page before its own scripts."""
    here = Path(__file__).parent
    return "\n".join(file.read_text(encoding="utf-8") for file in (here.parent / "page.js", here / "miniwob.js"))


def fields_of(page: str, utterance: str) -> dict[str, str]:
    """What varies in the page's wording, by name (the package's own table): {"target": "OK"}. Empty for unknown wordings."""
    from miniwob.fields import FIELD_EXTRACTORS

    extract = FIELD_EXTRACTORS.get(page)
    try:
        return dict(extract(utterance)) if extract else {}
    except ValueError:
        return {}


def _checked(page: str, options: Mapping[str, Json]) -> dict[str, Any]:
    """All options, those given in the place of the defaults."""
    if page not in PAGES:
        raise UserError(f"there is no miniwob/{page}; see `jaxllm envs list 'miniwob/*'`")
    unknown = sorted(options.keys() - OPTIONS.keys())
    if unknown:
        raise UserError(f"miniwob/{page}: there is no option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    values = {**OPTIONS, **options}
    for name, choices in (("backend", BACKENDS), ("reset", RESETS), ("mode", MODES)):
        if values[name] not in choices:
            raise UserError(f"miniwob/{page}: {name} is one of {', '.join(choices)}, not {values[name]!r}")
    if not isinstance(values["screenshot"], bool):
        raise UserError(f"miniwob/{page}: screenshot is true or false, not {values['screenshot']!r}")
    if values["reset"] == "page" and PAGES[page].reload:
        raise UserError(f'miniwob/{page}: the same seed gives other content without a reload; use reset="navigate"')
    return values


# The family (see `envs.api.Family`).


def names() -> list[str]:
    """All pages."""
    return sorted(PAGES)


def describe(name: str, **options: Any) -> EnvSpec:
    """See `envs.api.Family.describe`. The step limit lies beyond the page's own time limit."""
    from envs.miniwob.oracles import solved

    backend = _checked(name, options)["backend"]
    facts = PAGES[name]
    supports = {"save", "deterministic"} | ({"oracle"} if name in solved() else set())
    if backend in ("auto", "beginframe"):  # the others let animations run while the agent thinks
        supports.add("clock")
    return EnvSpec(
        name=f"miniwob/{name}",
        about=facts.about,
        actions=ACTIONS,
        screen_wh=SCREEN_WH,
        max_steps=math.ceil(facts.limit / STEP) + 1,
        supports=frozenset(supports),
        success=facts.success,
        weight="heavy",
    )


def make(name: str, **options: Any) -> Env:
    """See `MiniwobEnv` for the options."""
    return MiniwobEnv(name, options)


def oracle(name: str, seed: int = 0) -> Policy | None:
    """A policy that solves the page by what it shows, for the pages in `envs.miniwob.oracles.solved`."""
    from envs.miniwob.oracles import policy

    _checked(name, {})
    return policy(name, seed)


def missing() -> str | None:
    """What this machine lacks: the pages, or a browser."""
    if importlib.util.find_spec("miniwob") is None:
        return "pip install 'jaxllm[envs]' for the pages of MiniWoB++"
    return driver.missing()

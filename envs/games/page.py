"""A game as a page in a browser, played with keys, clicks and drags."""

import json
from pathlib import Path
from typing import Any

from envs import browser as driver
from envs.actions import COMPUTER, with_names
from envs.api import Action, EnvSpec, Obs, StepResult, Task
from envs.elements import listing
from envs.games.core import BUDGET, Game, IllegalError
from envs.games.env import SUPPORTS, GameEnv, first_state
from envs.games.views import CONTROLS, meaning, view
from jaxllm.errors import UserError

SCREEN_WH = (448, 560)
PATIENCE = 25.0  # s without an answer of the browser: the pages themselves never hang, but machines are busy
PAGES = Path(__file__).with_name("pages")
ACTIONS = with_names(
    COMPUTER,
    *("click", "left_double", "right_single", "hover", "drag", "hotkey", "type", "scroll", "wait", "finished", "call_user"),
)


def spec(game: Game) -> EnvSpec:
    """The spec of a game's page."""
    return EnvSpec(
        f"games/{game.name}-page", game.goal, ACTIONS, SCREEN_WH, BUDGET, SUPPORTS, success=game.success, weight="heavy"
    )


class GamePageEnv(GameEnv):
    """A game whose board is a page.

    The page draws what it is given and tells which keys were pressed and what was clicked; the rules are those of the text
    view, here. An action makes one move at most: a double click turns a piece once.
    """

    def __init__(self, game: Game, spec: EnvSpec, options: dict[str, Any]):
        """Starts nothing yet: the browser starts at the first reset.

        Args:
          game: its rules.
          spec: see `spec`.
          options: ``backend`` of the browser (auto), and ``screenshot`` (true): false leaves the picture out of observations.
        """
        self._browser: driver.Browser | None = None
        self._selected = ""  # the bar that the arrow keys move
        self._refused = ""  # why the last move was refused, for the page to say
        super().__init__(game, spec, options)
        self._pictures = options.get("screenshot", True)
        if not isinstance(self._pictures, bool):
            raise UserError(f"{spec.name}: screenshot is true or false, not {self._pictures!r}")
        self._since = 0.0

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self.now = first_state(self.game, task, seed)
        self._selected = self._refused = ""
        browser = self._open()
        self._since = browser.time
        browser.evaluate("game.clear()")
        self._show(browser)
        return self._look()

    def _act(self, action: Action) -> StepResult:
        browser = self._browser
        if browser is None:
            raise driver.CrashedError(f"{self.spec.name}: the browser is gone; reset first")
        before = self.now
        try:
            refused = browser.act(action)
            if refused is not None:
                return StepResult(self._look(), 0.0, False, False, {"error": refused.error, "message": refused.message})
            self._refused = ""
            self._play(browser.evaluate("game.take()"))
            self._show(browser)
            obs = self._look()
        except (driver.CrashedError, driver.HungError):
            self.close()
            raise
        error: dict[str, Any] = {"error": "illegal_move", "message": self._refused} if self._refused else {}
        return StepResult(obs, self.gain(before), self.game.over(self.now), False, {**error, **self.figures()})

    def _play(self, events: list[dict[str, Any]]) -> None:
        """Does the first move among what the page saw."""
        for event in events:
            found = meaning(self.game, self.now, self._selected, event)
            self._selected = self._selected if found.selected is None else found.selected
            if found.move is None:
                continue
            level = getattr(self.now, "level", 0)
            try:
                self.now = self.game.play(self.now, found.move)
            except IllegalError as error:
                self._refused = str(error)
            if getattr(self.now, "level", 0) != level:
                self._selected = ""
            return

    def _show(self, browser: driver.Browser) -> None:
        browser.evaluate(f"game.show({json.dumps(view(self.game, self.now, self._selected, self._refused))})")

    def _look(self) -> Obs:
        browser = self._browser
        if browser is None:
            raise driver.CrashedError(f"{self.spec.name}: the browser is gone; reset first")
        picture = browser.screenshot() if self._pictures else None
        elements = browser.elements()
        text = f"{self.game.title}. {self.game.goal} {CONTROLS[self.game.name].hint}\n{listing(elements)}"
        return Obs(text=text, screenshot=picture, elements=elements, t_virtual=round(browser.time - self._since, 4))

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "selected": self._selected}

    def _open(self) -> driver.Browser:
        """A browser with the page loaded."""
        if self._browser is not None and self._browser.worn:
            self.close()
        if self._browser is None:
            self._browser = driver.Browser.open(
                SCREEN_WH, files=PAGES, backend=self.options.get("backend", "auto"), patience=PATIENCE
            )
            try:
                self._browser.navigate((PAGES / f"{self.game.name}.html").as_uri())
            except BaseException:
                self.close()
                raise
        return self._browser

    def close(self) -> None:
        """Ends the browser. The last observation stays."""
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.close()

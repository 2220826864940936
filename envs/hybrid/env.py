"""An episode of work in a browser and a shell over one folder: a page, tools, a check at the end.

The session's clock moves by its steps alone: `STEP` seconds each, more for a drag and for wait. The page's time moves with it,
whichever kind of action it is, so that nothing happens there while the agent thinks. A program that the shell left running in
the background does go on meanwhile: that is the one thing that the clock does not hold.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from envs.actions import BASH, CALL_USER, COMPUTER, EDITOR, FINISHED, PYTHON, WAIT, with_names
from envs.api import Action, EnvSpec, Obs, StepResult, Task
from envs.base import BaseEnv, judging
from envs.browser import CrashedError, HungError, ScriptError
from envs.drawn import Tasks
from envs.elements import listing
from envs.hybrid.desk import TOOLS, Desk
from envs.hybrid.fetch import KINDS as FETCH
from envs.hybrid.read import KINDS as READ
from envs.hybrid.tasks import Problem, Seen
from envs.sandbox import HOME
from envs.shell.env import trial
from jaxllm.errors import UserError

KINDS = dict(sorted({**FETCH, **READ}.items()))
TASKS: Tasks[Problem] = Tasks("hybrid", KINDS, "hybrid/")
ACTIONS = (
    *with_names(COMPUTER, "click", "left_double", "right_single", "middle_click", "hover", "drag", "mouse_down", "mouse_up"),
    *with_names(COMPUTER, "hotkey", "press", "release", "type", "scroll", "navigate", "navigate_back"),
    *(BASH, EDITOR, PYTHON, WAIT, FINISHED, CALL_USER),
)
STEP = 0.15  # seconds of virtual time that an action takes
TIMES = {"wait": 5.0, "drag": 1.15}  # and some that take longer


class HybridEnv(BaseEnv):
    """See `envs.hybrid`."""

    _problem: Problem

    def __init__(self, spec: EnvSpec, kind: str, chosen: Mapping[str, Any], options: Mapping[str, Any]):
        """Args: the spec; the kind; all options of `envs.hybrid.make`, with defaults; those that were given."""
        super().__init__(spec, options)
        self._kind, self._chosen = kind, chosen
        self._desk: Desk | None = None
        self._view: dict[str, Any] = {}
        self._answer = ""
        self._time = 0.0

    def _reset(self, task: Task | None, seed: int) -> Obs:
        self.close()
        self.drawn = task or TASKS.draw(self._kind, self._chosen["level"], self._chosen["split"], seed)
        self._problem = TASKS.problem(self.drawn)
        self._answer, self._time = "", 0.0
        self._desk = Desk(
            self._problem.site(),
            self._problem.items(),
            seed=seed,
            timeout=self._chosen["timeout"],
            backend=self._chosen["backend"],
        )
        with self._guard():
            seen = self._look(self._desk)
        told = f"{self._problem.instruction}\n\nThe working folder of the shell is {HOME}. The page shows:\n{seen.text}"
        return Obs(told, seen.screenshot, seen.elements)

    def _act(self, action: Action) -> StepResult:
        if self._desk is None:
            raise CrashedError(f"{self.spec.name}: the session is gone; reset first")
        self._time = round(self._time + TIMES.get(action.name, STEP), 4)
        with self._guard():
            try:
                return self._done(self._desk, action)
            except ScriptError as error:  # the page has lost its way: its script never ends
                info = {"error": "page_error", "message": str(error), "status": "PAGE_ERROR"}
                return StepResult(self._last, 0.0, False, True, info)

    def _done(self, desk: Desk, action: Action) -> StepResult:
        before = len(desk.arrived)
        info: dict[str, Any] = {}
        over = False
        lines = []
        if action.name in TOOLS or (action.name == "wait" and desk.session.shell.running):
            reply = desk.tool(action) if action.name in TOOLS else desk.session.act(action)
            lines, info, over = [reply.text], dict(reply.info), reply.over
        if action.name not in TOOLS and (refused := desk.gui(action)):
            info |= {"error": refused.error, "message": refused.message}
        if new := desk.arrived[before:]:
            info["downloads"] = new
            lines += [f"[downloaded {HOME}/{name}]" for name in new]
        if action.name in TOOLS:
            self._view = desk.view()
            obs = Obs(text="\n".join(lines), t_virtual=self._time)
        else:
            seen = self._look(desk)
            obs = Obs("\n".join([*lines, seen.text or ""]), seen.screenshot, seen.elements, t_virtual=self._time)
        return StepResult(obs, 0.0, False, over, info)

    def _look(self, desk: Desk) -> Obs:
        """The page as it is seen now; keeps what it holds in `_view`."""
        image = desk.browser.screenshot() if self._chosen["screenshot"] else None
        elements = desk.browser.elements()
        self._view = desk.view()
        return Obs(text=listing(elements), screenshot=image, elements=elements)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Ends the session when its browser has died or hung."""
        try:
            yield
        except (CrashedError, HungError):
            self.close()
            raise

    def score(self) -> float:
        """What the check says of the session as it is now, in [0, 1].

        Raises UserError without a session, VerifierError where the check itself goes wrong.
        """
        if self._desk is None:
            raise UserError(f"{self.spec.name}: there is nothing to check before the first reset")
        with judging(self.spec.name):
            return self._problem.check(Seen(self._desk.session.root, self._answer, trial, self._view["sent"]))

    def _finish(self, action: Action) -> StepResult:
        self._time = round(self._time + STEP, 4)
        reward = 0.0
        if action.name == "finished":
            self._answer = str(action.arguments["content"])
            reward = self.score()
        text = "The task is solved." if reward >= 1 else "The task is not solved."
        return StepResult(Obs(text=text, t_virtual=self._time), reward, True, False, {})

    def _state(self) -> dict[str, Any]:
        if self._desk is None:
            raise CrashedError(f"{self.spec.name}: the session is gone; reset first")
        told = {"task": self.drawn.id, "instruction": self._problem.instruction, "answer": self._answer}
        return {**told, "page": self._view, **self._desk.session.state()}

    def state(self) -> dict[str, Any]:
        """See `Env.state`: task, instruction, answer, what the page holds (`Desk.view`), files, cwd, environment, and time."""
        return {**super().state(), "time": self._time}

    def close(self) -> None:
        """Ends browser and shell and removes all files."""
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.close()

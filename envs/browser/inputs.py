"""The agent's actions as real input: pointer, wheel and keyboard events, as from devices."""

from collections.abc import Iterator
from typing import Any, Protocol

from envs.api import Action, Point
from envs.browser import keys

BUDGET = 150.0  # ms of page time that pass after an action
WAIT = 5000.0  # ms of the action `wait`
DRAG = 1000.0  # ms from pressing to releasing
_DRAG_MOVES = 10
_NOTCHES = 5  # of the wheel, for one `scroll`
_NOTCH = 100.0  # pixels of one notch, as browsers have it
_SCROLL = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_BUTTONS = {"left": 1, "right": 2, "middle": 4}  # bits of what is held
_AT_ONCE = 64  # characters whose events are on their way together

Event = tuple[str, dict[str, Any]]


class Sender(Protocol):
    """Where the calls go, such as `Pipe`."""

    def send(self, method: str, /, **parameters: Any) -> int:
        """Starts a call; returns its id."""


class Advancer(Protocol):
    """The part of `Clock` that input needs."""

    def stamp(self) -> float:
        """When an event happens, in seconds since 1970."""

    def complete(self, numbers: list[int], what: str) -> None:
        """Waits until calls are done."""

    def advance(self, ms: float) -> None:
        """Lets page time pass."""


class Inputs:
    """Pointer and keyboard of one page, with what is held down.

    Attributes:
      point: where the pointer is.
    """

    def __init__(self, pipe: Sender, clock: Advancer):
        self.point: Point = (0.0, 0.0)
        self._pipe = pipe
        self._clock = clock
        self._buttons = 0
        self._modifiers = 0

    def do(self, action: Action) -> None:
        """Does a checked action of `envs.actions.COMPUTER`, all but navigation. Raises HungError, CrashedError."""
        arguments = action.arguments
        point = arguments.get("point") or self.point
        if action.name in ("click", "left_double", "right_single", "middle_click"):
            button = {"right_single": "right", "middle_click": "middle"}.get(action.name, "left")
            self._issue(self._click(point, button, 2 if action.name == "left_double" else 1))
        elif action.name == "hover":
            self._issue(self._move(point))
        elif action.name == "mouse_down":
            self._issue([*self._move(point), self._press(arguments["button"], 1)])
        elif action.name == "mouse_up":
            self._issue([*self._move(point), self._release(arguments["button"], 1)])
        elif action.name == "drag":
            self._drag(arguments["start_point"], arguments["end_point"])
        elif action.name == "scroll":
            self._scroll(point, arguments["direction"])
        elif action.name == "hotkey":
            names = arguments["key"].split()
            self._issue(self._down(names))
            self._issue(self._up(reversed(names)))
        elif action.name == "press":
            self._issue(self._down(arguments["key"].split()))
        elif action.name == "release":
            self._issue(self._up(arguments["key"].split()))
        elif action.name == "type":
            text = arguments["content"]
            for start in range(0, len(text), _AT_ONCE):
                self._issue([event for character in text[start : start + _AT_ONCE] for event in self._write(character)])
        self._clock.advance(WAIT if action.name == "wait" else BUDGET)

    def _issue(self, events: Any) -> None:
        """Sends events in order and waits until the page has had them all."""
        now = self._clock.stamp()
        numbers = [self._pipe.send(f"Input.dispatch{kind}Event", timestamp=now, **parameters) for kind, parameters in events]
        self._clock.complete(numbers, "input")

    def _mouse(self, kind: str, **parameters: Any) -> Event:
        x, y = self.point
        return "Mouse", {"type": kind, "x": x, "y": y, "modifiers": self._modifiers, "buttons": self._buttons, **parameters}

    def _move(self, point: Point) -> Iterator[Event]:
        self.point = point
        held = next((name for name, bit in _BUTTONS.items() if self._buttons & bit), "none")
        yield self._mouse("mouseMoved", button=held)

    def _press(self, button: str, count: int) -> Event:
        self._buttons |= _BUTTONS[button]
        return self._mouse("mousePressed", button=button, clickCount=count)

    def _release(self, button: str, count: int) -> Event:
        self._buttons &= ~_BUTTONS[button]
        return self._mouse("mouseReleased", button=button, clickCount=count)

    def _click(self, point: Point, button: str, times: int) -> Iterator[Event]:
        yield from self._move(point)
        for count in range(1, times + 1):
            yield self._press(button, count)
            yield self._release(button, count)

    def _drag(self, start: Point, end: Point) -> None:
        self._issue([*self._move(start), self._press("left", 1)])
        for move in range(1, _DRAG_MOVES + 1):
            self._clock.advance(DRAG / _DRAG_MOVES)
            share = move / _DRAG_MOVES
            self._issue(self._move((start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)))
        self._issue([self._release("left", 1)])

    def _scroll(self, point: Point, direction: str) -> None:
        dx, dy = _SCROLL[direction]
        self._issue(self._move(point))
        for _ in range(_NOTCHES):
            self._issue([self._mouse("mouseWheel", deltaX=dx * _NOTCH, deltaY=dy * _NOTCH)])

    def _down(self, names: Any) -> Iterator[Event]:
        for name in names:
            self._modifiers |= keys.MODIFIERS.get(name, 0)
            yield "Key", keys.named(name, self._modifiers).event(True, self._modifiers)

    def _up(self, names: Any) -> Iterator[Event]:
        for name in names:
            key = keys.named(name, self._modifiers)
            self._modifiers &= ~keys.MODIFIERS.get(name, 0)
            yield "Key", key.event(False, self._modifiers)

    def _write(self, character: str) -> Iterator[Event]:
        key = keys.writing(character)
        modifiers = self._modifiers | (keys.MODIFIERS["shift"] if keys.needs_shift(character) else 0)
        yield "Key", key.event(True, modifiers)
        yield "Key", key.event(False, modifiers)

"""What the oracles of MiniWoB see, and how they say what to do: the words that a plan is written in."""

import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from envs.api import Action, Element, Json, Obs, Point

# A plan yields actions; whenever it goes on, its `Sight` shows what they led to.
Plan = Generator[Action, None, None]
Plans = dict[str, Callable[["Sight"], Plan]]

Found = TypeVar("Found")

SETTLE = 4  # steps of 150 ms in which a page's animations end


class NotSeenError(LookupError):
    """A plan looked for something that is not on the screen."""


class Sight:
    """The present state and observation, with ways to look for things in them."""

    state: dict[str, Json]
    obs: Obs

    @property
    def utterance(self) -> str:
        """What the page asks for."""
        return self.state["utterance"]

    @property
    def fields(self) -> dict[str, str]:
        """What varies in the page's wording, by name."""
        return self.state["fields"]

    @property
    def html(self) -> str:
        """The page's document."""
        return self.state["html"]

    def quoted(self, number: int = 0) -> str:
        """The n-th text in double quotes of what the page asks for."""
        return re.findall(r'"([^"]*)"', self.utterance)[number]

    def all(
        self, role: str | None = None, text: str | None = None, kind: str | None = None, **attributes: str
    ) -> list[Element]:
        """The elements of a role and a text, whose class has ``kind`` among its words, and of these attributes."""
        return [
            element
            for element in self.obs.elements
            if (role is None or element.role == role)
            and (text is None or element.text == text)
            and (kind is None or kind in str(element.attributes.get("class", "")).split())
            and all(element.attributes.get(name) == value for name, value in attributes.items())
        ]

    def one(self, role: str | None = None, text: str | None = None, kind: str | None = None, **attributes: str) -> Element:
        """The first of `all`. Raises NotSeenError."""
        found = self.all(role, text, kind, **attributes)
        if not found:
            raise NotSeenError(f"no {role or 'element'} {text or kind or attributes} in {self.obs.text}")
        return found[0]

    def click(self, *wanted: Any, **attributes: str) -> Action:
        """A click on the middle of the first of `all`."""
        return click(self.one(*wanted, **attributes))

    def submit(self, text: str = "Submit") -> Action:
        """A click on the button that ends the task."""
        return self.click("button", text)

    def enter(self, field: Element, text: str) -> Plan:
        """Clicks a field and types over what it holds."""
        yield click((field.box[0] + 8, middle(field)[1]))  # not on the arrows of a number's field
        if field.attributes.get("value"):
            yield key("ctrl a")
        yield write(text)

    def settle(self, steps: int = SETTLE) -> Plan:
        """Lets animations end, with the pointer where nothing is."""
        for _ in range(steps):
            yield hover((1, 1))


def first(found: Iterable[Found]) -> Found:
    """The first of some. Raises NotSeenError where there are none."""
    for one in found:
        return one
    raise NotSeenError("nothing of the kind")


def middle(element: Element) -> Point:
    """Of an element's box."""
    x1, y1, x2, y2 = element.box
    return (x1 + x2) / 2, (y1 + y2) / 2


def click(target: Element | Point) -> Action:
    """A click on an element's middle or a point."""
    return Action("click", {"point": middle(target) if isinstance(target, Element) else target})


def hover(target: Element | Point) -> Action:
    """The pointer moved there."""
    return Action("hover", {"point": middle(target) if isinstance(target, Element) else target})


def drag(start: Element | Point, end: Element | Point) -> Action:
    """A drag between the middles of elements, or points."""
    points = [middle(target) if isinstance(target, Element) else target for target in (start, end)]
    return Action("drag", {"start_point": points[0], "end_point": points[1]})


def write(text: str) -> Action:
    """Typing."""
    return Action("type", {"content": text})


def key(names: str) -> Action:
    """Keys pressed together."""
    return Action("hotkey", {"key": names})


def hold(name: str) -> Action:
    """A key pressed and held."""
    return Action("press", {"key": name})


def let_go(name: str) -> Action:
    """A held key released."""
    return Action("release", {"key": name})


def scroll(point: Point, direction: str) -> Action:
    """The wheel, up to the end of most areas here."""
    return Action("scroll", {"point": point, "direction": direction})

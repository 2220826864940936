"""Plans for the pages of MiniWoB that take a steady hand: geometry, dragging, drawing, and what moves."""

import math
import re

from envs.api import Action, Element, Point
from envs.miniwob.sight import NotSeenError, Plan, Plans, Sight, click, drag, first, hover, key, middle, write

AREA = (4.0, 54.0, 154.0, 186.0)  # where drawings take points
DRAWN = 2.0  # px
CIRCLE_POINTS = 16
CIRCLE_RADIUS = 25.0
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def _mark(point: Point) -> Action:
    """A click that draws its point there: the pages draw it further down and right than the pointer is."""
    return click((point[0] - DRAWN, point[1] - DRAWN))


def _centre(s: Sight) -> Plan:
    yield _mark(middle(s.one("shape", tag="circle")))
    yield s.submit()


def _midpoint(s: Sight) -> Plan:
    (x1, y1), (x2, y2) = (middle(point) for point in s.all("shape", kind="black-circle"))
    yield _mark(((x1 + x2) / 2, (y1 + y2) / 2))
    yield s.submit()


def _on(point: Point) -> bool:
    return AREA[0] <= point[0] <= AREA[2] and AREA[1] <= point[1] <= AREA[3]


def _ray(start: Point, directions: list[tuple[float, float]]) -> Point:
    """The whole pixel that lies truest to one of some directions, 10 to 60 px away."""
    best, least = start, math.inf
    for length in range(10, 61):
        for dx, dy in directions:
            x, y = round(start[0] + dx * length), round(start[1] + dy * length)
            error = abs((x - start[0]) * dy - (y - start[1]) * dx) / length
            if _on((x, y)) and error < least:
                best, least = (x, y), error
    if best == start:
        raise NotSeenError("no room on the drawing")
    return best


def _unit(x: float, y: float) -> tuple[float, float]:
    length = math.hypot(x, y)
    return x / length, y / length


def _right_angle(s: Sight) -> Plan:
    black, blue = middle(s.one(id="init-black")), middle(s.one(id="init-blue"))
    x, y = _unit(black[0] - blue[0], black[1] - blue[1])
    yield _mark(_ray(blue, [(y, -x), (-y, x)]))
    yield s.submit()


def _bisect(s: Sight) -> Plan:
    vertex = middle(s.one("shape", kind="init-blue"))
    arms = [_unit(x - vertex[0], y - vertex[1]) for x, y in map(middle, s.all("shape", kind="init-black"))]
    yield _mark(_ray(vertex, [_unit(arms[0][0] + arms[1][0], arms[0][1] + arms[1][1])]))
    yield s.submit()


def _box(s: Sight) -> Plan:
    small, large = s.one(text="s"), s.one(text="L")  # both letters stand in the upper left corner of their box
    x, y = middle(small)
    yield drag(small, (x + large.box[0] - small.box[0] + 15, y + large.box[1] - small.box[1] + 15))
    yield s.submit()


def _away(s: Sight) -> Plan:
    shape = first(element for element in s.obs.elements if element.attributes["tag"] in ("circle", "rect", "polygon", "text"))
    x, y = middle(shape)
    dx, dy = DIRECTIONS[s.fields["target"]]
    yield drag(shape, (x + 40 * dx, y + 40 * dy))
    yield s.submit()


_TAGS = {"circles": "circle", "rectangles": "rect", "triangles": "polygon"}


def _movable(s: Sight) -> list[Element]:
    return [element for element in s.all("shape") if element.attributes.get("fill") != "none"]


def _into_boxes(s: Sight) -> Plan:
    boxes = [element for element in s.all("shape", tag="rect") if element.attributes.get("fill") == "none"]
    kind = s.fields["target"].split()[0]  # "circles", or "red shapes"
    for shape in _movable(s):
        mine = _TAGS.get(kind, kind) in (shape.attributes["tag"], shape.attributes["fill"])
        if mine or len(boxes) > 1:
            yield drag(shape, boxes[0] if mine else boxes[1])
    yield s.submit()


def _sort(s: Sight) -> Plan:
    while True:
        items = [element for element in s.all("text") if re.fullmatch(r"-?\d+", element.text)]
        numbers = [int(item.text) for item in items]
        wrong = [place for place, number in enumerate(sorted(numbers)) if numbers[place] != number]
        if not wrong:
            break
        item = items[numbers.index(sorted(numbers)[wrong[0]])]
        x, y = middle(items[wrong[0]])
        yield drag(item, (x, y - 6))
        yield from s.settle(2)
    yield s.submit()


def _place(words: str, here: int, width: int) -> int:
    """Where an item should go, from 0: "to the 3rd position", "to the top left", "up by one"."""
    if found := re.search(r"(\d+)(?:st|nd|rd|th) position", words):
        return int(found[1]) - 1
    if found := re.search(r"(up|down|left|right) by one", words):
        return here + {"up": -width, "down": width, "left": -1, "right": 1}[found[1]]
    row = 0 if "top" in words else 2 if "bottom" in words else 1
    column = 0 if "left" in words else 2 if "right" in words else 1
    return row * width + column


def _items(s: Sight) -> Plan:
    words = s.fields["target"]
    items = s.all("text")
    here = first(place for place, item in enumerate(items) if words.startswith(f"{item.text} "))
    width = 3 if len(items) == 9 else 1
    there = _place(words.removeprefix(items[here].text), here, width)
    beyond = 6 if there > here else -6
    x, y = middle(items[here])
    if width == 1:
        yield drag(items[here], (x, middle(items[there])[1] + beyond))
        return
    goal = x + items[there].box[0] - items[here].box[0], y + items[there].box[1] - items[here].box[1]
    yield Action("mouse_down", {"point": (x, y), "button": "left"})
    for share in (0.3, 0.7, 1.0):  # the others make room one by one
        yield hover((x + (goal[0] - x) * share, y + (goal[1] - y) * share))
    yield hover((goal[0] + 2, goal[1] + 2))
    yield hover((goal[0] + 4, goal[1] + 4))
    yield Action("mouse_up", {"point": goal, "button": "left"})


def _resize(s: Sight) -> Plan:
    side, way = re.findall(r"the (width|height) is (larger|smaller)", s.utterance)[0]
    handle = s.one(kind="ui-resizable-se")
    x, y = middle(handle)
    by = 16 if way == "larger" else -16
    yield drag(handle, (x + by, y) if side == "width" else (x, y + by))
    yield s.submit()


def _line(s: Sight) -> Plan:
    x, y = middle(s.one(id="circ"))
    dx, dy = (0, 24) if s.fields["direction"] == "vertical" else (24, 0)
    yield drag((x - dx, y - dy), (x + dx, y + dy))
    yield s.submit()


def _round(s: Sight) -> Plan:
    x, y = middle(s.one(id="circ"))
    turns = [2 * math.pi * step / CIRCLE_POINTS for step in range(CIRCLE_POINTS + 1)]
    points = [(x + CIRCLE_RADIUS * math.cos(turn), y + CIRCLE_RADIUS * math.sin(turn)) for turn in turns]
    yield Action("mouse_down", {"point": points[0], "button": "left"})
    for point in points[1:]:
        yield hover(point)
    yield Action("mouse_up", {"point": points[-1], "button": "left"})
    yield s.submit()


def _chase(s: Sight) -> Plan:
    before = middle(s.one(id="circ"))
    while True:
        x, y = middle(s.one(id="circ"))
        yield hover((x + (x - before[0]) / 2, y + (y - before[1]) / 2))  # where it will be
        before = x, y


def _colour(s: Sight) -> Plan:
    from PIL import ImageColor  # of the extra that has the pages too

    red, green, blue = ImageColor.getrgb(s.fields["target"])[:3]
    field = s.one("textbox")
    yield click(field)
    yield key("ctrl a")
    yield write(f"{red:02X}{green:02X}{blue:02X}")
    yield click((5, 205))  # closes the wheel, which lies over the button
    yield s.submit()


PLANS: Plans = {
    "bisect-angle": _bisect,
    "chase-circle": _chase,
    "circle-center": _centre,
    "drag-box": _box,
    "drag-circle": _away,
    "drag-items": _items,
    "drag-items-grid": _items,
    "drag-shapes": _into_boxes,
    "drag-shapes-2": _into_boxes,
    "drag-single-shape": _away,
    "drag-sort-numbers": _sort,
    "draw-circle": _round,
    "draw-line": _line,
    "find-midpoint": _midpoint,
    "resize-textarea": _resize,
    "right-angle": _right_angle,
    "use-colorwheel": _colour,
}

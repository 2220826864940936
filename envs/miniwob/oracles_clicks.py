"""Plans for the pages of MiniWoB that take clicks: buttons, links, tabs, sections, menus, shapes, cards."""

import functools
import re

from envs.api import Element
from envs.miniwob.sight import NotSeenError, Plan, Plans, Sight, click, first, hover, middle


def _button(s: Sight) -> Plan:
    yield s.click("button")


def _target(s: Sight) -> Plan:
    yield s.click("button", s.fields["target"])


def _quoted(s: Sight) -> Plan:
    yield s.click("button", s.quoted())


def _sequence(s: Sight) -> Plan:
    yield s.click("button", "ONE")
    yield s.click("button", "TWO")


def _delay(s: Sight) -> Plan:
    seconds = int(re.findall(r"wait (\d+)", s.utterance)[0])
    yield s.click("button", "ONE")
    second = s.one("button", "TWO")
    for _ in range(round(seconds / 0.15) - 1):  # the click itself takes 0.15 s
        yield hover(second)
    yield click(second)


def _dialog(s: Sight) -> Plan:
    name = s.fields.get("target", "x")
    yield s.click("button", "Close" if name == "x" else name)


def _link(s: Sight) -> Plan:
    yield s.click("link", s.fields["target"])


def _tab(s: Sight) -> Plan:
    yield s.click("link", f"Tab #{s.fields['target']}")


def _tabs(s: Sight) -> Plan:
    for tab in [element for element in s.all("link") if element.box[3] < 85 and "href" not in element.text]:
        if not s.all("link", s.fields["target"], "alink"):
            yield click(tab)
    yield s.click("link", s.fields["target"], "alink")


def _section(s: Sight) -> Plan:
    yield s.click("tab")
    yield from s.settle()
    yield s.submit()


def _sections(s: Sight) -> Plan:
    for number in range(len(s.all("tab"))):
        if s.all("link", s.fields["target"], "alink"):
            break
        yield click(s.all("tab")[number])
        yield from s.settle()
    yield s.click("link", s.fields["target"], "alink")


def _checkboxes(s: Sight) -> Plan:
    for name in [value for field, value in s.fields.items() if field.startswith("target")]:
        yield s.click("checkbox", name)
    yield s.submit()


def _option(s: Sight) -> Plan:
    yield s.click("radio", s.fields["target"])
    yield s.submit()


def _colour(s: Sight) -> Plan:
    yield s.click(**{"data-color": s.fields["target"]})


def _shades(s: Sight) -> Plan:
    for shade in s.all(**{"data-color": s.fields["target"]}):
        yield click(shade)
    yield s.submit()


def _widget(s: Sight) -> Plan:
    kind = s.fields["target"]
    tags = {"text": "input", "textarea": "textarea", "button": "button"}
    yield s.click(kind) if kind in ("radio", "checkbox") else s.click(**{"tag": tags[kind], "data-type": kind})


def _kind(shape: Element) -> tuple[str, str]:
    """What a shape is called: its text or form, and its kind."""
    tag = shape.attributes["tag"]
    if tag == "text":
        return shape.text, "digit" if shape.text.isdigit() else "letter"
    return {"rect": "rectangle", "circle": "circle", "polygon": "triangle"}[tag], "shape"


def _fits(shape: Element, words: list[str]) -> bool:
    """Whether a shape fits a description such as "large aqua letter", words in any number."""
    if shape.attributes["tag"] == "text":
        large = float(re.sub(r"[^\d.]", "", str(shape.attributes.get("font-size", "0"))) or 0) >= 15
    else:
        large = shape.box[2] - shape.box[0] >= 16
    size = "large" if large else "small"
    return all(word in (size, shape.attributes.get("fill"), *_kind(shape), "item") for word in words)


def _shapes(s: Sight) -> list[Element]:
    return [shape for shape in s.obs.elements if shape.attributes["tag"] in ("text", "rect", "circle", "polygon")]


def _shape(s: Sight) -> Plan:
    words = s.utterance.removeprefix("Click on a ").split()
    yield click(first(shape for shape in _shapes(s) if _fits(shape, words)))


def _count(s: Sight) -> Plan:
    words = re.sub(r"^How many (.*)s are there\?$", r"\1", s.utterance).split()
    yield s.click("button", str(sum(_fits(shape, words) for shape in _shapes(s))))


def _identify(s: Sight) -> Plan:
    name, kind = _kind(_shapes(s)[0])
    yield s.click("button", {"digit": "Number", "letter": "Letter"}.get(kind, name.capitalize()))


def _grid(s: Sight) -> Plan:
    yield s.click(id=f"({s.fields['x']},{s.fields['y']})")


def _menu(s: Sight) -> Plan:
    *folders, item = s.fields["target"].split(">")
    for folder in folders:
        for _ in range(3):  # it opens after a while
            yield hover(s.one("menuitem", folder))
    yield s.click("menuitem", item)


def _icon_menu(s: Sight) -> Plan:
    icons = {"Save": "disk", "Prev": "seek-start", "Stop": "stop", "Play": "play", "Next": "seek-end"}
    icons |= {"Zoom In": "zoomin", "Zoom Out": "zoomout"}
    asked = re.search(r'id="query".*?ui-icon-([a-z-]+)', s.html.split('id="area"')[0], re.DOTALL)
    name = first(name for name, icon in icons.items() if icon == asked[1]) if asked else s.quoted(1)
    yield s.click("button", "Menu")
    if not s.all(text=name):
        for _ in range(3):
            yield hover(s.one(text="Playback"))
        yield click(s.one(text="Playback"))
    yield s.click(text=name)


def _pie(s: Sight) -> Plan:
    yield s.click(text="+")
    yield from s.settle(6)
    yield s.click(text=s.fields["target"])


def _focus(s: Sight) -> Plan:
    yield click(s.all("textbox")[int(s.fields.get("target", "1")) - 1])


def _tree(s: Sight) -> Plan:
    name, opened = s.fields["target"], set()
    while not s.all(text=name):
        folders = [element for element in s.all(kind="folder") if element.text not in opened]
        if not folders:
            raise NotSeenError(name)
        opened.add(folders[0].text)
        yield click(folders[0])
        yield hover((150, 205))
    yield s.click(text=name)


def _odd_or_even(s: Sight) -> Plan:
    for number in [element for element in s.all("text") if re.fullmatch(r"-?\d+", element.text)]:
        wanted = "Even" if int(number.text) % 2 == 0 else "Odd"
        row = [button for button in s.all("button", wanted) if abs(middle(button)[1] - middle(number)[1]) < 17]
        yield click(row[0])
    yield s.submit()


_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def _won(board: tuple[int, ...], player: int) -> bool:
    return any(all(board[cell] == player for cell in line) for line in _LINES)


@functools.cache
def _value(board: tuple[int, ...], player: int) -> float:
    """Of a position for us (1), with ``player`` to move: against an opponent who plays half at random."""
    if _won(board, 1):
        return 1.0
    if _won(board, -1):
        return -1.0
    free = [cell for cell in range(9) if not board[cell]]
    if not free:
        return -0.5
    values = [_value((*board[:cell], player, *board[cell + 1 :]), -player) for cell in free]
    return max(values) if player == 1 else 0.5 * min(values) + 0.5 * sum(values) / len(values)


def _tic_tac_toe(s: Sight) -> Plan:
    cells = [element for element in s.obs.elements if re.fullmatch(r"ttt-\d", str(element.attributes.get("id", "")))]
    while True:
        kinds = [s.one(id=f"ttt-{cell}").attributes.get("class", "") for cell in range(9)]
        board = tuple({"mark-x": 1, "mark-o": -1}.get(kind, 0) for kind in kinds)
        free = [cell for cell in range(9) if not board[cell]]
        best = max(free, key=lambda cell: _value((*board[:cell], 1, *board[cell + 1 :]), -1))
        yield click(cells[best])


def _greatest(s: Sight) -> Plan:
    cards = s.all(kind="card")
    numbers = []
    for card in cards:
        yield click(card)
        numbers.append(int(s.one("text", kind="card-value").text))
    yield click(cards[numbers.index(max(numbers))])
    yield s.submit()


def _tickets(s: Sight) -> Plan:
    buttons = [element for element in s.all("button") if element.text.startswith("Book")]
    asked = s.fields["target"]
    if "cost" in asked:
        costs = [int(re.sub(r"\D", "", button.text)) for button in buttons]
        chosen = costs.index(min(costs) if "cheap" in asked else max(costs))
    else:
        times = [re.findall(r"(\d+)h (\d+)m", element.text) for element in s.all("text")]
        minutes = [int(hours) * 60 + int(rest) for found in times for hours, rest in found]
        chosen = minutes.index(min(minutes) if "short" in asked else max(minutes))
    yield click(buttons[chosen])


def _hot_cold(s: Sight) -> Plan:
    bands = {"HOT": (0, 5), "WARM": (5, 10), "COLD": (10, 40), "ICE COLD": (40, 300)}
    left = [(x, y) for x in range(5, 155) for y in range(55, 170)]
    while True:
        mean_x, mean_y = sum(x for x, _ in left) / len(left), sum(y for _, y in left) / len(left)
        here = min(left, key=lambda at: (at[0] - mean_x) ** 2 + (at[1] - mean_y) ** 2)
        yield hover(here)
        signal = re.findall(r'id="signal"[^>]*>([A-Z ]+)<', s.html)
        low, high = bands[signal[0]]
        if signal[0] == "HOT":
            yield click(here)
        left = [at for at in left if low - 1 <= ((at[0] - here[0]) ** 2 + (at[1] - here[1]) ** 2) ** 0.5 < high + 1]


PLANS: Plans = {
    "button-delay": _delay,
    "buy-ticket": _tickets,
    "click-button": _quoted,
    "click-button-sequence": _sequence,
    "click-checkboxes": _checkboxes,
    "click-checkboxes-large": _checkboxes,
    "click-checkboxes-transfer": _checkboxes,
    "click-collapsible": _section,
    "click-collapsible-2": _sections,
    "click-collapsible-2-nodelay": _sections,
    "click-collapsible-nodelay": _section,
    "click-color": _colour,
    "click-dialog": _dialog,
    "click-dialog-2": _dialog,
    "click-link": _link,
    "click-menu": _menu,
    "click-menu-2": _icon_menu,
    "click-option": _option,
    "click-pie": _pie,
    "click-pie-nodelay": _pie,
    "click-shades": _shades,
    "click-shape": _shape,
    "click-tab": _tab,
    "click-tab-2": _tabs,
    "click-tab-2-easy": _tabs,
    "click-tab-2-hard": _tabs,
    "click-tab-2-medium": _tabs,
    "click-test": _button,
    "click-test-2": _target,
    "click-test-transfer": _target,
    "click-widget": _widget,
    "count-shape": _count,
    "find-greatest": _greatest,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "grid-coordinate": _grid,
    "hot-cold": _hot_cold,
    "identify-shape": _identify,
    "navigate-tree": _tree,
    "odd-or-even": _odd_or_even,
    "tic-tac-toe": _tic_tac_toe,
    "unicode-test": _quoted,
}

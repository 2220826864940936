"""The actions that agents know, and the check of one action against what an environment understands.

Names and arguments are those of UI-TARS (arXiv 2501.12326, 2509.02544) and of its released operators. An environment takes
what it understands from these tables, or writes its own `ActionSpec`.
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from envs.api import Action, ActionSpec, Argument, EnvSpec, Invalid, Point

MAX_KEYS = 3  # of one chord
OFF_SCREEN = 0.02  # share of a side by which a point may lie outside: it is moved to the edge; further out it is refused
CENTRE = "centre"  # default of a point: the middle of the screen
SHOWN = 80  # characters of what the agent wrote that a message repeats

FINISHED = ActionSpec("finished", (Argument("content", "text", "", False),), "ends the episode; content is the answer")
CALL_USER = ActionSpec("call_user", (), "ends the episode and asks for help: the task can't be done")
WAIT = ActionSpec("wait", (), "lets 5 seconds pass")

_POINT = Argument("point", "point")
_DRAG = (Argument("start_point", "point"), Argument("end_point", "point"))
_HERE = Argument("point", "point", None, False)  # None: where the pointer is
_BUTTON = Argument("button", "choice", "left", False, ("left", "right", "middle"))
_DIRECTION = Argument("direction", "choice", choices=("up", "down", "left", "right"))
_CONTENT = Argument("content", "text")
_KEY = Argument("key", "key")

COMPUTER = (
    ActionSpec("click", (_POINT,), "left click"),
    ActionSpec("left_double", (_POINT,), "double click"),
    ActionSpec("right_single", (_POINT,), "right click"),
    ActionSpec("middle_click", (_POINT,), "click with the middle button"),
    ActionSpec("hover", (_POINT,), "moves the pointer there"),
    ActionSpec("drag", _DRAG, "presses, moves and releases, within a second"),
    ActionSpec("mouse_down", (_HERE, _BUTTON), "presses a button of the mouse and holds it"),
    ActionSpec("mouse_up", (_HERE, _BUTTON), "releases a button of the mouse"),
    ActionSpec("hotkey", (_KEY,), "presses up to three keys in order and releases them in reverse"),
    ActionSpec("press", (_KEY,), "presses keys and holds them"),
    ActionSpec("release", (_KEY,), "releases keys that are held"),
    ActionSpec("type", (_CONTENT,), "types text; a newline at its end submits it"),
    ActionSpec("scroll", (Argument("point", "point", CENTRE, False), _DIRECTION), "shows more on that side: 5 wheel units"),
    ActionSpec("navigate", (Argument("url", "text"),), "opens an address"),
    ActionSpec("navigate_back", (), "goes back to the page before"),
    ActionSpec("open_computer", (), "turns to the computer"),
    WAIT,
    FINISHED,
    CALL_USER,
)

ANDROID_KEYS = ("enter", "back", "home", "backspace", "delete", "menu", "power", "volume_up", "volume_down", "mute", "lock")
MOBILE = (
    ActionSpec("click", (_POINT,), "taps"),
    ActionSpec(
        "long_press", (_POINT, Argument("time", "float", 1.0, False, low=0, high=60)), "holds a finger for some seconds"
    ),
    ActionSpec("type", (_CONTENT,), "types text; a newline at its end submits it"),
    ActionSpec("scroll", (Argument("point", "point", CENTRE, False), _DIRECTION), "shows more on that side"),
    ActionSpec("drag", _DRAG, "moves a finger from one point to another"),
    ActionSpec("hotkey", (Argument("key", "key", choices=ANDROID_KEYS),), "presses a key of the device"),
    ActionSpec("open_app", (Argument("app_name", "text"),), "opens an app"),
    ActionSpec("press_home", (), "goes to the home screen"),
    ActionSpec("press_back", (), "goes back"),
    WAIT,
    FINISHED,
    CALL_USER,
)

EDITOR_COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
BASH = ActionSpec(
    "execute_bash",
    (Argument("command", "text"),),
    "runs a command in a shell that stays; an empty one asks a running one for its output, C-c interrupts it",
)
PYTHON = ActionSpec(
    "JupyterCI",
    (Argument("code", "text"), Argument("timeout", "float", 60.0, False, low=0, high=3600)),
    "runs code in a Python interpreter that stays; timeout in seconds",
)
EDITOR = ActionSpec(
    "str_replace_editor",
    (
        Argument("command", "choice", choices=EDITOR_COMMANDS),
        Argument("path", "text"),
        Argument("file_text", "text", None, False),
        Argument("old_str", "text", None, False),
        Argument("new_str", "text", None, False),
        Argument("insert_line", "int", None, False, low=0),
        Argument("view_range", "json", None, False, low=-1),
    ),
    "views and edits files; lines count from 1, and -1 is the last",
)
CODE = (BASH, PYTHON, EDITOR)
MCP = (
    ActionSpec("Search", (Argument("query", "text"),), "finds pages, with summaries"),
    ActionSpec(
        "LinkReader",
        (Argument("url", "text"), Argument("description", "text", "", False)),
        "reads a page for what is described",
    ),
)
TOOLS = (*CODE, *MCP)

# Other names under which the released operators know an action.
ALIASES = {
    "left_single": "click",
    "left_click": "click",
    "double_click": "left_double",
    "right_click": "right_single",
    "mouse_move": "hover",
    "select": "drag",
    "left_click_drag": "drag",
    "swipe": "drag",
    "python": "JupyterCI",
}
ARGUMENT_ALIASES = {
    "start_box": ("point", "start_point"),
    "start_point": ("point",),
    "end_box": ("end_point",),
}

KEY_ALIASES = {
    "return": "enter",
    "escape": "esc",
    "del": "delete",
    "ins": "insert",
    "control": "ctrl",
    "cmd": "meta",
    "command": "meta",
    "win": "meta",
    "windows": "meta",
    "super": "meta",
    "option": "alt",
    "spacebar": "space",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "page_up": "pageup",
    "page_down": "pagedown",
    "pgup": "pageup",
    "pgdn": "pagedown",
}
# Keys with a name; every other key is the one printable character that it writes.
KEYS = frozenset(
    ("enter", "esc", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown")
    + ("up", "down", "left", "right", "ctrl", "shift", "alt", "meta", "capslock")
    + tuple(f"f{number}" for number in range(1, 13))
)


def check(action: Action, spec: EnvSpec) -> Action | Invalid:
    """The action as the environment takes it: see `check_against`."""
    return check_against(action, spec.actions, spec.screen_wh)


def check_against(action: Action, actions: Iterable[ActionSpec], screen_wh: tuple[int, int] | None = None) -> Action | Invalid:
    """The action with aliases resolved, defaults filled in and values in their plain types; or what is wrong with it.

    An alias counts where the name itself is not among ``actions``. Points just outside are moved to the edge (`OFF_SCREEN`).

    Errors: ``bad_action`` (no `Action` at all), ``unknown_action``, ``missing_argument``, ``extra_argument``, ``bad_point``,
    ``off_screen``, ``too_many_keys``, ``unknown_key``, ``bad_argument`` (type, choice or bounds). Messages are for the agent.
    """
    if not isinstance(action, Action):
        return Invalid("bad_action", f"an action is an envs.Action, not {type(action).__name__}")
    found = resolve(action, actions)
    if isinstance(found, Invalid):
        return found
    spec, given = found
    arguments: dict[str, Any] = {}
    for argument in spec.arguments:
        if argument.name not in given:
            if argument.required:
                return Invalid("missing_argument", f"{spec.name} needs {argument.name}")
            if argument.default == CENTRE and argument.kind == "point":
                if screen_wh is None:
                    return Invalid(
                        "missing_argument", f"{spec.name} needs {argument.name}: there is no screen to take the middle of"
                    )
                arguments[argument.name] = screen_wh[0] / 2, screen_wh[1] / 2
            else:
                arguments[argument.name] = argument.default
            continue
        value = given[argument.name]
        if value is None and not argument.required and argument.default is None:
            arguments[argument.name] = None
            continue
        checked = _value(value, argument, f"{spec.name}: {argument.name}", screen_wh)
        if isinstance(checked, Invalid):
            return checked
        arguments[argument.name] = checked
    return Action(spec.name, arguments)


def resolve(action: Action, actions: Iterable[ActionSpec]) -> tuple[ActionSpec, dict[str, Any]] | Invalid:
    """The spec that an action means, and its arguments by the names there, unchecked; or why there is none."""
    actions = tuple(actions)
    by_name = {spec.name: spec for spec in actions}
    spec = by_name.get(action.name) or by_name.get(ALIASES.get(action.name, ""))
    if spec is None:
        return Invalid("unknown_action", f"there is no action {shown(action.name)}; there are {', '.join(by_name)}")
    if spec.name == "scroll" and "drag" in by_name and not {"end_point", "end_box"}.isdisjoint(action.arguments):
        spec = by_name["drag"]  # a scroll from one point to another is how a finger drags
    own = [argument.name for argument in spec.arguments]
    given: dict[str, Any] = {}
    for name, value in action.arguments.items():
        target = name if name in own else next((other for other in ARGUMENT_ALIASES.get(name, ()) if other in own), None)
        if target is None or target in given:
            takes = ", ".join(own) or "no arguments"
            return Invalid("extra_argument", f"{spec.name} takes {takes}; {shown(name)} is one too many")
        given[target] = value
    return spec, given


def shown(value: Any) -> str:
    """A value as a message repeats it: cut where it is long."""
    text = repr(value[: SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN + 2 else text[:SHOWN] + "..."


def on_screen(point: Point, screen_wh: tuple[int, int], where: str = "point") -> Point | Invalid:
    """The point within [0, W - 1] x [0, H - 1]; ``off_screen`` where it was further outside than `OFF_SCREEN` of a side."""
    moved = []
    for value, side in zip(point, screen_wh, strict=True):
        inside = min(max(value, 0.0), side - 1.0)
        if abs(inside - value) > OFF_SCREEN * side:
            return Invalid(
                "off_screen", f"{where}: ({point[0]:g}, {point[1]:g}) is not on the screen of {screen_wh[0]}x{screen_wh[1]}"
            )
        moved.append(inside)
    return moved[0], moved[1]


def keys(value: str, where: str = "key", choices: tuple[str, ...] = ()) -> str | Invalid:
    """Names of keys in lower case with blanks between, from "Ctrl C" or "ctrl+c"; at most three."""
    names: list[str] = []
    for word in value.lower().split():
        plus = len(word) > 2 and word.endswith("++")
        parts = (word[:-2] if plus else word).split("+") if len(word) > 1 else [word]
        names += [KEY_ALIASES.get(part, part) for part in parts] + ["+"] * plus
    if not names:
        return Invalid("bad_argument", f"{where}: no key is named")
    if len(names) > MAX_KEYS:
        return Invalid("too_many_keys", f"{where}: {len(names)} keys at once; at most {MAX_KEYS}")
    for name in names:
        known = name in choices if choices else name in KEYS or (len(name) == 1 and name.isprintable())
        if not known:
            there = ", ".join(choices or sorted(KEYS))
            return Invalid("unknown_key", f"{where}: there is no key {shown(name)}; there are {there}")
    return " ".join(names)


def _value(value: Any, argument: Argument, where: str, screen_wh: tuple[int, int] | None) -> Any:
    """One value in its plain type, or an Invalid."""
    kind = argument.kind
    if kind == "point":
        point = _point(value)
        if point is None:
            return Invalid("bad_point", f"{where}: a point is two finite numbers, not {shown(value)}")
        return point if screen_wh is None else on_screen(point, screen_wh, where)
    if kind in ("text", "key"):
        if not isinstance(value, str):
            return Invalid("bad_argument", f"{where}: text, not {shown(value)}")
        return value if kind == "text" else keys(value, where, argument.choices)
    if kind == "choice":
        if not any(value == choice and type(value) is type(choice) for choice in argument.choices):
            return Invalid("bad_argument", f"{where}: one of {', '.join(map(str, argument.choices))}, not {shown(value)}")
        return value
    plain = plain_json(value)
    if kind == "int" and not (isinstance(plain, int) and not isinstance(plain, bool)):
        return Invalid("bad_argument", f"{where}: a whole number, not {shown(value)}")
    if kind == "float":
        plain = _float(plain)
    if plain is None and (value is not None or kind == "float"):
        return Invalid("bad_argument", f"{where}: {'a finite number' if kind == 'float' else 'plain JSON'}, not {shown(value)}")
    if argument.choices and plain not in argument.choices:
        return Invalid("bad_argument", f"{where}: one of {', '.join(map(str, argument.choices))}, not {shown(value)}")
    return _within(plain, argument, where)


def _within(value: Any, argument: Argument, where: str) -> Any:
    """The value if all its numbers lie within the argument's bounds."""
    if argument.low is None and argument.high is None:
        return value
    low = -math.inf if argument.low is None else argument.low
    high = math.inf if argument.high is None else argument.high
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, list | dict):
            pending.extend(part.values() if isinstance(part, dict) else part)
        elif isinstance(part, int | float) and not isinstance(part, bool) and not low <= part <= high:
            return Invalid("bad_argument", f"{where}: {bounds_of(argument)}, not {shown(part)}")
    return value


def bounds_of(argument: Argument) -> str:
    """An argument's bounds in words: "at least 0 and at most 60"."""
    both = (("at least", argument.low), ("at most", argument.high))
    return " and ".join(f"{word} {bound:g}" for word, bound in both if bound is not None)


def _point(value: Any) -> Point | None:
    try:
        x, y = value
    except (TypeError, ValueError):
        return None
    if isinstance(value, str | bytes | Mapping):
        return None
    x, y = _float(x), _float(y)
    return None if x is None or y is None else (x, y)


def _float(value: Any) -> float | None:
    """A finite float of a number that is none of True and False."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def plain_json(value: Any, depth: int = 32) -> Any:
    """A value as JSON has it: arrays and tuples become lists, NumPy's numbers Python's. None for anything else.

    Not JSON: NaN and infinity, keys that are no text, more than ``depth`` levels.
    """
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0 or not isinstance(value, list | tuple | Mapping):
        return None
    if isinstance(value, Mapping):
        items = {key: plain_json(part, depth - 1) for key, part in value.items()}
        sound = all(isinstance(key, str) and (items[key] is not None or part is None) for key, part in value.items())
        return items if sound else None
    parts = [plain_json(part, depth - 1) for part in value]
    return parts if all(new is not None or part is None for new, part in zip(parts, value, strict=True)) else None


def with_names(actions: Iterable[ActionSpec], *names: str) -> tuple[ActionSpec, ...]:
    """The actions of these names, in their order: what an environment takes of a table. Raises KeyError for an unknown name."""
    by_name = {spec.name: spec for spec in actions}
    return tuple(by_name[name] for name in names)

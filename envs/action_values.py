"""The values of an action's arguments: their types, bounds, names of keys and points on the screen."""

import math
import numbers
import reprlib
from collections.abc import Mapping
from typing import Any

from envs.api import Argument, Invalid, Point

MAX_KEYS = 3  # of one chord
OFF_SCREEN = 0.02  # share of a side by which a point may lie outside: it is moved to the edge; further out it is refused
SHOWN = 80  # characters of what the agent wrote that a message repeats

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
    [
        *("enter", "esc", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown"),
        *("up", "down", "left", "right", "ctrl", "shift", "alt", "meta", "capslock"),
        *(f"f{number}" for number in range(1, 13)),
    ]
)


def shown(value: Any) -> str:
    """A value as a message repeats it: cut where it is long or deep."""
    try:
        text = _short.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN + 2 else text[:SHOWN] + "..."


_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 4, SHOWN, SHOWN


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


def check_value(value: Any, argument: Argument, where: str, screen_wh: tuple[int, int] | None) -> Any:
    """One value of an action in its plain type, or what is wrong with it; ``where`` begins the message."""
    kind = argument.kind
    if kind == "point":
        point = _point(value)
        if point is None:
            return Invalid("bad_point", f"{where}: a point is two finite numbers, not {shown(value)}")
        return point if screen_wh is None else on_screen(point, screen_wh, where)
    if kind in ("text", "key"):
        if not isinstance(value, str):
            return Invalid("bad_argument", f"{where}: text, not {shown(value)}")
        if not _sound(value):
            return Invalid("bad_argument", f"{where}: half a surrogate pair can't be written: {shown(value)}")
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


def _sound(text: str) -> bool:
    """Whether a text can be encoded: half a surrogate pair can't."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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

    Not taken: NaN and infinity, integers of more than 64 bits, half a surrogate pair, keys that are no text, more than
    ``depth`` levels.
    """
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if _sound(value) else None
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0 or not isinstance(value, list | tuple | Mapping):
        return None
    if isinstance(value, Mapping):
        items = {key: plain_json(part, depth - 1) for key, part in value.items()}
        sound = all(
            isinstance(key, str) and _sound(key) and (items[key] is not None or part is None) for key, part in value.items()
        )
        return items if sound else None
    parts = [plain_json(part, depth - 1) for part in value]
    return parts if all(new is not None or part is None for new, part in zip(parts, value, strict=True)) else None

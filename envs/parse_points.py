"""Points as models spell them, in the units that models count in."""

import re
from typing import Any

from envs.api import Point
from jaxllm.errors import UserError
from jaxllm.frames import EXTENTS, check, convert

MAX_POINT = 800  # characters
# Around the numbers, from the outside in.
WRAPPERS = (("<|box_start|>", "<|box_end|>"), ("<point>", "</point>"), ("<bbox>", "</bbox>"), ("(", ")"), ("[", "]"))
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_NUMBERS = re.compile(rf"{_NUMBER}(?:(?:\s*+,\s*+|\s++){_NUMBER}){{1,3}}")


def read_point(text: str) -> Point | None:
    """The point of one of the spellings, or the centre of a box; None where the text is none.

    Spellings: ``<point>x y</point>``, ``(x,y)``, ``<|box_start|>(x,y)<|box_end|>``, ``<bbox>x1 y1 x2 y2</bbox>``,
    ``[x1, y1, x2, y2]``. Numbers are plain decimals: no exponents, no hexadecimal, no expressions.
    """
    if len(text) > MAX_POINT:
        return None
    text = text.strip()
    for opening, closing in WRAPPERS:
        if text.startswith(opening):
            if not text.endswith(closing):
                return None
            text = text[len(opening) : -len(closing)].strip()
    if not _NUMBERS.fullmatch(text):
        return None
    values = [float(number) for number in text.replace(",", " ").split()]
    if len(values) == 4:
        return (values[0] + values[2]) / 2, (values[1] + values[3]) / 2
    return (values[0], values[1]) if len(values) == 2 else None


def require_sizes(frame: str, screen_wh: Any, resized_wh: Any) -> None:
    """Raises UserError where points of a frame can't be brought onto the screen."""
    check(frame)
    if frame != "orig" and screen_wh is None:
        raise UserError(f"points in the frame {frame} need the size of the screen: give screen_wh")
    if frame == "resized" and resized_wh is None:
        raise UserError("points in the frame resized need the size of the picture that the model saw: give resized_wh")


def to_screen(point: Point, frame: str, screen_wh: Any, resized_wh: Any = None) -> Point:
    """A point of a frame in pixels of the screenshot: whole ones where the frame has no pixels of its own."""
    if frame == "orig":
        return point
    x, y = convert([point], frame, "orig", size_wh=screen_wh, resized_wh=resized_wh)[0].tolist()
    return (float(round(x)), float(round(y))) if frame in EXTENTS else (x, y)


def from_screen(point: Point, frame: str, screen_wh: Any, resized_wh: Any = None) -> Point:
    """The inverse of `to_screen`: exact for whole pixels in frames without pixels of their own."""
    if frame == "orig":
        return point
    x, y = convert([point], "orig", frame, size_wh=screen_wh, resized_wh=resized_wh)[0].tolist()
    return x, y

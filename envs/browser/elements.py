"""What can be named on a page, with its box, by a walk through the page's document."""

import functools
from importlib import resources
from typing import Any

from envs.api import Element

MAX_ELEMENTS = 2000


@functools.cache
def script() -> str:
    """The walk, as a JavaScript function of the number of elements at most."""
    return resources.files("envs.browser").joinpath("elements.js").read_text(encoding="utf-8")


def from_page(rows: list[Any]) -> tuple[Element, ...]:
    """The elements of what `script` returned. Ids count from 1 in the document's order."""
    return tuple(
        Element(number, str(role), str(text), (float(x1), float(y1), float(x2), float(y2)), attributes)
        for number, (role, text, x1, y1, x2, y2, attributes) in enumerate(rows, 1)
    )

"""What is on a screen, as text for an agent that reads."""

from collections.abc import Iterable

from envs.api import Element

FLAGS = ("checked", "selected", "focused", "disabled", "covered")
SHOWN = 120  # characters of a text or value
COLOURED = ("fill", "data-color", "data-colour")


def listing(elements: Iterable[Element]) -> str:
    """One line an element: ``[3] button "Submit" 6,120,58,142 focused``. The box is x1,y1,x2,y2 in pixels."""
    return "\n".join(line(element) for element in elements)


def line(element: Element) -> str:
    """One element in words; see `listing`."""
    attributes = element.attributes
    parts = [f"[{element.id}]", element.role]
    if element.text:
        parts.append(_quoted(element.text))
    elif classes := attributes.get("class"):
        parts.append(f".{'.'.join(str(classes).split())}")
    if element.role == "shape":
        parts.append(str(attributes.get("tag", "")))
    parts.append(",".join(f"{round(x)}" for x in element.box))
    if "value" in attributes:
        parts.append(f"value={_quoted(str(attributes['value']))}")
    parts += [f"{name}={attributes[name]}" for name in COLOURED if attributes.get(name)]
    if attributes.get("checked") is False:
        parts.append("unchecked")
    parts += [flag for flag in FLAGS if attributes.get(flag)]
    return " ".join(part for part in parts if part)


def _quoted(text: str) -> str:
    """One line in double quotes."""
    text = " ".join(text.split())
    text = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

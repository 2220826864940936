"""Writes actions as a model would: the inverse of `envs.parse.parse`."""

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from envs.actions import CODE, MCP
from envs.api import Action, ActionSpec
from envs.parse import FUNCTIONS, FUNCTIONS_END
from envs.parse_calls import escape
from envs.parse_points import from_screen, require_sizes
from jaxllm.errors import UserError

STYLES = ("gui", "hybrid")
_CODE = frozenset(spec.name for spec in CODE)
_MCP = frozenset(spec.name for spec in MCP)


def format_action(
    action: Action,
    actions: Iterable[ActionSpec],
    *,
    frame: str = "orig",
    screen_wh: tuple[int, int] | None = None,
    resized_wh: tuple[int, int] | None = None,
    style: str = "gui",
    thought: str | None = None,
) -> str:
    """A turn that `parse` reads as this action, which has been checked (`envs.actions.check`).

    Points come back exactly in the frame "orig", and whole pixels in the frames without pixels of their own; in "resized" to
    a few parts in 2**52. Arguments that are None are left out.

    Args:
      style: "gui" (``Thought: ... Action: ...``) or "hybrid" (``<think>`` and a block).
      thought: the reasoning before it; None for none.

    Raises:
      UserError: an action that is not among ``actions``; an unknown style or frame; a size that the frame needs.
    """
    require_sizes(frame, screen_wh, resized_wh)
    if style not in STYLES:
        raise UserError(f"style {style!r} is unknown; there are {', '.join(STYLES)}")
    spec = next((spec for spec in actions if spec.name == action.name), None)
    if spec is None:
        raise UserError(f"there is no action {action.name!r} to write")
    kinds = {argument.name: argument.kind for argument in spec.arguments}
    if not action.arguments.keys() <= kinds.keys():
        raise UserError(f"{action.name} takes {', '.join(kinds)}, not {', '.join(action.arguments)}")
    given = {name: value for name, value in action.arguments.items() if value is not None or kinds[name] == "json"}
    for name, kind in kinds.items():
        if kind == "point" and name in given:
            x, y = from_screen(given[name], frame, screen_wh, resized_wh)
            given[name] = f"<point>{_plain(x)} {_plain(y)}</point>"
    if style == "gui":
        return (
            "" * (thought is None) + (f"Thought: {thought}\n" if thought is not None else "") + _call(spec.name, given, kinds)
        )
    return (f"<think>{thought}</think>\n" if thought is not None else "") + _block(spec.name, given, kinds)


def _call(name: str, given: dict[str, Any], kinds: dict[str, str]) -> str:
    return f"Action: {name}({', '.join(f'{key}={_literal(value, kinds[key])}' for key, value in given.items())})"


def _literal(value: Any, kind: str) -> str:
    if kind == "json" or not isinstance(value, str | int | float) or isinstance(value, bool):
        value = json.dumps(value, allow_nan=False)
    return f"'{escape(value)}'" if isinstance(value, str) else repr(value)


def _block(name: str, given: dict[str, Any], kinds: dict[str, str]) -> str:
    if name == "finished" and isinstance(given.get("content"), str):
        return f"<answer>{_set_off(given['content'])}</answer>"
    texts = {
        key: value if isinstance(value, str) and kinds[key] != "json" else json.dumps(value, allow_nan=False)
        for key, value in given.items()
    }
    if name in _CODE and not any("</parameter>" in text for text in texts.values()):
        parameters = "".join(f"<parameter={key}>{_set_off(text)}</parameter>" for key, text in texts.items())
        return f"<code_env><function={name}>{parameters}</function></code_env>"
    if name in _CODE or name in _MCP:  # a list holds any text, where tags would be mistaken for the end of one
        given = {key: texts[key] if kinds[key] == "json" else value for key, value in given.items()}
        entries = json.dumps([{"name": name, "parameters": given}], allow_nan=False)
        return f"<mcp_env>{FUNCTIONS}{entries}{FUNCTIONS_END}</mcp_env>"
    return f"<computer_env>\n{_call(name, given, kinds)}\n</computer_env>"


def _set_off(text: str) -> str:
    """A text that begins and ends with line breaks, with another pair around it, since one pair is taken for layout."""
    return f"\n{text}\n" if len(text) > 1 and text[0] == text[-1] == "\n" else text


def _plain(number: float) -> str:
    """A number without exponent."""
    return format(Decimal(repr(number)), "f")

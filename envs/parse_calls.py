"""Calls with literal arguments, ``name(arg='text', other=5)``, read by hand: nothing in them is ever evaluated.

Patterns never give back what they took (``++``, ``*+``), so that the time is linear in the text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from envs.actions import ALIASES, ARGUMENT_ALIASES, shown
from envs.api import Action, ActionSpec, Argument, Invalid

MAX_CALL = 1 << 16  # characters of the calls of one turn
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_KEYWORD = re.compile(r"\s*+([A-Za-z_][A-Za-z0-9_]*+)\s*+=\s*+")
_NUMBER = re.compile(r"[-+]?[0-9]{1,20}(\.[0-9]{1,30}+)?([eE][-+]?[0-9]{1,4})?(?=\s*+[,)])")
_BLANKS = re.compile(r"\s*+")
# A quote ends its string only if the call goes on after it: so a quote within a text need not be escaped.
_GOES_ON = (
    r"\s*+(?:,\s*+[A-Za-z_][A-Za-z0-9_]*+\s*+=\s*+[-+0-9'\"\[{tfn]|\)[^\S\n]*+(?:\Z|\n\s*+(?:\Z|[A-Za-z_][A-Za-z0-9_]*+\()))"
)
_STRINGS = {quote: re.compile(rf"{quote}((?:[^\\{quote}]++|\\.|{quote}(?!{_GOES_ON}))*+){quote}", re.DOTALL) for quote in "'\""}
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\'": "'", '\\"': '"'}
_CODE_POINT = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")

Table = Mapping[str, ActionSpec]  # actions by name


def read_calls(text: str, table: Table, max_actions: int) -> list[Action] | Invalid:
    """The calls in a text, one after another with a new line between; values are str, int, float or JSON, unchecked.

    Errors: ``no_action`` (nothing there), ``bad_call`` (no call), ``unknown_action``, ``extra_argument`` (given twice),
    ``bad_point`` (something that is no literal where a point belongs), ``too_many_actions``, ``too_long``.
    """
    if not text:
        return Invalid("no_action", "no action is given; write Action: name(argument='value')")
    if len(text) > MAX_CALL:
        return Invalid("too_long", f"an action of {len(text)} characters; at most {MAX_CALL}")
    calls: list[Action] = []
    position = 0
    while position < len(text):
        if len(calls) == max_actions:
            return too_many(max_actions)
        read = _call(text, position, table)
        if isinstance(read, Invalid):
            return read
        call, end = read
        calls.append(call)
        position = _skip(text, end)
        if position < len(text) and "\n" not in text[end:position]:
            return _bad(f"what stands behind {call.name}(...)", text, position)
    return calls


def too_many(most: int) -> Invalid:
    """The error of a turn with more actions than are allowed."""
    return Invalid("too_many_actions", f"more than {most} action{'s' * (most != 1)} at once; nothing was done")


def _call(text: str, position: int, table: Table) -> tuple[Action, int] | Invalid:
    name = _NAME.match(text, position)
    if not name:
        return _bad("an action", text, position)
    spec = table.get(name[0]) or table.get(ALIASES.get(name[0], ""))
    if spec is None:
        return Invalid("unknown_action", f"there is no action {shown(name[0])}; there are {', '.join(table)}")
    kinds = {argument.name: argument for argument in spec.arguments}
    position = _skip(text, name.end())
    if text[position : position + 1] != "(":
        return _bad(f"( after {name[0]}", text, position)
    arguments: dict[str, Any] = {}
    position = _skip(text, position + 1)
    if text[position : position + 1] == ")":
        return Action(name[0], arguments), position + 1
    while True:
        keyword = _KEYWORD.match(text, position)
        if not keyword:
            return _bad(f"argument='value' in {name[0]}", text, position)
        if keyword[1] in arguments:
            return Invalid("extra_argument", f"{name[0]}: {shown(keyword[1])} is given twice")
        read = _value(text, keyword.end(), _argument(keyword[1], kinds))
        if isinstance(read, Invalid):
            return read
        arguments[keyword[1]], position = read
        position = _skip(text, position)
        sign = text[position : position + 1]
        if sign == ")":
            return Action(name[0], arguments), position + 1
        if sign != ",":
            return _bad(f", or ) after {keyword[1]}", text, position)
        position += 1


def _argument(name: str, known: Mapping[str, Argument]) -> Argument | None:
    return next((known[other] for other in (name, *ARGUMENT_ALIASES.get(name, ())) if other in known), None)


def _value(text: str, position: int, argument: Argument | None) -> tuple[Any, int] | Invalid:
    quote = text[position : position + 1]
    if quote in _STRINGS:
        string = _STRINGS[quote].match(text, position)
        if not string:
            return _bad("a closing quote", text, position)
        return unescape(string[1]), string.end()
    if argument and argument.kind == "json":
        try:
            return _JSON.raw_decode(text, position)
        except (ValueError, RecursionError):
            return _bad("JSON", text, position)
    if argument and argument.kind == "point":
        return Invalid(
            "bad_point", f"{argument.name}: a point is written in quotes, not {shown(text[position : position + 40])}"
        )
    number = _NUMBER.match(text, position)
    if not number:
        return _bad("a text in quotes or a number", text, position)
    if argument and argument.kind == "text":
        return number[0], number.end()
    return (float(number[0]) if number[1] or number[2] else int(number[0])), number.end()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def read_json(text: str) -> Any:
    """JSON without NaN and infinity. Raises ValueError for anything else, and where it is nested too deeply."""
    try:
        return _JSON.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def unescape(text: str) -> str:
    r"""A string without its escapes: \n, \t, \r, \', \", \\, \xHH, \uHHHH, \UHHHHHHHH. Others stay as they are."""
    if "\\" not in text:
        return text
    parts = text.split("\\\\")
    for index, part in enumerate(parts):
        if "\\" in part:
            for written, meant in _ESCAPES.items():
                part = part.replace(written, meant)
            parts[index] = _CODE_POINT.sub(_character, part)
    return "\\".join(parts)


def escape(text: str) -> str:
    """A string as `unescape` reads it, to stand between single quotes."""
    text = text.replace("\\", "\\\\")
    for written, meant in _ESCAPES.items():
        if meant != '"':
            text = text.replace(meant, written)
    return text


def _character(match: re.Match[str]) -> str:
    code = int(match[0][2:], 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match[0]


def _skip(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


def _bad(wanted: str, text: str, position: int) -> Invalid:
    there = shown(text[position : position + 40]) if position < len(text) else "the end"
    return Invalid("bad_call", f"at character {position}: expected {wanted}, found {there}")

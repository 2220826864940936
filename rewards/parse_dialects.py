"""What each family of models writes: the table of dialects, and when an answer is well formed."""

import dataclasses
import json
import re
from collections.abc import Callable

from jaxllm.errors import UserError
from rewards import parse_forms as forms
from rewards.parse_forms import MAX_DIGITS, B, Candidate, Form

MAX_JSON = 1 << 14  # characters of a well-formed answer in JSON
COORDINATE_KEYS = ("bbox_2d", "point_2d", "coordinate")


@dataclasses.dataclass(frozen=True)
class Common:
    """A whole answer in the dialect's usual form, as an RE2 pattern for columns with the groups a, b or a, b, c, d."""

    pattern: str
    format_ok: bool
    prose: bool = False  # part of it is free text, which may hold the turns of a conversation


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How one family of models writes a point or a box."""

    frame: str  # of its numbers, see `jaxllm.frames`
    forms: tuple[tuple[Form, ...], ...]  # looked for in this order: the first group with a candidate counts
    asks: str  # "box", "point" or "either": what its prompts ask for
    well_formed: Callable[[str, int, int, Candidate], bool]  # of text, start and end of the answer, what was found
    source: str
    tool_calls: bool = False
    raw: bool = False  # the whole text is searched, and nothing is stripped
    common: tuple[Common, ...] = ()


def _integers(text: str, start: int, end: int, found: Candidate) -> bool:
    """One list of non-negative integers and nothing else (the format reward of arXiv 2507.15846)."""
    return _INTEGERS[len(found.numbers)].fullmatch(text, start, end) is not None


def _release(text: str, start: int, end: int, found: Candidate) -> bool:
    return _RELEASE_INTEGERS.fullmatch(text, start, end) is not None


_INTEGERS = {
    count: re.compile(rf"\[{B}[0-9]{{1,{MAX_DIGITS}}}{B}(?:,{B}[0-9]{{1,{MAX_DIGITS}}}{B}){{{count - 1}}}\]")
    for count in (2, 4)
}
_RELEASE_INTEGERS = re.compile(r"\[\s*+\d++\s*+(?:,\s*+\d++\s*+){3}\]")


def _whole(text: str, start: int, end: int, found: Candidate) -> bool:
    """Nothing but the form itself."""
    return found.start == start and found.end == end


def _json(text: str, start: int, end: int, found: Candidate) -> bool:
    """JSON, fenced or not: a list of numbers, an object with coordinates, a list of one, or a tool call's object."""
    if end - start > MAX_JSON:
        return False
    fenced = _FENCE.fullmatch(text, start, end)
    try:
        value = json.loads(fenced["body"] if fenced else text[start:end])
    except (ValueError, RecursionError):
        return False
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict):
        if isinstance(value.get("arguments"), dict):
            value = value["arguments"]
        value = next((value[key] for key in COORDINATE_KEYS if key in value), None)
    return isinstance(value, list) and len(value) == len(found.numbers) and all(type(x) in (int, float) for x in value)


_FENCE = re.compile(r"```(?:json)?+(?P<body>[^`]*+)```", re.ASCII)


def _call(text: str, start: int, end: int, found: Candidate) -> bool:
    """One call with the box as its first argument, alone or behind a thought that ends in ``Action:``."""
    head, tail = text[max(start, found.start - 64) : found.start], text[found.end : end]
    name = _CALL_NAME.search(head)
    before = text[start : found.start - len(name[0])].rstrip() if name else "?"
    return bool(name) and tail.strip() == ")" and (not before or before.endswith("Action:"))


_CALL_NAME = re.compile(r"\b[a-z_]{1,32}\( ?\Z", re.ASCII)


def _field(text: str, start: int, end: int, found: Candidate) -> bool:
    """A field of its own: at the answer's start or behind a tab or a newline, and nothing behind it but such another field."""
    return (found.start == start or text[found.start - 1] in "\t\n") and (found.end == end or text[found.end] in "\t\n")


def _any(text: str, start: int, end: int, found: Candidate) -> bool:
    return any(test(text, start, end, found) for test in (_whole, _json, _call, _field))


# RE2 has no possessive quantifiers and needs none. It reads groups in one pass if each character decides what comes next and
# there are no more than four of them. What these patterns leave out, such as decimals with more digits, the other path reads.
_BLANKS = r"[ \t\n\r\f\v]*"
_INTEGER = rf"[0-9]{{1,{MAX_DIGITS}}}"
_DECIMAL = r"-?[0-9]{1,4}(?:\.[0-9]{1,8})?"
_JSON_NUMBER = r"-?(?:0|[1-9][0-9]{0,3})(?:\.[0-9]{1,8})?"


def _usual(form: str, *, prose: bool = False) -> Common:
    return Common(rf"^{_BLANKS}{form}{_BLANKS}(?:<\|im_end\|>{_BLANKS})?$", True, prose)


def _numbers(number: str, names: str = "abcd") -> str:
    return ",".join(f" *(?P<{name}>{number}) *" for name in names)


INTEGERS = rf"\[{_numbers(_INTEGER)}\]"
BARE_LIST = _usual(INTEGERS)
THOUGHT_LIST = _usual(rf"<think>[^<]*</think>{_BLANKS}<answer>{_BLANKS}{INTEGERS}{_BLANKS}</answer>", prose=True)
LIST_IN_PROSE = Common(rf"^[^\[<]*\[{_numbers(_DECIMAL)}\][^\[<]*$", format_ok=False, prose=True)
_STRING = r"\"[^\"\\\[\]<`\x00-\x1f]*\""
_OBJECT = rf"\{{\s*\"bbox_2d\"\s*:\s*\[{_numbers(_JSON_NUMBER)}\]\s*(?:,\s*\"label\"\s*:\s*{_STRING}\s*)?\}}"
JSON_OBJECTS = tuple(
    _usual(before + _OBJECT + after)
    for before, after in (
        (r"```(?:json)?\s*\[\s*", r"\s*\]\s*```"),
        (r"\[\s*", r"\s*\]"),
        ("", ""),
        (r"```(?:json)?\s*", r"\s*```"),
    )
)
JSON_LIST = _usual(rf"\[{_numbers(_JSON_NUMBER)}\]")
_ARGUMENTS = rf"\{{\s*(?:\"action\"\s*:\s*{_STRING}\s*,\s*)?\"coordinate\"\s*:\s*\[{_numbers(_JSON_NUMBER, 'ab')}\]\s*\}}"
TOOL_CALL = _usual(rf"<tool_call>\s*\{{\s*\"name\"\s*:\s*{_STRING}\s*,\s*\"arguments\"\s*:\s*{_ARGUMENTS}\s*\}}\s*</tool_call>")
CORNERS = rf"\({_numbers(_DECIMAL, 'ab')}\),\({_numbers(_DECIMAL, 'cd')}\)"
BARE_CORNERS, TOKEN_CORNERS = _usual(CORNERS), _usual(rf"<\|box_start\|>{CORNERS}<\|box_end\|>")
POINT_PAREN = _usual(rf"\({_numbers(_DECIMAL, 'ab')}\)")
_CALL = r"(?:Thought:[^<=]*\nAction: *)?[a-z_]{1,32}\("
_BOX_OF_CALL = rf"(?:<\|box_start\|>)?\({_numbers(_DECIMAL, 'ab')}\)(?:<\|box_end\|>)?"
START_BOX = _usual(rf"{_CALL}start_box='{_BOX_OF_CALL}'\)", prose=True)
POINT_TAG = _usual(rf"{_CALL}point='<point>(?P<a>{_DECIMAL}) +(?P<b>{_DECIMAL})</point>'\)", prose=True)

_ANY = (
    (forms.KEYED_LIST, forms.START_BOX, forms.POINT_TAG, forms.TOKEN_CORNERS),
    (forms.LIST, forms.CORNERS, forms.POINT_FIELD),
)


def _qwen(frame: str, source: str) -> Dialect:
    groups = ((forms.KEYED_LIST,), (forms.UNKEYED_LIST,))
    return Dialect(frame, groups, "box", _json, source, tool_calls=True, common=(*JSON_OBJECTS, JSON_LIST, TOOL_CALL))


def _uitars(frame: str, source: str, *group: Form, common: tuple[Common, ...]) -> Dialect:
    return Dialect(frame, (group,), "point", _call, source, common=common)


DIALECTS = {
    "bracket": Dialect(
        "resized", ((forms.LIST,),), "box", _integers, "GUI-G2", common=(BARE_LIST, THOUGHT_LIST, LIST_IN_PROSE)
    ),
    "qwen25": _qwen("resized", "Qwen2.5-VL"),
    "qwen2_box": Dialect(
        "rel1000",
        ((forms.TOKEN_CORNERS,), (forms.CORNERS,)),
        "box",
        _whole,
        "Qwen2-VL",
        common=(TOKEN_CORNERS, BARE_CORNERS),
    ),
    "qwen3": _qwen("rel1000", "Qwen3-VL"),
    "uitars1": _uitars("rel1000", "UI-TARS", forms.START_BOX, common=(START_BOX,)),
    "uitars15": _uitars("resized", "UI-TARS 1.5", forms.START_BOX, forms.POINT_TAG, common=(START_BOX, POINT_TAG)),
    "paren": Dialect("resized", ((forms.PAREN,),), "point", _whole, "GTA1", common=(POINT_PAREN,)),
    "stepgui": Dialect("rel999", ((forms.POINT_FIELD,),), "point", _field, "Step-GUI"),
    "norm01": Dialect(
        "norm01",
        _ANY,
        "either",
        _any,
        "any of the others, in shares of the picture",
        tool_calls=True,
        common=(*JSON_OBJECTS, JSON_LIST, POINT_PAREN, BARE_CORNERS, TOKEN_CORNERS, START_BOX, POINT_TAG),
    ),
    "gui_g2_release": Dialect("resized", ((forms.RELEASE,),), "box", _release, "GUI-G2 as released", raw=True),
}


def dialect_named(name: str) -> Dialect:
    """A row of the table. Raises UserError for an unknown name."""
    if name not in DIALECTS:
        raise UserError(f"dialect {name!r} is unknown; there are {', '.join(DIALECTS)}")
    return DIALECTS[name]

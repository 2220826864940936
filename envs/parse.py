"""Reads actions out of what a model wrote, and writes them as a model would.

Two formats (UI-TARS, arXiv 2501.12326 and 2509.02544). In the first, ``Thought: ...`` and ``Action: name(arg='...')``; in the
second, ``<think>...</think>`` and one block: ``<computer_env>`` with an action of the first format, ``<code_env>`` with a
function, ``<mcp_env>`` with a list of functions, or ``<answer>``. Which actions there are, the caller says: the names of a
block don't matter, so that an environment's own actions work in each.

A model's output is data: nothing in it is evaluated, nothing raises, and the time is linear in the text.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from envs.actions import check_against, resolve, shown
from envs.api import Action, ActionSpec, Argument, Invalid
from envs.parse_calls import Table, read_calls, read_json, too_many
from envs.parse_points import read_point, require_sizes, to_screen

MAX_BLOCK = 1 << 18  # characters of a block of functions
MAX_TOOLS = 16  # functions of one <mcp_env>
MAX_PARAMETERS = 32  # of one function
END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "</s>")
ENVS = ("computer_env", "code_env", "mcp_env", "answer")
FUNCTIONS, FUNCTIONS_END = "<|FunctionCallBegin|>", "<|FunctionCallEnd|>"
_ACTION = ("Action:", "Action：")
_THOUGHTS = re.compile(r"(?:Thought|Reflection|Action_Summary)[:：]\s*+")
_SUMMARIES = ("Action_Summary:", "Action_Summary：")
_ONE_CALL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+\s*+\(")
_FUNCTION = re.compile(r"\s*+<function=([^<>\n]{1,100})>\s*+")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,100})>")
_PARAMETER_END = re.compile(r"</parameter>\s*+(?=<parameter=|</function>\s*+(?:\Z|<function=|</code_env>))")
_FUNCTION_END = re.compile(r"</function>\s*+(?:(<function=|</code_env>)|\Z)")


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What a model wrote."""

    actions: tuple[Action | Invalid, ...]  # to be done in order, checked; an Invalid stands for one of several tool calls
    error: Invalid | None  # what was wrong with the whole; then there are no actions
    thought: str  # the reasoning before the action, without its label


def parse(
    text: str,
    actions: Iterable[ActionSpec],
    *,
    frame: str,
    screen_wh: tuple[int, int] | None,
    resized_wh: tuple[int, int] | None = None,
    max_actions: int = 1,
) -> Parsed:
    """Reads the actions of one turn.

    Args:
      text: the model's output.
      actions: what the environment understands (`EnvSpec.actions`).
      frame: what the model's coordinates count: "rel1000" (UI-TARS 1.0, 2), "resized" (1.5), or another of `jaxllm.frames`.
      screen_wh: width and height of the screenshot in pixels; None where there is no screen.
      resized_wh: width and height of the picture that the model saw, for the frame "resized".
      max_actions: calls allowed in one turn of the first format.

    Returns:
      Points of the actions are in pixels of the screenshot, and all is checked as by `envs.actions.check`. Errors are those of
      the check and ``no_action``, ``bad_call``, ``too_many_actions``, ``too_long``, ``unclosed_env``.

    Raises:
      UserError: an unknown frame, or a size that it needs; never for the text.
    """
    require_sizes(frame, screen_wh, resized_wh)
    table = {spec.name: spec for spec in actions}
    screen = _Screen(frame, screen_wh, resized_wh)
    thought, env, body = _split(text)
    if isinstance(body, Invalid):
        return Parsed((), body, thought)
    calls: Sequence[Action | Invalid] | Invalid
    if env in ("code_env", "mcp_env") and len(body) > MAX_BLOCK:
        calls = Invalid("too_long", f"<{env}> holds {len(body)} characters; at most {MAX_BLOCK}")
    elif env == "code_env":
        calls = _function(body)
    elif env == "mcp_env":
        calls = _functions(body)
    elif env == "answer":
        calls = [Action("finished", {"content": _without_newlines(body)})]
    else:
        calls = read_calls(body, table, max_actions)
    if isinstance(calls, Invalid):
        return Parsed((), calls, thought)
    done = tuple(call if isinstance(call, Invalid) else _checked(call, table, screen) for call in calls)
    if env != "mcp_env":
        wrong = next((action for action in done if isinstance(action, Invalid)), None)
        if wrong:
            return Parsed((), wrong, thought)
    return Parsed(done, None, thought)


@dataclasses.dataclass(frozen=True)
class _Screen:
    frame: str
    screen_wh: tuple[int, int] | None
    resized_wh: tuple[int, int] | None


def _split(text: str) -> tuple[str, str, str | Invalid]:
    """The thought, the block ("" for none), and what is in it or why it can't be read."""
    text = text.strip()
    for marker in END_OF_TURN:
        if text.endswith(marker):
            text = text[: -len(marker)].rstrip()
            break
    thought, tagged = "", False
    if text.startswith("<think>"):
        end = text.find("</think>")
        if end < 0:
            return text[len("<think>") :].strip(), "", Invalid("no_action", "the thought does not end: </think> is missing")
        thought, text, tagged = text[len("<think>") : end].strip(), text[end + len("</think>") :].strip(), True
    call = min((place for place in (_at_line(text, label, text.find) for label in _ACTION) if place >= 0), default=-1)
    found = _first_env(text, call, tagged)
    if found:
        env, place = found
        return _joined(thought, text[:place]), env, _inside(text, env, place)
    if call >= 0:
        call = max(_at_line(text, label, text.rfind) for label in _ACTION)
        return _joined(thought, text[:call]), "", text[call + len(_ACTION[0]) :].strip()
    if _ONE_CALL.match(text) and text.endswith(")"):
        return thought, "", text
    return _joined(thought, text), "", Invalid("no_action", "there is no line that begins with Action:")


def _at_line(text: str, label: str, search: Any) -> int:
    """Where the label stands at the start of a line, by ``text.find`` or ``text.rfind``; -1 for nowhere."""
    place = search("\n" + label)
    starts = text.startswith(label)
    if search == text.find:
        return 0 if starts else place + 1 if place >= 0 else -1
    return place + 1 if place >= 0 else 0 if starts else -1


def _first_env(text: str, before: int, anywhere: bool) -> tuple[str, int] | None:
    """The first block that opens ahead of ``before``: at the start of a line, or anywhere behind a closed thought."""
    end = len(text) if before < 0 else before
    places = []
    for env in ENVS:
        tag = f"<{env}>"
        place = text.find(tag, 0, end) if anywhere else 0 if text.startswith(tag) else text.find("\n" + tag, 0, end)
        if place >= 0:
            places.append((place + (text[place] == "\n"), env))
    return min(places)[::-1] if places else None


def _inside(text: str, env: str, place: int) -> str | Invalid:
    begin = place + len(env) + 2
    end = text.rfind(f"</{env}>", begin)
    if end < 0:
        return Invalid("unclosed_env", f"<{env}> is not closed")
    behind = end + len(env) + 3
    if any(text.find(f"<{other}>", behind) >= 0 for other in ENVS):
        return too_many(1)
    inside = text[begin:end]
    if env != "computer_env":
        return inside
    inside = inside.strip()
    call = max(_at_line(inside, label, inside.rfind) for label in _ACTION)
    return inside[call + len(_ACTION[0]) :].strip() if call >= 0 else inside


def _joined(thought: str, more: str) -> str:
    """The thought without its labels."""
    more = more.strip()
    label = _THOUGHTS.match(more)
    if label:
        more = more[label.end() :]
        if label[0].startswith("Reflection"):
            place = min((place for summary in _SUMMARIES if (place := more.find(summary)) >= 0), default=-1)
            if place >= 0:
                more = f"{more[:place].rstrip()}\n{more[place + len(_SUMMARIES[0]) :].lstrip()}"
    return "\n".join(part for part in (thought, more) if part)


def _function(body: str) -> list[Action | Invalid] | Invalid:
    """The one function of a code block."""
    opened = _FUNCTION.match(body)
    if not opened:
        return Invalid("no_action" if not body.strip() else "bad_call", "a code block holds <function=name>...</function>")
    name, position = opened[1].strip(), opened.end()
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(body, position):
        key = parameter[1].strip()
        closed = _PARAMETER_END.search(body, parameter.end())
        if not closed:
            return Invalid("bad_call", f"{shown(name)}: the parameter {shown(key)} or the function is not closed")
        if key in arguments or len(arguments) == MAX_PARAMETERS:
            return Invalid("extra_argument", f"{shown(name)}: {shown(key)} is given twice, or is one too many")
        arguments[key] = _without_newlines(body[parameter.end() : closed.start()])
        position = closed.end()
    end = _FUNCTION_END.match(body, position)
    if not end:
        return Invalid(
            "bad_call", f"{shown(name)}: expected <parameter=...> or </function>, found {shown(body[position:][:40])}"
        )
    return too_many(1) if end[1] else [Action(name, arguments)]


def _functions(body: str) -> list[Action | Invalid] | Invalid:
    """The functions of a list, in its order."""
    begin, end = body.find(FUNCTIONS), body.rfind(FUNCTIONS_END)
    if begin < 0 or end < begin:
        return Invalid("bad_call", f"the list of functions stands between {FUNCTIONS} and {FUNCTIONS_END}")
    try:
        entries = read_json(body[begin + len(FUNCTIONS) : end])
    except ValueError as error:
        return Invalid("bad_call", f"the list of functions is not JSON: {shown(str(error))}")
    if not isinstance(entries, list):
        return Invalid("bad_call", "the functions are no list")
    if not entries:
        return Invalid("no_action", "the list of functions is empty")
    return too_many(MAX_TOOLS) if len(entries) > MAX_TOOLS else [_entry(entry) for entry in entries]


def _entry(entry: Any) -> Action | Invalid:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        parameters = entry.get("parameters", {})
        if isinstance(parameters, dict) and entry.keys() <= {"name", "parameters"}:
            return Action(entry["name"], parameters)
    return Invalid("bad_call", "a function is an object with a name and parameters")


def _without_newlines(text: str) -> str:
    """A value without the line breaks that set it off from its tags, if there are both."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "\n" else text


def _checked(call: Action, table: Table, screen: _Screen) -> Action | Invalid:
    found = resolve(call, table.values())
    if isinstance(found, Invalid):
        return found
    spec, given = found
    kinds = {argument.name: argument for argument in spec.arguments}
    for name, value in given.items():
        value = _meant(value, kinds[name], screen)
        if isinstance(value, Invalid):
            return dataclasses.replace(value, message=f"{spec.name}: {name}: {value.message}")
        given[name] = value
    return check_against(Action(spec.name, given), table.values(), screen.screen_wh)


def _meant(value: Any, argument: Argument, screen: _Screen) -> Any:
    """A value as its argument wants it, where it was written as text; the check sees to the rest."""
    kind = argument.kind
    if kind == "point":
        if isinstance(value, list) and len(value) in (2, 4):
            value = str(value)
        point = read_point(value) if isinstance(value, str) else None
        if point is None:
            return Invalid("bad_point", f"a point is written '<point>x y</point>', not {shown(value)}")
        return to_screen(point, screen.frame, screen.screen_wh, screen.resized_wh)
    texts = kind == "choice" and any(isinstance(choice, str) for choice in argument.choices)
    if isinstance(value, str) and kind in ("int", "float", "json", "choice") and not texts:
        try:
            return read_json(value)
        except ValueError:
            return Invalid("bad_argument", f"{'JSON' if kind == 'json' else 'a number'}, not {shown(value)}")
    return value

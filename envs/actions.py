"""The actions that agents know, and the check of one action against what an environment understands.

Names and arguments are those of UI-TARS (arXiv 2501.12326, 2509.02544) and of its released operators. An environment takes
what it understands from these tables, or writes its own `ActionSpec`.
"""

from collections.abc import Iterable
from typing import Any

from envs.action_values import KEY_ALIASES, KEYS, MAX_KEYS, OFF_SCREEN, check_value, shown
from envs.api import Action, ActionSpec, Argument, EnvSpec, Invalid

__all__ = [
    "ALIASES",
    "ANDROID_KEYS",
    "ARGUMENT_ALIASES",
    "BASH",
    "CALL_USER",
    "CODE",
    "COMPUTER",
    "EDITOR",
    "FINISHED",
    "KEYS",
    "KEY_ALIASES",
    "MAX_KEYS",
    "MCP",
    "MOBILE",
    "OFF_SCREEN",
    "PYTHON",
    "TOOLS",
    "WAIT",
    "check",
    "check_against",
    "resolve",
    "shown",
    "with_names",
]

CENTRE = "centre"  # default of a point: the middle of the screen

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
        checked = check_value(value, argument, f"{spec.name}: {argument.name}", screen_wh)
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


def with_names(actions: Iterable[ActionSpec], *names: str) -> tuple[ActionSpec, ...]:
    """The actions of these names, in their order: what an environment takes of a table. Raises KeyError for an unknown name."""
    by_name = {spec.name: spec for spec in actions}
    return tuple(by_name[name] for name in names)

"""The tables of actions, and what the check makes of an action."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.action_values import KEYS, MAX_KEYS, keys, on_screen, plain_json
from envs.actions import ALIASES, COMPUTER, MOBILE, TOOLS, check, check_against, with_names
from envs.api import KINDS, Action, ActionSpec, Argument, EnvSpec, Invalid

SCREEN = (1000, 500)


def checked(name: str, table: tuple[ActionSpec, ...] = COMPUTER, screen_wh: Any = SCREEN, **arguments: Any) -> Action | Invalid:
    return check_against(Action(name, arguments), table, screen_wh)


def error(name: str, table: tuple[ActionSpec, ...] = COMPUTER, **arguments: Any) -> str:
    found = checked(name, table, **arguments)
    assert isinstance(found, Invalid), found
    assert found.message
    return found.error


# Names and arguments as published: UI-TARS (arXiv 2501.12326, 2509.02544) and its released operators.
PUBLISHED = {
    "computer": (
        COMPUTER,
        {
            "click": {"point"},
            "left_double": {"point"},
            "right_single": {"point"},
            "drag": {"start_point", "end_point"},
            "hotkey": {"key"},
            "type": {"content"},
            "scroll": {"point", "direction"},
            "wait": set(),
            "finished": {"content"},
            "call_user": set(),
            "hover": {"point"},
            "middle_click": {"point"},
            "press": {"key"},
            "release": {"key"},
            "mouse_down": {"point", "button"},
            "mouse_up": {"point", "button"},
            "navigate": {"url"},
            "navigate_back": set(),
            "open_computer": set(),
        },
    ),
    "mobile": (
        MOBILE,
        {
            "click": {"point"},
            "long_press": {"point", "time"},
            "type": {"content"},
            "scroll": {"point", "direction"},
            "drag": {"start_point", "end_point"},
            "hotkey": {"key"},
            "open_app": {"app_name"},
            "press_home": set(),
            "press_back": set(),
            "finished": {"content"},
            "call_user": set(),
            "wait": set(),
        },
    ),
    "tools": (
        TOOLS,
        {
            "execute_bash": {"command"},
            "JupyterCI": {"code", "timeout"},
            "str_replace_editor": {"command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"},
            "Search": {"query"},
            "LinkReader": {"url", "description"},
        },
    ),
}


@pytest.mark.parametrize(("table", "published"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_the_tables_are_the_published_ones(table: tuple[ActionSpec, ...], published: dict[str, set[str]]):
    assert {spec.name: {argument.name for argument in spec.arguments} for spec in table} == published
    assert all(spec.about for spec in table)
    assert all(argument.kind in KINDS for spec in table for argument in spec.arguments)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases_name_an_action(alias: str, name: str):
    known = {spec.name for spec in (*COMPUTER, *MOBILE, *TOOLS)}
    assert name in known
    assert alias not in known


def test_alias_and_defaults_are_filled_in():
    assert checked("left_single", start_box=[3, 4]) == Action("click", {"point": (3.0, 4.0)})
    assert checked("finished") == Action("finished", {"content": ""})
    assert checked("scroll", direction="up") == Action("scroll", {"point": (500.0, 250.0), "direction": "up"})
    assert checked("mouse_up") == Action("mouse_up", {"point": None, "button": "left"})
    assert checked("long_press", MOBILE, point=(1, 2)) == Action("long_press", {"point": (1.0, 2.0), "time": 1.0})
    arguments = checked("str_replace_editor", TOOLS, command="view", path="/a").arguments
    assert arguments["view_range"] is arguments["old_str"] is None


def test_without_a_screen_there_is_no_centre():
    assert error("scroll", screen_wh=None, direction="up") == "missing_argument"
    assert checked("click", screen_wh=None, point=(1e6, -5)) == Action("click", {"point": (1e6, -5.0)})


def test_check_takes_actions_and_screen_from_the_spec():
    spec = EnvSpec("test/one", "", with_names(COMPUTER, "click", "wait"), SCREEN)
    assert check(Action("click", {"point": (1000, 0)}), spec) == Action("click", {"point": (999.0, 0.0)})
    found = check(Action("drag"), spec)
    assert isinstance(found, Invalid)
    assert found.message == "there is no action 'drag'; there are click, wait"
    assert check("click", spec).error == "bad_action"


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("fly", {}, "unknown_action"),
        ("click", {}, "missing_argument"),
        ("wait", {"seconds": 3}, "extra_argument"),
        ("click", {"point": (1, 2), "start_box": (1, 2)}, "extra_argument"),
        ("click", {"point": None}, "bad_point"),
        ("click", {"point": (1,)}, "bad_point"),
        ("click", {"point": (1, 2, 3)}, "bad_point"),
        ("click", {"point": (math.nan, 2)}, "bad_point"),
        ("click", {"point": (math.inf, 2)}, "bad_point"),
        ("click", {"point": (10**400, 2)}, "bad_point"),
        ("click", {"point": (True, 2)}, "bad_point"),
        ("click", {"point": ("1", "2")}, "bad_point"),
        ("click", {"point": "12"}, "bad_point"),
        ("click", {"point": {1: 0, 2: 0}}, "bad_point"),
        ("click", {"point": 5}, "bad_point"),
        ("click", {"point": (1021, 10)}, "off_screen"),
        ("type", {"content": 5}, "bad_argument"),
        ("type", {"content": None}, "bad_argument"),
        ("type", {"content": "half \ud83d"}, "bad_argument"),
        ("hotkey", {"key": ""}, "bad_argument"),
        ("hotkey", {"key": "ctrl shift alt t"}, "too_many_keys"),
        ("hotkey", {"key": "ctrl boom"}, "unknown_key"),
        ("scroll", {"direction": "north"}, "bad_argument"),
        ("scroll", {"direction": ["up"]}, "bad_argument"),
    ],
)
def test_what_is_refused(name: str, arguments: dict[str, Any], code: str):
    assert error(name, **arguments) == code


@pytest.mark.parametrize(
    ("value", "inside"), [(-20.0, 0), (-20.1, None), (0, 0), (999, 999), (999.5, 999), (1019, 999), (1019.1, None)]
)
def test_two_percent_of_the_side(value: float, inside: float | None):
    found = on_screen((value, 100.0), SCREEN)
    assert found == (inside, 100.0) if inside is not None else found.error == "off_screen"
    turned = on_screen((100.0, value), (500, 1000))  # the other side counts for y
    assert turned == (100.0, inside) if inside is not None else turned.error == "off_screen"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Ctrl C", "ctrl c"),
        ("ctrl+c", "ctrl c"),
        ("CTRL + Shift+T", None),  # a plus between blanks is a key: four of them
        ("ctrl ++", None),
        ("ctrl +", "ctrl +"),
        ("ctrl++", "ctrl +"),
        ("+", "+"),
        ("Return", "enter"),
        ("escape", "esc"),
        ("ArrowLeft", "left"),
        ("Page_Down", "pagedown"),
        ("cmd Space", "meta space"),
        ("  f12 ", "f12"),
        ("ü", "ü"),
        ("f13", None),
        ("ctrl+", None),
        ("\x07", None),
        ("ctr", None),
    ],
)
def test_names_of_keys(written: str, meant: str | None):
    found = keys(written)
    assert found == meant if meant else isinstance(found, Invalid)


@given(st.lists(st.sampled_from(sorted(KEYS) + list("abcXYZ019+-'\"é")), min_size=1, max_size=MAX_KEYS).map(" ".join))
def test_normalised_keys_stay_as_they_are(written: str):
    found = keys(written)
    assert isinstance(found, str)
    assert keys(found) == found == written.lower()


def test_keys_of_a_phone():
    assert checked("hotkey", MOBILE, key="Back") == Action("hotkey", {"key": "back"})
    assert error("hotkey", MOBILE, key="ctrl") == "unknown_key"
    assert error("hotkey", COMPUTER, key="back") == "unknown_key"


OWN = (
    ActionSpec("count", (Argument("n", "int", low=0, high=9),)),
    ActionSpec("share", (Argument("x", "float", low=0.5),)),
    ActionSpec("pick", (Argument("level", "choice", choices=(1, 2)),)),
    ActionSpec("act", (Argument("value", "json", low=-1, high=1),)),
    ActionSpec("set", (Argument("n", "int", choices=(2, 4)),)),
)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("count", 0, 0),
        ("count", np.int64(9), 9),
        ("share", 1, 1.0),
        ("share", np.float32(0.5), 0.5),
        ("pick", 2, 2),
        ("act", [[1, -1.0], [0.5, 0]], [[1, -1.0], [0.5, 0]]),
        ("act", np.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
        ("act", (0, 1), [0, 1]),
        ("act", {"a": [None, True, "x"]}, {"a": [None, True, "x"]}),
        ("set", 4, 4),
    ],
)
def test_own_values_become_plain(name: str, value: Any, taken: Any):
    (argument,) = next(spec.arguments for spec in OWN if spec.name == name)
    found = checked(name, OWN, **{argument.name: value})
    assert isinstance(found, Action), found
    assert found.arguments[argument.name] == taken
    assert type(found.arguments[argument.name]) is type(taken)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 10),
        ("count", -1),
        ("count", 1.0),
        ("count", True),
        ("count", "1"),
        ("count", None),
        ("share", 0.4),
        ("share", math.inf),
        ("share", None),
        ("share", 10**400),
        ("pick", 3),
        ("pick", True),  # equal to 1, but no level
        ("act", [[0, 2]]),
        ("act", [0, math.nan]),
        ("act", {1: 0}),
        ("act", {1, 0}),
        ("act", b"x"),
        ("act", [1 << 64]),
        ("act", ["\ud800"]),
        ("set", 3),
    ],
)
def test_own_values_out_of_bounds(name: str, value: Any):
    (argument,) = next(spec.arguments for spec in OWN if spec.name == name)
    assert error(name, OWN, **{argument.name: value}) == "bad_argument"


def test_json_that_is_nested_too_deeply():
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    assert plain_json(value) is None
    assert error("act", OWN, value=value) == "bad_argument"
    while value:  # freed level by level
        value = value[0]


def test_messages_are_short():
    for found in (checked("x" * 10**6), checked("click", point="y" * 10**6), checked("type", content="z", **{"a" * 10**6: 1})):
        assert len(found.message) < 600
    assert len(checked("scroll", direction=["up"] * 10**6).message) < 600
    assert "a int" in checked("count", OWN, n=10**5000).message  # Python refuses to print it


def test_with_names_takes_what_is_there():
    assert [spec.name for spec in with_names(COMPUTER, "type", "click")] == ["type", "click"]
    with pytest.raises(KeyError):
        with_names(COMPUTER, "fly")

"""Reading actions out of a model's output: each required result, both formats, and that writing and reading agree."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.actions import COMPUTER, FINISHED, MOBILE, TOOLS, check_against
from envs.api import Action, ActionSpec, Argument, Invalid
from envs.parse import Parsed, parse
from envs.parse_format import format_action
from jaxllm import frames
from jaxllm.errors import UserError

SCREEN = (1920, 1080)
ALL = (*COMPUTER, *TOOLS)
PLAY = (
    ActionSpec("act", (Argument("value", "json", low=-1, high=1),)),
    ActionSpec("move", (Argument("direction", "choice", choices=("up", "down")), Argument("times", "int", 1, False, low=0))),
    ActionSpec("set", (Argument("level", "choice", choices=(0, 1, 2)), Argument("share", "float", 0.5, False))),
    ActionSpec("note", (Argument("data", "json"),)),
    FINISHED,
)


def read(text: str, actions: tuple[ActionSpec, ...] = ALL, **options) -> Parsed:
    return parse(text, actions, **{"frame": "rel1000", "screen_wh": SCREEN, **options})


def one(text: str, actions: tuple[ActionSpec, ...] = ALL, **options) -> Action | Invalid:
    """The only action of a turn, or its error."""
    parsed = read(text, actions, **options)
    if parsed.error:
        assert parsed.actions == ()
        return parsed.error
    (action,) = parsed.actions
    return action


def error(text: str, actions: tuple[ActionSpec, ...] = ALL, **options) -> str:
    found = one(text, actions, **options)
    assert isinstance(found, Invalid), found
    return found.error


# The table of required results


@pytest.mark.parametrize("value", ["", "=", "(a,b)"])
def test_no_point(value: str):
    assert error(f"Action: click(start_box='{value}')") == "bad_point"


def test_no_action():
    assert error("Action:") == "no_action"
    assert error("Action: ") == "no_action"
    assert error("") == "no_action"
    assert error("I would click on the button.") == "no_action"
    assert error("Thought: hm\nclick(point='(1,2)')") == "no_action"  # the whole text is not one call
    assert error("<think>still thinking click(point='(1,2)')") == "no_action"


def test_full_width_colons():
    assert one("Action：click(point='<point>200 300</point>')") == Action("click", {"point": (384.0, 324.0)})
    parsed = read("Thought：look\nAction：wait()")
    assert (parsed.thought, parsed.actions) == ("look", (Action("wait"),))


def test_unknown_name_lists_the_names():
    found = one("Action: tap(point='(1,2)')", MOBILE)
    assert isinstance(found, Invalid)
    assert found.error == "unknown_action"
    assert all(spec.name in found.message for spec in MOBILE)
    assert "'tap'" in found.message
    assert error("Action: os.system('x')") == "unknown_action"


def test_missing_and_extra_arguments_are_named():
    missing = one("Action: click()")
    extra = one("Action: click(point='(1,2)', force='3')")
    twice = one("Action: click(point='(1,2)', point='(1,2)')")
    both = one("Action: click(point='(1,2)', start_box='(1,2)')")
    assert (missing.error, extra.error, twice.error) == ("missing_argument", "extra_argument", "extra_argument")
    assert "point" in missing.message
    assert "'force'" in extra.message
    assert "twice" in twice.message
    assert both.error == "extra_argument"
    assert "foo" in one("Action: type(content='x', foo='y')").message


@pytest.mark.parametrize(
    ("written", "content"),
    [
        ("'it's'", "it's"),
        ("'it's', she said'", "it's', she said"),
        ("'f('a') b'", "f('a') b"),
        ("'a') b'", "a') b"),
        ("'point=5 start_point=6'", "point=5 start_point=6"),
        (r"'seen\n'", "seen\n"),
        (r"'nnn\n\n'", "nnn\n\n"),
        (r"'\\n'", "\\n"),
        (r"'C:\\dir \"x\" \'y\' \d'", "C:\\dir \"x\" 'y' \\d"),
        (r"'\u4f60\x41\ud83d'", "你A\\ud83d"),  # half a surrogate pair is no character
        ("'two\nlines'", "two\nlines"),
        ('"it\'s"', "it's"),
        ("''", ""),
        ("007", "007"),
        ("'__import__('os').system('reboot')'", "__import__('os').system('reboot')"),
        ("'<answer>no</answer>'", "<answer>no</answer>"),
    ],
)
def test_texts(written: str, content: str):
    assert one(f"Action: type(content={written})") == Action("type", {"content": content})


def test_keys():
    assert error("Action: hotkey(key='ctrl shift alt t')") == "too_many_keys"
    assert one("Action: hotkey(key='Ctrl C')") == Action("hotkey", {"key": "ctrl c"})


def test_scroll_without_a_point_is_at_the_centre():
    assert one("Action: scroll(direction='left')") == Action("scroll", {"point": (960.0, 540.0), "direction": "left"})


@pytest.mark.parametrize(
    "value",
    [
        "'__import__('os').system('x')'",
        "__import__('os').system('x')",
        "True",
        "'True, 1'",
        "'0x10 5'",
        "'1e2 5'",
        "'(1+1, 2)'",
        "'(nan, 1)'",
        "'1 2 3'",
        "'1'",
        "'1 2 3 4 5'",
        "'(1,2'",
        "'<point>1 2</bbox>'",
        "5",
        "(1, 2)",
        "'" + "1" * 5000 + " 2'",
    ],
)
def test_what_is_no_point(value: str):
    assert error(f"Action: click(point={value})") == "bad_point"


def test_nothing_is_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("__import__('os').mkdir('made')", "open('made','w')"):
        for turn in (f"Action: {text}", f"Action: click(point={text})", f"Action: type(content='{text}')", text):
            read(turn)
            read(f"<computer_env>{turn}</computer_env>")
    assert list(tmp_path.iterdir()) == []


def test_unclosed_blocks():
    for env in ("code_env", "mcp_env", "computer_env", "answer"):
        assert error(f"<think>t</think>\n<{env}>\nsomething") == "unclosed_env"


def test_two_functions_or_blocks_are_too_many():
    function = "<function=execute_bash><parameter=command>ls</parameter></function>"
    assert error(f"<code_env>{function}{function}</code_env>") == "too_many_actions"
    assert error(f"<code_env>{function}</code_env><code_env>{function}</code_env>") == "too_many_actions"
    assert error(f"<code_env>{function}</code_env>\n<answer>done</answer>") == "too_many_actions"
    assert one(f"<code_env>\n{function}\n</code_env>") == Action("execute_bash", {"command": "ls"})


def test_a_list_of_tools_goes_on_after_an_unknown_one():
    calls = {"Search": {"query": "a"}, "Find": {}, "LinkReader": {"url": "u"}}
    entries = json.dumps([{"name": name, "parameters": parameters} for name, parameters in calls.items()])
    parsed = read(f"<think>t</think><mcp_env><|FunctionCallBegin|>{entries}<|FunctionCallEnd|></mcp_env>")
    search, unknown, reader = parsed.actions
    assert (parsed.error, parsed.thought) == (None, "t")
    assert search == Action("Search", {"query": "a"})
    assert isinstance(unknown, Invalid)
    assert unknown.error == "unknown_action"
    assert reader == Action("LinkReader", {"url": "u", "description": ""})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("[]", "no_action"),
        ("[1", "bad_call"),
        ('{"name": "Search"}', "bad_call"),
        ("[NaN]", "bad_call"),
        ("[" * 5000, "bad_call"),
        ("[" + "1," * 20 + "1]", "too_many_actions"),
    ],
)
def test_lists_that_are_none(body: str, code: str):
    assert error(f"<mcp_env><|FunctionCallBegin|>{body}<|FunctionCallEnd|></mcp_env>") == code
    assert error(f"<mcp_env>{body}</mcp_env>") == "bad_call"


def test_entries_of_a_list_that_are_no_calls():
    entries = '[1, {"name": 5}, {"name": "Search", "parameters": []}, {"name": "Search", "parameters": {"query": 3}}]'
    parsed = read(f"<mcp_env><|FunctionCallBegin|>{entries}<|FunctionCallEnd|></mcp_env>")
    assert [action.error for action in parsed.actions] == ["bad_call", "bad_call", "bad_call", "bad_argument"]


def test_answer_is_finished():
    assert one("<think>t</think>\n<answer>\n42 apples\n</answer>") == Action("finished", {"content": "42 apples"})
    assert one("<answer></answer><|im_end|>") == Action("finished", {"content": ""})
    assert error("<answer>42</answer>", (COMPUTER[0],)) == "unknown_action"


# The first format


@pytest.mark.parametrize(
    "spelling",
    [
        "<point>100 200</point>",
        "(100,200)",
        "(100, 200)",
        "<|box_start|>(100,200)<|box_end|>",
        "<bbox>90 150 110 250</bbox>",
        "[90, 150, 110, 250]",
        "[90,150,110,250]",
        "<point> 100.0  200.00 </point>",
    ],
)
@pytest.mark.parametrize("name", ["point", "start_box", "start_point"])
def test_spellings_of_a_point(spelling: str, name: str):
    assert one(f"Action: click({name}='{spelling}')") == Action("click", {"point": (192.0, 216.0)})


def test_aliases():
    point, drag = {"point": (192.0, 216.0)}, {"start_point": (192.0, 216.0), "end_point": (384.0, 432.0)}
    for written, meant in [
        ("left_single", "click"),
        ("left_click", "click"),
        ("double_click", "left_double"),
        ("right_click", "right_single"),
        ("mouse_move", "hover"),
    ]:
        assert one(f"Action: {written}(start_box='(100,200)')") == Action(meant, point)
    for written in ("select", "left_click_drag", "swipe", "drag"):
        assert one(f"Action: {written}(start_box='(100,200)', end_box='(200,400)')") == Action("drag", drag)
    assert one("Action: scroll(start_box='(100,200)', end_box='(200,400)')", MOBILE) == Action("drag", drag)
    own = (ActionSpec("select", (Argument("name", "text"),)),)
    assert one("Action: select(name='a')", own) == Action("select", {"name": "a"})  # a name of its own is no alias


def test_thoughts():
    assert read("Thought: look here\nAction: wait()").thought == "look here"
    assert read("Action_Summary: wait a bit\nAction: wait()").thought == "wait a bit"
    assert read("Reflection: wrong one.\nAction_Summary: wait\nAction: wait()").thought == "wrong one.\nwait"
    assert read("<think>deep</think>\nThought: shallow\nAction: wait()").thought == "deep\nshallow"
    assert read("wait()").thought == ""
    assert read("Thought: no action").thought == "no action"


def test_the_last_action_counts():
    text = "Thought: I could do\nAction: click(point='(1,2)')\nbut better:\nAction: wait()"
    assert one(text) == Action("wait")
    assert one("Thought: an Action: in a line\nAction: wait()") == Action("wait")
    assert one("Thought: in bash I would use <code_env> here\nAction: wait()") == Action("wait")


def test_several_calls():
    text = "Thought: t\nAction: click(point='(100,200)')\n\ntype(content='it's')\n\nwait()"
    assert error(text) == "too_many_actions"
    assert error(text, max_actions=2) == "too_many_actions"
    parsed = read(text, max_actions=3)
    assert [action.name for action in parsed.actions] == ["click", "type", "wait"]
    assert parsed.actions[1].arguments == {"content": "it's"}
    assert error("Action: type(content='a')\nhotkey(key='enter')") == "too_many_actions"  # never typed as a text
    assert error("Action: click(point='(1,2)')\n\nfly()", max_actions=2) == "unknown_action"


@pytest.mark.parametrize(
    "call",
    [
        "click",
        "click(",
        "click('(1,2)')",
        "click(point)",
        "click(point='(1,2)'",
        "click(point='(1,2)') and more",
        "type(content=x)",
        "type(content='a' 'b')x",
        "type(content='a'.upper())",
        "type(content=f'a')",
        "wait()wait()",
        "3",
    ],
)
def test_what_is_no_call(call: str):
    assert error(f"Action: {call}") == "bad_call"


def test_end_markers_are_dropped():
    assert one("Action: wait()<|im_end|>\n") == Action("wait")
    assert one("wait()</s>") == Action("wait")


# The second format


def test_a_block_of_the_first_format():
    text = "<think>t</think>\n<computer_env>\nAction: click(point='<point>100 200</point>')\n</computer_env>"
    assert read(text) == Parsed((Action("click", {"point": (192.0, 216.0)}),), None, "t")


def test_values_of_parameters_are_taken_as_they_are():
    script = 'if a < b && c:\n    print("</parameter> &amp;")\nAction: wait()\n'
    text = (
        "<think>t</think><code_env><function=str_replace_editor><parameter=command>create</parameter>\n"
        f"<parameter=path>/x</parameter>\n<parameter=file_text>\n{script}\n</parameter>\n</function></code_env>"
    )
    arguments = one(text).arguments
    assert arguments["file_text"] == script
    assert (arguments["command"], arguments["path"], arguments["old_str"]) == ("create", "/x", None)


def test_parameters_that_are_no_text():
    def view(value: str) -> Action | Invalid:
        parameters = (
            f"<parameter=command>view</parameter><parameter=path>/x</parameter><parameter=view_range>{value}</parameter>"
        )
        return one(f"<code_env><function=str_replace_editor>{parameters}</function></code_env>")

    assert view("[1, -1]").arguments["view_range"] == [1, -1]
    assert view("[1, -2]").error == "bad_argument"
    assert view("1 to 2").error == "bad_argument"
    text = "<code_env><function=JupyterCI><parameter=code>1</parameter><parameter=timeout>5</parameter></function></code_env>"
    assert one(text) == Action("JupyterCI", {"code": "1", "timeout": 5.0})
    assert one(text.replace("JupyterCI", "python")) == Action("JupyterCI", {"code": "1", "timeout": 5.0})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "no_action"),
        ("ls", "bad_call"),
        ("<function=execute_bash><parameter=command>ls</function>", "bad_call"),
        ("<function=execute_bash><parameter=command>ls</parameter>", "bad_call"),
        ("<function=execute_bash>ls</function>", "bad_call"),
        ("<function=rm><parameter=command>ls</parameter></function>", "unknown_action"),
        ("<function=execute_bash></function>", "missing_argument"),
        ("<function=execute_bash><parameter=cmd>ls</parameter></function>", "extra_argument"),
        ("<function=execute_bash>" + "<parameter=command>ls</parameter>" * 2 + "</function>", "extra_argument"),
    ],
)
def test_what_is_no_function(body: str, code: str):
    assert error(f"<code_env>{body}</code_env>") == code


# Frames


def test_relative_points_are_rounded():
    assert one("Action: click(point='(235,512)')").arguments["point"] == (451.0, 553.0)


def test_points_on_the_resized_picture():
    height, width = frames.PRESETS["ui_tars"].size(1080, 1920)
    assert (height, width) == (1092, 1932)
    found = one("Action: click(point='(197,525)')", frame="resized", resized_wh=(width, height)).arguments["point"]
    assert found == pytest.approx((195.7763975, 519.2307692), abs=1e-7)


def test_boxes_use_the_width_for_x_and_the_height_for_y():
    assert one("Action: click(start_box='[0, 0, 500, 500]')").arguments["point"] == (480.0, 270.0)


@pytest.mark.parametrize(
    ("point", "pixel"),
    [((0, 0), (0, 0)), ((1000, 1000), (1919, 1079)), ((1019, 500), (1919, 540)), ((-20, 500), (0, 540))],
)
def test_points_beside_the_screen_are_moved_to_the_edge(point: tuple, pixel: tuple):
    assert one(f"Action: click(point='{point}')").arguments["point"] == pixel


@pytest.mark.parametrize("point", [(1020, 500), (-21, 500), (500, 1021), (500, -21), (1500, 1500)])
def test_points_further_out_are_off_screen(point: tuple):
    assert error(f"Action: click(point='{point}')") == "off_screen"


def test_frames_that_need_a_size_say_so():
    with pytest.raises(UserError, match="frame 'pixels' is unknown"):
        parse("wait()", ALL, frame="pixels", screen_wh=SCREEN)
    with pytest.raises(UserError, match="give screen_wh"):
        parse("wait()", ALL, frame="rel1000", screen_wh=None)
    with pytest.raises(UserError, match="give resized_wh"):
        parse("wait()", ALL, frame="resized", screen_wh=SCREEN)
    assert parse("wait()", ALL, frame="orig", screen_wh=None).actions == (Action("wait"),)


# An environment's own actions


def test_own_actions():
    def own(text: str) -> Action | Invalid:
        return one(text, PLAY)

    assert own("Action: act(value=[0.5, -1])") == Action("act", {"value": [0.5, -1]})
    assert own("Action: act(value='[0.5, -1]')") == Action("act", {"value": [0.5, -1]})
    assert own("Action: act(value=[0.5, 2])").error == "bad_argument"
    assert own("Action: act(value=[0.5, NaN])").error == "bad_call"
    assert own("Action: act(value=1e400)").error == "bad_argument"
    assert own("Action: act(value=" + "[" * 3000).error == "bad_call"
    assert own("Action: move(direction='up')") == Action("move", {"direction": "up", "times": 1})
    assert own("Action: move(direction='up', times='3')") == Action("move", {"direction": "up", "times": 3})
    assert own("Action: move(direction='left')").error == "bad_argument"
    assert own("Action: set(level=2)") == Action("set", {"level": 2, "share": 0.5})
    assert own("Action: set(level=3)").error == "bad_argument"
    assert own("Action: set(level=1, share=-1e-3)") == Action("set", {"level": 1, "share": -0.001})
    assert own('Action: note(data={"a": [1, null, "b"]})') == Action("note", {"data": {"a": [1, None, "b"]}})


# Writing and reading agree

WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(
        st.sampled_from(
            [
                "'",
                '"',
                "\\",
                "\n",
                "\\n",
                "')",
                "',",
                "content='",
                "</parameter>",
                "<parameter=path>",
                "</function>",
                "</code_env>",
                "<answer>",
                "</answer>",
                "</mcp_env>",
                "<|FunctionCallEnd|>",
                "Action:",
                "<think>",
                "</think>",
                "</s>",
                " ",
                "(",
                "u0041",
            ]
        ),
        max_size=8,
    ).map("".join),
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | NUMBERS | WORDS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=3),
    max_leaves=8,
)
KEYS = st.lists(
    st.sampled_from(["ctrl", "shift", "enter", "f5", "a", "+", "'", "\\", "ü", '"']), min_size=1, max_size=3, unique=True
).map(" ".join)


def values(argument: Argument, points: st.SearchStrategy) -> st.SearchStrategy:
    if argument.choices:
        return st.sampled_from(argument.choices)
    low, high = argument.low, argument.high
    return {
        "point": points,
        "text": WORDS,
        "key": KEYS,
        "int": st.integers(-(2**63) if low is None else int(low), 2**63 - 1),
        "float": st.floats(low, high, allow_nan=False, allow_infinity=False),
        "json": JSON
        if low is None
        else st.lists(st.floats(low, high, allow_nan=False, allow_infinity=False) | st.integers(math.ceil(low), 1), max_size=4),
    }[argument.kind]


@st.composite
def checked_actions(draw: st.DrawFn, table: tuple[ActionSpec, ...], points: st.SearchStrategy) -> Action:
    spec = draw(st.sampled_from(table))
    given = {
        argument.name: draw(values(argument, points)) for argument in spec.arguments if argument.required or draw(st.booleans())
    }
    action = check_against(Action(spec.name, given), table, SCREEN)
    assert isinstance(action, Action), action
    return action


ANYWHERE = st.tuples(st.floats(0, 1919), st.floats(0, 1079))
PIXELS = st.tuples(st.integers(0, 1919).map(float), st.integers(0, 1079).map(float))


@pytest.mark.parametrize("style", ["gui", "hybrid"])
@pytest.mark.parametrize("table", [ALL, MOBILE, PLAY], ids=["computer and tools", "mobile", "own"])
@settings(max_examples=150, deadline=None)
@given(data=st.data(), thought=st.none() | st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"])))
def test_what_is_written_is_read_again(style: str, table: tuple[ActionSpec, ...], data: st.DataObject, thought: str | None):
    action = data.draw(checked_actions(table, ANYWHERE))
    text = format_action(action, table, style=style, thought=thought)
    assert parse(text, table, frame="orig", screen_wh=SCREEN).actions == (action,)


@settings(max_examples=100, deadline=None)
@given(action=checked_actions(COMPUTER, PIXELS), frame=st.sampled_from(["rel1000", "rel999", "norm01"]))
def test_whole_pixels_come_back_from_relative_frames(action: Action, frame: str):
    text = format_action(action, COMPUTER, frame=frame, screen_wh=SCREEN)
    assert parse(text, COMPUTER, frame=frame, screen_wh=SCREEN).actions == (action,)


@settings(max_examples=50, deadline=None)
@given(point=ANYWHERE)
def test_points_come_back_from_the_resized_frame(point: tuple[float, float]):
    sizes = {"frame": "resized", "screen_wh": SCREEN, "resized_wh": (1932, 1092)}
    text = format_action(Action("click", {"point": point}), COMPUTER, **sizes)
    (action,) = parse(text, COMPUTER, **sizes).actions
    assert action.arguments["point"] == pytest.approx(point, rel=1e-14, abs=1e-300)


def test_format_refuses_what_it_does_not_know():
    with pytest.raises(UserError, match="no action 'fly'"):
        format_action(Action("fly"), COMPUTER)
    with pytest.raises(UserError, match="click takes point"):
        format_action(Action("click", {"at": (1, 2)}), COMPUTER)
    with pytest.raises(UserError, match="style 'xml' is unknown"):
        format_action(Action("wait"), COMPUTER, style="xml")


# Hostile text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["Action:", "\n", "click(", "point=", "'", ")", ",", "\\", "<think>", "</think>", "<code_env>", "</code_env>"]
        )
        | st.sampled_from(["<function=execute_bash>", "<parameter=command>", "</parameter>", "</function>", "type(content="])
        | st.sampled_from(
            ["<mcp_env>", "</mcp_env>", "<|FunctionCallBegin|>", "<|FunctionCallEnd|>", '[{"name":', "{", "]", "\ud800"]
        )
        | st.text(max_size=5),
        max_size=25,
    ).map("".join)
)
def test_no_text_raises(text: str):
    parsed = read(text, max_actions=2)
    assert (parsed.error is None) == bool(parsed.actions)
    for action in parsed.actions:
        assert isinstance(action, Invalid) or check_against(action, ALL, SCREEN) == action


MEGABYTE = 1_000_000
HOSTILE = {
    "quotes": "Action: type(content=" + "'" * MEGABYTE,
    "quotes within the limit": "Action: type(content='" + "'" * 65_000 + "x)",
    "backslashes": "Action: type(content='" + "\\" * MEGABYTE,
    "escapes": "Action: type(content='" + r"\u0041" * 10_900 + "')",
    "commas": "Action: type(content='" + "', " * 21_000 + "x)",
    "ends": "Action: type(content='" + "')\n" * 21_000 + "x)",
    "blanks": "Action: type(content='" + "')" + " " * 65_000 + "x",
    "only blanks": " " * MEGABYTE + "x",
    "actions": "\nAction:" * (MEGABYTE // 8),
    "calls": "Action: " + "wait()\n" * 9_000,
    "thoughts": "<think>" * (MEGABYTE // 7),
    "summaries": "Reflection: " + "Action_Summary" * (MEGABYTE // 14),
    "opened blocks": "<code_env>" * (MEGABYTE // 10),
    "parameters": "<code_env><function=execute_bash>" + "<parameter=a></parameter>" * 40_000 + "</function></code_env>",
    "ends of parameters": "<code_env><function=execute_bash><parameter=a>" + "</parameter> " * 80_000 + "</code_env>",
    "ends within the limit": "<code_env><function=execute_bash><parameter=command>" + "</parameter> " * 20_000 + "</code_env>",
    "brackets": "<mcp_env><|FunctionCallBegin|>" + "[" * MEGABYTE + "<|FunctionCallEnd|></mcp_env>",
    "brackets within the limit": "<mcp_env><|FunctionCallBegin|>" + "[" * 250_000 + "<|FunctionCallEnd|></mcp_env>",
    "objects": "<mcp_env><|FunctionCallBegin|>[" + "{}," * 80_000 + "{}]<|FunctionCallEnd|></mcp_env>",
    "digits": "Action: click(point='" + "1" * MEGABYTE + "')",
    "a long thought": "Thought: " + "word " * (MEGABYTE // 5) + "\nAction: wait()",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_megabyte_takes_less_than_50_milliseconds(text: str):
    seconds = []
    for _ in range(5):  # the least of some: the machine may be busy
        begun = time.process_time()
        read(text)
        seconds.append(time.process_time() - begun)
        if seconds[-1] < 0.05:
            break
    assert min(seconds) < 0.05


def test_limits_leave_room_for_real_texts():
    essay = "It's a line.\n" * 3_000
    assert one(format_action(Action("type", {"content": essay}), COMPUTER)).arguments["content"] == essay
    script = "print('<a>')\n" * 15_000
    written = format_action(Action("execute_bash", {"command": script}), ALL, style="hybrid")
    assert one(written).arguments["command"] == script

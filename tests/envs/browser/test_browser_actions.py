"""Every action of the table as a page sees it: its events (UI Events, W3C) and what they lead to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envs.actions import COMPUTER
from envs.api import Action, Invalid
from envs.browser import Browser
from jaxllm.errors import UserError

Show = Callable[[str], Browser]

RECORDER = """
<script>
  var events = [];
  for (const kind of ["mousedown", "mouseup", "click", "dblclick", "contextmenu", "auxclick", "keydown", "keyup"])
    addEventListener(kind, (e) => events.push([kind, e.key ?? e.button, e.clientX ?? 0, e.clientY ?? 0]), true);
  addEventListener("contextmenu", (e) => e.preventDefault());
</script>
"""


def events(browser: Browser, name: str, **arguments: object) -> list[list[object]]:
    """What the page saw of an action."""
    browser.evaluate("void (events = [])")
    assert browser.act(Action(name, arguments)) is None
    return browser.evaluate("events")


def test_clicks_of_every_button(show: Show):
    browser = show(RECORDER)
    at = (30, 40)
    left = [[kind, 0, 30, 40] for kind in ("mousedown", "mouseup", "click")]
    assert events(browser, "click", point=at) == left
    assert events(browser, "left_double", point=at) == [*left, *left, ["dblclick", 0, 30, 40]]
    right = events(browser, "right_single", point=at)
    assert [kind for kind, *_ in right] == ["mousedown", "contextmenu", "mouseup", "auxclick"]
    assert {button for _, button, *_ in right} == {2}
    assert events(browser, "middle_click", point=at) == [[kind, 1, 30, 40] for kind in ("mousedown", "mouseup", "auxclick")]


def test_a_button_held_and_released_elsewhere(show: Show):
    browser = show(RECORDER)
    browser.act(Action("hover", {"point": (10, 10)}))
    assert events(browser, "mouse_down") == [["mousedown", 0, 10, 10]]
    assert events(browser, "mouse_up", point=(50, 60)) == [["mouseup", 0, 50, 60], ["click", 0, 50, 60]]


def test_hovering(show: Show):
    browser = show('<style>#a:hover { color: rgb(1, 2, 3) }</style><p id="a">here</p>')
    browser.act(Action("hover", {"point": (5, 25)}))
    assert browser.evaluate("getComputedStyle(a).color") == "rgb(1, 2, 3)"


def test_a_drag_moves_a_thing_along(show: Show):
    browser = show(
        '<div id="a" style="position:absolute;left:10px;top:10px;width:20px;height:20px"></div>'
        "<script>var held = false, moves = 0;"
        "a.onmousedown = () => held = true; onmouseup = () => held = false; onmousemove = (e) => { if (held) { moves++;"
        "a.style.left = e.clientX - 10 + 'px'; a.style.top = e.clientY - 10 + 'px' } }</script>"
    )
    browser.act(Action("drag", {"start_point": (20, 20), "end_point": (220, 120)}))
    assert browser.evaluate("[a.offsetLeft, a.offsetTop, held]") == [210, 110, False]
    assert browser.evaluate("moves") >= 10


def test_keys_and_chords(show: Show):
    browser = show(RECORDER)
    down_and_up = ("keydown", "keyup")
    assert events(browser, "hotkey", key="down") == [[kind, "ArrowDown", 0, 0] for kind in down_and_up]
    chord = events(browser, "hotkey", key="ctrl shift k")
    assert [event[:2] for event in chord] == [
        *(["keydown", key] for key in ("Control", "Shift", "K")),
        *(["keyup", key] for key in ("K", "Shift", "Control")),
    ]
    assert events(browser, "press", key="shift") == [["keydown", "Shift", 0, 0]]
    assert events(browser, "hotkey", key="1") == [[kind, "!", 0, 0] for kind in down_and_up]
    assert events(browser, "release", key="shift") == [["keyup", "Shift", 0, 0]]
    assert events(browser, "hotkey", key="1") == [[kind, "1", 0, 0] for kind in down_and_up]


def test_typing_and_submitting(show: Show):
    browser = show('<form onsubmit="sent = a.value; return false"><input id="a"></form><script>var sent = null</script>')
    browser.act(Action("click", {"point": (20, 10)}))
    browser.act(Action("type", {"content": "Ab 1!ß漢"}))
    assert browser.evaluate("[a.value, sent]") == ["Ab 1!ß漢", None]
    browser.act(Action("type", {"content": "?\n"}))
    assert browser.evaluate("sent") == "Ab 1!ß漢?"


def test_newlines_and_long_text_in_a_text_box(show: Show):
    browser = show('<textarea id="a" style="width:200px;height:100px"></textarea>')
    browser.act(Action("click", {"point": (20, 20)}))
    text = "one\ntwo " + "x" * 300
    browser.act(Action("type", {"content": text}))
    assert browser.evaluate("a.value") == text


def test_copy_and_paste(show: Show):
    browser = show('<input id="a" value="word"><input id="b" style="position:absolute;left:0;top:50px">')
    browser.act(Action("click", {"point": (20, 10)}))
    for key in ("ctrl a", "ctrl c"):
        browser.act(Action("hotkey", {"key": key}))
    browser.act(Action("click", {"point": (20, 60)}))
    browser.act(Action("hotkey", {"key": "ctrl v"}))
    assert browser.evaluate("b.value") == "word"


@pytest.mark.parametrize(
    ("direction", "position"), [("down", [500, 1000]), ("up", [500, 0]), ("right", [1000, 500]), ("left", [0, 500])]
)
def test_scrolling_shows_more_on_that_side(show: Show, direction: str, position: list[int]):
    # Five notches of 100 px.
    browser = show('<div style="width:5000px;height:5000px"></div><script>scrollTo(500, 500)</script>')
    browser.act(Action("scroll", {"direction": direction}))
    assert browser.evaluate("[scrollX, scrollY]") == position


def test_scrolling_within_a_box_under_the_pointer(show: Show):
    browser = show('<div id="a" style="width:100px;height:100px;overflow:auto"><p style="height:3000px;margin:0"></p></div>')
    browser.act(Action("scroll", {"point": (50, 50), "direction": "down"}))
    assert browser.evaluate("[a.scrollTop, scrollY]") == [500, 0]


def test_links_back_and_places_that_are_out_of_reach(show: Show, folder: Path):
    (folder / "other.html").write_text("<title>other</title>", encoding="utf-8")
    browser = show('<title>first</title><a href="other.html">go</a>')
    browser.act(Action("click", {"point": (5, 10)}))
    assert browser.evaluate("document.title") == "other"
    assert browser.act(Action("navigate_back")) is None
    assert browser.evaluate("document.title") == "first"
    assert browser.act(Action("navigate", {"url": (folder / "other.html").as_uri()})) is None
    assert browser.evaluate("document.title") == "other"
    for url in (
        "file:///etc/passwd",
        "http://127.0.0.1:9/",
        "javascript:alert(1)",
        "chrome://version",
        "data:text/html,x",
        "no url",
    ):
        refused = browser.act(Action("navigate", {"url": url}))
        assert isinstance(refused, Invalid)
        assert refused.error == "not_allowed"
    assert browser.evaluate("document.title") == "other"


def test_nothing_to_go_back_to(folder: Path):
    with Browser.open((100, 100), files=folder, patience=30.0) as browser:
        refused = browser.act(Action("navigate_back"))
        assert isinstance(refused, Invalid)
        assert refused.error == "no_history"


def test_points_outside_change_nothing(show: Show):
    browser = show(RECORDER)
    before = browser.evaluate("Date.now()")
    refused = browser.act(Action("click", {"point": (400, 10)}))
    assert isinstance(refused, Invalid)
    assert refused.error == "off_screen"
    assert browser.evaluate("[events.length, Date.now()]") == [0, before]


def test_every_action_of_the_table_is_understood(show: Show):
    values = {
        "point": (10, 10),
        "start_point": (10, 10),
        "end_point": (20, 20),
        "key": "a",
        "content": "a",
        "direction": "down",
    }
    for spec in COMPUTER:
        browser = show("")
        arguments = {argument.name: values.get(argument.name) for argument in spec.arguments if argument.required}
        if spec.name == "navigate":
            arguments = {"url": browser.url}
        refused = browser.act(Action(spec.name, arguments))
        assert refused is None or refused.error == "no_history", (spec.name, refused)


def test_dialogs_are_accepted_and_remembered(show: Show):
    browser = show(
        "<button onclick=\"alert('hello'); answers = [confirm('sure?'), prompt('name?', 'bob')]\">ask</button>"
        "<script>var answers; addEventListener('beforeunload', (e) => e.preventDefault())</script>"
    )
    browser.act(Action("click", {"point": (10, 10)}))
    assert browser.evaluate("answers") == [True, "bob"]
    assert browser.dialogs == (("alert", "hello"), ("confirm", "sure?"), ("prompt", "name?"))
    show("")  # the page asks before it is left, and is left
    assert browser.evaluate("document.body.textContent") == ""


@pytest.mark.parametrize(
    "opener", ['<a href="other.html" target="_blank">go</a>', "<button onclick=\"window.open('other.html')\">go</button>"]
)
def test_a_new_window_opens_in_the_page_itself(show: Show, folder: Path, opener: str):
    (folder / "other.html").write_text("<title>other</title>", encoding="utf-8")
    browser = show(opener)
    browser.act(Action("click", {"point": (8, 10)}))
    assert browser.url.endswith("/other.html")
    assert browser.evaluate("document.title") == "other"


def test_files_for_an_input(show: Show, folder: Path):
    (folder / "sent.txt").write_text("12345", encoding="utf-8")
    browser = show('<input type="file" id="a" style="position:absolute;left:0;top:0">')
    content = "a.files.length && a.files[0].name + ' ' + a.files[0].size"
    with pytest.raises(UserError, match="click its input"):
        browser.choose_files([folder / "sent.txt"])
    browser.act(Action("click", {"point": (20, 10)}))
    assert browser.asks_for_files
    browser.choose_files([folder / "sent.txt"])
    assert browser.evaluate(content) == "sent.txt 5"
    assert not browser.asks_for_files
    browser.evaluate("void (a.value = '')")
    browser.set_files("#a", [folder / "sent.txt"])
    assert browser.evaluate(content) == "sent.txt 5"
    with pytest.raises(UserError, match="not a file of the browser's folders"):
        browser.set_files("#a", ["/etc/passwd"])
    with pytest.raises(UserError, match="#b"):
        browser.set_files("#b", [folder / "sent.txt"])


def test_scripts_before_the_page_and_errors_in_scripts(folder: Path):
    from envs.browser import ScriptError

    page = folder / "scripts.html"
    page.write_text("<script>var seen = window.early</script>", encoding="utf-8")
    with Browser.open((100, 100), files=folder, patience=30.0) as browser:
        browser.add_script("window.early = 7")
        browser.navigate(page.as_uri())
        assert browser.evaluate("seen") == 7
        with pytest.raises(ScriptError, match="nothing is not defined"):
            browser.evaluate("nothing")
        with pytest.raises(ScriptError, match=r"circular|reference chain"):
            browser.evaluate("(() => { const a = {}; a.a = a; return a })()")
        browser.recycle()
        browser.navigate(page.as_uri())
        assert browser.evaluate("seen") == 7
        assert browser.navigations == 1

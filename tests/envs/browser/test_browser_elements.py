"""What the list of elements says of a page, against the page itself."""

from collections.abc import Callable

import pytest

from envs.api import Action
from envs.browser import Browser
from envs.browser.elements import MAX_ELEMENTS

Show = Callable[[str], Browser]


def test_boxes_are_those_of_the_page(show: Show):
    browser = show(
        '<button id="a" style="margin:7px">ok</button><p id="b">some <b>bold</b> words</p><a id="c" href="#">link</a>'
        '<input id="d" value="v" style="position:absolute;left:150px;top:100.5px;width:80px">'
        '<svg style="position:absolute;left:200px;top:20px" width="60" height="60">'
        '<circle id="e" cx="30" cy="30" r="10" fill="red"/></svg>'
        "<style>#f { position: absolute; left: 10px; top: 150px; width: 20px; height: 20px; background: blue;"
        "transform: rotate(45deg) }</style>"
        '<div id="f"></div>'
    )
    found = {element.attributes["id"]: element for element in browser.elements()}
    assert sorted(found) == ["a", "b", "c", "d", "e", "f"]
    for name, element in found.items():
        box = browser.evaluate(
            f"(() => {{ const r = {name}.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] }})()"
        )
        assert element.box == pytest.approx(box)
    assert [(found[name].role, found[name].text) for name in "abcdef"] == [
        ("button", "ok"),
        ("text", "some bold words"),
        ("link", "link"),
        ("textbox", ""),
        ("circle", ""),
        ("graphic", ""),
    ]
    assert found["d"].attributes["value"] == "v"
    assert found["e"].attributes["fill"] == "rgb(255, 0, 0)"


def test_a_click_on_a_boxs_middle_hits_the_element(show: Show):
    browser = show("".join(f'<button id="b{n}" style="margin:3px" onclick="hit = this.id">{n}</button>' for n in range(12)))
    for element in browser.elements():
        x1, y1, x2, y2 = element.box
        browser.act(Action("click", {"point": ((x1 + x2) / 2, (y1 + y2) / 2)}))
        assert browser.evaluate("hit") == element.attributes["id"]


@pytest.mark.parametrize(
    "hidden",
    [
        "display:none",
        "visibility:hidden",
        "opacity:0",
        "position:absolute;left:-500px",
        "position:absolute;top:900px",
        "width:0;height:0;overflow:hidden;padding:0;border:0",
    ],
)
def test_what_can_not_be_seen_is_not_listed(show: Show, hidden: str):
    browser = show(f'<button id="a" style="{hidden}">a</button><button id="b">b</button>')
    assert [element.attributes["id"] for element in browser.elements()] == ["b"]


def test_what_something_else_covers_is_not_listed(show: Show):
    browser = show(
        '<button id="a">a</button><p id="b" style="position:absolute;left:0;top:0;width:300px;height:200px;margin:0">b</p>'
    )
    assert [element.attributes["id"] for element in browser.elements()] == ["b"]


def test_what_a_box_cuts_off_is_cut_off(show: Show):
    browser = show(
        '<div style="position:absolute;left:0;top:0;width:50px;height:40px;overflow:hidden">'
        '<p id="a" style="position:absolute;left:20px;top:20px;width:100px;height:100px;margin:0">a</p>'
        '<p id="b" style="position:absolute;left:80px;top:0;margin:0">b</p></div>'
    )
    assert [(element.attributes["id"], element.box) for element in browser.elements()] == [("a", (20, 20, 50, 40))]


def test_states_of_controls(show: Show):
    browser = show(
        '<label><input type="checkbox" id="a" checked>tick</label><input type="radio" id="b">'
        '<select id="c"><option>x<option selected>y</select>'
        '<textarea id="d" disabled>text</textarea><input id="e" placeholder="here" autofocus><script>e.focus()</script>'
    )
    found = {element.attributes.get("id"): element for element in browser.elements()}
    assert (found["a"].role, found["a"].attributes["checked"], found["a"].attributes["label"]) == ("checkbox", True, "tick")
    assert (found["b"].role, found["b"].attributes["checked"]) == ("radio", False)
    assert (found["c"].role, found["c"].attributes["value"], found["c"].attributes["options"]) == ("combobox", "y", ["x", "y"])
    assert (found["d"].attributes["disabled"], found["d"].attributes["value"]) == (True, "text")
    assert (found["e"].attributes["focused"], found["e"].attributes["placeholder"]) == (True, "here")
    assert "focused" not in found["a"].attributes


def test_frames_and_shadows_are_looked_into(show: Show):
    browser = show(
        '<iframe style="position:absolute;left:20px;top:30px;width:100px;height:60px;border:5px solid" '
        'srcdoc="<body style=margin:0><button id=inner>in</button>"></iframe><div id="host"></div>'
        "<script>host.attachShadow({mode: 'open'}).innerHTML = '<button id=shade>s</button>'</script>"
    )
    found = {element.attributes.get("id"): element for element in browser.elements()}
    assert found["inner"].box[:2] == (25, 35)
    assert found["shade"].text == "s"


def test_the_page_can_not_bend_the_list(show: Show):
    browser = show(
        '<button id="a">a</button><script>Array.prototype.push = () => 0; Element.prototype.getBoundingClientRect = () => null;'
        "window.getComputedStyle = null; Set.prototype.has = () => true</script>"
    )
    assert [element.text for element in browser.elements()] == ["a"]


def test_ids_count_and_the_list_ends(show: Show):
    browser = show(
        "".join('<i style="position:absolute;width:4px;height:4px;background:red"></i>' for _ in range(10)) + "<p>x</p>" * 5
    )
    ids = [element.id for element in browser.elements()]
    assert ids == list(range(1, len(ids) + 1))
    browser.evaluate(f"void (document.body.innerHTML = '<u>x</u> '.repeat({MAX_ELEMENTS * 2}).replaceAll('u>', 'q>'))")
    assert len(browser.elements()) <= MAX_ELEMENTS

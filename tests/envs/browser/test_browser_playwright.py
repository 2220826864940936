"""The second driver does what the first does, as far as it can."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from envs.api import Action
from envs.browser import Browser, CrashedError, HungError, ScriptError
from jaxllm.errors import UserError

PAGE = """<!doctype html><body style="margin:0">
<button id="a" onclick="clicks++">press</button><input id="b" style="position:absolute;left:100px;top:0;width:80px">
<a href="made.csv" download="made.csv" style="position:absolute;left:0;top:50px">file</a>
<img src="http://127.0.0.1:9/x.png">
<script>var clicks = 0, ticks = 0; setInterval(() => ticks++, 10)</script>
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """Playwright on a page with some controls."""
    for name in ("files", "downloads"):
        (tmp_path / name).mkdir()
    (tmp_path / "files" / "made.csv").write_text("x,y", encoding="utf-8")
    page = tmp_path / "files" / "page.html"
    page.write_text(PAGE, encoding="utf-8")
    (tmp_path / "files" / "secret.html").symlink_to("/etc/passwd")
    with Browser.open(
        (300, 200), files=page.parent, downloads=tmp_path / "downloads", backend="playwright", patience=60.0
    ) as opened:
        opened.navigate(page.as_uri())
        yield opened


def test_the_same_interface(browser: Browser, tmp_path: Path):
    assert browser.backend == "playwright"
    before = browser.evaluate("[Date.now(), ticks]")
    assert browser.evaluate("[Date.now(), ticks]") == before
    assert browser.act(Action("click", {"point": (10, 10)})) is None
    assert browser.evaluate("[clicks, Date.now()]") == [1, before[0] + 150]
    browser.advance(1000)
    assert browser.evaluate("ticks") == before[1] + 115
    browser.act(Action("click", {"point": (120, 10)}))
    browser.act(Action("type", {"content": "Aß1"}))
    found = {element.attributes.get("id"): element for element in browser.elements()}
    assert found["b"].attributes["value"] == "Aß1"
    assert browser.evaluate("(() => { const r = a.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] })()") == [
        *found["a"].box
    ]
    assert browser.screenshot().startswith(b"\x89PNG")
    browser.act(Action("click", {"point": (4, 60)}))
    assert browser.downloaded == ("made.csv",)
    assert (tmp_path / "downloads" / "made.csv").read_text() == "x,y"
    assert browser.refused == ("http://127.0.0.1:9/x.png",)
    for url in ("file:///etc/passwd", (tmp_path / "files" / "secret.html").as_uri()):
        with pytest.raises(UserError, match="out of reach"):
            browser.navigate(url)
    with pytest.raises(ScriptError, match="nothing is not defined"):
        browser.evaluate("nothing")


def test_a_dead_browser(browser: Browser):
    psutil.Process(browser.pid).kill()
    with pytest.raises(CrashedError):
        browser.evaluate("'x'.repeat(10)")
    browser.recycle()
    assert browser.evaluate("1 + 1") == 2


def test_an_endless_script(tmp_path: Path):
    with Browser.open((100, 100), backend="playwright", patience=1.5) as browser, pytest.raises(HungError):
        browser.evaluate("(() => { for (;;); })()")


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {process.pid for process in psutil.Process().children(True)}
    Browser.open((100, 100), backend="playwright", patience=60.0).close()
    assert {process.pid for process in psutil.Process().children(True)} <= before
    assert list(tmp_path.iterdir()) == []

"""The page's time moves when it is told to, and not otherwise."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.api import Action
from envs.browser import Browser

Show = Callable[[str], Browser]

MOVING = """
<style>
  #box { position: absolute; top: 10px; width: 20px; height: 20px; background: red; animation: move 2s linear forwards }
  @keyframes move { from { left: 0 } to { left: 200px } }
</style>
<div id="box"></div>
<script>
  var timers = 0, frames = 0;
  setInterval(() => timers++, 10);
  (function frame() { frames++; requestAnimationFrame(frame) })();
  const left = () => parseFloat(getComputedStyle(box).left);
  const clocks = () => [performance.now(), Date.now(), document.timeline.currentTime, left(), timers, frames];
</script>
"""


def test_a_second_moves_a_css_animation_by_what_a_second_is(show: Show):
    browser = show(MOVING)
    before = browser.evaluate("clocks()")
    at = browser.time
    browser.advance(1000)
    now, date, timeline, left, timers, _ = (b - a for a, b in zip(before, browser.evaluate("clocks()"), strict=True))
    assert browser.time - at == pytest.approx(1.0)
    assert date == 1000
    assert timers == 100
    # `performance.now` is rounded to 0.1 ms, and 1000 ms of 2 s are 100 of 200 px.
    assert now == pytest.approx(1000, abs=0.11)
    assert timeline == pytest.approx(1000, abs=0.11)
    assert left == pytest.approx(100, abs=0.02)


def test_nothing_moves_while_real_time_passes(show: Show):
    browser = show(MOVING)
    browser.advance(200)
    image, before = browser.screenshot(), browser.evaluate("clocks()")
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        assert browser.evaluate("clocks()") == before
    assert browser.screenshot() == image
    assert browser.evaluate("clocks().slice(0, 2).concat(timers)") == [*before[:2], before[4]]
    browser.advance(200)
    assert browser.evaluate("clocks()")[1] - before[1] == 200  # the negative control: it does move when told to


def test_a_page_with_a_limit_of_ten_seconds_runs_out_of_virtual_time_only(show: Show):
    browser = show("<script>var out = false; setTimeout(() => out = true, 10000)</script>")
    browser.advance(9900)
    assert browser.evaluate("out") is False
    browser.advance(100)
    assert browser.evaluate("out") is True


def test_timers_run_in_the_order_in_which_they_are_due(show: Show):
    browser = show(
        "<script>var order = []; for (const [name, ms] of [['d', 70], ['a', 10], ['c', 60], ['b', 10]])"
        "setTimeout(() => order.push(name), ms)</script>"
    )
    browser.advance(100)
    assert browser.evaluate("order.join('')") == "abcd"


def test_an_action_takes_150_ms_a_drag_a_second_more_and_waiting_five(show: Show):
    browser = show("")

    def taken(action: Action) -> int:
        before = browser.evaluate("Date.now()")
        assert browser.act(action) is None
        return browser.evaluate("Date.now()") - before

    assert taken(Action("click", {"point": (5, 5)})) == 150
    assert taken(Action("type", {"content": "abc"})) == 150
    assert taken(Action("drag", {"start_point": (5, 5), "end_point": (50, 50)})) == 1150
    assert taken(Action("wait")) == 5000


def test_animated_pages_get_sixty_frames_a_second(folder: Path):
    page = folder / "frames.html"
    page.write_text(MOVING, encoding="utf-8")
    with Browser.open((300, 100), files=folder, animated=True, patience=30.0) as browser:
        browser.navigate(page.as_uri())
        before = browser.evaluate("frames")
        browser.advance(1000)
        assert 59 <= browser.evaluate("frames") - before <= 62


def test_an_endless_chain_of_zero_delays_does_not_stop_the_clock(show: Show):
    browser = show(
        "<script>var n = 0; const c = new MessageChannel(); c.port1.onmessage = () => { n++; c.port2.postMessage(0) };"
        "c.port2.postMessage(0)</script>"
    )
    before = browser.evaluate("Date.now()")
    browser.advance(50)
    assert browser.evaluate("Date.now()") - before == 50
    assert browser.evaluate("n") > 0


_RUN = """
import hashlib, sys, pathlib
from envs.api import Action
from envs.browser import Browser
page = pathlib.Path(sys.argv[1])
with Browser.open((200, 120), files=page.parent, patience=60.0) as browser:
    browser.navigate(page.as_uri())
    marks = [hashlib.sha256(browser.screenshot()).hexdigest()]
    for action in (Action("click", {"point": (150, 60)}), Action("type", {"content": "ab"}), Action("wait")):
        browser.act(action)
        marks.append(hashlib.sha256(browser.screenshot()).hexdigest())
    marks.append(str(browser.evaluate("[Date.now(), Math.random(), random, left(), timers, document.title]")))
print("\\n".join(marks))
"""


def test_two_runs_in_two_processes_are_the_same_to_the_last_byte(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(
        f"<body style='margin:0'>{MOVING}<input id=i style='position:absolute;left:120px;top:50px;width:60px'>"
        "<script>var random = Math.random(); i.oninput = () => document.title += Date.now() % 1000</script>",
        encoding="utf-8",
    )
    runs = [
        subprocess.run([sys.executable, "-c", _RUN, page], capture_output=True, text=True, timeout=300, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    first, clicked, typed, waited = runs[0].splitlines()[:4]
    assert len({first, clicked, typed, waited}) == 4  # the pictures are not the same one four times


def test_without_begin_frames_dates_and_timers_stand_still_too(folder: Path):
    page = folder / "screenshot.html"
    page.write_text(f"<body>{MOVING}", encoding="utf-8")
    with Browser.open((300, 100), files=folder, backend="screenshot", patience=30.0) as browser:
        assert browser.backend == "screenshot"
        browser.navigate(page.as_uri())
        before = browser.evaluate("[Date.now(), timers]")
        assert browser.evaluate("[Date.now(), timers]") == before
        browser.advance(1000)
        assert browser.evaluate("[Date.now(), timers]") == [before[0] + 1000, before[1] + 100]
        for _ in range(3):  # a picture takes some of the page's time here, which is counted
            browser.act(Action("click", {"point": (20, 20)}))
            at, before = browser.time, browser.evaluate("Date.now()")
            assert browser.screenshot().startswith(b"\x89PNG")
            assert browser.evaluate("Date.now()") - before == pytest.approx(1000 * (browser.time - at), abs=1)

"""Browsers that die or hang: the failure is named at once, and nothing of them is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from envs.api import Action
from envs.browser import Browser, CrashedError, HungError, ScriptError, profile

DEADLINE = 60.0  # seconds, on a busy machine


def until(fact: Callable[[], bool]) -> bool:
    """Whether something becomes true within the deadline."""
    end = time.monotonic() + DEADLINE
    while not fact():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def processes(marker: str) -> list[int]:
    """Processes that run, with this in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if marker.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def renderers(browser: Browser) -> list[int]:
    """The browser's processes that hold pages."""
    family = [process.pid for process in psutil.Process(browser.pid).children(True)]
    return [pid for pid in family if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def keep(step: Callable[[], object]) -> None:
    """Does a step until it raises, or many times: a process that was killed is a moment later gone."""
    for _ in range(100):
        step()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of temporary files of its own, in which nothing may be left, and whose name marks the browser's processes."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    assert until(lambda: processes(str(folder)) == [])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with a button that never comes back."""
    path = tmp_path / "page.html"
    path.write_text("<body style='margin:0'><button onclick='for (;;);'>spin</button>", encoding="utf-8")
    return path


def test_closing_leaves_nothing(temporary: Path, page: Path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    browser = Browser.open((100, 100), files=page.parent)
    assert len(list(temporary.iterdir())) == 1
    assert processes(str(temporary))
    browser.navigate(page.as_uri())
    family = psutil.Process().children(True)
    assert renderers(browser)
    browser.close()
    browser.close()
    assert until(lambda: not any(process.is_running() for process in family))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # no child is left, not even one that has ended
    with pytest.raises(CrashedError, match="closed"):
        browser.evaluate("1")


def test_an_endless_script_is_stopped_once_and_then_the_page_is_given_up(temporary: Path, page: Path):
    with Browser.open((100, 100), files=page.parent, patience=3.0) as browser:
        browser.navigate(page.as_uri())
        with pytest.raises(ScriptError, match="did not end"):
            browser.evaluate("(() => { for (;;); })()")
        assert browser.evaluate("1 + 1") == 2  # the page goes on
        with pytest.raises(HungError):
            browser.act(Action("click", {"point": (10, 10)}))
        with pytest.raises(CrashedError):
            browser.evaluate("1")
        browser.recycle()
        assert browser.evaluate("1 + 1") == 2


def test_an_endless_handler_is_stopped_once(temporary: Path, page: Path):
    with Browser.open((100, 100), files=page.parent, patience=3.0) as browser:
        browser.navigate(page.as_uri())
        assert browser.act(Action("click", {"point": (10, 10)})) is None
        assert browser.evaluate("document.title = 'alive'") == "alive"


def test_a_dead_renderer_is_seen_at_once(temporary: Path, page: Path):
    with Browser.open((100, 100), files=page.parent, patience=60.0) as browser:
        browser.navigate(page.as_uri())
        killed = renderers(browser)
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(CrashedError):
            keep(lambda: browser.act(Action("click", {"point": (50, 50)})))
    assert time.monotonic() - begun < 30  # not by running out of its patience of 60 s


@pytest.mark.parametrize("which", ["browser", "sandbox"])
def test_a_dead_browser_is_seen_at_once(temporary: Path, page: Path, which: str):
    with Browser.open((100, 100), files=page.parent, patience=60.0) as browser:
        browser.navigate(page.as_uri())
        os.kill(browser.pid if which == "browser" else min(processes(str(temporary))), signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(CrashedError):
            keep(browser.screenshot)
    assert time.monotonic() - begun < 30


_OWNER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from envs.browser import Browser
browser = Browser.open((100, 100), patience=60.0)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_browser_does_not_outlive_its_owner(temporary: Path):
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, temporary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        assert owner.stdout.readline() == b"open\n"
        assert processes("--user-data-dir=" + str(temporary))
        owner.kill()
        owner.wait(DEADLINE)
    begun = time.monotonic()
    assert until(lambda: processes("--user-data-dir=" + str(temporary)) == [])
    assert time.monotonic() - begun < 10  # some 0.1 s where nothing else runs
    assert len(list(temporary.iterdir())) == 1
    assert len(profile.sweep()) == 1  # what the next browser's start does


def test_only_folders_of_the_dead_are_swept(temporary: Path):
    mine = profile.make()
    dead = temporary / f"jaxllm-browser-{os.getpid()}-1-x"  # the same id, of a process that was started at another time
    dead.mkdir()
    foreign = temporary / "jaxllm-browser-notes"
    foreign.mkdir()
    assert profile.sweep() == [dead]
    assert mine.is_dir()
    assert foreign.is_dir()
    profile.remove(mine)
    foreign.rmdir()


def test_a_worn_browser_says_so(temporary: Path, page: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envs.browser.browser.MAX_NAVIGATIONS", 3)
    with Browser.open((100, 100), files=page.parent, patience=60.0) as browser:
        for times in range(3):
            assert not browser.worn, times
            browser.navigate(page.as_uri())
        assert browser.worn
        old = browser.pid
        browser.recycle()
        assert not browser.worn
        assert browser.pid != old

"""What a page must not reach: files outside its folder, the network, a download outside its folder."""

import http.server
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from envs.api import Action
from envs.browser import Browser, confine, launch
from envs.browser.network import Reach
from jaxllm.errors import UserError


class Handler(http.server.BaseHTTPRequestHandler):
    """Counts its visitors, sets a cookie and redirects where it is asked to."""

    seen: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_GET(self) -> None:
        """Answers with its path and the cookie."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.command, self.path, body))
        text = f"<title>{self.path}</title><p>{self.headers.get('Cookie')}</p>".encode()
        self.send_response(302 if "away" in self.path else 200)
        if "away" in self.path:
            self.send_header("Location", self.path.split("?to=")[1])
        self.send_header("Set-Cookie", "taste=sweet; Path=/")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a real web server on this machine."""
    Handler.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


@pytest.fixture(params=["in the sandbox", "without it"])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both with and without bubblewrap: the driver's own check of requests must do alone."""
    if request.param == "without it":
        monkeypatch.setattr(confine, "works", lambda: False)
    else:
        assert confine.works()


TRIES = """
<body><iframe src="{outside}"></iframe><iframe src="link.html"></iframe><img id="picture" src="{server}/image.png">
<script src="{server}/script.js"></script><link rel="stylesheet" href="{server}/style.css">
<script>
  var got = {{}};
  const attempt = (name, promise) => promise.then((r) => got[name] = 'yes', (e) => got[name] = 'no');
  attempt('file', fetch('{outside}').then((r) => r.text()));
  attempt('link', fetch('link.html').then((r) => r.text()));
  attempt('inside', fetch('inside.txt').then((r) => r.text()));
  attempt('http', fetch('{server}/fetch', {{mode: 'no-cors'}}));
  attempt('beacon', Promise.resolve(navigator.sendBeacon('{server}/beacon', 'x')));
  attempt('socket', new Promise((yes, no) => {{ const s = new WebSocket('{server}/socket'.replace('http', 'ws'));
    s.onopen = yes; s.onerror = no; }}));
  attempt('stream', new Promise((yes, no) => {{ const s = new EventSource('{server}/stream');
    s.onopen = yes; s.onerror = no; }}));
  attempt('worker', new Promise((yes, no) => {{ const w = new Worker(URL.createObjectURL(new Blob([
    `fetch('{server}/worker', {{mode: 'no-cors'}}).then(() => postMessage('yes'), () => postMessage('no'))`])));
    w.onmessage = (e) => e.data === 'yes' ? yes() : no(); w.onerror = no; }}));
</script>
"""


def test_a_page_reaches_neither_other_files_nor_the_network(sandbox: None, server: str, tmp_path: Path):
    files = tmp_path / "files"
    files.mkdir()
    outside = tmp_path / "secret.html"
    outside.write_text("secret", encoding="utf-8")
    (files / "inside.txt").write_text("inside", encoding="utf-8")
    (files / "link.html").symlink_to(outside)
    page = files / "page.html"
    page.write_text(TRIES.format(outside=outside.as_uri(), server=server), encoding="utf-8")
    with Browser.open((200, 200), files=files, patience=60.0) as browser:
        browser.navigate(page.as_uri())
        for _ in range(20):
            if len(browser.evaluate("got")) == 8:
                break
            browser.advance(500)
        got = browser.evaluate("got")
        # A beacon's call says only that it was put into a queue.
        assert {name for name, reached in got.items() if reached == "yes"} == {"inside", "beacon"}
        assert set(got) >= {"file", "link", "inside", "http", "socket", "stream"}
        assert (
            browser.evaluate(
                "[...document.querySelectorAll('iframe')].some((f) => /secret/.test(f.contentDocument?.body?.innerText))"
            )
            is False
        )
        assert f"{server}/fetch" in browser.refused
        for url in (
            outside.as_uri(),
            f"{files.as_uri()}/../secret.html",
            (files / "link.html").as_uri(),
            f"{server}/",
            "file://host/x",
        ):
            with pytest.raises(UserError, match="out of reach"):
                browser.navigate(url)
        browser.evaluate(f"void (location.href = '{server}/location')")
        browser.advance(500)
    assert Handler.seen == []
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server}/fetch", timeout=60).close()
    assert [path for _, path, _ in Handler.seen] == ["/fetch"]  # the control: who is not confined gets there


def test_a_prefix_that_is_named_can_be_reached_and_no_other(server: str, tmp_path: Path):
    with Browser.open((200, 200), network=[f"{server}/open"], patience=60.0) as browser:
        browser.navigate(f"{server}/open/page?x=1")
        assert browser.evaluate("document.title") == "/open/page?x=1"
        browser.navigate(f"{server}/open/again")
        assert browser.evaluate("document.body.innerText") == "taste=sweet"
        browser.evaluate("void fetch('post', {method: 'POST', body: 'a=b'})")
        browser.advance(100)
        assert Handler.seen[-1] == ("POST", "/open/post", b"a=b")
        browser.navigate(f"{server}/open/away?to=/open/landed")
        assert browser.evaluate("document.title") == "/open/landed"
        count = len(Handler.seen)
        for url in (f"{server}/closed", f"{server.replace('127.0.0.1', '127.0.0.1:1@127.0.0.1')}/open"):
            with pytest.raises(UserError, match="out of reach"):
                browser.navigate(url)
        with pytest.raises(UserError, match="can't be opened"):
            browser.navigate(f"{server}/open/away?to=/closed")
        assert [path for _, path, _ in Handler.seen[count:]] == ["/open/away?to=/closed"]


def test_prefixes_are_compared_by_their_parts():
    reach = Reach(network=("http://host/a", "https://safe.example"))
    assert reach.allows("http://host:80/a/b")
    assert reach.allows("https://safe.example/x")
    for url in (
        "http://host.evil/a",
        "http://host:81/a",
        "https://host/a",
        "http://u@host/a",
        "http://host/b",
        "https://safe.example.evil/",
        "http://host\\@evil/a",
        "http://[::1",
        "ftp://host/a",
    ):
        assert not reach.allows(url), url
    with pytest.raises(UserError, match="no URL prefix"):
        Reach(network=("host/a",))


def test_a_folder_passes_for_a_web_site(tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<title>home</title><script src='s.js'></script>", encoding="utf-8")
    (tmp_path / "site" / "s.js").write_text("var loaded = location.origin", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "page.html").write_text("<title>page</title>", encoding="utf-8")
    sites = {"http://shop.test/": tmp_path / "site"}
    with Browser.open((100, 100), files=tmp_path / "files", sites=sites, patience=60.0) as browser:
        browser.navigate("http://shop.test/")
        assert browser.evaluate("[document.title, loaded]") == ["home", "http://shop.test"]
        browser.navigate("http://shop.test/%2e%2e/secret.txt")
        assert browser.evaluate("document.body.innerText") == "not found"
        # Another site's page lives on the same clock: dates, and frames.
        browser.navigate((tmp_path / "files" / "page.html").as_uri())
        before = browser.evaluate("Date.now()")
        browser.navigate("http://shop.test/")
        assert 0 < browser.evaluate("Date.now()") - before < 200
        browser.evaluate("void requestAnimationFrame(function next(at) { window.frame = at; requestAnimationFrame(next) })")
        browser.advance(100)
        at = browser.evaluate("[Date.now(), frame]")
        browser.advance(1000)
        moved = [b - a for a, b in zip(at, browser.evaluate("[Date.now(), frame]"), strict=True)]
        assert moved == pytest.approx([1000, 1000], abs=0.2)


def test_downloads_go_to_their_folder_and_nowhere_else(sandbox: None, tmp_path: Path):
    files, downloads = tmp_path / "files", tmp_path / "downloads"
    files.mkdir()
    downloads.mkdir()
    (files / "data.bin").write_bytes(b"\0\1\2")
    page = files / "page.html"
    page.write_text(
        '<body style="margin:0"><a style="position:absolute;top:0" href="data.bin" download="../../outside.bin">a</a>'
        '<a id="b" style="position:absolute;top:40px" download="made.csv">b</a>'
        "<script>b.href = URL.createObjectURL(new Blob(['x,y']))</script>",
        encoding="utf-8",
    )
    with Browser.open((100, 100), files=files, downloads=downloads, patience=60.0) as browser:
        browser.navigate(page.as_uri())
        browser.act(Action("click", {"point": (4, 8)}))
        browser.act(Action("click", {"point": (4, 48)}))
        assert len(browser.downloaded) == 2
        assert {path.name: path.read_bytes() for path in downloads.iterdir()}.pop("made.csv") == b"x,y"
        assert sorted(path.name for path in downloads.iterdir()) == sorted(browser.downloaded)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["downloads", "files"]
    with Browser.open((100, 100), files=files, patience=60.0) as browser:  # without a folder there are none
        browser.navigate(page.as_uri())
        browser.act(Action("click", {"point": (4, 48)}))
        browser.advance(500)
        assert browser.downloaded == ()
    assert len(list(downloads.iterdir())) == 2


def test_a_download_of_a_web_site_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The browser tells of a download some time after its answer, on a busy machine much later: here, 0.5 s."""
    (tmp_path / "site").mkdir()
    (tmp_path / "downloads").mkdir()
    (tmp_path / "site" / "index.html").write_text(
        "<body style='margin:0'><a style='position:absolute;top:0' href='a.bin' download='x.bin'>a</a>"
        "<a style='position:absolute;top:40px' href='b.bin'>b</a><a style='position:absolute;top:80px' href='c.html'>c</a>",
        encoding="utf-8",
    )
    for name in ("a.bin", "b.bin", "c.html"):
        (tmp_path / "site" / name).write_bytes(b"\0\1\2")
    sites = {"http://shop.test/": tmp_path / "site"}
    with Browser.open((100, 100), sites=sites, downloads=tmp_path / "downloads", patience=60.0) as browser:
        pipe = browser._driver._pipe
        arrive, take = pipe._arrive, pipe.take
        held: list[tuple[float, dict]] = []

        def hold(message: dict) -> None:
            if message.get("method", "").startswith("Browser.download"):
                held.append((time.monotonic(), message))
            else:
                arrive(message)

        def release(timeout: float) -> None:
            while held and time.monotonic() - held[0][0] > 0.5:
                arrive(held.pop(0)[1])
            take(min(timeout, 0.05))

        monkeypatch.setattr(pipe, "_arrive", hold)
        monkeypatch.setattr(pipe, "take", release)
        browser.navigate("http://shop.test/")
        browser.act(Action("click", {"point": (4, 8)}))
        assert browser.downloaded == ("x.bin",)
        browser.act(Action("click", {"point": (4, 48)}))
        assert browser.downloaded == ("x.bin", "b.bin")
        browser.navigate("http://shop.test/b.bin")
        assert len(browser.downloaded) == 3
        assert browser.url == "http://shop.test/"
        browser.act(Action("click", {"point": (4, 88)}))  # a page is none
        assert browser.url == "http://shop.test/c.html"
        assert browser._driver._opening == []


def test_the_sandbox_shows_the_browser_nothing_else(tmp_path: Path):
    # Without the driver's check of requests, the sandbox alone still hides what is outside.
    (tmp_path / "files").mkdir()
    (tmp_path / "secret.html").write_text("<title>secret</title>", encoding="utf-8")
    (tmp_path / "files" / "page.html").write_text("<title>page</title>", encoding="utf-8")
    with Browser.open((100, 100), files=tmp_path / "files", patience=60.0) as browser:
        assert launch.capabilities()["sandboxed"] is True
        driver = browser._driver
        driver._call("Fetch.disable")
        assert driver.go((tmp_path / "files" / "page.html").as_uri()) == ""
        assert driver.go((tmp_path / "secret.html").as_uri()) == "net::ERR_FILE_NOT_FOUND"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files": "/no/such/folder"}, "no folder"),
        ({"downloads": "/etc/passwd"}, "no folder"),
        ({"network": ["example.com"]}, "no URL prefix"),
        ({"sites": {"http://x/": "/no/such/folder"}}, "no folder"),
        ({"backend": "telepathy"}, "beginframe"),
    ],
)
def test_wrong_options(options: dict, message: str):
    with pytest.raises(UserError, match=message):
        Browser.open((100, 100), **options)


def test_wrong_sizes_and_a_browser_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(UserError, match="8192"):
        Browser.open((0, 100))
    monkeypatch.setenv("CHROMIUM_HEADLESS_SHELL", str(tmp_path / "none"))
    with pytest.raises(UserError, match="CHROMIUM_HEADLESS_SHELL"):
        Browser.open((100, 100))

"""Browser and shell in one session: tasks, what the two share, and what neither reaches."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import envs
from envs.api import Action, Element, Invalid
from envs.browser import CrashedError
from envs.digest import digest
from envs.hybrid.desk import SITE, Desk
from envs.hybrid.env import KINDS, TASKS, HybridEnv
from envs.hybrid.fetch import MISTAKES
from envs.hybrid.tasks import PAGES, Seen
from envs.registry import oracle
from envs.sandbox import Root
from envs.sandbox.tree import Item, lay
from jaxllm.errors import UserError

PAGE = """<!doctype html><meta charset="utf-8"><title>test</title>
<body><p id="ticks">0</p><input type="file" id="file"><p id="text"></p>
<a id="plain" href="files/plain.csv" download>plain</a>
<script>
  window.desk = { asking: false, busy: 0, wanted: 0, sent: null };
  setInterval(() => { ticks.textContent = Number(ticks.textContent) + 1; }, 50);
  file.onclick = () => (desk.asking = true);
  file.onchange = async () => {
    desk.busy += 1;
    text.textContent = file.files.length ? await file.files[0].text() : "nothing";
    desk.busy -= 1;
  };
  plain.onclick = () => (desk.wanted += 1);
  window.offer = (name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["offered"]));
    link.download = name;
    link.click();
    desk.wanted += 1;
  };
</script></body>"""


def bash(command: str) -> Action:
    return Action("execute_bash", {"command": command})


def click(elements: tuple[Element, ...], id: str) -> Action:
    x1, y1, x2, y2 = next(element.box for element in elements if element.attributes.get("id") == id)
    return Action("click", {"point": ((x1 + x2) / 2, (y1 + y2) / 2)})


# Tasks, without a browser.


def nothing_done(kind: str, level: int, seed: int, folder: Path, sent: Any = None) -> float:
    """What the check says of a set-up in which nothing was done."""
    task = TASKS.problem(TASKS.draw(kind, level, "train", seed))
    lay(folder, task.items())
    return task.check(Seen(Root(folder), "", lambda script, inputs: None, sent))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_done_earns_nothing_and_nor_does_something_else_sent(kind: str, tmp_path: Path):
    for number in range(12):
        for i, sent in enumerate((None, {}, [], {"name": "a", "text": ""}, {"text": 3}, "yes")):
            folder = tmp_path / f"{number}-{i}"
            folder.mkdir()
            assert nothing_done(kind, 1 + number % 3, number, folder, sent) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_problem_and_others_draw_others(kind: str):
    def drawn(seed: int, split: str = "train") -> tuple[str, list[Item], list[Item]]:
        task = TASKS.problem(TASKS.draw(kind, 2, split, seed))
        return task.instruction, task.site(), task.items()

    made = [drawn(seed) for seed in range(20)] + [drawn(seed, "test") for seed in range(20)]
    assert len({repr(one) for one in made}) == 40
    assert drawn(3) == made[3]
    assert (PAGES / f"{TASKS.problem(TASKS.draw(kind, 1, 'train', 0)).page}.html").is_file()


def test_the_script_of_repair_goes_wrong_and_its_correction_goes_right(tmp_path: Path):
    met: set[str] = set()
    for seed in range(100):
        task = TASKS.problem(TASKS.draw("repair", 1 + seed % 3, "train", seed))
        broken = task.downloads["summary.sh"].decode()
        right, wrong = next(pair for pair in MISTAKES if broken.count(pair[1]) and not broken.count(pair[0]))
        if wrong in met:
            continue
        met.add(wrong)
        (tmp_path / "stock.csv").write_bytes(task.downloads["stock.csv"])
        for script, reward in ((broken, 0.0), (broken.replace(wrong, right), 1.0)):
            done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert task.check(Seen(Root(tmp_path), "", lambda script, inputs: None, {"text": done.stdout})) == reward
    assert len(met) == len(MISTAKES)


# Episodes.


def play(env: HybridEnv, kind: str, seed: int) -> list[str]:
    """Plays an episode by the oracle; returns the digests after each step. It must be solved, without a refusal."""
    obs = env.reset(seed=seed)
    assert obs.screenshot is not None
    assert obs.screenshot.startswith(b"\x89PNG")
    assert "/desk" in (obs.text or "")
    assert env.score() == 0.0
    policy = oracle(f"hybrid/{kind}", seed)
    assert policy is not None
    digests = [digest(env.state())]
    while True:
        action = policy(env.state(), obs)
        result = env.step(action)
        obs = result.obs
        assert "error" not in result.info, (action, result.info)
        assert result.info.get("exit_code", 0) == 0, obs.text
        digests.append(digest(env.state()))
        assert obs.step == len(digests) - 1
        assert obs.t_virtual == pytest.approx(0.15 * obs.step)
        if result.terminated or result.truncated:
            assert (result.reward, result.info["success"]) == (1.0, True)
            return digests


@pytest.fixture(scope="module")
def digests() -> dict[str, list[str]]:
    """Those of the episodes that have been played, by kind."""
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_solves_it(kind: str, digests: dict[str, list[str]]):
    env = envs.make(f"hybrid/{kind}", level=1)
    assert isinstance(env, HybridEnv)
    try:
        digests[kind] = play(env, kind, 5)
    finally:
        env.close()
    assert len(set(digests[kind])) == len(digests[kind])


def test_the_same_seed_gives_the_same_digests_elsewhere_and_nothing_is_left(
    digests: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other paths on the host
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    env = envs.make("hybrid/repair", level=1)
    assert isinstance(env, HybridEnv)
    try:
        again = play(env, "repair", 5)
        started = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        names = {child.name() for child in started}
        assert {"bwrap", "bash"} <= names
        assert any("chrom" in name or "headless" in name for name in names)
        assert len(list(tmp_path.iterdir())) >= 2  # the session's folder, and the browser's
    finally:
        env.close()
        env.close()
    if "repair" not in digests:  # run on its own
        digests["repair"] = again
    assert again == digests["repair"]
    assert list(tmp_path.iterdir()) == []
    psutil.wait_procs(started, timeout=30)
    assert [child for child in started if child.is_running()] == []


def test_a_save_goes_on_in_another_environment_when_the_first_one_has_crashed():
    first, second = (envs.make("hybrid/totals", level=1) for _ in range(2))
    assert isinstance(first, HybridEnv)
    try:
        obs = first.reset(seed=2)
        policy = oracle("hybrid/totals", 2)
        assert policy is not None
        for _ in range(4):  # download, add up, click, type
            obs = first.step(policy(first.state(), obs)).obs
        first.step(Action("JupyterCI", {"code": "rows = open('/desk/sales.csv').read().count(chr(10))\nprint(rows)"}))
        blob = first.save()
        state = first.state()
        desk = first._desk
        assert desk is not None
        os.kill(desk.browser.pid, signal.SIGKILL)
        with pytest.raises(CrashedError):
            first.step(Action("hover", {"point": (5, 5)}))
        assert not desk.session.root.folder.exists()
        assert first.step(bash("ls")).info["error"] == "episode_over"
        second.restore(blob)
        assert second.state() == state
        assert "sales.csv" in state["files"]
        assert second.step(Action("JupyterCI", {"code": "print(rows)"})).obs.text == "41\n[exit code 0]"  # a title and 40 rows
        while not (result := second.step(policy(second.state(), obs))).terminated:
            obs = result.obs
        assert result.reward == 1.0
        after = second.step(bash("ls"))
        assert after.info["error"] == "episode_over"
    finally:
        first.close()
        second.close()


def test_actions_that_are_refused_say_why_and_change_nothing():
    env = envs.make("hybrid/settings", level=1)
    try:
        env.reset(seed=0)
        for url in ("file:///etc/passwd", "https://example.org/", "javascript:alert(1)", "http://desk.test.evil/"):
            result = env.step(Action("navigate", {"url": url}))
            assert (result.info["error"], result.info["effect"]) == ("not_allowed", "unchanged")
            assert url in result.info["message"]
        assert env.step(Action("click", {"point": (9000, 1)})).info["error"] == "off_screen"
        assert env.step(bash("cd /tmp && false")).info["exit_code"] == 1
        assert env.state()["cwd"] == "/tmp"
        waited = env.step(Action("wait"))
        assert waited.obs.t_virtual == pytest.approx(5 * 0.15 + 5.0)  # five acts, of which the click took no time
        assert waited.obs.step == 7
        done = env.step(Action("finished", {"content": "done"}))
        assert (done.terminated, done.reward, done.info["success"]) == (True, 0.0, False)
    finally:
        env.close()


# What the two share, and what neither reaches.


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def opened(root: Path) -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(root))
        site = [Item("index.html", 0o644, 0, PAGE.encode()), Item("files/plain.csv", 0o644, 0, b"a,b\n")]
        desk = Desk(site, [Item("own.txt", 0o644, 0, b"the session's own")])
    yield desk
    desk.close()
    assert [path for path in root.iterdir() if path.is_dir()] == []


@pytest.fixture
def desk(opened: Desk) -> Desk:
    """The module's session, at its page anew."""
    opened.tool(bash('rm -rf /desk/* && printf %s "the session\'s own" > /desk/own.txt'))
    opened.gui(Action("navigate", {"url": f"{SITE}index.html"}))
    return opened


def shell(desk: Desk, command: str) -> str:
    return desk.tool(bash(command)).text.removesuffix("[exit code 0]").strip()


def test_a_download_is_in_the_shell_at_once(desk: Desk):
    arrived = len(desk.arrived)
    assert desk.gui(click(desk.browser.elements(), "plain")) is None
    assert desk.arrived[arrived:] == ["plain.csv"]
    assert shell(desk, "cat /desk/plain.csv; stat -c %a /desk/plain.csv") == "a,b\n644"
    shell(desk, "echo more >> /desk/plain.csv")
    desk.gui(click(desk.browser.elements(), "plain"))
    assert shell(desk, "cat '/desk/plain (1).csv' /desk/plain.csv") == "a,b\na,b\nmore"


def test_a_file_of_the_shell_is_chosen_in_a_dialog(desk: Desk):
    shell(desk, "mkdir -p /desk/out && echo made > '/desk/out/it is.txt'")
    desk.gui(click(desk.browser.elements(), "file"))
    shown = desk.browser.elements()
    assert desk.view()["choosing"] is True
    assert [e.text for e in shown if e.role == "button" and e.attributes.get("id") is None] == ["out/it is.txt", "own.txt"]
    desk.gui(Action("type", {"content": "out/nothing.txt\n"}))
    assert "out/nothing.txt: no file in /desk" in desk.browser.evaluate("document.body.innerText")
    box = next(e.box for e in shown if e.text == "out/it is.txt")
    desk.gui(Action("click", {"point": ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)}))
    assert desk.browser.evaluate("text.textContent") == ""
    desk.gui(Action("hotkey", {"key": "enter"}))
    assert desk.browser.evaluate("text.textContent") == "made\n"
    assert desk.browser.evaluate("file.files[0].name") == "it is.txt"
    assert desk.view()["choosing"] is False
    shell(desk, "echo changed > '/desk/out/it is.txt'")  # the page has what was chosen
    assert desk.browser.evaluate("text.textContent") == "made\n"


@pytest.mark.parametrize("way", ["esc", "button"])
def test_a_dialog_can_be_left(desk: Desk, way: str):
    desk.gui(click(desk.browser.elements(), "file"))
    leave = Action("hotkey", {"key": "esc"}) if way == "esc" else click(desk.browser.elements(), "envs-files-cancel")
    desk.gui(leave)
    assert (desk.view()["choosing"], desk.browser.asks_for_files) == (False, False)
    assert desk.browser.evaluate("file.files.length") == 0
    desk.gui(click(desk.browser.elements(), "file"))
    assert desk.view()["choosing"] is True


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../../etc/passwd", "/desk/../etc/passwd", "linked", "inside/passwd", "", ".", "/desk", "pipe", "a\0b"],
)
def test_only_files_of_the_session_can_be_chosen(desk: Desk, path: str):
    shell(desk, "ln -s /etc/passwd linked; ln -s /etc inside; mkfifo pipe")
    desk.gui(click(desk.browser.elements(), "file"))
    desk.browser.evaluate(f"envsFiles.result = {{path: {json.dumps(path)}}}")
    desk.gui(Action("hover", {"point": (5, 5)}))
    assert "no file in /desk" in desk.browser.evaluate("document.querySelector('#envs-files-problem').textContent")
    assert desk.browser.evaluate("file.files.length") == 0
    desk.browser.evaluate("envsFiles.result = {path: 'own.txt'}")  # that can
    desk.gui(Action("hover", {"point": (5, 5)}))
    assert desk.browser.evaluate("text.textContent") == "the session's own"


@pytest.mark.parametrize(
    "name",
    [
        "../../evil",
        "/etc/evil",
        "..",
        ".",
        "~/evil",
        ".bashrc",
        "a/../../evil",
        "%2e%2e%2fevil",
        "con\\..\\evil",
        "e\nvil",
    ],
)
def test_a_download_stays_in_the_folder_whatever_its_name(desk: Desk, root: Path, name: str):
    before = {path for path in root.rglob("*") if "/profile/" not in str(path)}
    arrived = len(desk.arrived)
    desk.browser.evaluate(f"offer({json.dumps(name)})")
    desk.gui(Action("hover", {"point": (5, 5)}))
    (came,) = desk.arrived[arrived:]
    work = desk.session.root.folder
    assert (work / came).read_text() == "offered"
    assert (work / came).parent == work
    after = {path for path in root.rglob("*") if "/profile/" not in str(path)}
    assert after - before == {work / came}
    assert not Path("/etc/evil").exists()


def test_a_download_whose_name_is_too_long_for_the_disk_does_not_come(desk: Desk):
    arrived = len(desk.arrived)
    desk.browser.evaluate(f"offer({json.dumps('e' * 300)}); desk.wanted = 0")
    desk.gui(Action("hover", {"point": (5, 5)}))
    assert desk.arrived[arrived:] == []
    assert shell(desk, "ls /desk") == "own.txt"
    desk.gui(click(desk.browser.elements(), "plain"))  # the next one does
    assert desk.arrived[arrived:] == ["plain.csv"]


def test_a_download_follows_no_link_that_was_planted(desk: Desk, root: Path):
    outside = root / "outside.txt"
    outside.write_text("untouched")
    shell(desk, f"ln -s {outside} plain.csv; ln -s nowhere 'plain (1).csv'; mkdir 'plain (2).csv'")
    desk.gui(click(desk.browser.elements(), "plain"))
    assert desk.arrived[-1] == "plain (3).csv"
    assert outside.read_text() == "untouched"
    assert shell(desk, "readlink plain.csv") == str(outside)


def test_the_page_reaches_its_own_files_and_nothing_else(desk: Desk, root: Path):
    secret = root / "secret.txt"
    secret.write_text("secret")
    own = desk.session.root.folder / "own.txt"
    urls = [SITE + "files/plain.csv", "file:///etc/passwd", secret.as_uri(), own.as_uri(), "http://127.0.0.1:1/"]
    urls += [SITE + "../folder/own.txt", SITE + "..%2ffolder/own.txt", SITE + "files/..%2f..%2ffolder/own.txt"]
    for url in urls:
        name = json.dumps(url)
        ask = f"desk.busy = 1; fetch({name}).then(async (r) => r.status + ' ' + await r.text(), (e) => 'refused')"
        desk.browser.evaluate(f"void ({ask.replace('; ', ', ')}.then((t) => {{ window.got = t; desk.busy = 0; }}))")
        desk.gui(Action("hover", {"point": (5, 5)}))
        got = desk.browser.evaluate("got")
        expected = "200 a,b\n" if url == urls[0] else "404 not found" if url.startswith(SITE) else "refused"
        assert got == expected, url
    for url in ("file:///etc/passwd", secret.as_uri(), own.as_uri()):
        desk.browser.evaluate(f"void (document.body.append(Object.assign(document.createElement('iframe'), {{src: '{url}'}})))")
        desk.gui(Action("hover", {"point": (5, 5)}))
        shown = [element.text for element in desk.browser.elements()]
        assert not any("secret" in text or "root:" in text or "session's own" in text for text in shown)
        assert isinstance(desk.gui(Action("navigate", {"url": url})), Invalid)
        with pytest.raises(UserError, match="out of reach"):
            desk.browser.navigate(url)


def test_the_shell_sees_nothing_of_the_browser(desk: Desk):
    assert shell(desk, f"ls -d {desk.session.root.folder.parent} 2>/dev/null; ls /desk") == "own.txt"
    assert "chrom" not in shell(desk, "cat /proc/[0-9]*/comm")


def test_the_page_moves_with_every_kind_of_action_and_stands_still_between(desk: Desk):
    def ticks() -> int:
        return int(desk.browser.evaluate("ticks.textContent"))

    start = ticks()
    assert ticks() == start
    shell(desk, "sleep 0.3")  # of the host's time, which the page does not see
    assert ticks() == start + 3
    desk.gui(Action("hover", {"point": (5, 5)}))
    assert ticks() == start + 6
    desk.gui(Action("wait"))
    assert ticks() == start + 106


# The family.


def test_the_family_describes_what_it_makes():
    spec = envs.describe("hybrid/any", timeout=40)
    assert spec.weight == "heavy"
    assert spec.screen_wh == (800, 600)
    assert spec.supports == {"save", "deterministic", "oracle"}
    assert spec.deadlines["step"] == 70.0
    assert {"click", "type", "execute_bash", "str_replace_editor", "JupyterCI", "wait", "finished", "call_user"} <= {
        action.name for action in spec.actions
    }
    assert sorted(envs.names("hybrid/*")) == sorted(f"hybrid/{kind}" for kind in (*KINDS, "any"))
    assert len(KINDS) >= 6
    assert len({TASKS.draw("any", None, "train", seed).data["kind"] for seed in range(60)}) == len(KINDS)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nope", {}, "there is no hybrid/nope; there are any, captions"),
        ("totals", {"speed": 2}, "knows the options backend, level"),
        ("totals", {"level": 4}, "level is 1, 2, 3 or None"),
        ("totals", {"level": True}, "level is 1, 2, 3 or None"),
        ("totals", {"split": "dev"}, "split is train or test"),
        ("totals", {"timeout": 0}, "timeout is a number of seconds"),
        ("totals", {"screenshot": 1}, "screenshot is true or false"),
        ("totals", {"backend": "selenium"}, "backend is one of auto"),
    ],
)
def test_what_is_not_offered_is_refused(name: str, options: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        envs.make(f"hybrid/{name}", **options)

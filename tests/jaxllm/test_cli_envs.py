"""The commands on environments, as a user meets them, with a family of small environments."""

import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tyro
from PIL import Image

from envs import doctor, registry
from envs.doctor import Check
from envs.fleet import Placed
from envs.server import Server, discover
from jaxllm import cli
from jaxllm.cli import commands, fleet, runtime, servers

ROOT = Path(__file__).parents[2]
SECONDS = 60  # that a process of a test may take on a busy machine


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and the family "toys" beside those of the product."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    monkeypatch.setitem(registry.FAMILIES, "toys", ("tests.envs.toys", "small ones"))


# A user's foreground process; what a test starts may have been told to ignore Ctrl-C.
COMMAND_LINE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxllm.cli import main
sys.exit(main())
"""


def run(*arguments: str) -> int:
    return cli.main(["envs", *arguments])


# The commands of two words.


def test_envs_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]):
    names = [name for group in commands.grouped().values() for name in group if name.startswith("envs ")]
    assert {"envs list", "envs play", "envs record", "envs replay", "envs doctor", "envs serve", "envs top"} <= set(names)
    listings = set()
    for arguments in ([], ["--help"], ["-h"]):
        assert run(*arguments) == 0
        listings.add(capsys.readouterr().out)
    (text,) = listings
    assert [line.split("  ")[1] for line in text.splitlines() if line.startswith("  envs ")] == names
    assert "generate" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["envs", "lsit"], "jaxllm: unknown command 'envs lsit'; did you mean 'envs list'?\n"),
        (["env"], "jaxllm: unknown command 'env'; did you mean 'envs'?\n"),
        (["envs", "--list"], "jaxllm: unknown command 'envs --list'; did you mean 'envs list'?\n"),
    ],
)
def test_a_mistyped_command_is_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(arguments) == 2
    assert capsys.readouterr() == ("", message)


def test_an_unknown_command_names_those_of_its_group(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["envs", "xyzzy"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("jaxllm: unknown command 'envs xyzzy'; the commands are: envs list, envs show")
    assert "generate" not in err


def test_help_imports_nothing_heavy():
    code = """
import sys
from jaxllm.cli import main
assert main(["envs", "--help"]) == 0
assert main(["--help"]) == 0
print([name for name in ("envs", "numpy", "PIL", "zmq", "jax", "pyarrow", "rich") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True, cwd=ROOT)
    assert done.stderr == "[]\n"


# list and show


def test_list_shows_the_families(capsys: pytest.CaptureFixture[str]):
    assert run("list", "--json") == 0
    found = {row["family"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(found) == list(registry.FAMILIES)
    assert found["toys"] == {"family": "toys", "count": "5", "about": "small ones", "missing": None}
    assert found["page"]["count"] == "page/PATH"
    assert run("list") == 0
    assert "small ones" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("toys", ["toys/arrays", "toys/count", "toys/drift", "toys/lost", "toys/screen"]),
        ("toys/c*", ["toys/count"]),
        ("*/[cs]o*", ["games/sokoban", "games/sokoban-page", "toys/count"]),
        ("sokoban", ["games/sokoban", "games/sokoban-page"]),
    ],
)
def test_list_finds_names(pattern: str, names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    for family in registry.FAMILIES.keys() - {"toys", "games"}:
        monkeypatch.delitem(registry.FAMILIES, family)
    assert run("list", pattern, "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == names


def test_a_long_list_has_the_names_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.envs.toys.names", lambda: [f"n{number}" for number in range(1000)])
    assert run("list", "toys") == 0
    out, err = capsys.readouterr()
    assert "toys/n999" in out
    assert "1,000 names" in err
    assert run("list", "toys", "--json") == 0
    assert json.loads(capsys.readouterr().out)[999] == {"name": "toys/n999"}


def test_show_says_what_an_environment_takes(capsys: pytest.CaptureFixture[str]):
    assert run("show", "toys/screen", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["screen_wh"] == [96, 64]
    assert facts["deadlines"]["step"] == 30
    assert facts["actions"][0] == {"call": "click(point: point)", "about": "left click"}
    assert run("show", "toys/screen") == 0
    out = capsys.readouterr().out
    for text in ("click it", "96 x 64 pixels", "at most 4", "drag(start_point: point, end_point: point)"):
        assert text in out
    assert run("show", "tests.envs.toys:Toy", "--option", "name=arrays") == 0
    assert "numbers in arrays" in capsys.readouterr().out


# play


def test_play_prints_the_episode_and_writes_its_pictures(capsys: pytest.CaptureFixture[str]):
    assert run("play", "toys/count", "--seed", "3") == 0
    out = capsys.readouterr().out
    assert re.search(r"^toys/count: count to (1[0-4])$", out, re.M)
    assert out.count("-> add n=") == 2
    assert "-> add n=9, reward 0, changed" in out
    assert out.endswith("solved after 2 steps, reward 1\n")
    assert Path("plays/toys-count-oracle-3.png").read_bytes().startswith(b"\x89PNG")
    with Image.open("plays/toys-count-oracle-3.gif") as film:
        assert film.n_frames == 3


def test_play_is_random_where_there_is_no_oracle(capsys: pytest.CaptureFixture[str]):
    assert run("play", "toys/arrays", "--out", "films", "--max-steps", "1") == 0
    out = capsys.readouterr().out
    assert "value: int64[2]" in out
    assert "stopped after 1 step" in out or "after 1 step," in out
    assert Path("films/toys-arrays-random-0.gif").is_file()


def test_play_shows_elements_where_there_is_no_text(capsys: pytest.CaptureFixture[str]):
    assert run("play", "toys/screen") == 0
    out = capsys.readouterr().out
    assert "   1 button     (40, 40)  it" in out
    assert "-> click (40, 40), reward 1, changed" in out


def test_a_person_plays(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("add(m=3)\nhelp\nadd(n=3)\n"))
    assert run("play", "toys/count", "--policy", "human") == 0
    out = capsys.readouterr().out
    assert "extra_argument: " in out or "missing_argument: " in out
    assert "add(n: int 0..9)" in out
    assert "-> add n=3, reward 0, changed" in out
    assert "stopped after 1 step, reward 0" in out  # the end of the input
    assert Path("plays/toys-count-human-0.png").is_file()


def test_what_an_environment_says_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.envs.toys.Toy._look", lambda self: registry_obs("red \x1b[31m\x07 end"))
    assert run("play", "toys/count", "--max-steps", "1") == 0
    assert "red �[31m� end" in capsys.readouterr().out


def registry_obs(text: str) -> Any:
    from envs import Obs

    return Obs(text=text)


def test_ctrl_c_keeps_what_there_is(tmp_path: Path):
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from envs import registry
from jaxllm.cli import main
registry.FAMILIES["toys"] = ("tests.envs.toys", "small ones")
sys.argv = ["jaxllm", "envs", "play", "toys/count", "--policy", "human", "--out", sys.argv[1]]
sys.exit(main())
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("add(n=1)\n")
        process.stdin.flush()
        seen = ""
        while "[1] 0 s\n" not in seen:
            line = process.stdout.readline()
            assert line, process.communicate()
            seen += line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Written" in out
    assert err.strip() == "jaxllm: interrupted"
    with Image.open(tmp_path / "toys-count-human-0.gif") as film:
        assert film.n_frames == 2


# record and replay


def test_record_and_replay(capsys: pytest.CaptureFixture[str]):
    assert run("record", "toys/screen", "-n", "4", "--out", "runs/a") == 0
    out = capsys.readouterr().out
    assert "4 episodes, 4 steps: 4 solved (100.0%), mean reward 1" in out
    assert run("record", "toys/screen", "-n", "6", "--out", "runs/a") == 0
    out, err = capsys.readouterr()
    assert "2 episodes, 2 steps" in out
    assert "4 episodes were there already" in err
    assert run("replay", "runs/a") == 0
    assert "6 episodes came out as recorded" in capsys.readouterr().out


def test_a_tampered_record_ends_with_1(capsys: pytest.CaptureFixture[str]):
    run("record", "toys/count", "-n", "3", "--out", "a")
    (part,) = Path("a/steps").iterdir()
    rows = pq.read_table(part)
    reward = pa.array([0.25 if value == 1 else value for value in rows["reward"].to_pylist()])
    pq.write_table(rows.set_column(rows.column_names.index("reward"), "reward", reward), part)
    capsys.readouterr()
    assert run("replay", "a") == 1
    out, err = capsys.readouterr()
    assert err == "jaxllm: a: 3 of 3 episodes came out otherwise than recorded\n"
    assert "0.25" in out
    assert run("replay", "a", "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["episodes"] == 3
    assert facts["differences"][0] == {"episode": 0, "step": 1, "column": "reward", "recorded": "0.25", "found": "1.0"}


# doctor


def test_doctor_prints_a_table_or_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    found = [Check("browser", "ok", "Chromium"), Check("ray", "missing", "", "pip install 'jaxllm[ray]'")]
    monkeypatch.setattr(doctor, "examine", lambda tick: found)
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert re.search(r"browser +ok +Chromium", out)
    assert re.search(r"ray +missing +pip install 'jaxllm\[ray\]'", out)
    assert run("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "name": "ray",
        "state": "missing",
        "detail": "",
        "remedy": "pip install 'jaxllm[ray]'",
    }


# serve and top


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(["tests.envs.toys:*"], workers=1) as running:
        yield running


def test_top_shows_a_server(server: Server, capsys: pytest.CaptureFixture[str]):
    address = [server.address, "--token", str(server.token_file)]
    assert run("top", *address) == 0
    out = capsys.readouterr().out
    assert server.address in out.replace("\n", "")
    assert re.search(r"sessions +0 of 256: 0 idle", out)
    assert run("top", *address, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["address"] == server.address
    assert run("top", *address, "--prometheus") == 0
    assert "# TYPE jaxllm_envs_sessions gauge" in capsys.readouterr().out


def test_top_finds_the_servers_of_this_host(server: Server, capsys: pytest.CaptureFixture[str]):
    assert server.pid in [found.pid for found in discover.running()]
    (mine,) = [found for found in discover.running() if found.pid == server.pid]
    assert (mine.address, mine.token_file) == (server.address, server.token_file)
    assert run("top", "--json") == 0
    assert server.address in [stats["address"] for stats in json.loads(capsys.readouterr().out)]


def test_folders_of_dead_servers_are_no_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name in ("jaxllm-envs-1-1-ab", f"jaxllm-envs-{os.getpid()}-1-ab", "jaxllm-envs-x", "jaxllm-envs-"):
        (tmp_path / name).mkdir()
        discover.note(tmp_path / name, "ipc:///nowhere", tmp_path / "token")
    assert discover.running(tmp_path) == []
    monkeypatch.setattr(discover, "running", list)
    assert run("top") == 1
    assert capsys.readouterr().err.startswith("jaxllm: no step server of yours runs on this host; start one with")


def test_the_live_table_is_drawn_and_ends_with_ctrl_c(server: Server):
    master, slave = pty.openpty()
    code = "import sys; from jaxllm.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "envs", "top", server.address, "--token", str(server.token_file), "--every", "0.2"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    try:
        seen = b""
        deadline = time.monotonic() + SECONDS
        while seen.count(b"steps/s") < 2:
            assert time.monotonic() < deadline, seen
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # a terminal that nobody reads fills up, and holds up who draws on it
            assert time.monotonic() < deadline, "Ctrl-C did not end it"
            if select.select([master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # of a terminal whose other side is closed
                    os.read(master, 65536)
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_serve_says_where_it_is_and_ends_with_ctrl_c(tmp_path: Path):
    token = tmp_path / "token"
    command = [
        sys.executable,
        "-c",
        COMMAND_LINE,
        "envs",
        "serve",
        "tests.envs.toys:*",
        "--workers",
        "1",
        "--token-file",
        str(token),
    ]
    with subprocess.Popen(
        [*command, "--bind", "tcp://127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[0] == "Serving tests.envs.toys:*\n"
            address = lines[1].split()[1]
            assert address.startswith("tcp://127.0.0.1:")
            assert lines[2].split() == ["token", str(token)]
            assert token.stat().st_mode & 0o777 == 0o600
            assert address in [found.address for found in discover.running()]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "jaxllm: interrupted"
    assert "Traceback" not in err
    assert address not in [found.address for found in discover.running()]


def test_the_gateway_answers_and_ends_with_ctrl_c(tmp_path: Path):
    (tmp_path / "token").write_text("secret\n")
    command = [sys.executable, "-c", COMMAND_LINE, "envs", "gateway", "tests.envs.toys:Toy", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--token-file", str(tmp_path / "token")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "Serving tests.envs.toys:Toy to OpenEnv clients\n"
            address = process.stdout.readline().split()[1]
            with urllib.request.urlopen(f"{address}/health", timeout=SECONDS) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "jaxllm: interrupted"
    assert "Traceback" not in err


class FakeFleet:
    """A fleet whose second server comes up, and dies for good."""

    def __init__(self, patterns: tuple[str, ...], **settings: Any):
        self.asked = (patterns, settings)
        self.looks = 0

    @property
    def servers(self) -> list[Any]:
        self.looks += 1
        first = Placed(0, "up", "node-one", "tcp://a:1", "token-a")
        states = ["starting", "up", "up", "gone", "out"]
        second = Placed(1, states[min(self.looks, 5) - 1], "node-two", "tcp://b:2", "token-b", error="its node is gone")
        if self.looks == 3:
            FILES.append(json.loads(Path("fleet.json").read_text()))
            MODES.append(Path("fleet.json").stat().st_mode & 0o777)
        if self.looks > 6:
            raise KeyboardInterrupt
        return [first, second]

    def __enter__(self) -> "FakeFleet":
        return self

    def __exit__(self, *_: object) -> None:
        pass


FILES: list[Any] = []
MODES: list[int] = []


def test_a_fleet_keeps_its_addresses_in_a_private_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envs.fleet.Fleet", FakeFleet)
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0)
    assert run("fleet", "toys/*", "--servers", "2") == 130
    out = capsys.readouterr().out
    assert re.search(r"1 +starting", out)
    assert re.search(r"1 +out +node-two +tcp://b:2 +0 +its node is gone", out)
    assert "token-a" not in out
    assert FILES == [{"addresses": ["tcp://a:1", "tcp://b:2"], "tokens": ["token-a", "token-b"]}]
    assert MODES == [0o600]
    assert not Path("fleet.json").exists()


def test_top_watches_a_fleet(server: Server, capsys: pytest.CaptureFixture[str]):
    fleet.write_private(Path("fleet.json"), {"addresses": [server.address] * 2, "tokens": [server.token] * 2})
    assert run("top", "--fleet", "fleet.json", "--json") == 0
    assert [stats["address"] for stats in json.loads(capsys.readouterr().out)] == [server.address] * 2


def test_figures_of_a_busy_server():
    from jaxllm.cli import console

    stats = {
        "address": "tcp://host:5555",
        "uptime": 3725.0,
        "sessions": {"idle": 3, "busy": 2, "starting": 1},
        "max_sessions": 64,
        "steps_per_s": 1234.5,
        "clients": 2,
        "workers": {"light": 4, "heavy": 1, "all": 5, "out": 0},
        "restarts": 2,
        "late": 1,
        "errors": {"TIMEOUT": 3},
        "quarantined": ["toys/lost 7"],
        "names": {"toys/count": 2, "toys/screen": 4},
        "operations": {"step": 9000},
        "latency_ms": {"step": {"p50": 1.25, "p90": 2.5, "p99": 30.0}},
    }
    with console.stdout().capture() as _:
        pass
    out = console.stdout()
    with out.capture() as captured:
        out.print(servers.figures([stats]))
    text = captured.get()
    for shown in (
        "tcp://host:5555, up 1 h 2 min",
        "6 of 64: 3 idle, 2 busy, 1 starting",
        "1,234.5",
        "TIMEOUT 3",
        "toys/screen 4, toys/count 2",
        "toys/lost 7",
    ):
        assert shown in text
    assert re.search(r"step +9,000 +1\.2 +2\.5 +30\.0", text)


@pytest.mark.parametrize(("seconds", "text"), [(5.4, "5 s"), (65, "1 min 5 s"), (7200, "2 h 0 min")])
def test_durations(seconds: float, text: str):
    assert servers.duration(seconds) == text


# Wrong input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "toys/zzz"], "no environment matches 'toys/zzz'"),
        (["list", "toys/cuont"], "did you mean count"),
        (["list", "page"], "any environment can be named here: page/PATH"),
        (["show", "toys"], "an environment is named family/name"),
        (["show", "toys/none"], "there is no toys/none; there are arrays, count"),
        (["show", "tyos/count"], "there is no family 'tyos'"),
        (["show", "nomodule:Class"], "nomodule:Class: No module named 'nomodule'"),
        (["show", "toys/count", "--option", "start"], "--option start: give it as name=value"),
        (["show", "toys/count", "--option", "x=1"], "toys/count has the option start, not x"),
        (["show", "toys/count", "--option", "name=x"], "toys/count has no option name"),
        (
            ["show", "tests.envs.toys:Toy", "--option", "x=1"],
            "with the options {'x': 1}: got an unexpected keyword argument 'x'",
        ),
        (["show", "tests.envs.toys:None"], "has no attribute 'None'; name it module:Class"),
        (["play", "toys/arrays", "--policy", "oracle"], "toys/arrays has no oracle; play it with --policy random"),
        (["play", "toys/count", "--out", "file/folder"], "--out file/folder cannot be a folder: Not a directory"),
        (["record", "toys/count", "-n", "0", "--out", "a"], "must be at least 1, found 0 and 1"),
        (["record", "toys/count", "--envs", "0", "--out", "a"], "must be at least 1, found 100 and 0"),
        (["record", "toys/count", "--out", "."], "holds other files, such as file"),
        (["record", "toys/count", "--out", "file"], "file: cannot be a folder to write to"),
        (["replay", "nowhere"], "nowhere/record.json: cannot be read"),
        (["top", "tcp://127.0.0.1:9", "--token", "nowhere"], "nowhere: No such file"),
        (["top", "--every", "0"], "--every must be at least 0.1"),
        (["serve", "tyos/*"], "'tyos/*' names no environments: write family/pattern, such as games/*; did you mean toys/*?"),
        (["top", "tcp://a:1", "--fleet", "file"], "give an address or --fleet, not both"),
        (["top", "--fleet", "nowhere"], "--fleet nowhere: No such file"),
        (["top", "--fleet", "file"], "--fleet file: not a file that `jaxllm envs fleet` wrote"),
        (["fleet", "tyos/*"], "'tyos/*' names no environments"),
        (["gateway", "toys/none"], "there is no toys/none"),
        (["gateway", "toys/count", "--bind", "0.0.0.0:0"], "other hosts can reach this; a gateway there needs a token"),
        (["gateway", "toys/count", "--token-file", "nowhere"], "--token-file nowhere: No such file"),
        (["gateway", "toys/count", "--token-file", "file"], "--token-file file: a token is one word, found 3"),
        (["serve"], "a server needs the names of what it may make"),
        (["serve", "toys"], "'toys' names no environments"),
        (["serve", "toys/zzz*"], "no environment matches 'toys/zzz*'; see `jaxllm envs list toys`"),
        (["serve", "toys/*", "--bind", "tcp://0.0.0.0"], "tcp://0.0.0.0: bind to tcp://HOST:PORT"),
        (["serve", "toys/*", "--workers", "0"], "workers is a number above 0"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    Path("file").write_text("not a folder")
    assert run(*arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("jaxllm: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["play"], ["record", "toys/count"], ["play", "toys/count", "--policy", "wise"], ["show", "--josn"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err


# The page in the docs

PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ jaxllm envs (.*)$", PAGE, re.M)
ELSEWHERE = {"doctor", "serve", "top", "fleet", "gateway"}  # tested above, and in tests/envs/test_doctor.py


def test_the_page_shows_every_command():
    names = {name.split()[1] for group in commands.grouped().values() for name in group if name.startswith("envs ")}
    assert {shlex.split(command)[0] for command in COMMANDS} == names


def test_the_commands_of_the_page_are_accepted():
    for command in COMMANDS:
        words = shlex.split(command)
        found = next(group[f"envs {words[0]}"] for group in commands.grouped().values() if f"envs {words[0]}" in group)
        assert dataclasses.is_dataclass(tyro.cli(found, args=words[1:], config=(tyro.conf.FlagCreatePairsOff,)))


def test_the_commands_of_the_page_work(capsys: pytest.CaptureFixture[str]):
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] not in ELSEWHERE and words != ["list"]:
            assert run(*words) == 0, command
            assert capsys.readouterr().out
    assert len(list(Path("plays").glob("*.gif"))) == len([command for command in COMMANDS if command.startswith("play")])


def test_the_python_of_the_page_works():
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=2 * SECONDS, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("True\n")


def test_the_page_explains_every_column():
    from envs.record_folder import SCHEMA

    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    explained = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert [name for name in explained if name in SCHEMA.names] == SCHEMA.names

"""The command line as a user meets it: exit codes, streams, speed of the listing, and Ctrl-C."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tyro.conf import Positional

from jaxllm import cli
from jaxllm.cli import commands, console, interrupt, runtime
from jaxllm.errors import UserError

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Fake:
    """Do something for the tests.

    A second paragraph.
    """

    text: Positional[str] = "line"  # what to print
    count: int = 1  # how often
    fail: str = ""  # which way to fail

    def run(self) -> None:
        if self.fail == "user":
            raise UserError("file.bin: key 'x' has shape (2, 3); expected (3, 2)")
        if self.fail == "interrupt":
            raise KeyboardInterrupt
        if self.fail == "disk":
            raise OSError(28, "No space left on device", "maps/layers/03.parquet")
        if self.fail == "bug":
            raise ZeroDivisionError("bug")
        for _ in range(self.count):
            console.write(self.text)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "grouped", lambda: {"Fakes": {"fake": Fake, "other": Fake}})
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False, **options
    )


def test_listing_has_every_command_with_one_line(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [(name, command) for group in commands.grouped().values() for name, command in group.items()]
    assert found
    for name, command in found:
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        summary = line.removeprefix(f"  {name}").strip()
        assert summary == commands.summary(command)
        assert not summary.endswith(".")
    assert max(map(len, lines)) <= 100


def test_every_command_is_a_frozen_dataclass_with_help(capsys: pytest.CaptureFixture[str]):
    for group in commands.grouped().values():
        for name, command in group.items():
            assert dataclasses.is_dataclass(command)
            assert command.__dataclass_params__.frozen
            assert cli.main([*name.split(), "--help"]) == 0
            text = capsys.readouterr().out
            assert f"usage: jaxllm {name}" in text
            for field in dataclasses.fields(command):
                assert field.name.replace("_", "-") in text.lower().replace("_", "-"), f"{name}: {field.name}"


def test_listing_is_fast_and_imports_nothing_heavy():
    heavy = ("jax", "numpy", "pyarrow", "tokenizers", "flax", "rich", "huggingface_hub", "gguf", "orbax", "jinja2")
    code = f"""
import sys
from jaxllm.cli import main
assert main(["--help"]) == 0
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = python(code)
        seconds.append(time.perf_counter() - start)
        assert done.stderr.strip() == "[]"
    assert min(seconds) < 0.5


@pytest.mark.usefixtures("fake")
def test_no_arguments_show_the_listing(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 0
    assert "  fake   Do something for the tests\n" in capsys.readouterr().out


@pytest.mark.usefixtures("fake")
def test_results_go_to_stdout_alone(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["fake", "--count", "2"]) == 0
    assert capsys.readouterr() == ("line\nline\n", "")


@pytest.mark.usefixtures("fake")
def test_a_users_mistake_is_one_message_without_traceback(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["fake", "--fail", "user"]) == 1
    assert capsys.readouterr() == ("", "jaxllm: file.bin: key 'x' has shape (2, 3); expected (3, 2)\n")


@pytest.mark.usefixtures("fake")
def test_a_full_disk_is_one_message_without_traceback(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["fake", "--fail", "disk"]) == 1
    assert capsys.readouterr() == ("", "jaxllm: maps/layers/03.parquet: No space left on device\n")


@pytest.mark.usefixtures("fake")
def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake", "--fail", "bug"])


@pytest.mark.usefixtures("fake")
def test_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["fake", "--fail", "interrupt"]) == 130
    assert capsys.readouterr() == ("", "\njaxllm: interrupted\n")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["fkae"], "jaxllm: unknown command 'fkae'; did you mean 'fake'?\n"),
        (["zzz"], "jaxllm: unknown command 'zzz'; the commands are: fake, other\n"),
        (["--halp"], "jaxllm: unknown option '--halp'; the commands are: fake, other\n"),
    ],
)
def test_unknown_command_suggests(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(arguments) == 2
    assert capsys.readouterr() == ("", hint)


@pytest.mark.usefixtures("fake")
def test_wrong_arguments_end_with_2_on_stderr(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["fake", "--cuont", "2"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--count" in err
    assert cli.main(["fake", "--count", "many"]) == 2


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxllm {runtime.version()}\n"


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("argv", "verbose", "printed"),
    [
        (["-v", "fake", "word"], True, "word\n"),
        (["fake", "word", "--verbose"], True, "word\n"),
        (["fake", "word"], False, "word\n"),
        (["fake", "--", "-v"], False, "-v\n"),
    ],
)
def test_verbose_may_stand_anywhere_before_two_dashes(
    argv: list[str], verbose: bool, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    said = []
    monkeypatch.setattr(runtime, "prepare", said.append)
    assert cli.main(argv) == 0
    assert said == [verbose]
    assert capsys.readouterr().out == printed


PREPARED = """
import logging, os, sys
from jaxllm.cli import runtime
runtime.prepare(verbose="-v" in sys.argv)
assert "jax" not in sys.modules
logging.getLogger("jaxllm.load").info("reading")
logging.getLogger("jaxllm.load").warning("odd")
logging.getLogger("other").info("chatter")
import jax
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: x * 2)(1.0).block_until_ready()
"""


def environment(**own: str) -> dict[str, str]:
    """The process's environment without what a command before may have set, and with ``own``."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_"))} | own


def test_compiled_programs_are_cached_and_nothing_is_said(tmp_path: Path):
    done = python(PREPARED, env=environment(JAXLLM_CACHE=str(tmp_path)))
    assert done.stdout == f"{tmp_path}/xla\n"
    assert done.stderr.split()[1:] == ["WARNING", "odd"]  # after the time
    entries = set((tmp_path / "xla").iterdir())
    assert entries
    again = python(PREPARED, "-v", env=environment(JAXLLM_CACHE=str(tmp_path)))
    assert "reading" in again.stderr
    assert "chatter" not in again.stderr
    assert {entry.name for entry in entries} <= {entry.name for entry in (tmp_path / "xla").iterdir()}


def test_the_users_own_settings_win(tmp_path: Path):
    own = environment(JAXLLM_CACHE=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert python(PREPARED, env=own).stdout == f"{tmp_path / 'own'}\n"


# Stands for a command: the listing of commands is replaced before the dispatcher looks.
# It ends by itself, native code or not, when the test that started it was killed.
# A shell's background process ignores SIGINT; a user's foreground one, which is meant here, does not.
COMMAND = """
import dataclasses, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.alarm({limit})
from jaxllm.cli import commands, console, main
@dataclasses.dataclass(frozen=True)
class Slow:
    "Take long."
    def run(self):
        {body}
commands.grouped = lambda: {{"Fakes": {{"slow": Slow}}}}
sys.argv = ["jaxllm", "slow"]
sys.exit(main())
"""
CHILD_SECONDS = 60
BODIES = {
    "sleep": "console.write('started'); time.sleep(60)",
    "import": "console.write('started')\n        while True: exec('import this', {}); sys.modules.pop('this', None)",
    "progress": "console.write('started')\n        with console.progress('Map', 10.0, 'neurons'): time.sleep(60)",
    # What is raised in a callback of the garbage collector is lost.
    "callback": """import gc
        gc.callbacks.append(lambda phase, info: time.sleep(0.2))
        console.write('started')
        while True: gc.collect(); time.sleep(0.1)""",
    # Python sees the signal only when this call returns, minutes later.
    "native": "import hashlib; console.write('started'); hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    # The interpreter would wait for the device at exit.
    "device": """import jax
        loop = jax.jit(lambda x: jax.lax.fori_loop(0, 10**7, lambda i, x: x @ x, x))
        console.write('started')
        loop(jax.numpy.eye(512)).block_until_ready()""",
}


@pytest.mark.parametrize("body", BODIES)
def test_ctrl_c_in_the_middle_of_anything(body: str):
    command = [sys.executable, "-c", COMMAND.format(body=BODIES[body], limit=CHILD_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline() != "started\n":
                assert process.poll() is None
            time.sleep(0.5)
            start = time.perf_counter()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert time.perf_counter() - start < interrupt.GRACE_SECONDS + 3


@pytest.mark.parametrize("call", ['console.write("x" * 100)', 'console.stdout().print("x" * 100)'])
def test_a_closed_pipe_is_quiet(call: str):
    body = f'console.write("started"); [{call} for _ in range(100000)]'
    line = f"{sys.executable} -c '{COMMAND.format(body=body, limit=CHILD_SECONDS)}' 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.stdout == "started\n141\n"
    assert done.stderr == ""


def test_tables_in_a_pipe_have_no_colours_and_are_not_cut(capsys: pytest.CaptureFixture[str]):
    from rich.table import Table

    table = Table("neuron", "tokens")
    table.add_row("[bold]L0/N1[/bold]", "word " * 20)
    console.stdout().print(table)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]L0/N1[/bold]" in out
    assert "word " * 20 in out


def test_progress_says_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]):
    console.stderr.cache_clear()
    with console.progress("Map", total=3, unit="neurons") as advance:
        advance(3)
    console.stderr.cache_clear()
    assert capsys.readouterr() == ("", "")

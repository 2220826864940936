"""A Python that stays."""

import pytest

from envs.sandbox import Interpreter
from jaxllm.errors import UserError


@pytest.fixture(scope="module")
def python(sandbox):
    made = Interpreter(sandbox)
    yield made
    made.close()


def test_names_stay_and_the_last_value_is_printed(python):
    assert python.run("x = 20\ndef f(n):\n    return n + 1").text == ""
    assert python.run("f(x)").text == "21\n"
    assert python.run("print('a')\n'b'").text == "a\n'b'\n"
    assert python.run("None").text == ""


def test_an_error_shows_its_line_and_nothing_of_ours(python):
    output = python.run("def g():\n    return 1 / 0\ng()")
    assert output.exit_code == 1
    assert "return 1 / 0" in output.text
    assert "ZeroDivisionError" in output.text
    assert "<string>" not in output.text
    assert python.run("f(").text.endswith("SyntaxError: '(' was never closed\n")
    assert python.run("x").text == "20\n"


def test_a_long_cell_is_interrupted_and_names_stay(python):
    output = python.run("import time\nwhile True: time.sleep(0.01)", 0.3)
    assert "KeyboardInterrupt" in output.text
    assert output.note.startswith("interrupted")
    assert python.run("x").text == "20\n"


def test_there_is_no_input(python):
    assert "EOFError" in python.run("input()").text


def test_it_sees_the_folder_and_no_network(python, folder):
    (folder / "mine.py").write_text("value = 5\n")
    assert python.run("import mine, os; os.getcwd(), mine.value").text == "('/desk', 5)\n"
    output = python.run("import socket; socket.create_connection(('127.0.0.1', 9), 2)")
    assert "ConnectionRefusedError" in output.text


def test_modules_of_the_session_do_not_reach_ours(sandbox, folder):
    for name in ("ast", "traceback", "linecache"):
        (folder / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    fresh = Interpreter(sandbox)
    assert fresh.run("1 + 1").text == "2\n"
    fresh.close()


def test_exits_and_crashes(python):
    assert python.run("import sys; sys.exit(4)").exit_code == 4
    assert python.run("x").text == "20\n"
    crashed = python.run("import os; os._exit(9)")
    assert crashed.exit_code == 9
    assert "names are lost" in crashed.note
    assert "NameError" in python.run("x").text
    stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    assert "killed after" in python.run(stubborn, 0.3).note
    assert python.run("6 * 7").text == "42\n"


def test_code_that_is_too_long_is_refused(python):
    with pytest.raises(UserError, match="1 MiB"):
        python.run("#" * (2 << 20))

"""The doctor: what it finds, and that nothing that it looks at can hold it up or bring it down."""

import ctypes
import os
import sys
import time
from pathlib import Path

import pytest

from envs import doctor, registry
from envs.doctor import Check


def good() -> Check:
    return Check("any", "ok", "as it should be")


def raises() -> Check:
    raise ImportError("libQt5 is not there")


def chats() -> Check:
    print("noise on stdout")
    os.write(2, b"noise on stderr\n")
    return good()


def leaves() -> Check:
    sys.exit(3)


def crashes() -> Check:
    ctypes.string_at(0)
    return good()


def hangs() -> Check:
    if os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600"):  # a child that would stay
        Path(os.environ["TOYS_PID"]).write_text(str(os.getpid()))
    time.sleep(600)
    return good()


def test_what_hangs_crashes_or_raises_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOYS_PID", str(tmp_path / "pid"))
    ticks = []
    checks = {function.__name__: (function, ()) for function in (good, raises, chats, leaves, crashes)}
    found = {check.name: check for check in doctor.examine(lambda: ticks.append(1), checks)}
    assert list(found) == list(checks)
    assert len(ticks) == len(checks)
    assert found["good"] == Check("good", "ok", "as it should be")
    assert found["chats"] == Check("chats", "ok", "as it should be")
    assert found["raises"].state == "missing"
    assert found["raises"].detail == "ImportError: libQt5 is not there"
    assert "exit code 3" in found["leaves"].detail
    assert "signal 11" in found["crashes"].detail


def test_a_check_that_hangs_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOYS_PID", str(tmp_path / "pid"))
    patience = 2.0
    while not (tmp_path / "pid").exists():  # a busy machine may not have come to hang by then
        patience *= 2
        assert patience < 200
        begun = time.monotonic()
        (found,) = doctor.examine(checks={"hangs": (hangs, ())}, patience=patience)
        assert found.state == "missing"
        assert f"no answer within {patience:g} s" in found.detail
        assert time.monotonic() - begun < patience + 60
    group = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            break
    else:
        pytest.fail("a process was left")


def test_every_family_of_the_registry_is_looked_at():
    assert {name.removesuffix("/*") for name in doctor.CHECKS if name.endswith("/*")} == set(registry.FAMILIES)


def test_shared_memory_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = os.statvfs(tmp_path)
    found = doctor.shared_memory(tmp_path)
    assert found.state == ("ok" if size.f_blocks * size.f_frsize >= doctor.SHARED_MEMORY else "degraded")
    monkeypatch.setattr(doctor, "SHARED_MEMORY", 1 << 62)
    small = doctor.shared_memory(tmp_path)
    assert small.state == "degraded"
    assert "--shm-size" in small.remedy
    assert doctor.shared_memory(tmp_path / "absent").state == "degraded"


def test_a_missing_library_names_its_remedy():
    found = doctor._library("x", "no_such_module", "nothing", "pip install nothing", "things")
    assert (found.state, found.remedy) == ("missing", "pip install nothing")


def test_a_family_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(registry.FAMILIES, "toys", ("tests.envs.toys", "toys"))
    assert doctor.family("toys") == Check("toys/*", "ok", "5 environments")
    monkeypatch.setattr("tests.envs.toys.missing", lambda: "install toys")
    assert doctor.family("toys") == Check("toys/*", "missing", "", "install toys")


def test_the_browser_and_the_sandbox_of_this_machine_are_tried():
    browser, sandbox, server = doctor.examine(
        checks={name: doctor.CHECKS[name] for name in ("browser", "sandbox", "step server")}
    )
    assert browser.state in ("ok", "degraded")
    assert "Chromi" in browser.detail
    assert sandbox.state in ("ok", "degraded")
    assert "bubblewrap" in sandbox.detail
    assert server.state == "ok"

"""Tokens, and where a server may listen."""

import os

import pytest

from envs.server import auth
from jaxllm.errors import UserError

KEY = b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"  # a key from ZeroMQ's manual


def test_a_token_has_256_bits_and_is_new_each_time():
    tokens = {auth.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}


def test_a_key_travels_with_the_token():
    secret, key = auth.split(auth.new_token(KEY) + "\n")
    assert len(secret) == 64
    assert key == KEY
    assert auth.split(secret) == (secret, None)


@pytest.mark.parametrize("wrong", ["", "abc", "A" * 64, "0" * 63, "0" * 65, "0" * 64 + ".short"])
def test_other_forms_are_refused(wrong):
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        auth.split(wrong)


@pytest.mark.parametrize("given", ["", "a", "0" * 63 + "1", None, 0, b"0" * 64, ["0" * 64], "\ud800"], ids=repr)
def test_another_token_is_another(given):
    assert not auth.same(given, "0" * 64)


def test_the_same_token_is_the_same():
    assert auth.same("0" * 64, "0" * 64)


def test_a_tokens_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "token"
    path.touch(0o644)
    before = os.umask(0)
    try:
        auth.write(path, "0" * 64)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert auth.read(path) == auth.read(str(path)) == "0" * 64


def test_a_file_that_others_read_is_refused(tmp_path):
    path = tmp_path / "token"
    auth.write(path, "0" * 64)
    path.chmod(0o640)
    with pytest.raises(UserError, match="others can read"):
        auth.read(path)


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "token").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        auth.write(tmp_path / "token", "0" * 64)
    assert (tmp_path / "target").read_text() == "mine"


def test_the_environment_may_hold_the_token_or_its_place(tmp_path, monkeypatch):
    monkeypatch.delenv(auth.VARIABLE, raising=False)
    with pytest.raises(UserError, match=auth.VARIABLE):
        auth.read(None)
    monkeypatch.setenv(auth.VARIABLE, "1" * 64)
    assert auth.read(None) == "1" * 64
    auth.write(tmp_path / "token", "2" * 64)
    monkeypatch.setenv(auth.VARIABLE, str(tmp_path / "token"))
    assert auth.read(None) == "2" * 64
    with pytest.raises(UserError, match="No such file"):
        auth.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("ipc:///tmp/x", True), ("tcp://127.0.0.1:5", True), ("tcp://127.8.9.10:5", True), ("tcp://localhost:5", True),
        ("tcp://[::1]:5", True), ("tcp://0.0.0.0:5", False), ("tcp://*:5", False), ("tcp://10.0.0.1:5", False),
        ("tcp://[::]:5", False), ("tcp://example.org:5", False), ("tcp://localhost.example.org:5", False),
    ],
)  # fmt: skip
def test_what_other_hosts_can_reach(address, local):
    assert auth.is_local(address) is local


@pytest.mark.parametrize(("token", "encrypted"), [(None, False), ("t", False), (None, True)])
def test_what_other_hosts_can_reach_needs_token_and_encryption(token, encrypted):
    with pytest.raises(UserError, match="both a token and encryption"):
        auth.check_bind("tcp://0.0.0.0:5555", token, encrypted)
    auth.check_bind("tcp://127.0.0.1:5555", token, encrypted)
    auth.check_bind("tcp://0.0.0.0:5555", "t", True)


@pytest.mark.parametrize("address", ["5555", "http://127.0.0.1:80", "tcp://127.0.0.1", "inproc://x"])
def test_other_addresses_are_refused(address):
    with pytest.raises(UserError, match="bind to tcp"):
        auth.check_bind(address, "t", True)

"""Shared memory of sessions: what is read stays as it is."""

import os
import resource
import secrets
import subprocess
import sys

import numpy as np
import pytest

from envs.server import arena


@pytest.fixture
def name():
    name = f"{arena.owner_name(os.getpid())}-{secrets.token_hex(4)}"
    yield name
    arena.remove(name)


def pair(name: str, nbytes: int = 100_000) -> tuple[arena.Slots, arena.Slots]:
    size = arena.create(name, nbytes)
    return arena.Slots(name, size, writable=True), arena.Slots(name, size)


def test_what_was_written_is_read_in_place(name):
    writer, reader = pair(name)
    arrays = [np.arange(1000), np.full((100, 7), 0.5)]
    generation = writer.write(1, arrays, crc=True)
    data = reader.read(1, generation)
    assert data.base is not None
    assert not data.flags.writeable
    np.testing.assert_array_equal(data[:8000].view(np.int64), arrays[0])
    np.testing.assert_array_equal(data[8000 : 8000 + 5600].view(float).reshape(100, 7), arrays[1])  # 8000 is a multiple of 64


def test_a_slot_that_somebody_reads_is_not_offered(name):
    writer, reader = pair(name)
    first = reader.read(0, writer.write(reader.free(), [np.arange(10)]))
    second = reader.read(1, writer.write(reader.free(), [np.arange(10)]))
    assert reader.free() == -1
    view = first[8:16].view(np.int64)  # holds the slot as the whole does
    del first
    assert reader.free() == -1
    del view
    assert reader.free() == 0
    del second
    assert {reader.free(), reader.free()} == {0, 1}


def test_an_overwritten_slot_is_stale(name):
    writer, reader = pair(name)
    old = writer.write(0, [np.arange(10)])
    new = writer.write(0, [np.arange(10) + 1])
    assert reader.read(0, old) is None
    assert reader.read(0, new) is not None
    assert reader.read(2, new) is None


def test_damage_is_seen_where_checksums_are_kept(name):
    writer, reader = pair(name)
    generation = writer.write(0, [np.arange(1000)], crc=True)
    writer._view[arena.wire.ALIGN + 5] ^= 1
    assert reader.read(0, generation) is None


def test_what_does_not_fit_is_not_written(name):
    writer, _ = pair(name, 1000)
    assert writer.write(0, [np.zeros(10_000)]) is None
    assert writer.write(-1, [np.zeros(1)]) is None
    assert writer.write(2, [np.zeros(1)]) is None


def test_what_is_mapped_outlives_its_name(name):
    writer, reader = pair(name)
    data = reader.read(0, writer.write(0, [np.arange(10)]))
    arena.remove(name)
    arena.remove(name)
    del writer, reader
    assert data[:80].view(np.int64)[9] == 9
    with pytest.raises(OSError, match="No such file"):
        arena.Slots(name, 4096)


@pytest.mark.parametrize("wrong", ["../etc/passwd", "/etc/passwd", "other"])
def test_only_segments_of_step_servers_are_opened(wrong):
    with pytest.raises(OSError, match="no segment"):
        arena.Slots(wrong, 4096)


def test_a_full_file_system_is_an_error_before_anything_is_written(name):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files stands in for a full file system: the claim of memory fails in the same place.
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "from envs.server import arena\n"
        f"try: arena.create({name!r}, 1 << 20)\nexcept OSError as error: print(error.errno)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "27"  # EFBIG
    assert not (arena.ROOT / name).exists()
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before


def test_only_what_the_dead_left_is_swept(tmp_path):
    mine = tmp_path / f"{arena.owner_name(os.getpid())}-aa"
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    pid = process.pid
    process.wait()
    dead = tmp_path / f"{arena.PREFIX}-{pid}-12345-bb"
    other_life = tmp_path / f"{arena.PREFIX}-{os.getpid()}-1-cc"  # the number is in use again, by another process
    strange = tmp_path / f"{arena.PREFIX}-x-y"
    for path in (mine, dead, other_life, strange, tmp_path / "something-else"):
        path.touch()
    assert sorted(arena.sweep(tmp_path)) == sorted([dead, other_life])


def test_a_zombie_counts_as_dead():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert arena.start_time(process.pid) is None
    process.wait()
    assert arena.start_time(os.getpid()) > 0

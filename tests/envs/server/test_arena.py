"""Shared memory of sessions: what is read stays as it is."""

import os
import resource
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envs.server import arena


@pytest.fixture
def memory():
    memory = arena.Arena(f"{arena.owner_name(os.getpid())}-{secrets.token_hex(4)}")
    yield memory
    for path in segments(memory):
        path.unlink()


def segments(memory: arena.Arena) -> list[Path]:
    return sorted(arena.ROOT.glob(memory.prefix + "*"))


def pair(memory: arena.Arena, nbytes: int = 100_000) -> tuple[arena.Slots, arena.Slots]:
    room = memory.take("client", nbytes)
    return arena.Slots(*room, writable=True), arena.Slots(*room)


def test_what_was_written_is_read_in_place(memory):
    writer, reader = pair(memory)
    arrays = [np.arange(1000), np.full((100, 7), 0.5)]
    generation = writer.write(1, arrays, b"result", crc=True)
    result, data = reader.read(1, generation)
    assert result == b"result"
    assert data.base is not None
    assert not data.flags.writeable
    np.testing.assert_array_equal(data[:8000].view(np.int64), arrays[0])
    np.testing.assert_array_equal(data[8000 : 8000 + 5600].view(float).reshape(100, 7), arrays[1])  # 8000 is a multiple of 64


def test_a_slot_whose_arrays_somebody_reads_is_not_offered(memory):
    writer, reader = pair(memory)
    _, first = reader.read(0, writer.write(reader.free(), [np.arange(10)], b""))
    _, second = reader.read(1, writer.write(reader.free(), [np.arange(10)], b""))
    assert reader.free() == -1
    view = first[8:16].view(np.int64)  # holds the slot as the whole does
    del first
    assert reader.free() == -1
    del view
    assert reader.free() == 0
    del second
    assert {reader.free(), reader.free()} == {0, 1}


def test_a_result_without_arrays_holds_no_slot(memory):
    writer, reader = pair(memory)
    for number in range(5):
        slot = reader.free()
        assert slot == number % 2
        text = b"%d" % number
        assert reader.read(slot, writer.write(slot, [], text)) == (text, None)


def test_an_overwritten_slot_is_stale(memory):
    writer, reader = pair(memory)
    old = writer.write(0, [np.arange(10)], b"")
    new = writer.write(0, [np.arange(10) + 1], b"")
    assert reader.read(0, old) is None
    assert reader.read(0, new) is not None
    assert reader.read(2, new) is None


@pytest.mark.parametrize("place", [5, 64 + 8000 - 64 + 2], ids=["array", "result"])
def test_damage_is_seen_where_checksums_are_kept(memory, place):
    room = memory.take("client", 10_000)
    writer, reader = arena.Slots(*room, writable=True), arena.Slots(*room)
    generation = writer.write(0, [np.arange(1000)], b"result", crc=True)
    with (arena.ROOT / room.segment).open("r+b") as file:
        file.seek(room.start + arena.wire.ALIGN + place)
        file.write(b"?")
    assert reader.read(0, generation) is None


def test_what_does_not_fit_is_not_written(memory):
    writer, _ = pair(memory, 1000)
    assert writer.write(0, [np.zeros(10_000)], b"") is None
    assert writer.write(0, [], bytes(10_000)) is None
    assert writer.write(0, [np.zeros(400)], bytes(1000)) is None  # 3200 + 1000 of 4096 - 64
    assert writer.write(-1, [np.zeros(1)], b"") is None
    assert writer.write(2, [np.zeros(1)], b"") is None


def test_small_rooms_of_a_client_share_a_segment_and_its_mapping(memory):
    rooms = [memory.take("client", 1000) for _ in range(200)]  # 8 KiB each: 128 in one
    assert len(memory) == len(segments(memory)) == 2
    assert len({(room.segment, room.start) for room in rooms}) == 200
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    slots = [arena.Slots(*room, writable=True) for room in rooms]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors + 2
    for number, each in enumerate(slots):
        each.write(1, [], b"%d" % number)
    assert [arena.Slots(*room).read(1, 2)[0] for room in rooms] == [b"%d" % number for number in range(200)]


def test_other_clients_and_large_rooms_have_segments_of_their_own(memory):
    rooms = [memory.take("a", 1000), memory.take("b", 1000), memory.take("a", 1 << 20), memory.take("a", 1000)]
    assert len({room.segment for room in rooms}) == 3
    assert rooms[0].segment == rooms[3].segment


def test_a_segment_goes_with_its_last_room(memory):
    first, second = (memory.take("client", 1000) for _ in range(2))
    memory.free("client", first)
    assert len(memory) == len(segments(memory)) == 1
    memory.free("client", second)
    assert len(memory) == len(segments(memory)) == 0
    again = memory.take("client", 1000)
    assert again.segment != first.segment


def test_what_is_mapped_outlives_its_name(memory):
    room = memory.take("client", 1000)
    writer, reader = arena.Slots(*room, writable=True), arena.Slots(*room)
    _, data = reader.read(0, writer.write(0, [np.arange(10)], b""))
    memory.free("client", room)
    del writer, reader
    assert data[:80].view(np.int64)[9] == 9
    del data
    with pytest.raises(OSError, match="No such file"):
        arena.Slots(*room)


def test_only_a_room_within_its_segment_is_used(memory):
    room = memory.take("client", 1000)
    for start, slot_bytes in ((-8192, 4096), (arena.SEGMENT, 4096), (0, arena.SEGMENT), (0, -4096)):
        with pytest.raises(OSError, match="no room"):
            arena.Slots(room.segment, start, slot_bytes)


@pytest.mark.parametrize("wrong", ["../etc/passwd", "/etc/passwd", "other"])
def test_only_segments_of_step_servers_are_opened(wrong):
    with pytest.raises(OSError, match="no segment"):
        arena.Slots(wrong, 0, 4096)


def test_a_full_file_system_is_an_error_before_anything_is_written(memory):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files stands in for a full file system: the claim of memory fails in the same place.
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "from envs.server import arena\n"
        f"try: arena.Arena({memory.prefix!r}).take(0, 1 << 20)\nexcept OSError as error: print(error.errno)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "27"  # EFBIG
    assert not segments(memory)
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

"""Results of sessions in shared memory, for a client on the same host: their bytes, and large arrays that are read in place.

Each session has room for two results, so that the last can be read while the next is written. The client says which of its
slots to write (`Slots.free`): never one whose arrays it still reads. So an array stays as it is for as long as somebody holds
it, and a session whose reader holds both slots gets its next results by message.

The router makes, names and removes the segments (`Arena`): a small room shares one with others of its client, a large one has
its own. The worker writes; the client maps and reads. A segment is a plain file of the shared-memory file system, mapped by
each: Python's `shared_memory` would have an opener's exit remove it for all. The name holds the owner's process and its start
time, by which a later server knows the dead (`sweep`).

Layout of a room: slot k begins at ``k * slot_bytes`` with a header (generation, bytes of arrays, bytes of the result, CRC-32 or
0), then come the arrays (`wire.places`), then the result. The generation is odd while the slot is written.
"""

import mmap
import os
import struct
import weakref
import zlib
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.server import wire

ROOT = Path("/dev/shm")
PREFIX = "jaxllm-envs"
HEADER = struct.Struct("<QQQI")  # generation, bytes of arrays, bytes of the result, CRC-32
SLOTS = 2
SEGMENT = 1 << 20  # bytes of a segment that sessions share; a room of more than a quarter has its own
_NOWHERE = [0]  # `wire.places` of no arrays


def owner_name(pid: int) -> str:
    """A name for what a process owns, that no later process with the same number shares."""
    return f"{PREFIX}-{pid}-{start_time(pid)}"


def start_time(pid: int) -> int | None:
    """When a process began, in ticks since the machine's start; None if there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def sweep(folder: Path, pattern: str = f"{PREFIX}-*") -> list[Path]:
    """What dead servers left in a folder, by name."""
    found = []
    for path in folder.glob(pattern):
        parts = path.name.removeprefix(PREFIX + "-").split("-")
        if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() and start_time(int(parts[0])) != int(parts[1]):
            found.append(path)
    return found


class Room(NamedTuple):
    """Where the two slots of a session lie."""

    segment: str
    start: int
    slot_bytes: int


class Arena:
    """The segments of a server. No room is used twice, for readers keep what they have mapped; a segment goes with its last."""

    def __init__(self, prefix: str, root: Path = ROOT):
        self.prefix, self._root = prefix, root
        self._made = 0
        self._rooms: Counter[str] = Counter()  # that are in use, by segment
        self._open: dict[Hashable, tuple[str, int]] = {}  # client -> segment with space left, and where that begins

    def __len__(self) -> int:
        """How many segments there are."""
        return len(self._rooms)

    def take(self, client: Hashable, nbytes: int) -> Room:
        """Room for a session with results of `nbytes`. The memory is claimed: a full file system is an OSError here."""
        slot_bytes = -(-(nbytes + wire.ALIGN) // mmap.PAGESIZE) * mmap.PAGESIZE
        size = SLOTS * slot_bytes
        segment, start = self._open.get(client, ("", SEGMENT))
        if size > SEGMENT // 4:
            segment, start = self._make(size), 0
        elif start + size > SEGMENT:
            segment, start = self._make(SEGMENT), 0
            self._open[client] = segment, size
        else:
            self._open[client] = segment, start + size
        self._rooms[segment] += 1
        return Room(segment, start, slot_bytes)

    def free(self, client: Hashable, room: Room) -> None:
        """Gives a room back; the last of a segment removes its name."""
        self._rooms[room.segment] -= 1
        if not self._rooms[room.segment]:
            del self._rooms[room.segment]
            if self._open.get(client, ("", 0))[0] == room.segment:
                del self._open[client]
            (self._root / room.segment).unlink(missing_ok=True)

    def _make(self, size: int) -> str:
        self._made += 1
        segment = f"{self.prefix}-{self._made}"
        path = self._root / segment
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        return segment


_maps: dict[tuple[Path, bool], weakref.ref[mmap.mmap]] = {}  # one for all rooms of a segment: each has a descriptor


def _map(path: Path, writable: bool) -> mmap.mmap:
    known = _maps.get((path, writable))
    found = None if known is None else known()
    if found is None:
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            found = mmap.mmap(descriptor, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        except ValueError as error:
            raise OSError(f"{path.name}: {error}") from error
        finally:
            os.close(descriptor)
        # Not a WeakValueDictionary: its callbacks would swallow the exception by which a signal ends a worker.
        for key in [key for key, other in _maps.items() if other() is None]:
            del _maps[key]
        _maps[path, writable] = weakref.ref(found)
    return found


class Slots:
    """The room of a session, for its worker (`write`) or its client (`free`, `read`). Raises OSError if there is none."""

    def __init__(self, segment: str, start: int, slot_bytes: int, *, writable: bool = False, root: Path = ROOT):
        if "/" in segment or not segment.startswith(PREFIX):
            raise OSError(f"{segment!r} is no segment of a step server")
        self._map = _map(root / segment, writable)
        if not 0 <= start <= start + SLOTS * slot_bytes <= len(self._map):
            raise OSError(f"{segment}: no room of {slot_bytes} bytes at {start}")
        self._start, self.slot_bytes = start, slot_bytes
        self._generation = 0
        self._held: list[weakref.ref | None] = [None] * SLOTS
        self._next = 0

    def write(self, slot: int, buffers: list[np.ndarray], result: bytes, crc: bool = False) -> int | None:
        """Copies a result and its arrays into a slot; returns its generation, or None if they don't fit or there is no such."""
        starts = wire.places([array.nbytes for array in buffers]) if buffers else _NOWHERE
        arrays, length = starts[-1], len(result)
        if not 0 <= slot < SLOTS or wire.ALIGN + arrays + length > self.slot_bytes:
            return None
        base = self._start + slot * self.slot_bytes
        body = base + wire.ALIGN
        generation = self._generation = self._generation + 2
        memory = self._map
        HEADER.pack_into(memory, base, generation - 1, 0, 0, 0)
        if buffers:
            for array, start in zip(buffers, starts, strict=False):
                np.frombuffer(memory, array.dtype, array.size, body + start)[:] = array.reshape(-1)
        memory[body + arrays : body + arrays + length] = result
        check = zlib.crc32(memory[body : body + arrays + length]) if crc else 0
        HEADER.pack_into(memory, base, generation, arrays, length, check)
        return generation

    def free(self) -> int:
        """A slot whose arrays nobody reads, or -1."""
        for slot in (self._next, 1 - self._next):
            held = self._held[slot]
            if held is None or held() is None:
                self._next = 1 - slot
                return slot
        return -1

    def read(self, slot: int, generation: int) -> tuple[bytes, np.ndarray | None] | None:
        """A result and the bytes of its arrays: uint8, in place, None without. None if something else is there, or damaged.

        The slot counts as held until the array and all views of it are gone.
        """
        if not 0 <= slot < SLOTS:
            return None
        base = self._start + slot * self.slot_bytes
        memory = self._map
        found, arrays, length, check = HEADER.unpack_from(memory, base)
        body = base + wire.ALIGN
        if found != generation or found % 2 or wire.ALIGN + arrays + length > self.slot_bytes:
            return None
        if check and zlib.crc32(memory[body : body + arrays + length]) != check:
            return None
        result = memory[body + arrays : body + arrays + length]
        if not arrays:
            return result, None
        data = np.frombuffer(memory, np.uint8, arrays, body)
        self._held[slot] = weakref.ref(data)
        return result, data

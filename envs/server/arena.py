"""Large arrays of one session in shared memory: two slots, so that the last observation can be read while the next is written.

The router makes, names and removes the segment; the worker writes; a client on the same host maps it and reads in place. The
client says which slot to write (`Slots.free`): never one that it still reads. So an array stays as it is for as long as
somebody holds it, and a session whose reader holds both slots gets its next arrays by message.

A segment is a plain file of the shared-memory file system, mapped by each: Python's `shared_memory` would have an opener's
exit remove it for all. The name holds the owner's process and its start time, by which a later server knows the dead
(`sweep`). Layout: slot k begins at ``k * slot_bytes`` with a header (generation, length, CRC-32 or 0); the generation is odd
while the slot is written.
"""

import contextlib
import mmap
import os
import struct
import weakref
import zlib
from pathlib import Path

import numpy as np

from envs.server import wire

ROOT = Path("/dev/shm")
PREFIX = "jaxllm-envs"
HEADER = struct.Struct("<QQI")  # generation, length in bytes, CRC-32
SLOTS = 2


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


def create(name: str, nbytes: int, root: Path = ROOT) -> int:
    """Makes the segment of a session, with room for `nbytes` in each slot; returns the bytes of a slot.

    The memory is claimed at once: a full file system is an OSError here, not a dead worker later.
    """
    slot_bytes = -(-(nbytes + wire.ALIGN) // mmap.PAGESIZE) * mmap.PAGESIZE
    path = root / name
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SLOTS * slot_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return slot_bytes


def remove(name: str, root: Path = ROOT) -> None:
    """Removes the name; whoever has the segment mapped keeps what is in it."""
    with contextlib.suppress(FileNotFoundError):
        (root / name).unlink()


class Slots:
    """A segment, mapped by its worker (`write`) or by its client (`free`, `read`). Raises OSError if it is not to be had."""

    def __init__(self, name: str, slot_bytes: int, *, writable: bool = False, root: Path = ROOT):
        if "/" in name or not name.startswith(PREFIX):
            raise OSError(f"{name!r} is no segment of a step server")
        descriptor = os.open(root / name, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, SLOTS * slot_bytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        except ValueError as error:
            raise OSError(f"{name}: {error}") from error
        finally:
            os.close(descriptor)
        self._view = memoryview(self._map)
        self.slot_bytes = slot_bytes
        self._generation = 0
        self._held: list[weakref.ref | None] = [None] * SLOTS
        self._next = 0

    def write(self, slot: int, buffers: list[np.ndarray], crc: bool = False) -> int | None:
        """Copies arrays into a slot; returns its generation, or None if they don't fit or there is no such slot."""
        starts = wire.places([array.nbytes for array in buffers])
        if not 0 <= slot < SLOTS or wire.ALIGN + starts[-1] > self.slot_bytes:
            return None
        base = slot * self.slot_bytes
        self._generation += 2
        HEADER.pack_into(self._view, base, self._generation - 1, 0, 0)
        body = base + wire.ALIGN
        for array, start in zip(buffers, starts, strict=False):
            np.frombuffer(self._view, array.dtype, array.size, body + start)[:] = array.reshape(-1)
        check = zlib.crc32(self._view[body : body + starts[-1]]) if crc else 0
        HEADER.pack_into(self._view, base, self._generation, starts[-1], check)
        return self._generation

    def free(self) -> int:
        """A slot that nobody reads, or -1."""
        for slot in (self._next, 1 - self._next):
            held = self._held[slot]
            if held is None or held() is None:
                self._next = 1 - slot
                return slot
        return -1

    def read(self, slot: int, generation: int) -> np.ndarray | None:
        """The bytes of a slot, in place, uint8; None if something else has been written there since, or it is damaged.

        The slot counts as held until this array and all views of it are gone.
        """
        if not 0 <= slot < SLOTS:
            return None
        base = slot * self.slot_bytes
        found, length, check = HEADER.unpack_from(self._view, base)
        if found != generation or found % 2 or wire.ALIGN + length > self.slot_bytes:
            return None
        data = np.frombuffer(self._view, np.uint8, length, base + wire.ALIGN)
        if check and zlib.crc32(data) != check:
            return None
        self._held[slot] = weakref.ref(data)
        return data

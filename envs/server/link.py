"""The way between a router and a worker, or the process that started it: messages over sockets that nobody else can open.

A message is the number of its frames, the length of each, and the frames. The router's end never blocks: what the other does
not take yet is kept here, and is little, since a session has one operation at a time.
"""

import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from envs.server.wire import HARD_LIMIT

CHUNK = 1 << 16  # bytes taken at once
HIGH_WATER = 1000  # messages to a client, or of one, that wait; more are dropped, and asked for again by a client that lives
FRAMES = 1 << 16  # of a message at most
_COUNT = struct.Struct("<I")


class Link:
    """One end. Used by one thread at a time for each direction."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._in = bytearray()
        self._taken = memoryview(bytearray(CHUNK))  # kept: to ask for its memory each time takes longer than all else
        self._out: deque[memoryview] = deque()
        self.ended = False  # an end is closed and all that came was received, or the other sent what nobody of ours does

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._end.fileno()

    @property
    def waiting(self) -> int:
        """How many messages the other end has not taken, or not whole."""
        return len(self._out)

    def send(self, frames: Sequence[Any]) -> bool:
        """Sends a message; whether nothing of it or of earlier ones waits for `flush`. Copies what it keeps."""
        sizes = [memoryview(frame).nbytes for frame in frames]
        self._out.append(memoryview(b"".join([struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes), *frames])))
        return self.flush()

    def flush(self) -> bool:
        """Sends what waits; whether nothing is left, or the other end is gone."""
        out = self._out
        try:
            while out:
                sent = self._end.send(out[0])
                if sent == len(out[0]):
                    out.popleft()
                else:
                    out[0] = out[0][sent:]
        except BlockingIOError:
            return False
        except OSError:  # it is dying, which is told elsewhere
            out.clear()
        return True

    def receive(self) -> list[list[bytes]]:
        """The messages that are complete with what has come, if any. Waits where its socket does; sets `ended` at the end."""
        try:
            size = self._end.recv_into(self._taken)
        except BlockingIOError:
            return []
        except OSError:
            size = 0
        self.ended = not size
        self._in += self._taken[:size]
        messages: list[list[bytes]] = []
        at = 0
        with memoryview(self._in) as view:
            while len(view) - at >= _COUNT.size:
                (count,) = _COUNT.unpack_from(view, at)
                body = at + _COUNT.size + 8 * count
                if len(view) < body and count <= FRAMES:
                    break
                sizes = struct.unpack_from(f"<{count}Q", view, at + _COUNT.size) if count <= FRAMES else ()
                if count > FRAMES or any(size > HARD_LIMIT for size in sizes):
                    self.ended = True  # no end of ours sends that: nothing more is taken from it
                    return messages
                if len(view) < body + sum(sizes):
                    break
                frames = []
                for size in sizes:
                    frames.append(bytes(view[body : body + size]))
                    body += size
                messages.append(frames)
                at = body
        del self._in[:at]
        return messages

    def close(self) -> None:
        """Closes this end."""
        self.ended = True
        self._end.close()

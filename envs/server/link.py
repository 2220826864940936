"""The way between a router and one of its workers: whole messages of frames over a pair of sockets that nobody else can open.

A message is the number of its frames, the length of each, and the frames. The router's end never blocks: what a worker does not
take yet is kept here, and is little, since a session has one operation at a time.
"""

import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from envs.server.wire import HARD_LIMIT

CHUNK = 1 << 18  # bytes taken at once
FRAMES = 1 << 16  # of a message at most
_COUNT = struct.Struct("<I")


class Link:
    """One end. Used by one thread at a time for each direction."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._in = bytearray()
        self._out: deque[memoryview] = deque()
        self.ended = False  # the other end is closed and all that it sent was received, or it sent what nobody of ours does

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._end.fileno()

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
            data = self._end.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.ended = not data
        self._in += data
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
        self._end.close()

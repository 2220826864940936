"""Width and height of a PNG or JPEG file, from its first bytes; no picture is decoded."""

import struct
from pathlib import Path

from jaxllm.errors import UserError

HEAD = 1 << 20  # bytes that are read: thumbnails and colour profiles may come before a JPEG's size
STARTS_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG markers that are followed by the size


def picture_size(path: str | Path) -> tuple[int, int]:
    """(width, height) in pixels. Raises UserError when the file cannot be read or is neither PNG nor JPEG."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    found = None
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR" and len(head) >= 24:
        found = struct.unpack(">II", head[16:24])
    elif head.startswith(b"\xff\xd8"):
        found = _jpeg(head)
    if found is None or min(found) < 1:
        raise UserError(f"{path}: no PNG or JPEG whose size can be read")
    return found[0], found[1]


def _jpeg(head: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(head):
        if head[place] != 0xFF:
            return None
        marker = head[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
        elif marker in STARTS_FRAME:
            height, width = struct.unpack(">HH", head[place + 5 : place + 9])
            return width, height
        else:
            place += 2 + max(2, int.from_bytes(head[place + 2 : place + 4], "big"))
    return None

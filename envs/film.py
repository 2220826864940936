"""An episode as pictures: a strip of its moments as PNG, and an animation as GIF, with clicks and drags marked.

Needs Pillow (the extra ``envs``). An environment without a screen is drawn by its text, or by its arrays.
"""

import dataclasses
import functools
import importlib.util
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.api import Action, Invalid, Obs
from envs.episode import Turn
from envs.policies import written
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

MOST_PANELS = 12  # of a strip; longer episodes show the first, the last, and some between at equal distances
MOST_FRAMES = 300  # of an animation, likewise
MOST_PIXELS = 64 << 20  # of a screenshot: a larger one is refused
PANELS_A_ROW = 6
PANEL_WIDTH = 300  # of a strip's pictures, at most; a small picture is enlarged at most twice
FILM_WIDTH = 720  # of an animation's pictures, likewise
SECONDS, LAST_SECONDS = 0.9, 2.5  # that a frame of the animation stays
LINES = 40  # of text drawn in place of a screenshot, at most
CAPTION_LINES = 3
MARGIN = 8
FAR = 1e5  # pixels; what is further off is not drawn, as NaN is not
INK, PAPER, GREY, MARK, GOOD = (32, 33, 36), (255, 255, 255), (236, 238, 241), (229, 57, 53), (27, 128, 62)


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """One moment of an episode, to be drawn."""

    obs: Obs
    marks: tuple[tuple[float, float], ...]  # one point of a click, or two of a drag, in pixels of the screenshot
    caption: str  # what is done there, and what it earns
    good: bool = False  # the moment of success


def frames(episode: Sequence[Turn]) -> list[Frame]:
    """The moments of an episode: each observation with the action that was done there, and the last one with the outcome."""
    out, total, success = [], 0.0, False
    for number, turn in enumerate(episode):
        if turn.action is None:
            caption = f"end: reward {total:g}" + (", solved" if success else "")
            out.append(Frame(turn.obs, (), caption, success))
            continue
        earned = "" if turn.result is None or turn.result.reward == 0 else f" → {turn.result.reward:g}"
        if turn.result is not None:
            total += turn.result.reward
            success = bool(turn.result.info.get("success", False))
        out.append(Frame(turn.obs, marks(turn.action), f"{number + 1}: {one_line(written(turn.action))}{earned}"))
    return out


def marks(action: Action | Invalid) -> tuple[tuple[float, float], ...]:
    """The points that an action names: none, one, or start and end."""
    if isinstance(action, Invalid):
        return ()
    found = (_numbers(action.arguments.get(name)) for name in ("point", "start_point", "end_point"))
    return tuple(point for point in found if point is not None)


def _numbers(value: Any) -> tuple[float, float] | None:
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(part, int | float) for part in value):
        x, y = value
        return (float(x), float(y)) if max(abs(x), abs(y)) < FAR else None
    return None


def one_line(text: str) -> str:
    """Text on one line, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else {"\n": "⏎", "\t": "⇥"}.get(c, "�") for c in text)


def strip(moments: Sequence[Frame], title: str = "") -> bytes:
    """A PNG with the moments side by side, at most `MOST_PANELS`, captions below and a title above.

    Raises UserError without Pillow, without a moment, or for a screenshot that is no picture.
    """
    panels = [_panel(moment, PANEL_WIDTH) for moment in _some(moments, MOST_PANELS)]
    from PIL import Image

    width = max(panel.width for panel in panels)
    rows = [panels[start : start + PANELS_A_ROW] for start in range(0, len(panels), PANELS_A_ROW)]
    inner = len(rows[0]) * (width + MARGIN) - MARGIN
    head = _title(title, inner)
    height = head.height + sum(max(panel.height for panel in row) + MARGIN for row in rows)
    sheet = Image.new("RGB", (inner + 2 * MARGIN, height + MARGIN), PAPER)
    sheet.paste(head, (MARGIN, MARGIN // 2))
    y = head.height + MARGIN
    for row in rows:
        for place, panel in enumerate(row):
            sheet.paste(panel, (MARGIN + place * (width + MARGIN), y))
        y += max(panel.height for panel in row) + MARGIN
    return _file(sheet.quantize(256, dither=Image.Dither.NONE), "PNG", optimize=True)


def animation(moments: Sequence[Frame]) -> bytes:
    """An animated GIF of the moments with their captions, at most `MOST_FRAMES`. Raises UserError as `strip` does."""
    panels = [_panel(moment, FILM_WIDTH) for moment in _some(moments, MOST_FRAMES)]
    from PIL import Image

    size = max(panel.width for panel in panels), max(panel.height for panel in panels)
    pages = []
    for panel in panels:
        page = Image.new("RGB", size, PAPER)
        page.paste(panel, (0, 0))
        pages.append(page.quantize(256, dither=Image.Dither.NONE))
    durations = [round(1000 * SECONDS)] * (len(pages) - 1) + [round(1000 * LAST_SECONDS)]
    return _file(pages[0], "GIF", save_all=True, append_images=pages[1:], duration=durations, loop=0, disposal=1)


def _some(moments: Sequence[Frame], most: int) -> list[Frame]:
    """All moments, or ``most`` at equal distances with the first and the last. Raises UserError for none, or no Pillow."""
    if importlib.util.find_spec("PIL") is None:
        raise UserError("pictures need Pillow: pip install 'jaxllm[envs]'")
    if not moments:
        raise UserError("there is nothing to draw: the episode has not begun")
    count = len(moments)
    if count <= most:
        return list(moments)
    return [moments[round(place * (count - 1) / (most - 1))] for place in range(most)]


def _file(picture: "Image", kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    picture.save(data, kind, **options)
    return data.getvalue()


def _panel(moment: Frame, width: int) -> "Image":
    """The picture of a moment with its marks, in a frame, above its caption."""
    from PIL import Image, ImageDraw

    picture, text = _picture(moment.obs, width)
    scale = 1.0 if text else min(width / picture.width, 2.0)
    kind = Image.Resampling.NEAREST if scale == 2 else Image.Resampling.LANCZOS
    picture = picture.resize((max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)), kind)
    draw = ImageDraw.Draw(picture)
    if not text:  # points lie on a screen, which may not be what was seen last
        _mark(draw, [(x * scale, y * scale) for x, y in moment.marks])
    lines, font = _wrapped(moment.caption, picture.width, 13, CAPTION_LINES)
    panel = Image.new("RGB", (picture.width + 2, picture.height + 2 + 6 + CAPTION_LINES * 17), PAPER)
    panel.paste(GOOD if moment.good else (200, 204, 209), (0, 0, panel.width, picture.height + 2))
    panel.paste(picture, (1, 1))
    ImageDraw.Draw(panel).multiline_text(
        (2, picture.height + 6), "\n".join(lines), GOOD if moment.good else INK, font, spacing=3
    )
    return panel


def _mark(draw: "ImageDraw", points: list[tuple[float, float]]) -> None:
    """A ring at a click; a ring, a line and a point at a drag."""
    radius: float
    for colour, extra in ((PAPER, 2), (MARK, 0)):
        if len(points) == 2:
            draw.line([points[0], points[1]], colour, 3 + 2 * extra)
            (x, y), radius = points[1], 6 + extra
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        if points:
            (x, y), radius = points[0], 10 + extra / 2
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=3 + extra)
    if len(points) == 1:
        x, y = points[0]
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=MARK)


def _picture(obs: Obs, width: int) -> "tuple[Image, bool]":
    """What there is to see, and whether it is text, which already has the width."""
    from PIL import Image

    if obs.screenshot is not None:
        try:
            with Image.open(io.BytesIO(obs.screenshot), formats=("PNG", "JPEG")) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise UserError(f"a screenshot of {picture.width}x{picture.height} pixels is too large to be drawn")
                return picture.convert("RGB"), False
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"a screenshot is no PNG or JPEG file: {error}") from None
    if obs.text is None:
        for array in obs.arrays.values():
            if (pixels := _pixels(array)) is not None:
                return Image.fromarray(pixels).convert("RGB"), False
    return _drawn(obs.text if obs.text is not None else array_text(obs.arrays), width), True


def _pixels(array: np.ndarray) -> np.ndarray | None:
    """uint8 [H, W, 3] or [H, W] of an array that is a picture; the last of stacked grey ones; None for other arrays."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or min(array.shape[-2:]) < 1:
        return None
    if array.ndim == 2:
        return array if min(array.shape) >= 16 else None
    if array.shape[-1] == 3:
        return array
    if array.shape[-1] == 1:
        return array[:, :, 0]
    if array.shape[0] == 3:
        return array.transpose(1, 2, 0)
    return array[-1] if min(array.shape[1:]) >= 16 else None


def array_text(arrays: Mapping[str, np.ndarray]) -> str:
    """Arrays as text: name, type and shape, and the values of short ones."""
    with np.printoptions(precision=4, threshold=200, linewidth=96):
        return "\n".join(f"{name}: {array.dtype}{list(array.shape)}\n{array}" for name, array in arrays.items())


def _drawn(text: str, width: int) -> "Image":
    """Text as a terminal of this width in pixels shows it."""
    from PIL import Image, ImageDraw

    size = 12 if width < FILM_WIDTH else 15
    font, high = _font(size), round(size * 1.3)
    columns = int((width - 2 * MARGIN) / font.getlength("x"))
    cut = text[: columns * LINES * 2]
    lines = [part for line in cut.splitlines() for part in textwrap.wrap(line, columns, **_KEEP) or [""]]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], "…"]
    picture = Image.new("RGB", (width, high * max(len(lines), 1) + 2 * MARGIN), GREY)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + high * number), one_line(line), INK, font)
    return picture


_KEEP: dict[str, Any] = {"replace_whitespace": False}  # leading blanks of a line stay: boards are drawn with them


def _title(text: str, width: int) -> "Image":
    from PIL import Image, ImageDraw

    lines, font = _wrapped(text, width, 15, 3) if text else ([], _font(15))
    picture = Image.new("RGB", (width, 20 * len(lines)), PAPER)
    ImageDraw.Draw(picture).multiline_text((0, 0), "\n".join(lines), INK, font, spacing=3)
    return picture


def _wrapped(text: str, width: int, size: int, most: int) -> "tuple[list[str], FreeTypeFont]":
    """Text in lines that fit into a width, at most ``most`` of them."""
    font = _font(size)
    columns = max(int(width / font.getlength("x")), 8)
    lines = textwrap.wrap(one_line(text), columns, max_lines=most, placeholder=" …")
    return lines, font


@functools.cache
def _font(size: int) -> "FreeTypeFont":
    """DejaVu Sans Mono, which comes with matplotlib: equal widths, and the signs of boards and boxes."""
    from PIL import ImageFont

    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    return ImageFont.truetype(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSansMono.ttf", size)

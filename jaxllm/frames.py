"""Frames of coordinates: in which units a point or a box of a screenshot is given, and how one becomes another.

A screenshot has a width and a height (`orig`), the vision tower sees a resized copy of it (`resized`), and some models answer
in units of their own. Every number belongs to one frame; two frames never meet without a conversion, and no frame is guessed.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from jaxllm.errors import UserError

# Frame -> what its numbers count, per axis.
FRAMES = {
    "orig": "pixels of the picture's file",
    "resized": "pixels of the picture that the vision tower saw",
    "rel1000": "thousandths of the width and height",
    "rel999": "the same with 999 at the far edge",
    "norm01": "shares of the width and height, 0 to 1",
}
EXTENTS = {"rel1000": 1000.0, "rel999": 999.0, "norm01": 1.0}  # the far edge of frames without pixels
MAX_RATIO = 200  # of the longer side to the shorter one
VARIANTS = ("utility", "processor")


@dataclasses.dataclass(frozen=True)
class Resize:
    """How a caller resizes pictures before the vision tower: the arguments of `smart_resize`."""

    factor: int  # both sides become multiples of it: 28 for Qwen2-VL and 2.5-VL, 32 for Qwen3-VL
    min_pixels: int  # smallest area
    max_pixels: int  # largest area
    variant: str = "processor"

    def size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the resized picture."""
        return smart_resize(height, width, **dataclasses.asdict(self))

    def sizes_wh(self, size_wh: np.ndarray) -> np.ndarray:
        """(width, height) of many resized pictures: int64 [..., 2] for [..., 2]. Raises UserError like `smart_resize`."""
        size_wh = np.asarray(size_wh, np.int64)
        codes = size_wh[..., 0] << 32 | size_wh[..., 1]
        kinds = codes.ravel()[:1] if codes.size and (codes == codes.flat[0]).all() else np.unique(codes)
        resized = [self.size(code & 0xFFFFFFFF, code >> 32)[::-1] for code in kinds.tolist()]
        return np.asarray(resized, np.int64).reshape(-1, 2)[np.searchsorted(kinds, codes)]


# The bounds differ by caller, so that the same picture becomes another size: name the one whose answers are read.
PRESETS = {
    "qwen25": Resize(28, 3_136, 12_845_056),  # the processor of Qwen2-VL and 2.5-VL; GUI-G2 trains and evaluates with it
    "qwen25_image": Resize(28, 3_136, 1_003_520),  # the generic image processor's lower bound on the area
    "ui_tars": Resize(28, 78_400, 12_845_056),
    "se_gui": Resize(28, 3_136, 4_028_160),
    "screenspot_pro": Resize(28, 3_136, 99_999_999),  # the runner of ScreenSpot-Pro
}


def smart_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int, variant: str = "utility"
) -> tuple[int, int]:
    """The size to which the Qwen-VL family resizes a picture: multiples of ``factor``, about the same shape, a bounded area.

    Arguments and result are in the order (height, width), as upstream; image libraries say (width, height).

    Two public variants differ for sides below half a factor: ``"utility"`` (the vision utility package) raises a rounded side
    to ``factor`` before it looks at the area, ``"processor"`` (Transformers) does not. A side is never 0: where the bounds
    would have it so, it is ``factor``, and the area of such a thin picture may then exceed ``max_pixels``.

    Raises:
      UserError: a side below 1, a ratio of the sides above 200, bounds that cross, an unknown variant.
    """
    if variant not in VARIANTS:
        raise UserError(f"variant {variant!r} of smart_resize is unknown; there are {', '.join(VARIANTS)}")
    if not 0 < min_pixels <= max_pixels or factor < 1:
        raise UserError(f"no size fits: factor {factor}, min_pixels {min_pixels}, max_pixels {max_pixels}")
    if min(height, width) < 1:
        raise UserError(f"a picture of height {height} and width {width} cannot be resized")
    if max(height, width) > MAX_RATIO * min(height, width):
        raise UserError(f"height {height} and width {width}: one side is more than {MAX_RATIO} times the other")
    least = factor if variant == "utility" else 0
    H, W = (max(least, factor * round(side / factor)) for side in (height, width))  # round is half to even
    area = H * W
    if area > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        H, W = (max(factor, factor * math.floor(side / shrink / factor)) for side in (height, width))
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        H, W = (factor * math.ceil(side * grow / factor) for side in (height, width))
    return max(H, factor), max(W, factor)


def check(frame: str) -> str:
    """The name of a frame. Raises UserError for an unknown one."""
    if frame not in FRAMES:
        raise UserError(f"frame {frame!r} is unknown; there are {', '.join(FRAMES)}")
    return frame


def convert(values: Any, source: str, target: str, *, size_wh: Any = None, resized_wh: Any = None) -> Any:
    """Points [..., 2] or boxes [..., 4] of the frame ``source``, in the frame ``target``; unrounded.

    Works on NumPy and JAX arrays alike; integers become float64 (NumPy), floats keep their type.

    Args:
      size_wh: [..., 2] width and height of the picture's file; needed where a frame is ``orig``.
      resized_wh: [..., 2] width and height of the resized picture; needed where a frame is ``resized``.

    Raises:
      UserError: an unknown frame, a size that is missing, coordinates of less than 32 bits (bfloat16 cannot hold 1921).
    """
    check(source)
    check(target)
    if not hasattr(values, "dtype"):
        values = np.asarray(values, np.float64)
    if values.dtype.itemsize < 4 and values.dtype.kind not in "iu":
        raise UserError(f"coordinates of type {values.dtype} have lost pixels already; keep them in float32")
    if values.shape[-1] not in (2, 4):
        raise UserError(f"neither points [..., 2] nor boxes [..., 4]: shape {tuple(values.shape)}")
    if source == target:
        return values
    sizes = {"orig": size_wh, "resized": resized_wh}
    up, down = (_far(frame, sizes, values) for frame in (target, source))
    corners = values.reshape(*values.shape[:-1], -1, 2)  # of a box both, of a point the one
    moved = corners * up / down
    return moved.reshape(*moved.shape[:-2], values.shape[-1])


def _far(frame: str, sizes: dict[str, Any], values: Any) -> Any:
    """What stands at the far edges, [..., 1, 2] or one number."""
    if frame in EXTENTS:
        return EXTENTS[frame]
    size = sizes[frame]
    if size is None:
        name = {"orig": "size_wh", "resized": "resized_wh"}[frame]
        raise UserError(f"the frame {frame} ({FRAMES[frame]}) needs the width and height of that picture: give {name}")
    if not hasattr(size, "dtype") or isinstance(size, np.ndarray):
        size = np.asarray(size, values.dtype if values.dtype.kind == "f" else np.float64)
    return size[..., None, :]


@dataclasses.dataclass(frozen=True, eq=False)
class Framed:
    """Points or boxes with the frame that they are in."""

    values: Any  # [..., 2] or [..., 4], NumPy or JAX
    frame: str
    size_wh: Any = None  # [..., 2] width and height of the picture's file
    resized_wh: Any = None  # [..., 2] width and height of the resized picture

    def __post_init__(self) -> None:
        check(self.frame)

    def to(self, frame: str) -> "Framed":
        """The same places in another frame."""
        values = convert(self.values, self.frame, frame, size_wh=self.size_wh, resized_wh=self.resized_wh)
        return dataclasses.replace(self, values=values, frame=frame)


def common(*framed: Framed) -> tuple[str, tuple[Any, ...]]:
    """The one frame of several arrays, and the arrays. Raises UserError when they are of different frames."""
    frames = {one.frame for one in framed}
    if len(frames) > 1:
        raise UserError(f"two frames meet: {' and '.join(sorted(frames))}; bring them into one with .to(frame)")
    return framed[0].frame, tuple(one.values for one in framed)


def guess_frame(values: Any, *, size_wh: Any = None, resized_wh: Any = None) -> tuple[str, ...]:
    """The frames in which all these coordinates would lie on the picture: a hint for a person who looks for a mistake.

    Nothing in this package acts on it: a small target in the corner fits every frame. NaN values are left out.
    """
    values = np.asarray(values, np.float64)
    sizes = {"orig": size_wh, "resized": resized_wh}
    fitting = []
    for frame in FRAMES:
        if frame in sizes and sizes[frame] is None:
            continue
        corners = values.reshape(*values.shape[:-1], -1, 2)
        if np.all(np.isnan(corners) | ((corners >= 0) & (corners <= _far(frame, sizes, corners)))):
            fitting.append(frame)
    return tuple(fitting)

"""Boxes and points as arrays: centres, sizes, hits, overlaps, distances; and what a prediction stands for.

A box is [..., 4]: x1, y1, x2, y2. A point is [..., 2]: x, y. Functions take an array namespace first.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxllm.errors import UserError
from jaxllm.frames import Framed, common
from rewards.namespace import array_namespace, as_floats, broadcast_shape

NOTHING, POINT, BOX = 0, 1, 2
"""Values of ``kind``: nothing was parsed, a point, a box."""


class Prediction(NamedTuple):
    """What was predicted, whether it came as a point or as a box."""

    box: Any  # [..., 4]; NaN where nothing was parsed, without size where a point was
    point: Any  # [..., 2], the point, or the box's centre; NaN where nothing was parsed
    kind: Any  # [...] int8


class Given(NamedTuple):
    """The inputs that every reward shares, in one float type, with one leading shape."""

    xp: Any  # the array namespace
    shape: tuple[int, ...]
    pred_box: Any  # [..., 4], or None
    gt_box: Any  # [..., 4]
    pred_point: Any  # [..., 2], or None
    kind: Any  # [...], or None
    image_wh: Any  # [..., 2], or None
    format_ok: Any  # [...] bool, or None


def given(
    pred_box: Any, gt_box: Any, *, pred_point: Any = None, kind: Any = None, image_wh: Any = None, format_ok: Any = None
) -> Given:
    """Brings the inputs of a reward together.

    Args:
      pred_box: [..., 4], or None when all predictions are points.
      gt_box: [..., 4], in the same frame.
      pred_point: [..., 2]; read where ``kind`` says point, or everywhere without ``pred_box``.
      kind: [...] of `NOTHING`, `POINT`, `BOX`; all boxes, or all points without ``pred_box``, when left out.
      image_wh: [..., 2], width and height of the frame.
      format_ok: [...] bool.
    Raises:
      UserError: a missing input, two frames, a wrong last axis, leading axes that do not broadcast.
    """
    if pred_box is None and pred_point is None:
        raise UserError("nothing to reward: give pred_box [..., 4] or pred_point [..., 2]")
    pred_box, gt_box, pred_point = unframed(pred_box=pred_box, gt_box=gt_box, pred_point=pred_point)
    xp = array_namespace(pred_box, gt_box, pred_point, kind, image_wh, format_ok)
    arrays = {"pred_box": pred_box, "gt_box": gt_box, "pred_point": pred_point, "image_wh": image_wh}
    names = [name for name, array in arrays.items() if array is not None]
    floats = dict(zip(names, as_floats(xp, *(arrays[name] for name in names)), strict=True))
    widths = {name: 4 if name.endswith("box") else 2 for name in names}
    for name, array in floats.items():
        if array.ndim == 0 or array.shape[-1] != widths[name]:
            raise UserError(f"{name} has shape {list(array.shape)}; its last axis must hold {widths[name]} numbers")
    flags = {name: xp.asarray(array) for name, array in (("kind", kind), ("format_ok", format_ok)) if array is not None}
    shapes = {name: array.shape[:-1] for name, array in floats.items()} | {name: array.shape for name, array in flags.items()}
    shape = broadcast_shape(shapes)
    floats = {name: xp.broadcast_to(array, (*shape, widths[name])) for name, array in floats.items()}
    flags = {name: xp.broadcast_to(array, shape) for name, array in flags.items()}
    formatted = flags["format_ok"].astype(bool) if format_ok is not None else None
    rest = (floats.get("pred_point"), flags.get("kind"), floats.get("image_wh"), formatted)
    return Given(xp, shape, floats.get("pred_box"), floats["gt_box"], *rest)


def unframed(**arrays: Any) -> tuple[Any, ...]:
    """The arrays without the frames that they may carry as `jaxllm.frames.Framed`.

    Raises UserError when two frames meet, or an array with a frame and one without.
    """
    framed = {name: array for name, array in arrays.items() if isinstance(array, Framed)}
    if framed:
        frame, _ = common(*framed.values())
        if bare := [name for name, array in arrays.items() if array is not None and name not in framed]:
            raise UserError(
                f"{', '.join(framed)} is in the frame {frame}, but {', '.join(bare)} carries none; give Framed(...)"
            )
    return tuple(array.values if isinstance(array, Framed) else array for array in arrays.values())


class Scene(NamedTuple):
    """What a reward looks at: a prediction and a target, in one leading shape."""

    xp: Any  # the array namespace
    pred: Prediction
    gt_box: Any  # [..., 4]
    format_ok: Any  # [...] bool; False where not given
    image_wh: Any  # [..., 2], or None
    target_ok: Any  # [...] bool: the target is finite and has both sides


def scene(pred_box: Any, gt_box: Any, *, need_image: str | None = None, **arrays: Any) -> Scene:
    """The `Scene` of the inputs of `given`. Raises UserError as `given` does, and when ``need_image`` lacks ``image_wh``."""
    if need_image and arrays.get("image_wh") is None:
        raise UserError(f"{need_image} needs image_wh [..., 2], the width and height of the frame that the boxes are in")
    g = given(pred_box, gt_box, **arrays)
    formatted = g.xp.zeros(g.shape, bool) if g.format_ok is None else g.format_ok
    pred = resolve(g.xp, g.pred_box, g.pred_point, g.kind, g.shape)
    return Scene(g.xp, pred, g.gt_box, formatted, g.image_wh, proper(g.xp, g.gt_box))


def proper(xp: Any, box: Any) -> Any:
    """[...] bool: all four numbers are finite, and both sides are positive."""
    return finite(xp, box) & (box[..., 2:] > box[..., :2]).all(-1)


def resolve(xp: Any, box: Any, point: Any, kind: Any, shape: tuple[int, ...]) -> Prediction:
    """One `Prediction` of leading ``shape`` from what `given` gave; ``box`` or ``point`` may be None, and ``kind``.

    Where ``kind`` says point and only boxes are there, the box's centre is that point; where it says box and only points are
    there, nothing was predicted.
    """
    if kind is None:
        kind = xp.full(shape, POINT if box is None else BOX, np.int8)
        if box is not None:
            return Prediction(box, centre(xp, box), kind)
    is_box, is_point = (kind == BOX)[..., None], (kind == POINT)[..., None]
    points = xp.where(is_point, centre(xp, box) if point is None else point, xp.nan)
    boxes = xp.where(is_box, xp.nan if box is None else box, xp.concatenate([points, points], -1))
    return Prediction(boxes, centre(xp, boxes), kind.astype(np.int8))


def centre(xp: Any, box: Any) -> Any:
    """[..., 2], the middle of a box; as a float, never rounded."""
    return (box[..., :2] + box[..., 2:]) / 2


def size(xp: Any, box: Any) -> Any:
    """[..., 2], width and height; negative where the corners are swapped."""
    return box[..., 2:] - box[..., :2]


def hit(xp: Any, point: Any, box: Any, *, strict: bool = False) -> Any:
    """[...] bool: the point lies in the box, borders included unless ``strict``. NaN hits nothing."""
    low, high = box[..., :2], box[..., 2:]
    inside = (point > low) & (point < high) if strict else (point >= low) & (point <= high)
    return inside.all(-1)


def area(xp: Any, box: Any) -> Any:
    """[...], 0 where a side is not positive."""
    sides = xp.maximum(size(xp, box), 0)
    return sides[..., 0] * sides[..., 1]


def overlap(xp: Any, a: Any, b: Any) -> Any:
    """[..., 2], width and height of what two boxes share; 0 or less where they are apart."""
    return xp.minimum(a[..., 2:], b[..., 2:]) - xp.maximum(a[..., :2], b[..., :2])


def iou(xp: Any, a: Any, b: Any, *, thinnest: float = 0.0) -> Any:
    """[...], area of the intersection over that of the union, in [0, 1]; 0 for boxes without area, NaN or infinity.

    An intersection that is ``thinnest`` or less wide or high counts as none.
    """
    numbers = (finite(xp, a) & finite(xp, b))[..., None]
    a, b = xp.where(numbers, a, 0), xp.where(numbers, b, 0)
    shared = overlap(xp, a, b)
    meets = (shared > thinnest).all(-1)
    shared = xp.where(meets[..., None], shared, 1)
    common = shared[..., 0] * shared[..., 1]
    union = xp.where(meets, area(xp, a) + area(xp, b) - common, 1)
    return xp.where(meets, common / xp.where(union > 0, union, 1), 0)


def distance(xp: Any, a: Any, b: Any) -> Any:
    """[...], Euclidean distance of two points; its gradient where they coincide is 0."""
    squared = ((a - b) ** 2).sum(-1)
    apart = squared > 0
    return xp.where(apart, xp.sqrt(xp.where(apart, squared, 1)), squared)


def finite(xp: Any, points: Any) -> Any:
    """[...] bool: every number along the last axis is finite."""
    return xp.isfinite(points).all(-1)


def sequence(name: str, items: Any, mask: Any, *others: Any, width: int = 2) -> tuple[Any, Any]:
    """Points or boxes [..., N, width] as float arrays, and which of them count, [..., N] bool: all without a ``mask``.

    An empty sequence becomes one item that does not count. ``others`` say which array library it is. Raises UserError for
    another shape.
    """
    xp = array_namespace(items, mask, *others)
    (items,) = as_floats(xp, items)
    if items.ndim < 2 or items.shape[-1] != width:
        raise UserError(f"{name} has shape {list(items.shape)}; it must be [..., N, {width}]")
    used = xp.ones(items.shape[-2:-1], bool) if mask is None else xp.asarray(mask).astype(bool)
    broadcast_shape({name: items.shape[:-1], f"mask of {name}": used.shape})
    used = xp.broadcast_to(used, items.shape[:-1])
    if items.shape[-2] == 0:
        items = xp.zeros((*items.shape[:-2], 1, width), items.dtype)
        used = xp.zeros(items.shape[:-1], bool)
    return items, used

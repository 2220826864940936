"""Rewards that ask whether the answer hits or covers the target, or how far it is off in pixels."""

import dataclasses
from typing import Any, NamedTuple

from rewards.geometry import Scene, centre, distance, finite, hit, iou, scene
from rewards.namespace import require_choice, require_number


def usable(s: Scene) -> Any:
    """[...] bool: there is a finite prediction and a proper target."""
    return s.target_ok & finite(s.xp, s.pred.point)


def number(s: Scene, condition: Any) -> Any:
    """A bool array as 0 and 1 in the scene's float type."""
    return condition.astype(s.gt_box.dtype)


class Hit(NamedTuple):
    """Whether the point, or the box's centre, lies in the target."""

    hit: Any
    """1 inside, else 0"""
    reward: Any
    """the same"""
    valid: Any
    """bool"""


class Overlap(NamedTuple):
    """How much of both boxes is shared."""

    iou: Any
    """intersection over union, in [0, 1]"""
    reward: Any
    """see the function"""
    valid: Any
    """bool"""


class HitOverlap(NamedTuple):
    """A hit and an overlap, added."""

    hit: Any
    """1 where the centre lies inside, else 0"""
    overlap: Any
    """1 where the intersection over union is above the threshold, else 0"""
    reward: Any
    """their sum, 0 to 2"""
    valid: Any
    """bool"""


class Distance(NamedTuple):
    """How far the point is from the target's centre."""

    distance: Any
    """in pixels, infinite where invalid"""
    reward: Any
    """exp(-k distance), in [0, 1]"""
    log_reward: Any
    """-k distance"""
    valid: Any
    """bool"""


class Click(NamedTuple):
    """GTA1's reward with its optional terms."""

    hit: Any
    """1 where the one point lies in the target"""
    iou: Any
    """intersection over union of the predicted box and the target, in [0, 1]"""
    format: Any
    """1 where the answer had the asked form"""
    reward: Any
    """hit + iou_weight iou + format_weight format"""
    valid: Any
    """bool"""


@dataclasses.dataclass(frozen=True)
class HitOptions:
    """Settings of `binary_hit`."""

    strict: bool = False
    """the border is outside"""


@dataclasses.dataclass(frozen=True)
class OverlapOptions:
    """Settings of `binary_iou` and `binary_point_plus_iou`."""

    threshold: float = 0.5
    """the intersection over union must be above it"""

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold, 0, high=1)


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Nothing to set."""


@dataclasses.dataclass(frozen=True)
class DistanceOptions:
    """Settings of `euclid_exp`."""

    k: float = 0.01
    """fall per pixel"""

    def __post_init__(self) -> None:
        require_number("k", self.k, 0)


@dataclasses.dataclass(frozen=True)
class ClickOptions:
    """Settings of `gta1_click`."""

    target: str = "rel1000"
    """"rel1000": ``gt_box`` is in 0..1000, scaled by ``image_wh`` and cut to whole pixels; "pixels": it is in pixels already"""
    iou_weight: float = 0.0
    """of the overlap term, which the released trainer lacks"""
    format_weight: float = 0.0
    """of the format term"""

    def __post_init__(self) -> None:
        require_choice("target", self.target, ("rel1000", "pixels"))


def binary_hit(pred_box: Any, gt_box: Any, *, options: HitOptions | None = None, **inputs: Any) -> Hit:
    """1 where the centre, or the point, lies in the target, borders included (UI-R1, GUI-R1, GTA1, UI-Ins)."""
    s, options = scene(pred_box, gt_box, **inputs), options or HitOptions()
    valid = usable(s)
    inside = number(s, valid & hit(s.xp, s.pred.point, s.gt_box, strict=options.strict))
    return Hit(inside, inside, valid)


def iou_reward(pred_box: Any, gt_box: Any, *, options: NoOptions | None = None, **inputs: Any) -> Overlap:
    """The intersection over union itself."""
    s = scene(pred_box, gt_box, **inputs)
    valid = usable(s)
    shared = s.xp.where(valid, iou(s.xp, s.pred.box, s.gt_box), 0)
    return Overlap(shared, shared, valid)


def binary_iou(pred_box: Any, gt_box: Any, *, options: OverlapOptions | None = None, **inputs: Any) -> Overlap:
    """1 where the intersection over union is above 0.5 (ablation of GUI-G², arXiv 2507.15846)."""
    s, options = scene(pred_box, gt_box, **inputs), options or OverlapOptions()
    valid = usable(s)
    shared = s.xp.where(valid, iou(s.xp, s.pred.box, s.gt_box), 0)
    return Overlap(shared, number(s, shared > options.threshold), valid)


def binary_point_plus_iou(pred_box: Any, gt_box: Any, *, options: OverlapOptions | None = None, **inputs: Any) -> HitOverlap:
    """`binary_hit` + `binary_iou` (ablation of GUI-G², arXiv 2507.15846)."""
    point, overlap = binary_hit(pred_box, gt_box, **inputs), binary_iou(pred_box, gt_box, options=options, **inputs)
    return HitOverlap(point.hit, overlap.reward, point.hit + overlap.reward, point.valid)


def euclid_exp(pred_box: Any, gt_box: Any, *, options: DistanceOptions | None = None, **inputs: Any) -> Distance:
    """exp(-k distance of the centres in pixels), k = 0.01 (ablation in xavierliu34/GUI-AiF)."""
    s, options = scene(pred_box, gt_box, **inputs), options or DistanceOptions()
    xp, valid = s.xp, usable(s)
    both = valid[..., None]
    apart = distance(xp, xp.where(both, s.pred.point, 0), xp.where(both, centre(xp, s.gt_box), 0))
    log_reward = xp.where(valid, -options.k * apart, -xp.inf)
    return Distance(xp.where(valid, apart, xp.inf), xp.exp(log_reward), log_reward, valid)


def gta1_click(
    pred_box: Any, gt_box: Any, *, points_parsed: Any = None, options: ClickOptions | None = None, **inputs: Any
) -> Click:
    """A hit of exactly one point (Yan98/GTA1 at 81f0c4c); for several target boxes call it with ``target_mask``.

    Args:
      points_parsed: [...] int, how many points the answer held; other than 1 is a miss. 1 when left out.
    """
    options = options or ClickOptions()
    s = scene(pred_box, gt_box, need_image="gta1_click" if options.target == "rel1000" else None, **inputs)
    xp, valid, target = s.xp, usable(s), s.gt_box
    if options.target == "rel1000":
        target = xp.trunc(target / 1000 * xp.concatenate([s.image_wh, s.image_wh], -1))
    one = valid if points_parsed is None else valid & (xp.asarray(points_parsed) == 1)
    inside = number(s, one & hit(xp, s.pred.point, target))
    shared = xp.where(valid, iou(xp, s.pred.box, target), 0)
    form = number(s, valid & s.format_ok)
    return Click(inside, shared, form, inside + options.iou_weight * shared + options.format_weight * form, valid)

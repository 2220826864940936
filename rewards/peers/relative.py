"""Rewards that measure against the size of the picture."""

import dataclasses
from typing import Any, NamedTuple

from rewards.geometry import BOX, centre, hit, iou, scene
from rewards.namespace import require_number
from rewards.peers.hits import number, usable


class SeGui(NamedTuple):
    """SE-GUI's reward."""

    hit: Any
    """1 where the point lies in the target"""
    decay: Any
    """1 - (d / d_max)² where d <= 1, else 0, in [0, 1]"""
    format: Any
    """1 where the answer had the asked form"""
    reward: Any
    """hit + decay + format_weight format"""
    valid: Any
    """bool"""


class GuiG1(NamedTuple):
    """GUI-G1's reward."""

    hit: Any
    """1 where the centre lies in the target"""
    iou: Any
    """intersection over union, in [0, 1]"""
    box: Any
    """harmonic mean of 1 - |difference| / side of the picture over the four coordinates, in [0, 1]; 0 for a point"""
    reward: Any
    """hit + a iou + b box"""
    valid: Any
    """bool"""


@dataclasses.dataclass(frozen=True)
class SeGuiOptions:
    """Settings of `se_gui`."""

    format_weight: float = 1.0
    """as in the released trainer; the name of its run says 0.5"""

    def __post_init__(self) -> None:
        require_number("format_weight", self.format_weight, 0)


@dataclasses.dataclass(frozen=True)
class GuiG1Options:
    """Settings of `gui_g1`."""

    a: float = 0.25
    """weight of the overlap"""
    b: float = 0.125
    """weight of the box term"""

    def __post_init__(self) -> None:
        require_number("a", self.a, 0)
        require_number("b", self.b, 0)


def se_gui(pred_box: Any, gt_box: Any, *, options: SeGuiOptions | None = None, **inputs: Any) -> SeGui:
    """A hit, and a decay with the distance to the target's centre (YXB-NKU/SE-GUI at 0e26237). Needs ``image_wh``.

    d is in coordinates where the picture is 1 wide and 1 high; d_max is the largest distance from the centre to a corner.
    """
    options, s = options or SeGuiOptions(), scene(pred_box, gt_box, need_image="se_gui", **inputs)
    xp, valid = s.xp, usable(s) & (s.image_wh > 0).all(-1)
    both = valid[..., None]
    extent = xp.where(both, s.image_wh, 1)
    goal = xp.where(both, centre(xp, s.gt_box), 0) / extent
    squared = ((xp.where(both, s.pred.point, 0) / extent - goal) ** 2).sum(-1)
    largest = (xp.maximum(xp.abs(goal), xp.abs(1 - goal)) ** 2).sum(-1)
    near = valid & (squared <= 1)
    decay = xp.where(near, 1 - xp.where(near, squared, 0) / largest, 0)
    inside, form = number(s, valid & hit(xp, s.pred.point, s.gt_box)), number(s, valid & s.format_ok)
    return SeGui(inside, decay, form, inside + decay + options.format_weight * form, valid)


def gui_g1(pred_box: Any, gt_box: Any, *, options: GuiG1Options | None = None, **inputs: Any) -> GuiG1:
    """Hit, overlap and box term (Yuqi-Zhou/GUI-G1 at e581fe9). Needs ``image_wh``.

    Its overlap counts an intersection that is a pixel or less wide or high as none. Where a coordinate is a whole side of the
    picture off, the box term is 0 here; the published code divides by zero or turns negative. Its advantage has no std:
    ``group_advantages(reward, scale="none")``.
    """
    options, s = options or GuiG1Options(), scene(pred_box, gt_box, need_image="gui_g1", **inputs)
    xp, valid = s.xp, usable(s) & (s.image_wh > 0).all(-1)
    boxes = valid & (s.pred.kind == BOX)
    extent = xp.where(boxes[..., None], xp.concatenate([s.image_wh, s.image_wh], -1), 1)
    share = 1 - xp.abs(xp.where(boxes[..., None], s.pred.box - s.gt_box, 0)) / extent
    some = boxes & (share > 0).all(-1)
    box = xp.where(some, 4 / (1 / xp.where(some[..., None], share, 1)).sum(-1), 0)
    inside = number(s, valid & hit(xp, s.pred.point, s.gt_box))
    shared = xp.where(valid, iou(xp, s.pred.box, s.gt_box, thinnest=1.0), 0)
    return GuiG1(inside, shared, box, inside + options.a * shared + options.b * box, valid)

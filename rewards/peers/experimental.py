"""Rewards whose exact form was not seen at a primary source: our reading of a description, under names that say so.

Do not report a comparison with these papers on the strength of these kernels. What is missing stands in each docstring.
"""

import dataclasses
from typing import Any, NamedTuple

from rewards.gaussian import GuiG2Options, gui_g2
from rewards.geometry import centre, distance, hit, iou, scene
from rewards.peers.hits import number, usable


class InfiGuiR1(NamedTuple):
    """InfiGUI-R1's terms."""

    hit: Any
    """1 where the centre lies in the target"""
    iou: Any
    """intersection over union, in [0, 1]"""
    reward: Any
    """hit_weight hit + iou_weight iou"""
    valid: Any
    """bool"""


class Lpo(NamedTuple):
    """Location preference terms."""

    closeness: Any
    """max(0, 1 - distance to the centre / diagonal of the picture)"""
    reward: Any
    """entropy closeness, 0 where the action differs"""
    valid: Any
    """bool"""


class HyperClick(NamedTuple):
    """HyperClick's terms."""

    hit: Any
    """1 where the point lies in the target"""
    calibration: Any
    """1 - (confidence - S)², S the point reward inside the target, 0 outside; in [0, 1] for confidences in [0, 1]"""
    reward: Any
    """hit + calibration"""
    valid: Any
    """bool"""


class GuiArp(NamedTuple):
    """GUI-ARP's terms."""

    point: Any
    """Gaussian point reward, in [0, 1]"""
    reward: Any
    """point + crop_weight crop_score + stage_weight stage_score"""
    valid: Any
    """bool"""


@dataclasses.dataclass(frozen=True)
class InfiGuiR1Options:
    """Settings of `infigui_r1`."""

    hit_weight: float = 1.0
    """not published"""
    iou_weight: float = 1.0
    """not published"""


@dataclasses.dataclass(frozen=True)
class LpoOptions:
    """Nothing to set."""


@dataclasses.dataclass(frozen=True)
class HyperClickOptions:
    """Settings of `hyperclick`."""

    alpha: float = 0.5
    """standard deviation per side; the paper's rule was not seen"""
    calibration_weight: float = 1.0
    """not confirmed"""


@dataclasses.dataclass(frozen=True)
class GuiArpOptions:
    """Settings of `gui_arp`."""

    alpha: float = 0.5
    """standard deviation per side"""
    crop_weight: float = 1.0
    """not confirmed"""
    stage_weight: float = 1.0
    """not confirmed"""


def infigui_r1(pred_box: Any, gt_box: Any, *, options: InfiGuiR1Options | None = None, **inputs: Any) -> InfiGuiR1:
    """Point hit and box overlap (InfiXAI/InfiGUI-R1). Not confirmed: the weights, which were asked for and not published."""
    options, s = options or InfiGuiR1Options(), scene(pred_box, gt_box, **inputs)
    valid = usable(s)
    inside = number(s, valid & hit(s.xp, s.pred.point, s.gt_box))
    shared = s.xp.where(valid, iou(s.xp, s.pred.box, s.gt_box), 0)
    return InfiGuiR1(inside, shared, options.hit_weight * inside + options.iou_weight * shared, valid)


def lpo(
    pred_box: Any, gt_box: Any, *, entropy: Any, action_ok: Any = True, options: LpoOptions | None = None, **inputs: Any
) -> Lpo:
    """Entropy of the window around the point times a closeness (arXiv 2506.09373), not confirmed. Needs ``image_wh``.

    Not confirmed: the grid of windows, their bins, and how the reward falls with distance; here it falls linearly to 0 at the
    diagonal.

    Args:
      entropy: [...], of the window of the screenshot that holds the point, in [0, 1].
      action_ok: [...] bool, the predicted action is the target's.
    """
    s = scene(pred_box, gt_box, need_image="experimental/lpo", **inputs)
    xp, valid = s.xp, usable(s)
    both = valid[..., None]
    apart = distance(xp, xp.where(both, s.pred.point, 0), xp.where(both, centre(xp, s.gt_box), 0))
    diagonal = xp.sqrt((s.image_wh**2).sum(-1))
    closeness = xp.where(valid, xp.maximum(1 - apart / xp.where(diagonal > 0, diagonal, 1), 0), 0)
    right = xp.asarray(action_ok).astype(bool)
    return Lpo(closeness, xp.where(right, closeness * xp.asarray(entropy).astype(closeness.dtype), 0), valid)


def hyperclick(
    pred_box: Any, gt_box: Any, *, confidence: Any, options: HyperClickOptions | None = None, **inputs: Any
) -> HyperClick:
    """A hit, and how well the stated confidence fits (arXiv 2510.27266). Not confirmed: the rule for sigma, and the weights.

    Args:
      confidence: [...], as the answer states it, in [0, 1].
    """
    options = options or HyperClickOptions()
    s = scene(pred_box, gt_box, **inputs)
    point = gui_g2(pred_box, gt_box, **inputs, options=GuiG2Options(alpha=options.alpha)).point
    valid = usable(s)
    inside = valid & hit(s.xp, s.pred.point, s.gt_box)
    true = s.xp.where(inside, point, 0)
    stated = s.xp.asarray(confidence).astype(true.dtype)
    calibration = s.xp.where(valid, 1 - (stated - true) ** 2, 0)
    return HyperClick(number(s, inside), calibration, number(s, inside) + options.calibration_weight * calibration, valid)


def gui_arp(
    pred_box: Any,
    gt_box: Any,
    *,
    crop_score: Any = 0.0,
    stage_score: Any = 0.0,
    options: GuiArpOptions | None = None,
    **inputs: Any,
) -> GuiArp:
    """A Gaussian point term with terms for crop and stage (arXiv 2509.15532). Not confirmed: all of it but the point term.

    Args:
      crop_score, stage_score: [...], the other two terms, computed by the caller.
    """
    options = options or GuiArpOptions()
    parts = gui_g2(pred_box, gt_box, **inputs, options=GuiG2Options(alpha=options.alpha))
    s = scene(pred_box, gt_box, **inputs)
    crop, stage = (s.xp.asarray(score).astype(parts.point.dtype) for score in (crop_score, stage_score))
    extra = options.crop_weight * crop + options.stage_weight * stage
    return GuiArp(parts.point, s.xp.where(parts.valid, parts.point + extra, 0), parts.valid)

"""Rewards of answers that take several steps: a cursor's path, a series of crops."""

import dataclasses
from typing import Any, NamedTuple

from rewards.geometry import centre, distance, finite, hit, iou, scene, sequence
from rewards.namespace import require_number
from rewards.peers.hits import number, usable


class CursorTrajectory(NamedTuple):
    """GUI-Cursor's reward. Each fault is 1 or 0 and costs ``penalty``."""

    position: Any
    """1 where the last position is inside, else max(0, 1 - distance to the centre / diagonal of the picture)"""
    stopped_outside: Any
    """the cursor was stopped outside the target"""
    left: Any
    """it left the target after it had entered"""
    away: Any
    """a step took it farther from the centre"""
    returned: Any
    """it came back to an earlier position, within 5 pixels per axis"""
    reward: Any
    """position - 0.2 faults, in [-0.8, 1]"""
    valid: Any
    """bool; there is a last position and a proper target"""


class SpotlightMix(NamedTuple):
    """GUI-Spotlight's reward."""

    answer: Any
    """1 where the answer hits"""
    crops: Any
    """mean intersection over union of crops and target; a crop under 28 pixels or off the picture counts as 0"""
    containing: Any
    """share of crops that contain the whole target"""
    region: Any
    """1 where the region found by colour hits"""
    format: Any
    """1 where the answer had the asked form"""
    reward: Any
    """0.3 answer + 0.3 crops + 0.03 containing + 0.27 region + 0.1 format"""
    valid: Any
    """bool"""


@dataclasses.dataclass(frozen=True)
class CursorTrajectoryOptions:
    """Settings of `cursor_trajectory`."""

    penalty: float = 0.2
    """cost of each fault"""
    near: float = 5.0
    """pixels per axis within which a position counts as an earlier one"""

    def __post_init__(self) -> None:
        require_number("penalty", self.penalty, 0)
        require_number("near", self.near, 0)


@dataclasses.dataclass(frozen=True)
class SpotlightMixOptions:
    """Settings of `spotlight_mix`."""

    answer_weight: float = 0.3
    """of the answer's hit"""
    crops_weight: float = 0.3
    """of the crops' overlap"""
    containing_weight: float = 0.03
    """of the share of crops with the target in them"""
    region_weight: float = 0.27
    """of the region found by colour"""
    format_weight: float = 0.1
    """of the format"""
    smallest: float = 28.0
    """pixels; a crop with a shorter side counts as 0"""


def cursor_trajectory(
    pred_box: Any,
    gt_box: Any,
    *,
    positions: Any,
    position_mask: Any = None,
    stopped: Any = True,
    options: CursorTrajectoryOptions | None = None,
    **inputs: Any,
) -> CursorTrajectory:
    """The last position, minus four kinds of fault on the way (GUI-Cursor as in LufeMC/gui-g2-3b-ccf at 3583de5).

    Needs ``image_wh``. The formula was read in that re-implementation; the paper (arXiv 2509.21552) was not compared with it.

    Args:
      pred_box: not used; None.
      positions: [..., T, 2], where the cursor was, in order, the last one the answer.
      position_mask: [..., T] bool, False for padding at the end; all when left out.
      stopped: [...] bool, the model itself stopped, rather than the limit of steps.
    """
    options = options or CursorTrajectoryOptions()
    path, used = sequence("positions", positions, position_mask, gt_box)
    s = scene(None, gt_box, pred_point=path[..., 0, :], need_image="cursor_trajectory", **inputs)
    xp, T, path = s.xp, path.shape[-2], path.astype(s.gt_box.dtype)
    used = used & finite(xp, path)
    valid = s.target_ok & used.any(-1)
    path = xp.where(used[..., None] & s.target_ok[..., None, None], path, 0)
    target = xp.where(s.target_ok[..., None], s.gt_box, 0)[..., None, :]
    inside = used & hit(xp, path, target)
    apart = distance(xp, path, centre(xp, target))
    last = xp.where(used, xp.arange(T), -1).max(-1)
    at_last = xp.arange(T) == last[..., None]
    ends_inside = (inside & at_last).any(-1)
    diagonal = xp.sqrt((s.image_wh**2).sum(-1))
    closeness = 1 - xp.where(at_last, apart, 0).sum(-1) / xp.where(diagonal > 0, diagonal, 1)
    position = xp.where(valid, xp.where(ends_inside, 1, xp.maximum(closeness, 0)), 0)
    outside = valid & xp.asarray(stopped).astype(bool) & ~ends_inside
    later = xp.arange(T)[:, None] < xp.arange(T)
    left = (inside[..., :, None] & (used & ~inside)[..., None, :] & later).any((-1, -2))
    step = used[..., 1:] & used[..., :-1]
    away = (step & (apart[..., 1:] > apart[..., :-1])).any(-1)
    same = (xp.abs(path[..., :, None, :] - path[..., None, :, :]) <= options.near).all(-1)
    returned = (same & used[..., :, None] & used[..., None, :] & later).any((-1, -2))
    outside, left, away, returned = (number(s, valid & fault) for fault in (outside, left, away, returned))
    reward = position - options.penalty * (outside + left + away + returned)
    return CursorTrajectory(position, outside, left, away, returned, reward, valid)


def spotlight_mix(
    pred_box: Any,
    gt_box: Any,
    *,
    crops: Any,
    crop_mask: Any = None,
    region_hit: Any = False,
    options: SpotlightMixOptions | None = None,
    **inputs: Any,
) -> SpotlightMix:
    """Answer, crops on the way, colour region and format (bin123apple/GUI_Spotlight). Needs ``image_wh``.

    Args:
      crops: [..., M, 4], the crops that were looked at, in the frame of the target.
      crop_mask: [..., M] bool, False for padding; all when left out.
      region_hit: [...] bool, the region found by its colour holds the target.
    """
    options = options or SpotlightMixOptions()
    s = scene(pred_box, gt_box, need_image="spotlight_mix", **inputs)
    xp, valid = s.xp, usable(s)
    crop, used = sequence("crops", crops, crop_mask, s.gt_box, width=4)
    crop = crop.astype(s.gt_box.dtype)
    low, high = crop[..., :2], crop[..., 2:]
    on_picture = (low >= 0).all(-1) & (high <= s.image_wh[..., None, :]).all(-1)
    fit = used & on_picture & (high - low >= options.smallest).all(-1)
    count = xp.maximum(used.sum(-1), 1)
    target = s.gt_box[..., None, :]
    shared = xp.where(fit, iou(xp, crop, target), 0).sum(-1) / count
    around = used & (low <= target[..., :2]).all(-1) & (high >= target[..., 2:]).all(-1)
    answer = number(s, valid & hit(xp, s.pred.point, s.gt_box))
    parts = (
        answer,
        xp.where(valid, shared, 0).astype(answer.dtype),
        xp.where(valid, around.sum(-1) / count, 0).astype(answer.dtype),
        number(s, valid & xp.asarray(region_hit).astype(bool)),
        number(s, valid & s.format_ok),
    )
    weights = (
        options.answer_weight,
        options.crops_weight,
        options.containing_weight,
        options.region_weight,
        options.format_weight,
    )
    reward = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    return SpotlightMix(*parts, reward, valid)

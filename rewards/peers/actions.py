"""Rewards of agents whose answer is an action: a click is one of them (UI-R1, GUI-R1)."""

import dataclasses
from typing import Any, NamedTuple

from rewards.geometry import POINT, centre, finite, hit, scene
from rewards.namespace import array_namespace, as_floats, require_number
from rewards.peers.hits import number, usable

CLICK, TEXT, OTHER = 0, 1, 2
"""Values of ``task`` in `gui_r1`: what the target action needs."""


class UiR1(NamedTuple):
    """UI-R1's reward."""

    action: Any
    """1 where the action is the target's"""
    coordinate: Any
    """1 where the action is right and the click hits; every right action that is no click has 1"""
    format: Any
    """1 where the answer had the asked form"""
    reward: Any
    """their sum, 0 to 3"""
    valid: Any
    """bool; a right action that is no click needs no point"""


class UiR1Length(NamedTuple):
    """UI-R1-E's reward: the reward of an answer, corrected by its length."""

    length: Any
    """the correction: at least 0.1 for full marks, at most -0.1 for others"""
    reward: Any
    """reward + length"""
    valid: Any
    """bool; False where a reward or a length is not finite"""


class GuiR1(NamedTuple):
    """GUI-R1's reward."""

    accuracy: Any
    """1 where the action is right, and so is what it needs"""
    format: Any
    """1 where the answer had the asked form"""
    reward: Any
    """0.8 accuracy + 0.2 format"""
    valid: Any
    """bool; actions that are no clicks need no point"""


@dataclasses.dataclass(frozen=True)
class UiR1Options:
    """Nothing to set."""


@dataclasses.dataclass(frozen=True)
class UiR1LengthOptions:
    """Settings of `ui_r1_length`."""

    a: float = -0.5
    """slope of the correction for full marks"""
    b: float = 0.5
    """its value at the baseline length"""
    full: float = 3.0
    """full marks"""


@dataclasses.dataclass(frozen=True)
class GuiR1Options:
    """Settings of `gui_r1`."""

    accuracy_weight: float = 0.8
    """of the accuracy"""
    format_weight: float = 0.2
    """of the format"""
    radius: float = 140.0
    """pixels; a target that is a point is hit from closer than this"""
    f1: float = 0.5
    """a text is right from this token F1 on"""

    def __post_init__(self) -> None:
        for name in ("accuracy_weight", "format_weight", "radius", "f1"):
            require_number(name, getattr(self, name), 0)


def ui_r1(
    pred_box: Any,
    gt_box: Any,
    *,
    action_ok: Any,
    is_click: Any = True,
    scale: Any = None,
    options: UiR1Options | None = None,
    **inputs: Any,
) -> UiR1:
    """Action + coordinate + format, each 0 or 1 (lll6gg/UI-R1 at 2fe9bf0).

    Args:
      action_ok: [...] bool, the predicted action is the target's.
      is_click: [...] bool, the target action is a click.
      scale: [..., 2], factors from the frame of the answer to the target's; the scaled point is cut to whole pixels.
    """
    s = scene(pred_box, gt_box, **inputs)
    xp = s.xp
    right, click = (xp.asarray(flag).astype(bool) for flag in (action_ok, is_click))
    point = s.pred.point if scale is None else s.pred.point * xp.asarray(scale).astype(s.gt_box.dtype)
    valid = usable(s) | ~click
    coordinate = number(s, right & valid & (~click | hit(xp, xp.trunc(point), s.gt_box)))
    action, form = number(s, right & valid), number(s, s.format_ok & valid)
    return UiR1(action, coordinate, form, action + coordinate + form, valid)


def ui_r1_length(
    pred_box: Any = None,
    gt_box: Any = None,
    *,
    rewards: Any,
    lengths: Any,
    options: UiR1LengthOptions | None = None,
    **inputs: Any,
) -> UiR1Length:
    """Shorter right answers earn more, longer wrong ones less, within a group (UI-R1-E, lll6gg/UI-R1 at 2fe9bf0).

    The excess length is λ = (L - L_b) / L_b with L_b = p mean length of full marks + (1 - p) longest of the group, p the share
    of full marks. Full marks earn max(aλ + b, 0.1), others min(0.9λ - 0.1, -0.1). Boxes are not used.

    Args:
      rewards: [..., G], such as `ui_r1` gives.
      lengths: [..., G], of the answers, in any unit.
    """
    options = options or UiR1LengthOptions()
    xp = array_namespace(rewards, lengths)
    rewards, lengths = xp.broadcast_arrays(*as_floats(xp, rewards, lengths))
    valid = xp.isfinite(rewards) & xp.isfinite(lengths)
    rewards, lengths = xp.where(valid, rewards, 0), xp.where(valid, lengths, 0)
    full = valid & (rewards == options.full)
    count = full.sum(-1, keepdims=True)
    share = count / xp.maximum(valid.sum(-1, keepdims=True), 1)
    mean = xp.where(full, lengths, 0).sum(-1, keepdims=True) / xp.maximum(count, 1)
    baseline = (share * mean + (1 - share) * lengths.max(-1, keepdims=True)).astype(lengths.dtype)
    excess = xp.where(baseline > 0, lengths / xp.where(baseline > 0, baseline, 1) - 1, 0)
    length = xp.where(full, xp.maximum(options.a * excess + options.b, 0.1), xp.minimum(0.9 * excess - 0.1, -0.1))
    length = xp.where(valid, length, 0)
    return UiR1Length(length, rewards + length, valid)


def gui_r1(
    pred_box: Any,
    gt_box: Any,
    *,
    action_ok: Any = True,
    task: Any = CLICK,
    text_f1: Any = 1.0,
    gt_kind: Any = None,
    options: GuiR1Options | None = None,
    **inputs: Any,
) -> GuiR1:
    """0.8 accuracy + 0.2 format (ritzz-ai/GUI-R1 at d43eea2).

    A click must lie strictly inside the box, or closer than 140 px to a target that is a point.

    Args:
      action_ok: [...] bool, the predicted action is the target's.
      task: [...] int, `CLICK`, `TEXT` or `OTHER`: what the target action needs beside the right action.
      text_f1: [...] token F1 of the predicted text, in [0, 1].
      gt_kind: [...] of 1 and 2, as ``kind``; 1: the target is the centre of ``gt_box``. Boxes when left out.
    """
    options, s = options or GuiR1Options(), scene(pred_box, gt_box, **inputs)
    xp = s.xp
    right, task, f1 = xp.asarray(action_ok).astype(bool), xp.asarray(task), xp.asarray(text_f1)
    is_point = xp.zeros((), bool) if gt_kind is None else xp.asarray(gt_kind) == POINT
    click = task == CLICK
    target_ok = xp.where(is_point, finite(xp, s.gt_box), s.target_ok)
    valid = (finite(xp, s.pred.point) & target_ok) | ~click
    squared = ((s.pred.point - centre(xp, s.gt_box)) ** 2).sum(-1)
    hits = xp.where(is_point, squared < options.radius**2, hit(xp, s.pred.point, s.gt_box, strict=True))
    done = xp.where(click, hits, xp.where(task == TEXT, f1 >= options.f1, True))
    accuracy, form = number(s, valid & right & done), number(s, valid & s.format_ok)
    return GuiR1(accuracy, form, options.accuracy_weight * accuracy + options.format_weight * form, valid)

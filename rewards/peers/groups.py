"""Rewards that look at several answers, or several points of one answer, together."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np

from rewards.gaussian import GuiG2Options, gui_g2
from rewards.geometry import BOX, area, finite, given, hit, overlap, proper, resolve, scene, sequence
from rewards.namespace import require_number

COLLINEAR = 1e-9


class AdaptiveExploration(NamedTuple):
    """InfiGUI-G1's reward."""

    rank: Any
    """place of the first candidate that hits, from 1; 0 without one"""
    collinear: Any
    """1 where any three candidates lie on a line"""
    exploration: Any
    """1 / sqrt(N k) for a first hit at place k of N, else -1 / N"""
    reward: Any
    """1 + exploration, or -1 for a wrong format, candidates on a line, or none; in [-1, 2]"""
    valid: Any
    """bool; False without candidates or without a proper target"""


class Voting(NamedTuple):
    """GUI-RC's reward."""

    votes: Any
    """mean number of the group's boxes over the member's own box"""
    most: Any
    """largest number of boxes over one pixel, the same for the group"""
    reward: Any
    """votes / most, in [0, 1]; 0 for a box without area"""
    valid: Any
    """bool; a box or a point was parsed"""


class Anchoring(NamedTuple):
    """GUI-AiF's bonus, the same for all members of a group."""

    spread: Any
    """min(2, 15 (var x / W² + var y / H²)) of the centres"""
    shape: Any
    """0.5 tanh(mean Bhattacharyya distance of the pairs / 10)"""
    reward: Any
    """their sum, in [0, 2.5], to be added to the advantages after they were normalised"""
    valid: Any
    """bool; the member counted"""


@dataclasses.dataclass(frozen=True)
class AdaptiveExplorationOptions:
    """Settings of `aepo_aer`."""

    tolerance: float = COLLINEAR
    """of the cross product, relative to both sides"""


@dataclasses.dataclass(frozen=True)
class VotingOptions:
    """Settings of `rcpo_voting`."""

    widen: float = 10.0
    """pixels by which a point is widened to each side: 10 in training, 25 in the reader that votes"""

    def __post_init__(self) -> None:
        require_number("widen", self.widen, 0)


@dataclasses.dataclass(frozen=True)
class AnchoringOptions:
    """Settings of `gui_aif`."""

    spread_weight: float = 15.0
    """of the variance of the centres"""
    spread_limit: float = 2.0
    """the most that the spread term gives"""
    shape_weight: float = 0.5
    """of the box term"""
    alpha: float = 0.5
    """standard deviation per side"""

    def __post_init__(self) -> None:
        require_number("alpha", self.alpha, 0, above=True)


def aepo_aer(
    pred_box: Any,
    gt_box: Any,
    *,
    candidates: Any,
    candidate_mask: Any = None,
    options: AdaptiveExplorationOptions | None = None,
    **inputs: Any,
) -> AdaptiveExploration:
    """Adaptive exploration reward of several points in one answer (InfiXAI/InfiGUI-G1 at 22208e4).

    Args:
      pred_box: not used; None.
      candidates: [..., N, 2], points in the order of the answer.
      candidate_mask: [..., N] bool, False for padding at the end; all when left out.
      inputs: ``format_ok`` [...]: True when left out, other than elsewhere, since a wrong format costs 2 here.
    """
    options = options or AdaptiveExplorationOptions()
    inputs = {"format_ok": True} | {name: array for name, array in inputs.items() if name == "format_ok" and array is not None}
    points, used = sequence("candidates", candidates, candidate_mask, gt_box)
    s = scene(None, gt_box, pred_point=points[..., 0, :], **inputs)
    xp, N, points = s.xp, points.shape[-2], points.astype(s.gt_box.dtype)
    points = xp.where(used[..., None], points, 0)
    count = used.sum(-1)
    hits = used & hit(xp, points, s.gt_box[..., None, :])
    first = hits.argmax(-1) + 1
    rank = xp.where(hits.any(-1), first, 0)
    some = xp.maximum(count, 1).astype(points.dtype)
    exploration = xp.where(rank > 0, 1 / xp.sqrt(some * xp.maximum(rank, 1)), -1 / some).astype(points.dtype)
    lined = xp.zeros(count.shape, bool)
    if N >= 3:
        i, j, k = np.array(list(itertools.combinations(range(N), 3))).T
        ab, ac = points[..., j, :] - points[..., i, :], points[..., k, :] - points[..., i, :]
        cross = xp.abs(ab[..., 0] * ac[..., 1] - ab[..., 1] * ac[..., 0])
        # The products' own rounding is all that float32 can tell from a line.
        tolerance = max(options.tolerance, 2 * float(np.finfo(points.dtype).eps))
        flat = cross <= tolerance * xp.sqrt((ab**2).sum(-1) * (ac**2).sum(-1))
        lined = (flat & used[..., i] & used[..., j] & used[..., k]).any(-1)
    failed = ~s.format_ok | lined | (count == 0)
    valid = s.target_ok & (count > 0) & finite(xp, points).all(-1)
    reward = xp.where(failed, -1, 1 + exploration)
    return AdaptiveExploration(
        rank, lined.astype(points.dtype), exploration, xp.where(s.target_ok, reward, 0).astype(points.dtype), valid
    )


def rcpo_voting(pred_box: Any, gt_box: Any = None, *, options: VotingOptions | None = None, **inputs: Any) -> Voting:
    """Agreement within the group, without a label (GUI-RC and GUI-RCPO, ZJU-REAL/GUI-RCPO at cd3bd51).

    The published grid of votes is never made: the votes over a box are the areas that it shares with the others, and the most
    voted pixel lies where some box begins. Boxes are cut to whole pixels, as the grid does.

    Args:
      pred_box: [..., G, 4], the group along the last leading axis.
      gt_box: not used.
    """
    options = options or VotingOptions()
    g = given(pred_box, np.zeros(4, np.float32), **inputs)
    xp, pred = g.xp, resolve(g.xp, g.pred_box, g.pred_point, g.kind, g.shape)
    by = xp.where((pred.kind == BOX)[..., None], 0, options.widen) * xp.asarray([-1, -1, 1, 1], pred.box.dtype)
    valid = finite(xp, pred.box)
    boxes = xp.where(valid[..., None], xp.trunc(pred.box + by), 0).astype(pred.box.dtype)
    own = area(xp, boxes)
    mine, other = boxes[..., :, None, :], boxes[..., None, :, :]
    sides = xp.maximum(overlap(xp, mine, other), 0)
    shared = (sides[..., 0] * sides[..., 1]).sum(-1)
    votes = xp.where(own > 0, shared / xp.where(own > 0, own, 1), 0)
    left, top = boxes[..., :, None, None, 0], boxes[..., None, :, None, 1]
    x1, y1, x2, y2 = (boxes[..., None, None, :, i] for i in range(4))
    depth = ((left >= x1) & (left < x2) & (top >= y1) & (top < y2)).sum(-1)
    most = xp.broadcast_to(depth.max((-1, -2))[..., None], own.shape).astype(own.dtype)
    return Voting(votes, most, votes / xp.maximum(most, 1), valid)


def gui_aif(pred_box: Any, gt_box: Any = None, *, options: AnchoringOptions | None = None, **inputs: Any) -> Anchoring:
    """Bonus for a group that looks around, in place and in size (xavierliu34/GUI-AiF at 315a2cb). Needs ``image_wh``.

    It does not look at the target, so that it can be raised by scattering; its reviewers showed that. The variance is the
    unbiased one. Invalid members and pairs are left out.

    Args:
      pred_box: [..., G, 4], the group along the last leading axis.
      gt_box: not used.
    """
    options = options or AnchoringOptions()
    s = scene(pred_box, np.asarray([0, 0, 1, 1], np.float32), need_image="gui_aif", **inputs)
    xp, pred = s.xp, s.pred
    valid = finite(xp, pred.point)
    used = valid[..., None]
    count = used.sum(-2, keepdims=True)
    relative = xp.where(used, pred.point, 0) / s.image_wh
    mean = relative.sum(-2, keepdims=True) / xp.maximum(count, 1)
    variance = (xp.where(used, relative - mean, 0) ** 2).sum(-2) / xp.maximum(count[..., 0, :] - 1, 1)
    spread = xp.minimum(options.spread_weight * variance.sum(-1), options.spread_limit)
    boxes = (pred.kind == BOX) & proper(xp, pred.box)
    pairs = boxes[..., :, None] & boxes[..., None, :] & xp.asarray(np.triu(np.ones((s.gt_box.shape[-2],) * 2, bool), 1))
    harmless = xp.where(boxes[..., None], pred.box, xp.asarray([0, 0, 1, 1], pred.box.dtype))
    settings = GuiG2Options(alpha=options.alpha)
    far = -gui_g2(harmless[..., :, None, :], harmless[..., None, :, :], options=settings).log_coverage
    number = pairs.sum((-1, -2))
    apart = xp.where(pairs, far, 0).sum((-1, -2)) / xp.maximum(number, 1)
    shape = options.shape_weight * xp.tanh(apart / 10)
    spread, shape = (xp.broadcast_to(x[..., None], valid.shape).astype(pred.box.dtype) for x in (spread, shape))
    return Anchoring(spread, shape, spread + shape, valid)

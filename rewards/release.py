"""What the published GUI-G² code returns, bug for bug, so that old runs can be reproduced (ZJU-REAL/GUI-G2 at 5c5c365).

Where it differs from the paper, and what each difference does, is in docs/rewards.md. The differences that are made of text
(which numbers match, what the format test accepts) belong to the parser.
"""

from typing import Any

import numpy as np

from rewards.gaussian import GuiG2
from rewards.geometry import BOX, centre, given, size

ALPHA = 0.5
EPS = 1e-8
DECIMALS = 3


def gui_g2_release(
    pred_box: Any, gt_box: Any, *, pred_point: Any = None, kind: Any = None, image_wh: Any = None, format_ok: Any = None
) -> GuiG2:
    """Point + coverage + format, each with weight 1, as the published functions return them.

    Kept on purpose: both terms are rounded to three decimals; 1e-8 stands under the root of the determinants' product and in
    the averaged covariance, so that coverage is no coefficient in small units (50 for two equal boxes in 0..1 coordinates,
    infinite for two equal points); swapped corners count; NaN and infinity come out; a point gets nothing. Arguments are those
    of `rewards.gaussian.gui_g2`. The published code computes in float64: give float64 for the same last digit.

    Returns:
      `GuiG2`, with ``valid`` where a box was parsed. ``reward`` may be NaN or infinite.
    """
    g = given(pred_box, gt_box, pred_point=pred_point, kind=kind, format_ok=format_ok)
    xp, gt = g.xp, g.gt_box
    if g.pred_box is None:
        parsed, pred = xp.zeros(g.shape, bool), gt
    else:
        parsed, pred = xp.ones(g.shape, bool) if g.kind is None else g.kind == BOX, g.pred_box
    with np.errstate(all="ignore"):
        offset = centre(xp, pred) - centre(xp, gt)
        variance_p, variance_g = (ALPHA * size(xp, pred)) ** 2, (ALPHA * size(xp, gt)) ** 2
        # A division by zero is an exception there, and an exception a reward of 0.
        divides = (variance_g != 0).all(-1)
        exponent = -0.5 * (offset**2 / xp.where(divides[..., None], variance_g, 1)).sum(-1)
        point = xp.where(parsed & divides, xp.round(xp.exp(exponent), DECIMALS), 0)
        average = (variance_p + variance_g) / 2
        apart = (offset**2 / (average + EPS)).sum(-1) / 8
        spread = variance_p[..., 0] * variance_p[..., 1] * variance_g[..., 0] * variance_g[..., 1]
        shape = 0.5 * xp.log(average[..., 0] * average[..., 1] / xp.sqrt(spread + EPS))
        coverage = xp.where(parsed, xp.round(xp.exp(-(apart + shape)), DECIMALS), 0)
        form = xp.zeros(g.shape, point.dtype) if g.format_ok is None else g.format_ok.astype(point.dtype)
        reward = point + coverage + form
        return GuiG2(point, coverage, form, xp.log(point), xp.log(coverage), reward, xp.log(reward), parsed)

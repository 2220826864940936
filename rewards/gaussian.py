"""The Gaussian rewards of GUI-G² (arXiv 2507.15846): a point term, a coverage term, a format term, and their variants.

    parts = gui_g2(pred_box, gt_box)                                   # NumPy or JAX arrays [..., 4], leading axes broadcast
    parts.reward, parts.point, parts.log_reward
    gui_g2(pred_box, gt_box, options=GuiG2Options(min_sigma=0.5, order="sort"))

Both terms are 1 for a perfect answer. The point term is ``exp(-q)``, q half the squared distance of the centres in standard
deviations of the target, which are ``alpha`` sides; the coverage term is the Bhattacharyya coefficient of the two Gaussians.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from jaxllm.errors import UserError
from rewards import formula
from rewards.geometry import POINT, given, resolve, size
from rewards.namespace import array_namespace, is_number, require_choice, require_number

COMPILED_ROWS = 1 << 13  # from here on NumPy rows in float32 go through the compiled loop
CHUNK = 1 << 14  # rows of other NumPy arrays at a time, so that every step stays in the cache


@dataclasses.dataclass(frozen=True)
class GuiG2Options:
    """Settings of `gui_g2`. Numbers may be JAX tracers, so that alpha or a weight can be mapped over or learned."""

    nu: float = 1.0
    """weight of the point term"""
    gamma: float = 1.0
    """weight of the coverage term"""
    phi: float = 0.0
    """weight of the format term; the paper's main result has 0, the released default list 1"""
    alpha: float = 0.5
    """standard deviation per side of the box (equation 5)"""
    sigma: float | tuple[float, float] | None = None
    """standard deviation in pixels, per axis or one for both, instead of alpha sides"""
    min_sigma: float = 0.0
    """smallest standard deviation in pixels, of both boxes; 0.5 is a good value for training on real screens"""
    order: str = "strict"
    """"strict": a box with swapped corners is invalid; "sort": swapped back per axis"""
    degenerate: str = "invalid"
    """a side of exactly 0: "invalid", or "floor", which needs a min_sigma above 0"""
    point_coverage: str = "zero"
    """coverage of a prediction that is a point: "zero", or "gt_shape": as if it had the target's size"""
    inside: bool = False
    """both terms are 0 where the centre lies outside the target; on the border is inside"""
    tail: float = 0.0
    """each term becomes max(exp(-q), tail / (1 + q)), so that it never falls to 0; 0 is off"""
    compat: str | None = None
    """"gui_g2_release": what the published code returns, bug for bug (see `rewards.release`)"""

    def __post_init__(self) -> None:
        for name in ("nu", "gamma", "phi", "min_sigma", "tail"):
            require_number(name, getattr(self, name), 0)
        require_number("alpha", self.alpha, 0, above=True)
        for value in self.sigma if isinstance(self.sigma, tuple) else (self.sigma,):
            require_number("sigma", value, 0, above=True)
        require_choice("order", self.order, ("strict", "sort"))
        require_choice("degenerate", self.degenerate, ("invalid", "floor"))
        require_choice("point_coverage", self.point_coverage, ("zero", "gt_shape"))
        require_choice("compat", self.compat, (None, "gui_g2_release"))
        if self.degenerate == "floor" and is_number(self.min_sigma) and not self.min_sigma > 0:
            raise UserError('degenerate="floor" needs a min_sigma above 0, which stands in for the missing side; try 0.5')


class GuiG2(NamedTuple):
    """The parts of GUI-G²'s reward, each [...]. Invalid rows have 0, their logarithms -inf."""

    point: Any
    """exp(-q), q = ½ Σ (cp - cg)² / σg² over both axes, in [0, 1] (equation 2 without its factor); 0.61 amid an edge"""
    coverage: Any
    """Bhattacharyya coefficient of both Gaussians, in [0, 1] (equations 3 and 4); symmetric in the boxes"""
    format: Any
    """1 where the whole answer had the asked form, else 0"""
    log_point: Any
    """log of ``point``, exact where ``point`` itself falls to 0, in [-inf, 0]"""
    log_coverage: Any
    """log of ``coverage``, in [-inf, 0]"""
    reward: Any
    """nu point + gamma coverage + phi format, in [0, nu + gamma + phi] (equation 6)"""
    log_reward: Any
    """log of ``reward``, a signal at any distance"""
    valid: Any
    """bool; False where the reward is a forced 0: nothing parsed, a number that is not finite, an improper box"""


class PointCoverage(NamedTuple):
    """The two Gaussian terms alone."""

    point: Any
    """as `GuiG2.point`"""
    coverage: Any
    """as `GuiG2.coverage`"""


def gui_g2(
    pred_box: Any,
    gt_box: Any,
    *,
    pred_point: Any = None,
    kind: Any = None,
    image_wh: Any = None,
    format_ok: Any = None,
    options: GuiG2Options | None = None,
) -> GuiG2:
    """All parts of the reward.

    Args:
      pred_box: [..., 4] x1, y1, x2, y2; None when all predictions are points.
      gt_box: [..., 4], in the same frame. Leading axes broadcast, such as (B, G) against (B, 1).
      pred_point: [..., 2], for predictions that are points.
      kind: [...] int, 0 nothing parsed, 1 point, 2 box; see `rewards.geometry`.
      image_wh: not used; every reward can be called alike.
      format_ok: [...] bool; False when left out.
      options: `GuiG2Options`.
    Returns:
      Parts in the leading shape, float64 when an input is float64, else float32.
    Raises:
      UserError: shapes that do not fit.
    """
    options = options or GuiG2Options()
    if options.compat is not None:
        from rewards.release import gui_g2_release

        return gui_g2_release(pred_box, gt_box, pred_point=pred_point, kind=kind, format_ok=format_ok)
    rows = _rows(pred_box, gt_box, pred_point, kind, format_ok, options)
    xp, numbers = rows.xp, rows.numbers
    if rows.compiled and not (options.tail or rows.masked is not None):
        from rewards import compiled

        formatted = np.ascontiguousarray(rows.formatted).reshape(-1)
        floats, valid = compiled.all_parts(_flat(rows.pred), _flat(rows.gt), formatted, numbers)
        point, coverage, log_point, log_coverage, reward, log_reward = (part.reshape(rows.shape) for part in floats)
        form = (valid.reshape(rows.shape) & rows.formatted).astype(np.float32)
        return GuiG2(point, coverage, form, log_point, log_coverage, reward, log_reward, valid.reshape(rows.shape))
    return GuiG2(
        *_evaluate(rows, lambda pred, gt, formatted, masked: _parts(xp, pred, gt, formatted, masked, options, numbers))
    )


def point_coverage(pred_box: Any, gt_box: Any, *, options: GuiG2Options | None = None) -> PointCoverage:
    """Point and coverage alone, of boxes [..., 4]: the fastest way to many of them. As in `gui_g2`, of the same options."""
    options = options or GuiG2Options()
    if options.compat is not None or options.tail:
        full = gui_g2(pred_box, gt_box, options=options)
        return PointCoverage(full.point, full.coverage)
    rows = _rows(pred_box, gt_box, None, None, None, options)
    if rows.compiled:
        from rewards import compiled

        parts = compiled.point_coverage(_flat(rows.pred), _flat(rows.gt), rows.numbers)
        return PointCoverage(*(part.reshape(rows.shape) for part in parts))
    terms = formula.define(rows.xp).terms
    return PointCoverage(*_evaluate(rows, lambda pred, gt, *_: terms(*_columns(pred), *_columns(gt), rows.numbers)[:2]))


class _Rows(NamedTuple):
    xp: Any
    pred: Any  # [..., 4], points as boxes
    gt: Any
    formatted: Any  # [...] bool
    masked: Any  # [...] bool where coverage is 0 whatever the box says, or None
    numbers: formula.Numbers
    shape: tuple[int, ...]
    compiled: bool


def _rows(pred_box: Any, gt_box: Any, pred_point: Any, kind: Any, format_ok: Any, options: GuiG2Options) -> _Rows:
    g = given(pred_box, gt_box, pred_point=pred_point, kind=kind, format_ok=format_ok)
    settings = [getattr(options, field.name) for field in dataclasses.fields(options)]
    settings += options.sigma if isinstance(options.sigma, tuple) else []
    xp = g.xp if g.xp is not np else array_namespace(*settings)
    pred, masked = g.pred_box, None
    if kind is not None or pred is None:
        resolved = resolve(xp, pred, g.pred_point, g.kind, g.shape)
        pred, is_point = resolved.box, resolved.kind == POINT
        if options.point_coverage == "gt_shape":
            half = xp.abs(size(xp, g.gt_box)) / 2
            middle = resolved.point
            pred = xp.where(is_point[..., None], xp.concatenate([middle - half, middle + half], -1), pred)
        elif options.degenerate == "floor":
            masked = is_point
    dtype = pred.dtype
    plain = all(is_number(v) for v in settings if not isinstance(v, str | bool | tuple) and v is not None)
    numbers = _numbers(xp, options, dtype, typed=xp is np and plain)
    formatted = xp.zeros(g.shape, bool) if g.format_ok is None else g.format_ok
    quick = xp is np and plain and dtype == np.float32 and math.prod(g.shape) >= COMPILED_ROWS
    return _Rows(xp, pred, g.gt_box, formatted, masked, numbers, g.shape, quick)


def _numbers(xp: Any, options: GuiG2Options, dtype: Any, *, typed: bool) -> formula.Numbers:
    least, most = formula.limits(dtype)
    sigma = options.sigma if isinstance(options.sigma, tuple) else (options.sigma, options.sigma)
    fixed = options.sigma is not None
    numbers = formula.Numbers(
        zero=0.0,
        quarter=0.25,
        half=0.5,
        one=1.0,
        inf=math.inf,
        least=least,
        most=most,
        side=0.0 if options.degenerate == "floor" else least,
        flip=-1.0 if options.order == "sort" else 1.0,
        alpha=0.0 if fixed else options.alpha,
        fixed_x=sigma[0] if fixed else 0.0,
        fixed_y=sigma[1] if fixed else 0.0,
        floor=options.min_sigma,
        reach=0.0 if options.inside else math.inf,
        nu=options.nu,
        gamma=options.gamma,
        phi=options.phi,
        log_nu=formula.logarithm(xp, options.nu),
        log_gamma=formula.logarithm(xp, options.gamma),
        log_phi=formula.logarithm(xp, options.phi),
    )
    # A compiled loop would take a Python number for float64 and every row with it.
    return formula.Numbers(*(dtype.type(number) for number in numbers)) if typed else numbers


def _flat(box: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(box).reshape(-1, 4)


def _columns(box: Any) -> tuple[Any, ...]:
    return box[..., 0], box[..., 1], box[..., 2], box[..., 3]


def _parts(
    xp: Any, pred: Any, gt: Any, formatted: Any, masked: Any, options: GuiG2Options, numbers: formula.Numbers
) -> tuple[Any, ...]:
    terms, total = formula.define(xp)
    point, coverage, log_point, log_coverage, valid = terms(*_columns(pred), *_columns(gt), numbers)
    if masked is not None:
        coverage, log_coverage = xp.where(masked, 0, coverage), xp.where(masked, -xp.inf, log_coverage)
    if not is_number(options.tail) or options.tail > 0:
        log_point = _with_tail(xp, log_point, options.tail)
        log_coverage = _with_tail(xp, log_coverage, options.tail)
        point, coverage = xp.exp(log_point), xp.exp(log_coverage)
    reward, log_reward = total(point, coverage, log_point, log_coverage, valid, formatted, numbers)
    form = (valid & formatted).astype(pred.dtype)
    return point, coverage, form, log_point, log_coverage, reward, log_reward, valid


def _with_tail(xp: Any, log_term: Any, tail: Any) -> Any:
    some = log_term > -xp.inf
    log_tail = formula.logarithm(xp, tail) - xp.log1p(xp.where(some, -log_term, 0))
    return xp.where(some, xp.maximum(log_term, log_tail), log_term)


def _evaluate(rows: _Rows, compute: Any) -> Any:
    """``compute`` on everything at once for JAX, which fuses; in pieces of `CHUNK` rows for NumPy, which does not."""
    if rows.xp is not np:
        return compute(rows.pred, rows.gt, rows.formatted, rows.masked)
    N = math.prod(rows.shape)
    with np.errstate(all="ignore"):
        if N <= CHUNK:
            return compute(rows.pred, rows.gt, rows.formatted, rows.masked)
        pred, gt = rows.pred.reshape(-1, 4), rows.gt.reshape(-1, 4)
        formatted, masked = rows.formatted.reshape(-1), None if rows.masked is None else rows.masked.reshape(-1)
        out: list[np.ndarray] = []
        for start in range(0, N, CHUNK):
            s = slice(start, start + CHUNK)
            # Columns of their own: every step then reads whole cache lines.
            columns = [np.ascontiguousarray(box[s].T).T for box in (pred, gt)]
            parts = compute(*columns, formatted[s], None if masked is None else masked[s])
            out = out or [np.empty(N, part.dtype) for part in parts]
            for whole, part in zip(out, parts, strict=True):
                whole[s] = part
    return tuple(part.reshape(rows.shape) for part in out)

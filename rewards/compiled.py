"""The formula as a compiled loop over rows of float32, on as many threads as there are cores.

NumPy's way, an array operation at a time, holds Python's lock between operations and writes every step to memory. Here a row's
numbers stay in registers. The source is the same `rewards.formula`; only exp and log1p are those of `rewards.lanes`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.simd import inline, loops, threads
from rewards import formula, lanes

ROWS = 1 << 16  # of a piece of work; enough of them keep all cores busy until the end

_terms, _total = formula.define(lanes, inline)
_loop = loops(formula, lanes, error_model="numpy", fastmath={"contract"})


# Rows are flat: a loop over [i, j] would not know how far apart they are, and load number by number.
@_loop
def _two_parts(p: Any, g: Any, n: Any, point: Any, coverage: Any) -> None:
    for i in range(len(point)):
        k = 4 * i
        point[i], coverage[i], _, _, _ = _terms(p[k], p[k + 1], p[k + 2], p[k + 3], g[k], g[k + 1], g[k + 2], g[k + 3], n)


@_loop
def _all_parts(p: Any, g: Any, formatted: Any, n: Any, out: Any, valid: Any) -> None:
    point, coverage, log_point, log_coverage, reward, log_reward = out
    for i in range(len(valid)):
        k = 4 * i
        r, c, log_r, log_c, ok = _terms(p[k], p[k + 1], p[k + 2], p[k + 3], g[k], g[k + 1], g[k + 2], g[k + 3], n)
        reward[i], log_reward[i] = _total(r, c, log_r, log_c, ok, formatted[i], n)
        point[i], coverage[i], log_point[i], log_coverage[i], valid[i] = r, c, log_r, log_c, ok


def point_coverage(pred_box: np.ndarray, gt_box: np.ndarray, numbers: formula.Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Point and coverage reward, [N] float32 each, of two C-contiguous arrays [N, 4] float32."""
    N, p, g = len(pred_box), pred_box.reshape(-1), gt_box.reshape(-1)
    point, coverage = np.empty(N, np.float32), np.empty(N, np.float32)

    def piece(start: int, stop: int) -> None:
        _two_parts(p[4 * start : 4 * stop], g[4 * start : 4 * stop], numbers, point[start:stop], coverage[start:stop])

    _in_pieces(piece, N)
    return point, coverage


def all_parts(
    pred_box: np.ndarray, gt_box: np.ndarray, formatted: np.ndarray, numbers: formula.Numbers
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """(point, coverage, log_point, log_coverage, reward, log_reward), [N] float32 each, and valid [N] bool.

    The boxes are C-contiguous arrays [N, 4] float32, ``formatted`` [N] bool.
    """
    N, p, g = len(pred_box), pred_box.reshape(-1), gt_box.reshape(-1)
    out, valid = tuple(np.empty(N, np.float32) for _ in range(6)), np.empty(N, np.bool_)

    def piece(start: int, stop: int) -> None:
        rows = slice(4 * start, 4 * stop)
        parts = tuple(part[start:stop] for part in out)
        _all_parts(p[rows], g[rows], formatted[start:stop], numbers, parts, valid[start:stop])

    _in_pieces(piece, N)
    return out, valid


def _in_pieces(piece: Callable[[int, int], None], N: int) -> None:
    starts = range(0, N, ROWS)
    if len(starts) <= 1:
        piece(0, N)
        return
    piece(0, ROWS)  # compiles on this thread, once
    # list() waits, and raises here what a thread raised.
    list(threads().map(lambda start: piece(start, min(start + ROWS, N)), starts[1:]))

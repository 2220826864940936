"""`compat="gui_g2_release"` against what the published functions returned when they were run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rewards.gaussian import GuiG2Options, gui_g2
from tests.rewards.vectors import EDGES, G0, NAN, VECTORS, Edge, Vector

RELEASE = GuiG2Options(compat="gui_g2_release")


@pytest.mark.parametrize("v", [v for v in VECTORS if v.release], ids=lambda v: v.name)
@pytest.mark.parametrize("xp", [np, jnp])
def test_the_release_column(v: Vector, xp: Any):
    assert v.release is not None
    with jax.enable_x64(True):
        pred, target = xp.asarray(v.pred, np.float64), xp.asarray(v.target, np.float64)
        parts = gui_g2(pred, target, format_ok=xp.asarray(v.release[2] == 1), options=RELEASE)
        found = float(parts.point), float(parts.coverage), int(parts.format)
        # XLA divides by the power of ten through its reciprocal, one unit in the last place off.
        assert found == (v.release if xp is np else pytest.approx(v.release, rel=1e-15))
        assert float(parts.reward) == pytest.approx(sum(v.release), rel=1e-15)


@pytest.mark.parametrize("e", [e for e in EDGES if e.release], ids=lambda e: e.name)
def test_the_release_values_of_edges(e: Edge):
    parts = gui_g2(np.array(e.pred, float), np.array(e.target, float), options=RELEASE)
    assert (float(parts.point), float(parts.coverage)) == e.release


def test_a_point_gets_nothing():
    for inputs in ((None, {"pred_point": np.array([150.0, 125])}), (np.array(G0, float), {"kind": np.array(1)})):
        parts = gui_g2(inputs[0], np.array(G0, float), **inputs[1], options=RELEASE)
        assert (parts.point, parts.coverage, bool(parts.valid)) == (0, 0, False)


def test_equal_infinite_coordinates_leak_nan():
    """A number of hundreds of digits becomes infinity, and its box infinity minus infinity."""
    endless = np.array([np.inf, 100, np.inf, 150])
    assert np.isnan(gui_g2(endless, np.array(G0, float), options=RELEASE).coverage)
    ours = gui_g2(endless, np.array(G0, float))
    assert (ours.coverage, ours.reward) == (0, 0)


def test_the_signal_ends_where_the_paper_says_it_is_dense():
    target = np.array([0, 0, 100, 50.0])
    shifts = np.linspace(0, 200, 401)
    pred = target + shifts[:, None] * [1, 0, 1, 0]
    released, ours = gui_g2(pred, target, options=RELEASE), gui_g2(pred, target)
    assert shifts[released.point == 0].min() == 195  # 3.9 sigma
    assert (ours.point > 0).all()
    assert not np.isin(NAN, released.reward)

"""The Gaussian rewards: reference values, edge cases and what must hold for all boxes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.errors import UserError
from rewards import gaussian
from rewards.gaussian import GuiG2, GuiG2Options, gui_g2, point_coverage
from tests.rewards.vectors import EDGES, G0, INF, NAN, SHIFTED, VECTORS, Edge, Vector, boxes


def assert_close(found: Any, expected: Any, *, log: bool = False, rtol: float = 1e-11) -> None:
    """Within the tolerances of the reference: 1e-11 relative in float64; in float32 5e-6, of logarithms 2e-5 relative."""
    if np.asarray(found).dtype == np.float64:
        # Logarithms are printed to ten digits.
        np.testing.assert_allclose(found, expected, rtol=max(rtol, 1e-9) if log else rtol, atol=1e-300)
    elif log:
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("v", VECTORS, ids=lambda v: v.name)
def test_vectors(v: Vector, array: Any, kernel: Any):
    parts = kernel(array(v.pred), array(v.target), options=GuiG2Options(alpha=v.alpha))
    assert parts.point.dtype == parts.reward.dtype == array(0).dtype
    rtol = 1e-8 if v.name in ("V20", "V21") else 1e-11
    # Inputs that float32 cannot hold move the logarithm itself.
    rounded = parts.point.dtype == np.float32 and v.name in ("V17", "V18", "V20", "V21")
    assert_close(parts.point, v.point, rtol=rtol)
    assert_close(parts.coverage, v.coverage, rtol=rtol)
    if not rounded:
        assert_close(parts.log_point, v.log_point, log=True, rtol=rtol)
        assert_close(parts.log_coverage, v.log_coverage, log=True, rtol=rtol)
    assert_close(parts.reward, v.point + v.coverage, rtol=rtol)
    assert bool(parts.valid)


def test_the_paper_has_24_vectors():
    assert len(VECTORS) == 24


@pytest.mark.parametrize("e", EDGES, ids=lambda e: e.name)
def test_edges(e: Edge, array: Any, kernel: Any):
    parts = kernel(array(e.pred), array(e.target), options=e.options)
    assert_close(parts.point, e.point)
    assert_close(parts.coverage, e.coverage)
    assert bool(parts.valid) == e.valid
    if e.coverage == 0:
        assert parts.log_coverage == -INF
    if not e.valid:
        assert (parts.reward, parts.log_reward, parts.log_point) == (0, -INF, -INF)


def total(pred: Any, target: Any, options: GuiG2Options) -> Any:
    """Rewards and their logarithms where they are defined."""
    parts = gui_g2(pred, target, options=options)
    return parts.reward.sum() + jnp.where(parts.valid, parts.log_reward, 0).sum()


slopes = jax.jit(jax.grad(total, argnums=(0, 1)), static_argnames="options")


@pytest.mark.parametrize("e", EDGES, ids=lambda e: e.name)
def test_gradients_of_edges_are_finite(e: Edge):
    good = jnp.asarray([SHIFTED, e.pred], jnp.float32), jnp.asarray([G0, e.target], jnp.float32)
    for gradient in slopes(*good, options=e.options):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient[0]).max() > 0
        if not e.valid:
            assert (gradient[1] == 0).all()


def test_logarithms_of_floored_edges(array: Any, kernel: Any):
    for sigma, expected in ((0.5, -1.956061500), (1.0, -1.609637872)):
        options = GuiG2Options(degenerate="floor", min_sigma=sigma)
        assert_close(kernel(array((150, 100, 150, 150)), array(G0), options=options).log_coverage, expected, log=True)


def test_a_point_has_no_coverage_unless_it_borrows_the_targets_size(array: Any, kernel: Any):  # E13
    inputs: dict[str, Any] = {"pred_point": array((175, 130)), "kind": np.int8(1)}
    parts = kernel(None, array(G0), **inputs)
    assert_close(parts.point, 0.865022293111)
    assert (parts.coverage, bool(parts.valid)) == (0, True)
    borrowed = kernel(None, array(G0), **inputs, options=GuiG2Options(point_coverage="gt_shape"))
    assert_close(borrowed.coverage, 0.964399163552)
    # With a floor a point is a box that is allowed, but still no coverage is asked of it.
    floored = kernel(None, array(G0), **inputs, options=GuiG2Options(degenerate="floor", min_sigma=0.5))
    assert_close(floored.point, 0.865022293111)
    assert (floored.coverage, floored.log_coverage) == (0, -INF)


def test_a_far_point_keeps_its_logarithm(array: Any, kernel: Any):  # E14
    parts = kernel(None, array(G0), pred_point=array((1900, 1000)))
    assert (parts.point, parts.log_point) == (0, -1225)


def test_nothing_parsed_is_worth_nothing(array: Any, kernel: Any):  # E15
    options = GuiG2Options(phi=1.0)
    parts = kernel(array(G0), array(G0), pred_point=array((150, 125)), kind=np.int8(0), format_ok=True, options=options)
    assert (parts.point, parts.coverage, parts.format, parts.reward, bool(parts.valid)) == (0, 0, 0, 0, False)


def test_an_empty_batch(array: Any, kernel: Any):  # E16
    parts = kernel(array(np.zeros((0, 4))), array(np.zeros((0, 4))))
    assert all(part.shape == (0,) for part in parts)


def test_huge_coordinates_are_never_nan(array: Any, kernel: Any):  # E19
    big = 1e20
    preds = [
        (big, big, big + 1e19, big + 1e19),
        (0, 0, big, big),
        (-big, -big, big, big),
        (-big, 100, 200, 150),
        (100, 100, big, 150),
    ]
    for pred in preds:
        for a, b in ((pred, G0), (G0, pred)):
            parts = kernel(array(a), array(b))
            assert not any(np.isnan(part) for part in parts[:-1])
            assert 0 <= float(parts.coverage) < 1e-4
    alike = kernel(array(preds[2]), array(preds[2]))
    assert (alike.point, alike.coverage) == (1, 1)


def test_broadcasting_is_the_loop(array: Any, kernel: Any):  # E20
    rng = np.random.default_rng(0)
    corner, sides = rng.uniform(0, 100, (3, 5, 2)), rng.uniform(1, 50, (3, 5, 2))
    answers = np.concatenate([corner, corner + sides], -1)
    pred, target = array(answers), array(answers[:, :1] + 3)
    together, repeated = kernel(pred, target), kernel(pred, array(np.repeat(answers[:, :1] + 3, 5, 1)))
    for whole, same in zip(together, repeated, strict=True):
        np.testing.assert_array_equal(whole, same)
    # XLA's programs for one row and for many may round apart.
    ulps = 0 if isinstance(pred, np.ndarray) else 4 * np.finfo(pred.dtype).eps
    for i in range(3):
        for j in range(5):
            for whole, one in zip(together, kernel(pred[i, j], target[i, 0]), strict=True):
                np.testing.assert_allclose(whole[i, j], one, rtol=ulps, atol=0)


def test_weighted_totals(array: Any, kernel: Any):
    """Of V02, for the weights of the paper's ablation."""
    for nu, gamma, expected in ((1, 1, 1.48902756230), (0.8, 0.2, 0.661723908287), (0.2, 0.8, 0.827303654010)):
        parts = kernel(array(SHIFTED), array(G0), options=GuiG2Options(nu=nu, gamma=gamma))
        assert_close(parts.reward, expected)
        assert_close(parts.log_reward, np.log(expected), log=True)


def test_log_reward_is_the_logarithm_where_that_exists_and_goes_on_beyond():
    options = GuiG2Options(nu=0.7, gamma=0.4, phi=0.3)
    pred = np.array([SHIFTED, G0, (5000, 100, 5100, 150)], np.float64)
    parts = gui_g2(pred, np.array(G0, np.float64), format_ok=np.array([True, False, False]), options=options)
    np.testing.assert_allclose(parts.log_reward[:2], np.log(parts.reward[:2]), rtol=1e-12)
    far = gui_g2(np.array((90000, 100, 90100, 150), np.float64), np.array(G0, np.float64), options=options)
    assert far.reward == 0
    np.testing.assert_allclose(far.log_reward, np.log(0.4) - (89900 / 50) ** 2 / 8)


def test_the_tail_never_ends():
    pred, options = np.array([G0, (2000, 100, 2100, 150)], np.float64), GuiG2Options(tail=0.1)
    parts, plain = gui_g2(pred, np.array(G0, np.float64), options=options), gui_g2(pred, np.array(G0, np.float64))
    q = -plain.log_point[1]
    assert plain.point[1] < 1e-300
    np.testing.assert_allclose(parts.point, [1, 0.1 / (1 + q)])
    np.testing.assert_allclose(parts.log_point, np.log(parts.point))
    invalid = gui_g2(np.full(4, NAN), np.array(G0, np.float64), options=options)
    assert (invalid.point, invalid.coverage, invalid.reward) == (0, 0, 0)


def test_fixed_sigma_forgets_the_targets_size():
    options = GuiG2Options(sigma=(10.0, 20.0))
    for target in (G0, (140, 120, 160, 130)):
        parts = gui_g2(np.array([160, 115, 180, 175.0]), np.array(target, float), options=options)
        np.testing.assert_allclose(parts.log_point, -0.5 * ((20 / 10) ** 2 + (20 / 20) ** 2))
        np.testing.assert_allclose(parts.log_coverage, parts.log_point / 4)


def test_order_and_degenerate_also_hold_for_targets():
    swapped = np.array((200, 150, 100, 100), float)
    assert not gui_g2(np.array(G0, float), swapped).valid
    assert gui_g2(np.array(G0, float), swapped, options=GuiG2Options(order="sort")).reward == 2


def test_integers_and_half_precision_become_float32():
    for dtype in (np.int64, np.int16, np.float16, jnp.bfloat16):
        parts = gui_g2(np.asarray(SHIFTED, dtype), np.asarray(G0, dtype))
        assert parts.reward.dtype == np.float32
    assert gui_g2(np.asarray(SHIFTED, np.int64), np.asarray(G0, np.float64)).reward.dtype == np.float64
    assert gui_g2(jnp.asarray(SHIFTED, jnp.bfloat16), jnp.asarray(G0, jnp.bfloat16)).reward.dtype == jnp.float32


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (((3,), (4,), {}), "pred_box has shape"),
        (((5, 4), (3, 4), {}), "do not broadcast"),
        (((5, 4), (5, 4), {"kind": np.zeros(3)}), "kind"),
        (((5, 4), (5, 4), {"pred_point": np.zeros((5, 3))}), "pred_point has shape"),
    ],
)
def test_wrong_shapes_are_named(inputs: Any, message: str):
    pred, target, rest = inputs
    with pytest.raises(UserError, match=message):
        gui_g2(np.zeros(pred), np.zeros(target), **rest)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0},
        {"alpha": NAN},
        {"nu": -1},
        {"order": "any"},
        {"degenerate": "floor"},
        {"sigma": (1.0, 0.0)},
        {"compat": "v2"},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError):
        GuiG2Options(**wrong)


# Compiled rows against array rows


@pytest.mark.parametrize(
    "options",
    [
        GuiG2Options(),
        GuiG2Options(inside=True, phi=1.0),
        GuiG2Options(order="sort", nu=0.8, gamma=0.2),
        GuiG2Options(degenerate="floor", min_sigma=0.5),
        GuiG2Options(sigma=20.0, gamma=0.0),
        GuiG2Options(alpha=3.0, nu=0.0, phi=0.5),
    ],
)
def test_the_compiled_loop_is_the_formula(options: GuiG2Options, monkeypatch: pytest.MonkeyPatch):
    N = gaussian.COMPILED_ROWS + 70_001  # more than one piece, the last one odd
    pred, target = boxes(0, N), boxes(1, N)
    pred[: N // 2] = target[: N // 2] + np.random.default_rng(2).normal(0, 10, (N // 2, 4))
    bad = [NAN, INF, -INF, 1e20, -3e38, 0]
    for i, value in enumerate(bad):
        pred[i::97, i % 4], target[i::89, (i + 1) % 4] = value, value
    format_ok = np.random.default_rng(3).random(N) < 0.5
    fast, two = gui_g2(pred, target, format_ok=format_ok, options=options), point_coverage(pred, target, options=options)
    monkeypatch.setattr(gaussian, "COMPILED_ROWS", 1 << 60)
    slow = gui_g2(pred, target, format_ok=format_ok, options=options)
    for name, a, b in zip(GuiG2._fields, fast, slow, strict=True):
        assert a.dtype == b.dtype
        tolerance = {"rtol": 1e-5, "atol": 2e-6} if name.startswith("log") else {"rtol": 0, "atol": 1e-6}
        np.testing.assert_allclose(a, b, **tolerance, err_msg=name)
    np.testing.assert_array_equal(two.point, fast.point)
    np.testing.assert_array_equal(two.coverage, fast.coverage)


def test_pieces_of_float64_are_the_whole():
    pred, target = boxes(0, 40_000).astype(np.float64), boxes(1, 40_000).astype(np.float64)
    whole = gui_g2(pred.reshape(8, 5000, 4), target.reshape(8, 5000, 4))
    part = gui_g2(pred[20_000:20_100], target[20_000:20_100])
    np.testing.assert_array_equal(whole.reward[4, :100], part.reward)

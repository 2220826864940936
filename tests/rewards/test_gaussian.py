"""The Gaussian rewards: reference values, edge cases and what must hold for all boxes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import UserError
from rewards import gaussian
from rewards.gaussian import GuiG2, GuiG2Options, gui_g2, point_coverage
from tests.rewards.vectors import EDGES, G0, INF, NAN, SHIFTED, VECTORS, Edge, Vector


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
def test_vectors(v: Vector, array: Any):
    parts = gui_g2(array(v.pred), array(v.target), options=GuiG2Options(alpha=v.alpha))
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
def test_edges(e: Edge, array: Any):
    parts = gui_g2(array(e.pred), array(e.target), options=e.options)
    assert_close(parts.point, e.point)
    assert_close(parts.coverage, e.coverage)
    assert bool(parts.valid) == e.valid
    if e.coverage == 0:
        assert parts.log_coverage == -INF
    if not e.valid:
        assert (parts.reward, parts.log_reward, parts.log_point) == (0, -INF, -INF)


@pytest.mark.parametrize("e", EDGES, ids=lambda e: e.name)
def test_gradients_of_edges_are_finite(e: Edge):
    good = jnp.asarray([SHIFTED, e.pred], jnp.float32), jnp.asarray([G0, e.target], jnp.float32)

    def total(pred: Any, target: Any) -> Any:
        parts = gui_g2(pred, target, options=e.options)
        return parts.reward.sum() + jnp.where(parts.valid, parts.log_reward, 0).sum()

    for gradient in jax.grad(total, argnums=(0, 1))(*good):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient[0]).max() > 0
        if not e.valid:
            assert (gradient[1] == 0).all()


def test_logarithms_of_floored_edges(array: Any):
    for sigma, expected in ((0.5, -1.956061500), (1.0, -1.609637872)):
        options = GuiG2Options(degenerate="floor", min_sigma=sigma)
        assert_close(gui_g2(array((150, 100, 150, 150)), array(G0), options=options).log_coverage, expected, log=True)


def test_a_point_has_no_coverage_unless_it_borrows_the_targets_size(array: Any):  # E13
    inputs: dict[str, Any] = {"pred_point": array((175, 130)), "kind": np.int8(1)}
    parts = gui_g2(None, array(G0), **inputs)
    assert_close(parts.point, 0.865022293111)
    assert (parts.coverage, bool(parts.valid)) == (0, True)
    borrowed = gui_g2(None, array(G0), **inputs, options=GuiG2Options(point_coverage="gt_shape"))
    assert_close(borrowed.coverage, 0.964399163552)
    # With a floor a point is a box that is allowed, but still no coverage is asked of it.
    floored = gui_g2(None, array(G0), **inputs, options=GuiG2Options(degenerate="floor", min_sigma=0.5))
    assert_close(floored.point, 0.865022293111)
    assert (floored.coverage, floored.log_coverage) == (0, -INF)


def test_a_far_point_keeps_its_logarithm(array: Any):  # E14
    parts = gui_g2(None, array(G0), pred_point=array((1900, 1000)))
    assert (parts.point, parts.log_point) == (0, -1225)


def test_nothing_parsed_is_worth_nothing(array: Any):  # E15
    options = GuiG2Options(phi=1.0)
    parts = gui_g2(array(G0), array(G0), pred_point=array((150, 125)), kind=np.int8(0), format_ok=True, options=options)
    assert (parts.point, parts.coverage, parts.format, parts.reward, bool(parts.valid)) == (0, 0, 0, 0, False)


def test_an_empty_batch(array: Any):  # E16
    parts = gui_g2(array(np.zeros((0, 4))), array(np.zeros((0, 4))))
    assert all(part.shape == (0,) for part in parts)


def test_huge_coordinates_are_never_nan(array: Any):  # E19
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
            parts = gui_g2(array(a), array(b))
            assert not any(np.isnan(part) for part in parts[:-1])
            assert 0 <= float(parts.coverage) < 1e-4
    alike = gui_g2(array(preds[2]), array(preds[2]))
    assert (alike.point, alike.coverage) == (1, 1)


def test_broadcasting_is_the_loop(array: Any):  # E20
    rng = np.random.default_rng(0)
    corner, sides = rng.uniform(0, 100, (3, 5, 2)), rng.uniform(1, 50, (3, 5, 2))
    pred = array(np.concatenate([corner, corner + sides], -1))
    target = array(np.concatenate([corner, corner + sides], -1)[:, :1] + 3)
    together = gui_g2(pred, target)
    for i in range(3):
        for j in range(5):
            alone = gui_g2(pred[i, j], target[i, 0])
            for whole, one in zip(together, alone, strict=True):
                np.testing.assert_array_equal(whole[i, j], one)


def test_weighted_totals(array: Any):
    """Of V02, for the weights of the paper's ablation."""
    for nu, gamma, expected in ((1, 1, 1.48902756230), (0.8, 0.2, 0.661723908287), (0.2, 0.8, 0.827303654010)):
        parts = gui_g2(array(SHIFTED), array(G0), options=GuiG2Options(nu=nu, gamma=gamma))
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


def boxes(seed: int, N: int, *, spread: float = 2000, sides: float = 300) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, spread, (N, 2))
    return np.concatenate([corner, corner + rng.uniform(1, sides, (N, 2))], -1).astype(np.float32)


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


# What JAX may do with it


def test_jit_vmap_and_arrays_agree():
    pred, target = boxes(0, 64, spread=200), boxes(1, 64, spread=200)
    host = gui_g2(pred, target)
    for function in (gui_g2, jax.jit(gui_g2), jax.jit(jax.vmap(gui_g2))):
        for name, a, b in zip(GuiG2._fields, function(jnp.asarray(pred), jnp.asarray(target)), host, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=name)


def test_vmap_over_alpha():
    alphas = jnp.asarray([0.1, 0.5, 1.0, 2.0])
    points = jax.vmap(lambda a: gui_g2(np.asarray(SHIFTED, np.float32), np.asarray(G0), options=GuiG2Options(alpha=a)).point)(
        alphas
    )
    np.testing.assert_allclose(points, np.exp([-12.5, -0.5, -0.125, -0.03125]), rtol=1e-5)


def test_weights_and_alpha_have_gradients():
    def reward(alpha: Any, nu: Any) -> Any:
        return gui_g2(jnp.asarray(SHIFTED), jnp.asarray(G0), options=GuiG2Options(alpha=alpha, nu=nu)).reward

    by_alpha, by_nu = jax.grad(reward, argnums=(0, 1))(0.5, 1.0)
    # d/da of exp(-1/(8a²)) + exp(-1/(32a²)), twice their exponent over -a times each.
    np.testing.assert_allclose(by_alpha, 2 * np.exp(-0.5) + 0.5 * np.exp(-0.125), rtol=1e-5)
    np.testing.assert_allclose(by_nu, np.exp(-0.5), rtol=1e-6)


def test_the_same_on_eight_devices():
    pred, target = boxes(0, 64, spread=200), boxes(1, 64, spread=200)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.P("data")
    spread = [jax.device_put(x, jax.NamedSharding(mesh, rows)) for x in (pred, target)]
    mapped = jax.jit(jax.shard_map(lambda p, g: gui_g2(p, g), mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    for function in (jax.jit(gui_g2), mapped):
        parts = function(*spread)
        assert len(parts.reward.sharding.device_set) == 8
        np.testing.assert_allclose(parts.reward, gui_g2(pred, target).reward, atol=2e-6)


# Properties

coordinate = st.integers(-4000, 8000).map(lambda n: n / 4)
length = st.integers(1, 8000).map(lambda n: n / 4)
box = st.tuples(coordinate, coordinate, length, length).map(lambda b: np.array([b[0], b[1], b[0] + b[2], b[1] + b[3]]))
scale = st.floats(1e-3, 1e3)


@given(box, box)
def test_range_and_symmetry(a: np.ndarray, b: np.ndarray):
    parts, swapped = gui_g2(a, b), gui_g2(b, a)
    assert 0 <= parts.point <= 1
    assert 0 <= parts.coverage <= 1
    assert parts.valid
    np.testing.assert_allclose(parts.log_coverage, swapped.log_coverage, rtol=1e-10, atol=1e-13)


@given(box, box, coordinate, coordinate, scale, scale)
def test_moving_and_stretching_both_changes_nothing(a: np.ndarray, b: np.ndarray, dx: float, dy: float, kx: float, ky: float):
    parts = gui_g2(a, b)
    shift = np.array([dx, dy, dx, dy])
    moved = gui_g2(a + shift, b + shift)
    stretched = gui_g2(a * [kx, ky, kx, ky], b * [kx, ky, kx, ky])
    turned = gui_g2(a[[1, 0, 3, 2]], b[[1, 0, 3, 2]])
    for other in (moved, stretched, turned):
        np.testing.assert_allclose(other.log_point, parts.log_point, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other.log_coverage, parts.log_coverage, rtol=1e-9, atol=1e-9)


@given(box, st.floats(-np.pi, np.pi), st.floats(0.01, 3), st.floats(1.01, 3))
def test_both_terms_fall_along_every_ray(target: np.ndarray, angle: float, near: float, further: float):
    step = (target[2:] - target[:2]) * [np.cos(angle), np.sin(angle)]
    close, far = (gui_g2(target + np.tile(step * by, 2), target) for by in (near, near * further))
    assert close.log_point > far.log_point
    assert close.log_coverage > far.log_coverage


@given(box, coordinate, coordinate)
def test_coverage_of_equal_sizes_is_the_fourth_root_of_point(target: np.ndarray, dx: float, dy: float):
    parts = gui_g2(target + np.array([dx, dy, dx, dy]), target)
    np.testing.assert_allclose(parts.log_coverage, parts.log_point / 4, rtol=1e-9, atol=1e-15)


@given(length, length, st.floats(0.01, 100))
def test_coverage_of_concentric_boxes(width: float, height: float, r: float):
    a = np.array([-width, -height, width, height])
    np.testing.assert_allclose(gui_g2(a * [r, 1, r, 1], a).coverage, np.sqrt(2 * r / (1 + r * r)), rtol=1e-12)


@jax.jit
def gradient_by_centre(centre: Any, half: Any, target: Any) -> Any:
    return jax.grad(lambda c: -gui_g2(jnp.concatenate([c - half, c + half]), target).log_point)(centre)


@settings(max_examples=50, deadline=None)
@given(box, box)
def test_the_gradient_of_the_point_term(pred: np.ndarray, target: np.ndarray):
    middle, goal = (pred[:2] + pred[2:]) / 2, (target[:2] + target[2:]) / 2
    half, sigma = (pred[2:] - pred[:2]) / 2, (target[2:] - target[:2]) / 2
    with jax.enable_x64(True):
        np.testing.assert_allclose(gradient_by_centre(middle, half, target), (middle - goal) / sigma**2, rtol=1e-9, atol=1e-12)


wild = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1e20, -1e20, 3e38, -3e38, 1e-30, 100.0])
)
tail_gradients = jax.jit(jax.grad(lambda p, g: gui_g2(p, g, options=GuiG2Options(tail=0.1)).reward.sum(), argnums=(0, 1)))
plain_gradients = jax.jit(jax.grad(lambda p, g: gui_g2(p, g).reward.sum(), argnums=(0, 1)))


@settings(max_examples=150, deadline=None)
@given(st.lists(wild, min_size=8, max_size=8))
def test_no_float_makes_a_nan(numbers: list[float]):
    pred, target = np.array(numbers[:4], np.float32), np.array(numbers[4:], np.float32)
    for parts in (gui_g2(pred, target), gui_g2(pred, target, options=GuiG2Options(order="sort", tail=0.1))):
        assert not any(np.isnan(part).any() for part in parts)
        assert 0 <= parts.point <= 1
        assert 0 <= parts.coverage <= 1
    assert all(np.isfinite(gradient).all() for gradient in tail_gradients(pred, target) + plain_gradients(pred, target))


@given(st.lists(box, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_rows_do_not_know_each_other(rows: list[np.ndarray], random: Any):
    order = list(range(len(rows)))
    random.shuffle(order)
    pred = np.stack(rows)
    np.testing.assert_array_equal(gui_g2(pred[order], pred[0]).reward, gui_g2(pred, pred[0]).reward[order])

"""The Gaussian rewards: what must hold for all boxes, and what JAX may do with the function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.gaussian import GuiG2, GuiG2Options, gui_g2
from tests.rewards.vectors import G0, SHIFTED, boxes

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

"""The rewards of other papers: reference values, in both libraries and float types, plain loops, and bad rows."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rewards
from tests.rewards.vectors import G0, INF, NAN, SHIFTED

SCREEN = (1920, 1080)


def assert_close(found: Any, expected: Any, rtol: float = 2e-9) -> None:
    """To the digits that the values are printed with; in float32 to 2e-6."""
    exact = np.asarray(found).dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=rtol if exact else 2e-6, atol=1e-12 if exact else 2e-7)


# One answer, one target


def test_a_hit_counts_its_border_unless_strict(array: Any, get: Any):
    assert get("binary_hit")(array(SHIFTED), array(G0)).reward == 1  # its centre is x = 200
    assert get("binary_hit", strict=True)(array(SHIFTED), array(G0)).reward == 0
    assert get("binary_point")(None, array(G0), pred_point=array((200.5, 125))).reward == 0


def test_overlaps(array: Any, get: Any):
    assert_close(get("iou")(array(SHIFTED), array(G0)).reward, 1 / 3)
    both = get("binary_point_plus_iou")(array(SHIFTED), array(G0))
    assert (both.hit, both.overlap, both.reward) == (1, 0, 1)
    # Exactly half is not above half.
    half = get("binary_iou")(array([(100, 100, 200, 125), (100, 100, 200, 126)]), array(G0))
    np.testing.assert_array_equal(half.reward, [0, 1])


def test_distance_in_pixels(array: Any, get: Any):
    parts = get("euclid_exp")(None, array(G0), pred_point=array([(150, 225), (150, 125)]))
    assert_close(parts.reward, [0.3678794412, 1])


def test_se_gui(array: Any, get: Any):
    points = array([(150, 125), (200, 125), (250, 125), (1900, 1000)])
    parts = get("se_gui")(None, array(G0), pred_point=points, image_wh=array(SCREEN))
    assert_close(parts.reward, [2, 1.999584397, 0.9983375862, 0])
    centred = get("se_gui")(
        None, array((400, 400, 600, 600)), pred_point=array([(600, 500), (800, 500)]), image_wh=array((1000, 1000))
    )
    assert_close(centred.reward, [1.98, 0.82])
    formatted = get("se_gui", format_weight=0.5)(
        None, array(G0), pred_point=points, image_wh=array(SCREEN), format_ok=np.ones(4, bool)
    )
    assert_close(formatted.reward - parts.reward, np.full(4, 0.5))


def test_gui_g1(array: Any, get: Any):
    parts = get("gui_g1")(array([SHIFTED, (400, 300, 480, 340)]), array(G0), image_wh=array(SCREEN))
    assert_close(parts.box, [0.9868073879, 0.8339113788])
    assert_close(parts.reward, [1.206684257, 0.1042389224])


def test_gui_g1_where_the_published_code_divides_by_zero_or_turns_negative(array: Any, get: Any):
    preds = array([(100 + 1920, 100, 2200, 150), (100, 100 + 1100, 200, 1300)])
    parts = get("gui_g1")(preds, array(G0), image_wh=array(SCREEN))
    np.testing.assert_array_equal(parts.box, [0, 0])


def test_gui_g1_sees_no_overlap_one_pixel_wide(array: Any, get: Any):
    preds = array([(199, 100, 300, 150), (198, 100, 300, 150)])
    parts = get("gui_g1")(preds, array(G0), image_wh=array(SCREEN))
    assert_close(parts.iou, [0, 2 * 50 / (100 * 50 + 102 * 50 - 100)])


def test_gta1_scales_its_targets_and_cuts_them(array: Any, get: Any):
    reward = get("gta1_click")
    target = array((100, 100, 105.5, 150))  # of 1000: x 192 .. 202.56 in pixels, cut to 202
    points = array([(202, 110), (202.4, 110)])
    np.testing.assert_array_equal(reward(None, target, pred_point=points, image_wh=array(SCREEN)).reward, [1, 0])
    assert reward(None, target, pred_point=points[0], image_wh=array(SCREEN), points_parsed=2).reward == 0
    in_pixels = get("gta1_click", target="pixels", format_weight=0.5)
    assert in_pixels(None, array(G0), pred_point=array((150, 125)), format_ok=np.array(True)).reward == 1.5


def test_ui_r1_cuts_the_point_and_needs_the_action(array: Any, get: Any):
    reward = get("ui_r1")
    inputs = {"pred_point": array((100.5, 75.5)), "scale": array((2, 2)), "format_ok": np.array(True)}
    parts = reward(None, array((201, 151, 210, 160)), action_ok=np.array(True), **inputs)
    assert (parts.action, parts.coordinate, parts.format, parts.reward) == (1, 1, 1, 3)
    cut = reward(
        None, array((200.9, 150, 210, 160)), action_ok=np.array(True), pred_point=array((100.49, 80)), scale=array((2, 2))
    )
    assert cut.coordinate == 0  # 200.98 becomes 200
    assert reward(None, array((201, 151, 210, 160)), action_ok=np.array(False), **inputs).reward == 1
    nowhere = {"pred_point": array((NAN, NAN)), "format_ok": np.array(True)}
    assert reward(None, array(G0), action_ok=np.array(True), is_click=np.array(False), **nowhere).reward == 3


def test_the_length_of_ui_r1_e(array: Any, get: Any):
    parts = get("ui_r1_length")(None, rewards=array([3, 3, 1, 2]), lengths=array([10, 20, 40, 16]))
    assert_close(parts.reward, [3.818181818, 3.636363636, 0.9, 1.523636364])


def test_gui_r1(array: Any, get: Any):
    reward = get("gui_r1")
    assert reward(array(SHIFTED), array(G0)).accuracy == 0  # on the border
    points = array([(150 + 139, 125), (150 + 140, 125)])
    parts = reward(None, array((150, 125, 150, 125)), pred_point=points, gt_kind=np.array(1), format_ok=np.array(True))
    np.testing.assert_array_equal(parts.accuracy, [1, 0])
    assert_close(parts.reward, [1, 0.2])
    typed = reward(None, array(G0), pred_point=array((NAN, NAN)), task=np.array([1, 1, 2]), text_f1=np.array([0.5, 0.49, 0]))
    np.testing.assert_array_equal(typed.accuracy, [1, 0, 1])
    assert reward(None, array(G0), pred_point=array((150, 125)), action_ok=np.array(False)).accuracy == 0


# Several points, several answers


@pytest.mark.parametrize(
    ("rank", "N", "expected"),
    [(1, 1, 2), (1, 3, 1.577350269), (2, 3, 1.408248290), (3, 4, 1.288675135), (0, 1, 0), (0, 4, 0.75)],
)
def test_adaptive_exploration(rank: int, N: int, expected: float, array: Any, get: Any):
    misses = [(300 + 7 * i * i, 300 + i) for i in range(N)]
    points = [(150, 125) if i + 1 == rank else miss for i, miss in enumerate(misses)] + [(0, 0)] * 2
    mask = np.arange(N + 2) < N
    parts = get("aepo_aer")(None, array(G0), candidates=array(points), candidate_mask=mask)
    assert_close(parts.reward, expected)
    assert parts.rank == rank


def test_adaptive_exploration_punishes_lines_wrong_formats_and_silence(array: Any, get: Any):
    reward = get("aepo_aer")
    line = array([(150, 125), (250, 225), (400, 20), (1050, 1025)])
    assert reward(None, array(G0), candidates=line).reward == -1
    assert reward(None, array(G0), candidates=line, candidate_mask=np.array([True, True, True, False])).reward > 1
    assert reward(None, array(G0), candidates=line[:1], format_ok=np.array(False)).reward == -1
    assert reward(None, array(G0), candidates=line[:1], candidate_mask=np.array([False])).reward == -1
    assert reward(None, array(G0), candidates=line[:0]).reward == -1


def test_voting(array: Any, get: Any):
    parts = get("rcpo_voting")(array([(0, 0, 4, 4), (2, 0, 6, 4), (0, 2, 4, 6), (20, 20, 22, 22)]))
    assert (parts.most == 3).all()
    assert_close(parts.reward, [2 / 3, 0.5833333333333, 0.5833333333333, 1 / 3])


@given(st.lists(st.tuples(*[st.integers(0, 12)] * 4), min_size=1, max_size=6))
def test_voting_is_the_grid_of_votes(corners: list[tuple[int, ...]]):
    grid = np.zeros((12, 12))
    for x1, y1, x2, y2 in corners:
        grid[y1:y2, x1:x2] += 1
    cells = [grid[y1:y2, x1:x2] for x1, y1, x2, y2 in corners]
    expected = [cell.mean() / grid.max() if cell.size else 0 for cell in cells]
    found = rewards.get("rcpo_voting")(np.array(corners, np.float64))
    np.testing.assert_allclose(found.reward, expected)


def test_voting_widens_points(array: Any, get: Any):
    points = {"pred_point": array([(100, 100), (110, 100), (500, 500)]), "kind": np.array([1, 1, 0])}
    parts = get("rcpo_voting", widen=10)(None, **points)
    assert_close(parts.reward, [0.75, 0.75, 0])  # half of each box has two votes; the third member has no box
    np.testing.assert_array_equal(parts.valid, [True, True, False])


def test_the_bonus_for_looking_around(array: Any, get: Any):
    reward = get("gui_aif")
    points = array([(100, 100), (120, 100), (100, 140), (300, 100)])
    parts = reward(None, None, pred_point=points, image_wh=array(SCREEN))
    assert_close(parts.reward, np.full(4, 0.04352836452))
    boxes = array([G0, SHIFTED, (100, 100, 150, 125)])
    assert_close(reward(boxes, None, image_wh=array(SCREEN)).shape, np.full(3, 0.01951153859))
    # A member that cannot be read changes nothing for the others.
    with_bad = reward(array([G0, SHIFTED, (100, 100, 150, 125), (NAN, 0, 1, 1)]), None, image_wh=array(SCREEN))
    assert_close(with_bad.reward, np.full(4, reward(boxes, None, image_wh=array(SCREEN)).reward[0]))
    assert not with_bad.valid[3]


# Paths


def test_the_last_position_of_a_cursor(array: Any, get: Any):
    paths = array([[(250, 125)], [(1900, 1000)], [(150, 125)]])
    parts = get("cursor_trajectory")(None, array(G0), positions=paths, image_wh=array(SCREEN))
    assert_close(parts.position, [0.9546054408, 0.1118284479, 1])
    assert_close(parts.reward, [0.7546054408, -0.0881715521, 1])
    running = get("cursor_trajectory")(None, array(G0), positions=paths, image_wh=array(SCREEN), stopped=np.array(False))
    assert_close(running.reward, parts.position)


def test_faults_of_a_cursor(array: Any, get: Any):
    paths = [
        [(400, 125), (300, 125), (150, 125), (0, 0)],  # padded: no fault
        [(400, 125), (150, 125), (250, 125), (0, 0)],  # left, away, stopped outside
        [(400, 125), (300, 125), (405, 130), (150, 125)],  # away, returned
        [(190, 125), (160, 125), (150, 128), (0, 0)],  # no fault
    ]
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]], bool)
    parts = get("cursor_trajectory")(None, array(G0), positions=array(paths), position_mask=mask, image_wh=array(SCREEN))
    np.testing.assert_array_equal(parts.stopped_outside, [0, 1, 0, 0])
    np.testing.assert_array_equal(parts.left, [0, 1, 0, 0])
    np.testing.assert_array_equal(parts.away, [0, 1, 1, 0])
    np.testing.assert_array_equal(parts.returned, [0, 0, 1, 0])
    assert_close(parts.reward, [1, 0.9546054408 - 0.6, 0.6, 1])


def test_spotlight(array: Any, get: Any):
    crops = array([(0, 0, 400, 300), (100, 100, 200, 150), (90, 90, 110, 110), (-5, 0, 400, 300)])
    parts = get("spotlight_mix")(
        array(G0), array(G0), crops=crops, region_hit=np.array(True), format_ok=np.array(True), image_wh=array(SCREEN)
    )
    assert_close(parts.crops, (5000 / 120000 + 1) / 4)  # the third is too small, the fourth off the picture
    assert_close(parts.containing, 0.75)
    assert_close(parts.reward, 0.3 + 0.3 * parts.crops + 0.03 * 0.75 + 0.27 + 0.1)


# Not confirmed


def test_experimental_values(array: Any, get: Any):
    parts = get("experimental/hyperclick")(None, array(G0), pred_point=array((175, 130)), confidence=np.array(0.9))
    assert_close(parts.calibration, 0.99877656, rtol=1e-8)
    infigui = get("experimental/infigui_r1", iou_weight=0.5)(array(SHIFTED), array(G0))
    assert_close(infigui.reward, 1 + 0.5 / 3)
    lpo = get("experimental/lpo")(array(SHIFTED), array(G0), entropy=np.array(0.5), image_wh=array(SCREEN))
    assert_close(lpo.reward, 0.5 * (1 - 50 / math.hypot(*SCREEN)))
    arp = get("experimental/gui_arp", crop_weight=0.5)(array(SHIFTED), array(G0), crop_score=np.array(1.0))
    assert_close(arp.reward, math.exp(-0.5) + 0.5)


# Controls


def test_random_rewards_repeat_with_their_key():
    boxes = np.zeros((4000, 4), np.float32)
    for name, mean_of_squares in (("random_uniform", 1 / 3), ("random_binary", 1 / 2)):
        reward = rewards.get(name)
        host, device = reward(boxes, boxes, key=7).reward, reward(jnp.asarray(boxes), boxes, key=jax.random.key(7)).reward
        for values in (host, np.asarray(device)):
            assert abs(values.mean() - 0.5) < 0.03
            assert abs((values**2).mean() - mean_of_squares) < 0.03
        np.testing.assert_array_equal(host, reward(boxes, boxes, key=7).reward)
        assert (host != reward(boxes, boxes, key=8).reward).any()


# Bad rows, for all of them

ROWWISE: list[tuple[str, dict[str, Any]]] = [
    ("binary_hit", {}),
    ("iou", {}),
    ("binary_iou", {}),
    ("binary_point_plus_iou", {}),
    ("euclid_exp", {}),
    ("gta1_click", {"image_wh": np.float32(SCREEN)}),
    ("ui_r1", {"action_ok": np.array(True)}),
    ("gui_r1", {}),
    ("se_gui", {"image_wh": np.float32(SCREEN)}),
    ("gui_g1", {"image_wh": np.float32(SCREEN)}),
    ("spotlight_mix", {"image_wh": np.float32(SCREEN), "crops": np.float32([G0])}),
    ("experimental/infigui_r1", {}),
    ("experimental/lpo", {"image_wh": np.float32(SCREEN), "entropy": np.float32(1)}),
    ("experimental/hyperclick", {"confidence": np.float32(0.5)}),
    ("experimental/gui_arp", {"crop_score": np.float32(1)}),
]
BAD = [(i, value) for i in range(4) for value in (NAN, INF, -INF)]


@pytest.mark.parametrize(("name", "inputs"), ROWWISE, ids=[name for name, _ in ROWWISE])
def test_bad_rows_are_invalid_worth_nothing_and_without_gradient(name: str, inputs: dict[str, Any]):
    reward = rewards.get(name)
    preds, targets = [SHIFTED], [G0]
    for (i, value), side in itertools.product(BAD, (0, 1)):
        pair = [list(SHIFTED), list(G0)]
        pair[side][i] = value
        preds.append(tuple(pair[0]))
        targets.append(tuple(pair[1]))
    pred, target = np.float32(preds), np.float32(targets)
    inputs = inputs | {"format_ok": np.array(True)}
    parts = reward(pred, target, **inputs)
    assert parts.valid[0]
    assert not parts.valid[1:].any()
    assert (parts.reward[1:] == 0).all()
    nothing = reward(pred[0], target[0], kind=np.array(0), **inputs)
    assert (nothing.reward, bool(nothing.valid)) == (0, False)
    gradients = jax.jit(jax.grad(lambda p, g: reward(p, g, **inputs).reward.sum(), argnums=(0, 1)))(pred, target)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    compiled = jax.jit(lambda p, g: reward(p, g, **inputs))(pred, target)
    for part, mine, theirs in zip(reward.parts, parts, compiled, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=2e-5, atol=2e-6, err_msg=part)


def _group_calls(boxes: Any) -> dict[str, Any]:
    wh = np.float32(SCREEN)
    return {
        "gui_aif": rewards.get("gui_aif")(boxes, image_wh=wh).reward,
        "rcpo_voting": rewards.get("rcpo_voting")(boxes).reward,
        "cursor_trajectory": rewards.get("cursor_trajectory")(None, boxes[0], positions=boxes[None, :, :2], image_wh=wh).reward,
        "aepo_aer": rewards.get("aepo_aer")(None, np.float32(G0), candidates=boxes[:, :2]).reward,
    }


group_jacobian = jax.jit(jax.jacrev(lambda boxes: {name: reward.sum() for name, reward in _group_calls(boxes).items()}))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_gradients_of_groups_and_paths_are_finite(seed: int):
    rng = np.random.default_rng(seed)
    boxes = rng.choice([0, 10, 50, 100, 1e6, NAN, INF], (5, 4)).astype(np.float32)
    assert all(np.isfinite(reward).all() for reward in _group_calls(boxes).values())
    for name, gradient in group_jacobian(jnp.asarray(boxes)).items():
        assert np.isfinite(gradient).all(), name

"""Rewards by name: options, arrays, several targets."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rewards
from jaxllm.errors import UserError
from jaxllm.frames import Framed
from rewards import registry
from tests.rewards.vectors import G0, SHIFTED


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UserError, match=r"no reward 'gui_g3'.*did you mean gui_g2.*binary_hit.*se_gui"):
        rewards.get("gui_g3")
    with pytest.raises(UserError, match="did you mean experimental/lpo"):
        rewards.get("lpo")
    assert rewards.names() == sorted(rewards.names())


def test_unknown_options_list_the_known_ones():
    with pytest.raises(UserError, match=r"no option sigmas.*alpha.*min_sigma"):
        rewards.get("gui_g2", sigmas=3)
    with pytest.raises(UserError, match="its options are: none"):
        rewards.get("iou", a=1)


def test_missing_and_unknown_arrays_are_named():
    with pytest.raises(UserError, match="se_gui needs image_wh"):
        rewards.get("se_gui")(np.float32(SHIFTED), np.float32(G0))
    with pytest.raises(UserError, match="ui_r1 needs action_ok"):
        rewards.get("ui_r1")(np.float32(SHIFTED), np.float32(G0))
    with pytest.raises(UserError, match="gui_g2 has no use for colour"):
        rewards.get("gui_g2")(np.float32(SHIFTED), np.float32(G0), colour=1)


@pytest.mark.parametrize("name", rewards.names())
def test_every_reward_says_what_it_is(name: str):
    reward = rewards.get(name)
    assert {"reward", "valid"} <= set(reward.parts)
    assert len(reward.summary) > 15
    assert dataclasses.is_dataclass(reward.options)
    assert reward == rewards.get(name)
    assert hash(reward) == hash(rewards.get(name))
    if name.startswith("experimental/"):
        function = registry._ENTRIES[name].function
        assert "Not confirmed" in (function.__doc__ or "")


def test_the_variants_of_the_ablation():
    pred, target = np.array(SHIFTED, float), np.array(G0, float)
    point, coverage = np.exp(-0.5), np.exp(-0.125)
    expected = {
        "point_only": point,
        "coverage_only": coverage,
        "inside_gaussian": point + coverage,
        "binary_point": 1,
        "binary_iou": 0,
        "binary_point_plus_iou": 1,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(rewards.get(name)(pred, target).reward, value, err_msg=name)
    for k in (0.1, 0.3, 0.5, 0.7, 0.9, 2, 3, 5, 10):
        parts = rewards.get("sigma_multiple", k=k)(pred, target)
        np.testing.assert_allclose(parts.log_point, -((0.5 / k) ** 2) / 2)
    np.testing.assert_allclose(rewards.get("fixed_sigma", sigma=25.0)(pred, target).log_point, -2)


def test_names_that_share_a_kernel_keep_their_weights():
    reward = rewards.get("point_only", alpha=1.0)
    assert (reward.options.gamma, reward.options.alpha) == (0, 1)


# Frames


def test_two_frames_are_refused_and_one_is_taken_off():
    reward, target = rewards.get("gui_g2"), Framed(np.float32(G0), "orig")
    with pytest.raises(UserError, match="two frames meet: orig and resized"):
        reward(Framed(np.float32(SHIFTED), "resized"), target)
    with pytest.raises(UserError, match="gt_box is in the frame orig, but pred_box carries none"):
        reward(np.float32(SHIFTED), target)
    with pytest.raises(UserError, match="two frames meet"):
        jax.jit(lambda p: rewards.gui_g2(Framed(p, "rel1000"), target))(np.float32(SHIFTED))
    seen = Framed(np.float32((1932, 1092, 1932, 1092)), "resized", size_wh=(1920, 1080), resized_wh=(1932, 1092))
    found = rewards.get("euclid_exp")(
        None, Framed(np.float32((1910, 1070, 1930, 1090)), "orig"), pred_point=Framed(seen.to("orig").values[:2], "orig")
    )
    assert found.distance == 0


# Several targets


def test_the_best_of_several_targets():
    targets = np.float32([[G0, (400, 400, 500, 450), (0, 0, 0, 0)], [(0, 0, 10, 10), G0, G0]])
    mask = np.array([[True, True, False], [True, False, False]])
    pred = np.float32([(400, 400, 500, 450), SHIFTED])
    for name in ("gui_g2", "binary_hit", "euclid_exp", "iou"):
        reward = rewards.get(name)
        parts = reward(pred, targets, target_mask=mask)
        np.testing.assert_array_equal(parts.reward[0], reward(pred[0], targets[0, 1]).reward)
        np.testing.assert_array_equal(parts.reward[1], reward(pred[1], targets[1, 0]).reward)
    assert rewards.get("binary_hit")(pred, targets, target_mask=np.zeros((2, 3), bool)).valid.tolist() == [False, False]


def test_targets_for_each_member_of_a_group():
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 100, (3, 4, 2)).astype(np.float32)
    corner = rng.uniform(0, 80, (3, 1, 5, 2))
    targets = np.concatenate([corner, corner + 20], -1).astype(np.float32)
    mask = rng.random((3, 1, 5)) < 0.6
    found = rewards.get("binary_hit")(None, targets, pred_point=points, target_mask=mask)
    for b in range(3):
        for g in range(4):
            x, y = points[b, g]
            hits = [
                x1 <= x <= x2 and y1 <= y <= y2 for (x1, y1, x2, y2), on in zip(targets[b, 0], mask[b, 0], strict=True) if on
            ]
            assert found.reward[b, g] == any(hits)
    on_device = jax.jit(lambda p, t, m: rewards.get("binary_hit")(None, t, pred_point=p, target_mask=m))
    np.testing.assert_array_equal(on_device(points, targets, mask).reward, found.reward)


def test_gta1_takes_the_picture_size_along():
    points, targets = np.float32([(192, 108)]), np.float32([[(0, 0, 50, 50), (95, 95, 105, 105)]])
    parts = rewards.get("gta1_click")(
        None, targets, pred_point=points, image_wh=np.float32([(1920, 1080)]), target_mask=np.ones((1, 2), bool)
    )
    np.testing.assert_array_equal(parts.reward, [1])


def test_groups_have_no_targets_to_choose_from():
    with pytest.raises(UserError, match="rewards a group"):
        rewards.get("rcpo_voting")(np.zeros((2, 4)), target_mask=np.ones((2, 1), bool))


# What it costs to import


def test_numpy_inputs_never_import_jax():
    code = (
        "import sys, numpy as np, rewards\n"
        "boxes = np.zeros((9000, 4), np.float32) + np.float32([0, 0, 2, 2])\n"
        "for name in ('gui_g2', 'binary_hit', 'iou', 'rcpo_voting'):\n"
        "    rewards.get(name)(boxes[:10], boxes[:10])\n"
        "rewards.group_advantages(rewards.gui_g2(boxes, boxes).reward.reshape(-1, 8))\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_rewards_work_inside_jit_on_mixed_inputs():
    found = jax.jit(lambda p: rewards.get("gui_g2")(p, np.float32(G0)).reward)(jnp.float32(SHIFTED))
    np.testing.assert_allclose(found, np.exp(-0.5) + np.exp(-0.125), rtol=1e-6)

"""Maps of rewards: values at places that can be computed by hand, and what a picture refuses."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import rewards
from jaxllm.errors import UserError
from rewards import maps
from rewards.maps import Screen

SCREEN = Screen((100, 100, 200, 150), 480, 270)


def png_file(path: Path, width: int, height: int, grey: int = 200) -> Path:
    """A grey PNG written by hand."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + bytes([grey]) * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path


def test_the_map_holds_the_reward_of_a_box_of_the_targets_size_centred_at_the_pixel():
    found = maps.reward_map(rewards.get("gui_g2"), SCREEN)
    assert found.whole.values.shape == (270, 480)
    for x, y in ((150, 125), (200, 125), (0, 0), (479, 269), (173, 91)):
        # Of equal sizes, with sigma half a side: point exp(-q), coverage exp(-q / 4).
        q = ((x - 150) / 50) ** 2 / 2 + ((y - 125) / 25) ** 2 / 2
        assert found.whole.values[y, x] == pytest.approx(np.exp(-q) + np.exp(-q / 4), abs=5e-6)
    assert found.best == 2


def test_a_binary_map_is_the_target():
    found = maps.reward_map(rewards.get("binary_hit"), SCREEN)
    expected = np.zeros((270, 480), bool)
    expected[100:151, 100:201] = True  # borders included
    np.testing.assert_array_equal(found.whole.values == 1, expected)
    assert found.signal == pytest.approx(101 * 51 / (480 * 270))


def test_the_close_up_is_finer_and_holds_the_target():
    found = maps.reward_map(rewards.get("binary_hit"), Screen((1000, 500, 1012, 512), 3840, 2160))
    assert found.near is not None
    assert found.near.x[0] < 1000 < 1012 < found.near.x[-1]
    assert found.near.y[0] < 500 < 512 < found.near.y[-1]
    assert 0.02 < found.near.values.mean() < 0.2
    assert np.diff(found.near.x).max() < 1


@pytest.mark.parametrize("target", [(0, 0, 12, 12), (3828, 2148, 3840, 2160), (0, 2000, 40, 2160)])
def test_a_close_up_stays_on_the_screen(target: tuple[float, float, float, float]):
    box = Screen(target, 3840, 2160).close_up
    assert box is not None
    assert box[0] >= 0 and box[1] >= 0 and box[2] <= 3840.001 and box[3] <= 2160.001  # noqa: PT018
    assert box[0] <= target[0] and box[2] >= target[2] and box[1] <= target[1] and box[3] >= target[3]  # noqa: PT018


def test_a_target_that_fills_the_screen_has_no_close_up():
    assert Screen((10, 10, 400, 250), 480, 270).close_up is None


def test_places_lie_on_the_screen_where_there_is_room():
    for target in ((20, 20, 60, 40), (400, 200, 440, 260)):
        screen = Screen(target, 480, 270)
        for x, y in maps.places(screen).values():
            assert 0 <= x <= 480
            assert 0 <= y <= 270


def test_options_are_part_of_the_name():
    assert maps.from_text("gui_g2:alpha=2:inside=true").options == rewards.get("gui_g2", alpha=2.0, inside=True).options
    wide = maps.reward_map(maps.from_text("gui_g2:alpha=2"), SCREEN)
    assert wide.places["1 width off"] == pytest.approx(np.exp(-1 / 8) + np.exp(-1 / 32), abs=5e-6)


def test_every_reward_has_a_map_or_a_reason():
    drawn, refused = [], []
    for name in rewards.names():
        reward = rewards.get(name)
        if reward.grouped or set(reward.required) - set(maps.SUPPLIED):
            with pytest.raises(UserError, match=name):
                maps.from_text(name)
            refused.append(name)
        else:
            found = maps.evaluate(maps.from_text(name), SCREEN, np.array([[150, 125], [0, 0]]))
            assert np.isfinite(found).all()
            drawn.append(name)
    assert {"gui_g2", "binary_hit", "se_gui", "gui_g1", "euclid_exp", "gta1_click", "iou", "ui_r1"} <= set(drawn)
    assert {"rcpo_voting", "gui_aif", "aepo_aer", "random_uniform", "cursor_trajectory"} <= set(refused)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gui_g3", "gui_g1, gui_g2"),
        ("gui_g2:alpha", "option=value"),
        ("gui_g2:beta=1", "alpha"),
        ("gui_g2:alpha=-1", "above 0"),
        ("gui_g2:order=up", "strict"),
        ("rcpo_voting", "group"),
        ("random_uniform", "key"),
    ],
)
def test_wrong_rewards_are_refused(text: str, says: str):
    with pytest.raises(UserError, match=says):
        maps.from_text(text)


@pytest.mark.parametrize(
    ("target", "size", "says"),
    [
        ((100, 100, 500, 150), (480, 270), "leaves the image"),
        ((-1, 100, 50, 150), (480, 270), "leaves the image"),
        ((200, 100, 100, 150), (480, 270), "no area"),
        ((100, 100, 100, 150), (480, 270), "no area"),
        ((float("nan"), 1, 2, 3), (480, 270), "no area"),
        ((0, 0, 1, 1), (0, 270), "each side"),
        ((0, 0, 1, 1), (99999, 270), "each side"),
    ],
)
def test_wrong_screens_are_refused(target: tuple[float, float, float, float], size: tuple[int, int], says: str):
    with pytest.raises(UserError, match=says):
        Screen(target, *size)


def test_the_picture_has_a_column_for_every_reward(tmp_path: Path):
    found = [maps.reward_map(rewards.get(name), SCREEN) for name in ("gui_g2", "binary_iou", "se_gui")]
    screenshot = maps.read_screenshot(png_file(tmp_path / "shot.png", 480, 270), (480, 270))
    assert screenshot.shape == (270, 480)
    assert screenshot[0, 0] == pytest.approx(200 / 255)
    one, three, over = (
        imread(io.BytesIO(maps.png(some, SCREEN, shot)))
        for some, shot in ((found[:1], None), (found, None), (found, screenshot))
    )
    assert three.shape[1] > 2.5 * one.shape[1]
    assert three.shape == over.shape
    assert np.abs(three - over).mean() > 0.01
    with pytest.raises(UserError, match="1 to 8"):
        maps.png(found * 3, SCREEN)


def test_a_reward_that_is_nothing_anywhere_can_be_drawn():
    nothing = maps.reward_map(rewards.get("gui_g2", nu=0.0, gamma=0.0), SCREEN)
    assert nothing.signal == 0
    assert maps.png([nothing], SCREEN).startswith(b"\x89PNG")


def test_wrong_screenshots_are_refused(tmp_path: Path):
    whole = png_file(tmp_path / "shot.png", 40, 30)
    with pytest.raises(UserError, match="40x30, but the image is said to be 480x270"):
        maps.read_screenshot(whole, (480, 270))
    with pytest.raises(UserError, match="cannot be read"):
        maps.read_screenshot(tmp_path / "none.png", None)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(UserError, match="no PNG"):
        maps.read_screenshot(tmp_path / "text.png", None)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot be decoded"):
        maps.read_screenshot(tmp_path / "cut.png", None)
    large = bytearray(whole.read_bytes())
    large[16:24] = struct.pack(">II", 20000, 20000)
    (tmp_path / "large.png").write_bytes(large)
    with pytest.raises(UserError, match="at most"):
        maps.read_screenshot(tmp_path / "large.png", None)

"""Episodes as pictures, looked at pixel by pixel."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from envs import film
from envs.api import Action, Invalid, Obs
from envs.episode import Turn, ended, run_episode
from jaxllm.errors import UserError
from tests.envs.toys import BUTTON, Toy, oracle

PNG = b"\x89PNG\r\n\x1a\n"


def clicking() -> list[Turn]:
    """An episode of one click that solves it."""
    return run_episode(Toy("screen"), oracle("screen"))


def picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def count(image: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(image) == colour).all(-1).sum())


def test_each_moment_has_its_action_and_the_last_its_outcome():
    moments = film.frames(clicking())
    assert [moment.caption for moment in moments] == ["1: click (40, 40) → 1", "end: reward 1, solved"]
    assert [moment.marks for moment in moments] == [((40.0, 40.0),), ()]
    assert [moment.good for moment in moments] == [False, True]


@pytest.mark.parametrize(
    ("action", "marks"),
    [
        (Action("click", {"point": (3, 4)}), ((3.0, 4.0),)),
        (Action("drag", {"start_point": [1, 2], "end_point": [3, 4]}), ((1.0, 2.0), (3.0, 4.0))),
        (Action("type", {"content": "x"}), ()),
        (Action("click", {"point": "nonsense"}), ()),
        (Action("click", {"point": [float("nan"), 1]}), ()),
        (Action("click", {"point": [1, 1e300]}), ()),
        (Invalid("no_action"), ()),
    ],
)
def test_marks_are_the_points_of_the_action(action: Action | Invalid, marks: tuple):
    assert film.marks(action) == marks


def test_the_strip_shows_the_screens_and_rings_the_click():
    moments = film.frames(clicking())
    sheet = film.strip(moments, "a title")
    assert sheet.startswith(PNG)
    image = picture(sheet)
    # Two screens of 96 x 64, enlarged twice, and the button in both colours less what the mark covers.
    width, height = (int(2 * (BUTTON[2] - BUTTON[0] + 1)), int(2 * (BUTTON[3] - BUTTON[1] + 1)))
    assert 0 < count(image, (0, 0, 255)) < width * height
    assert count(image, (0, 128, 0)) == width * height
    assert count(image, film.MARK) > 50
    unmarked = picture(film.strip([dataclasses.replace(moment, marks=()) for moment in moments]))
    assert count(unmarked, film.MARK) == 0
    assert count(unmarked, (0, 0, 255)) == width * height


def test_a_drag_is_a_line_between_its_points():
    shot = Toy("screen").reset().screenshot

    def longest(*points: tuple[float, float]) -> int:
        """Pixels of the mark's colour in the row that has most."""
        sheet = picture(film.strip([film.Frame(Obs(screenshot=shot), points, "")]))
        return int((np.asarray(sheet) == film.MARK).all(-1).sum(1).max())

    assert 140 <= longest((10, 10), (80, 10)) < 170  # 70 pixels, enlarged twice, and the ends
    assert longest((10, 10)) < 30


def test_the_animation_has_a_frame_for_each_moment():
    data = film.animation(film.frames(clicking()))
    with Image.open(io.BytesIO(data)) as image:
        frames = [(frame.info["duration"], frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    assert [duration for duration, _ in frames] == [900, 2500]
    assert count(frames[0][1], (0, 0, 255)) > 0
    assert count(frames[1][1], (0, 0, 255)) == 0


def test_long_episodes_show_the_first_the_last_and_some_between():
    moments = [film.Frame(Obs(text=str(number)), (), str(number)) for number in range(1000)]
    some = film._some(moments, 12)
    assert len(some) == 12
    assert (some[0].caption, some[-1].caption) == ("0", "999")
    with Image.open(io.BytesIO(film.strip(moments))) as image:
        assert image.width < 2000


def test_text_is_drawn_where_there_is_no_screen():
    board = film.frames([Turn(Obs(text="#####\n#@ .#\n#####"), "", None, None)])
    empty = film.frames([Turn(Obs(text="\n\n"), "", None, None)])
    assert count(picture(film.strip(board)), film.INK) > count(picture(film.strip(empty)), film.INK) + 50


def test_a_click_is_not_marked_on_text():
    """What a shell said was seen last, and the click is one on the page."""
    panel = picture(film.strip([film.Frame(Obs(text="[exit code 0]"), ((20, 20),), "3: click (20, 20)")]))
    assert count(panel, film.MARK) == 0


def test_text_of_any_kind_and_length_is_drawn():
    for text in ("", "x" * 1_000_000, "line\n" * 100_000, "\x1b[2J\x00 tabs\t 木 😀 \ud800"):
        assert film.strip([film.Frame(Obs(text=text), (), text[:100_000])], text[:100_000]).startswith(PNG)


def test_arrays_that_are_pictures_are_shown_as_such_and_others_as_text():
    red = np.zeros((84, 84, 3), np.uint8)
    red[..., 0] = 255
    shown = picture(film.strip([film.Frame(Obs(arrays={"obs": red}), (), "")]))
    assert count(shown, (255, 0, 0)) >= 84 * 84
    planes = picture(film.strip([film.Frame(Obs(arrays={"obs": red.transpose(2, 0, 1)}), (), "")]))
    assert count(planes, (255, 0, 0)) >= 84 * 84
    numbers = film.strip([film.Frame(Obs(arrays={"x": np.arange(4.0)}), (), "")])
    assert count(picture(numbers), film.INK) > 50


@pytest.mark.parametrize("screenshot", [b"", b"no picture", PNG + b"cut short", b"GIF89a"])
def test_a_screenshot_that_is_none_is_one_message(screenshot: bytes):
    with pytest.raises(UserError, match="no PNG or JPEG"):
        film.strip([film.Frame(Obs(screenshot=screenshot), (), "")])


def test_nothing_to_draw_is_one_message():
    with pytest.raises(UserError, match="nothing to draw"):
        film.animation([])


def test_an_episode_that_was_cut_short_ends_with_what_was_seen_last():
    whole = clicking()
    cut = ended(whole[:1])
    assert cut[-1].obs is whole[-1].obs
    assert film.frames(cut)[-1].caption == "end: reward 1, solved"
    assert ended(whole) is whole
    assert ended([]) == []

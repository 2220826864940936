"""Frames and resizing against the rows of the specification and the definition of each frame."""

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm import frames
from jaxllm.errors import UserError
from jaxllm.frames import PRESETS, Framed, common, convert, guess_frame, smart_resize

DEFAULTS = {"factor": 28, "min_pixels": 3_136, "max_pixels": 12_845_056}
# (height, width), what differs from the defaults, (height, width) of the result.
ROWS = [
    ((1080, 1920), {}, (1092, 1932)),
    ((1440, 2560), {}, (1428, 2548)),
    ((2160, 3840), {}, (2156, 3836)),
    ((2340, 1080), {}, (2352, 1092)),
    ((4320, 7680), {}, (2688, 4760)),
    ((8192, 8192), {}, (3584, 3584)),
    ((1080, 1920), {"max_pixels": 1_003_520}, (728, 1316)),
    ((2160, 3840), {"max_pixels": 4_028_160}, (1484, 2660)),
    ((1022, 1522), {}, (1008, 1512)),
    ((434, 368), {}, (448, 364)),
    ((42, 42), {}, (56, 56)),
    ((70, 70), {}, (56, 56)),
    ((14, 14), {}, (56, 56)),
    ((10, 10), {}, (56, 56)),
    ((200, 200), {"min_pixels": 78_400}, (280, 280)),
    ((1000, 5), {}, (1008, 28)),
    ((31, 639), {"max_pixels": 15_680}, (28, 560)),
    ((1080, 1920), {"factor": 32}, (1088, 1920)),
]


@pytest.mark.parametrize(("size", "other", "expected"), ROWS)
def test_pictures_are_resized_as_specified(size: tuple[int, int], other: dict[str, int], expected: tuple[int, int]):
    assert smart_resize(*size, **{**DEFAULTS, **other}) == expected


def test_variants_differ_for_a_side_below_half_a_factor():
    assert smart_resize(1000, 5, **DEFAULTS, variant="utility") == (1008, 28)
    assert smart_resize(1000, 5, **DEFAULTS, variant="processor") == (812, 28)


def test_rounding_half_up_would_give_another_size():
    assert 28 * math.floor(1022 / 28 + 0.5) == 1036  # the trap; the product says 1008


def test_height_comes_first():
    assert smart_resize(1080, 1920, **DEFAULTS) == smart_resize(1920, 1080, **DEFAULTS)[::-1]
    assert PRESETS["qwen25"].sizes_wh(np.array([[1920, 1080], [1080, 1920], [1920, 1080]])).tolist() == [
        [1932, 1092],
        [1092, 1932],
        [1932, 1092],
    ]


def test_presets_are_the_bounds_of_their_callers():
    bounds = {name: (preset.min_pixels, preset.max_pixels) for name, preset in PRESETS.items()}
    assert bounds == {
        "qwen25": (3_136, 12_845_056),
        "qwen25_image": (3_136, 1_003_520),
        "ui_tars": (78_400, 12_845_056),
        "se_gui": (3_136, 4_028_160),
        "screenspot_pro": (3_136, 99_999_999),
    }
    assert PRESETS["qwen25_image"].size(1080, 1920) == (728, 1316)
    assert PRESETS["qwen25"].size(1000, 5) == (812, 28)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 1001, "width": 5}, "more than 200 times"),
        ({"height": 0, "width": 5}, "cannot be resized"),
        ({"height": 50, "width": 50, "min_pixels": 10, "max_pixels": 9}, "no size fits"),
        ({"height": 50, "width": 50, "variant": "other"}, "utility, processor"),
    ],
)
def test_what_cannot_be_resized_is_refused(arguments: dict[str, int], message: str):
    with pytest.raises(UserError, match=message):
        smart_resize(**{**DEFAULTS, **arguments})


@given(
    height=st.integers(1, 9000),
    width=st.integers(1, 9000),
    factor=st.sampled_from([28, 32]),
    budget=st.integers(100_000, 20_000_000),
    variant=st.sampled_from(frames.VARIANTS),
)
def test_sides_are_multiples_and_never_zero(height: int, width: int, factor: int, budget: int, variant: str):
    if max(height, width) > 200 * min(height, width):
        return
    H, W = smart_resize(height, width, factor=factor, min_pixels=3_136, max_pixels=budget, variant=variant)
    assert H % factor == W % factor == 0
    assert budget >= H * W or factor in (H, W)
    assert H >= factor <= W


def test_vector_v20_of_the_specification():
    answer = np.array([1910.0, 1070, 1922, 1082])
    back = convert(answer, "resized", "orig", size_wh=(1920, 1080), resized_wh=(1932, 1092))
    np.testing.assert_allclose(back, [1898.1366459627, 1058.2417582418, 1910.0621118012, 1070.1098901099], atol=1e-9)


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        ("orig", [960.0, 270, 1920, 1080]),
        ("resized", [966.0, 273, 1932, 1092]),
        ("rel1000", [500.0, 250, 1000, 1000]),
        ("rel999", [499.5, 249.75, 999, 999]),
        ("norm01", [0.5, 0.25, 1, 1]),
    ],
)
@pytest.mark.parametrize("target", frames.FRAMES)
def test_every_frame_becomes_every_other(frame: str, values: list[float], target: str):
    sizes = {"size_wh": (1920, 1080), "resized_wh": (1932, 1092)}
    there = convert(values, frame, target, **sizes)
    far = {"orig": (1920, 1080), "resized": (1932, 1092)}.get(target, 2 * (frames.EXTENTS.get(target),))
    np.testing.assert_allclose(there, [far[0] / 2, far[1] / 4, *far], rtol=1e-15)
    np.testing.assert_allclose(convert(there, target, frame, **sizes), values, rtol=1e-15)
    np.testing.assert_allclose(convert(values[:2], frame, target, **sizes), there[:2], rtol=1e-15)


def test_sizes_broadcast_over_leading_axes():
    boxes = np.ones((2, 3, 4), np.float32)
    sizes = np.array([[[100, 50]], [[10, 20]]])
    out = convert(boxes, "norm01", "orig", size_wh=sizes)
    assert out.dtype == np.float32
    assert out[:, 0].tolist() == [[100, 50, 100, 50], [10, 20, 10, 20]]


def test_jax_arrays_stay_jax_arrays_also_under_jit():
    out = jax.jit(lambda box, size: convert(box, "rel1000", "orig", size_wh=size))(
        jnp.full((2, 4), 500.0), jnp.array([100, 50])
    )
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[50, 25, 50, 25]] * 2, rtol=1e-6)


def test_numbers_without_a_fraction_come_back_exactly():
    assert convert([500, 250], "rel1000", "orig", size_wh=(1920, 1080)).tolist() == [960, 270]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convert([1.0, 2], "resized", "orig", size_wh=(9, 9)), "give resized_wh"),
        (lambda: convert([1.0, 2], "rel1000", "orig"), "give size_wh"),
        (lambda: convert([1.0, 2], "pixels", "orig"), "'pixels' is unknown; there are orig, resized, rel1000, rel999, norm01"),
        (lambda: convert([1.0, 2, 3], "norm01", "rel1000"), r"shape \(3,\)"),
        (lambda: convert(jnp.ones(2, jnp.bfloat16), "norm01", "rel1000"), "bfloat16 have lost pixels"),
        (lambda: convert(np.ones(2, np.float16), "norm01", "norm01"), "float16 have lost pixels"),
        (lambda: common(Framed([1, 2], "orig"), Framed([1, 2], "resized")), "two frames meet: orig and resized"),
        (lambda: Framed([1, 2], "px"), "'px' is unknown"),
    ],
)
def test_mistakes_are_told(call, message: str):
    with pytest.raises(UserError, match=message):
        call()


def test_mixed_frames_are_refused_at_trace_time():
    @jax.jit
    def distance(prediction: jax.Array, target: jax.Array) -> jax.Array:
        _, (a, b) = common(Framed(prediction, "resized"), Framed(target, "orig"))
        return a - b

    with pytest.raises(UserError, match="two frames meet"):
        distance(jnp.ones(2), jnp.ones(2))


def test_a_framed_box_is_brought_into_another_frame():
    box = Framed(np.array([0.5, 0.5, 1, 1]), "norm01", size_wh=(200, 100))
    moved = box.to("orig")
    assert (moved.frame, moved.values.tolist()) == ("orig", [100, 50, 200, 100])
    assert common(moved, Framed([0, 0, 1, 1], "orig"))[0] == "orig"


def test_a_small_target_in_the_corner_fits_every_frame():
    """Why no frame is ever guessed: a rule by magnitude would multiply these pixels by the picture's size."""
    assert guess_frame([0.2, 0.2, 1, 1], size_wh=(1920, 1080), resized_wh=(1932, 1092)) == tuple(frames.FRAMES)
    assert guess_frame([10, 10, 1925, 20], size_wh=(1920, 1080), resized_wh=(1932, 1092)) == ("resized",)


def test_no_jax_is_imported():
    code = "import sys, jaxllm.frames; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

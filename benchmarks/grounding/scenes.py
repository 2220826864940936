"""Toy screens: icons on panels, each with its box, and an instruction that names one of them by colour and shape.

A screen is 128 x 80 units; a picture has a pixel for every 2 x 2 units. Shapes are symbols of DejaVu Sans, the font that comes
with Matplotlib, cut to their ink, so that a box ends where the ink does.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

WIDTH, HEIGHT = 128, 80  # units
UNIT = 2  # units per pixel
SLOTS = 8  # most icons of a scene
PANELS = 3
TRIES = 24  # places that are tried for an icon
GAP = 1.0  # least distance of two icons, units
SYMBOLS = "★☎✉✂⚙♥☁☀⌂✎⚑♫"
COLORS = np.array(
    [
        (0.90, 0.10, 0.12),
        (0.13, 0.55, 0.20),
        (0.10, 0.35, 0.85),
        (0.95, 0.55, 0.05),
        (0.50, 0.15, 0.65),
        (0.05, 0.65, 0.70),
        (0.92, 0.30, 0.62),
        (0.45, 0.28, 0.12),
        (0.62, 0.75, 0.10),
        (0.15, 0.15, 0.18),
    ],
    np.float32,
)
BACKGROUNDS = np.array(
    [(0.97, 0.97, 0.97), (0.90, 0.93, 0.97), (0.96, 0.93, 0.87), (0.88, 0.94, 0.89), (0.80, 0.80, 0.82)], np.float32
)
SIZES = {"small": (4, 7), "mid": (8, 14), "large": (15, 40)}  # sides in units, both ends included
SHARES = (0.5, 0.3, 0.2)  # of the icons
TALLEST = 24  # of large icons
RESOLUTION = 32  # of a shape


class Scenes(NamedTuple):
    """S scenes."""

    boxes: np.ndarray  # float32 [S, SLOTS, 4], x1, y1, x2, y2 in units; whole numbers
    used: np.ndarray  # bool [S, SLOTS]
    colors: np.ndarray  # int32 [S, SLOTS], no two alike in a scene
    shapes: np.ndarray  # int32 [S, SLOTS]: a symbol, or len(SYMBOLS) + a symbol for a button that bears it
    background: np.ndarray  # int32 [S]
    panels: np.ndarray  # float32 [S, PANELS, 4], below the icons
    shades: np.ndarray  # float32 [S, PANELS], added to the background
    target: np.ndarray  # int32 [S], slot of the icon that is asked for

    @property
    def box(self) -> np.ndarray:
        """[S, 4], the box that is asked for."""
        return self.boxes[np.arange(len(self.target)), self.target]

    @property
    def size_class(self) -> np.ndarray:
        """int32 [S], of the target: place in `SIZES`, by its longer side."""
        longer = (self.box[:, 2:] - self.box[:, :2]).max(1)
        return np.searchsorted([top for _, top in SIZES.values()], longer).astype(np.int32)

    @property
    def instruction(self) -> np.ndarray:
        """int32 [S, 2], colour and symbol."""
        rows = np.arange(len(self.target))
        return np.stack([self.colors[rows, self.target], self.shapes[rows, self.target] % len(SYMBOLS)], 1).astype(np.int32)


def make(seed: int, S: int) -> Scenes:
    """S scenes of 5 to 8 icons that do not touch, fewer only where there is no room. Other seeds give other scenes."""
    rng = np.random.default_rng(seed)
    wanted = rng.integers(5, SLOTS + 1, S)
    kinds = np.sort(rng.choice(len(SIZES), (S, SLOTS), p=SHARES), axis=1)[:, ::-1]  # large ones find no room later
    low, high = (np.array(bounds)[kinds] for bounds in zip(*SIZES.values(), strict=True))
    sides = rng.integers(low[..., None], high[..., None] + 1, (S, SLOTS, 2))
    large = kinds == len(SIZES) - 1
    sides[..., 1] = np.where(large, np.minimum(sides[..., 1], TALLEST), sides[..., 1])
    boxes, used = np.zeros((S, SLOTS, 4), np.float32), np.zeros((S, SLOTS), bool)
    # Which slots stay empty must not depend on size, or small icons would be rarer than asked for.
    taken = rng.permuted(np.arange(SLOTS) < wanted[:, None], axis=1)
    for i in range(SLOTS):
        side = sides[:, i, None]
        corner = rng.integers(1, np.array([WIDTH, HEIGHT]) - side, (S, TRIES, 2))
        tried = np.concatenate([corner, corner + side], -1).astype(np.float32)
        before = boxes[:, None, :i]
        apart = (tried[:, :, None, :2] >= before[..., 2:] + GAP) | (before[..., :2] >= tried[:, :, None, 2:] + GAP)
        fits = np.all(np.any(apart, axis=-1) | ~used[:, None, :i], axis=-1)
        first = fits.argmax(1)
        used[:, i] = fits.any(1) & taken[:, i]
        boxes[:, i] = tried[np.arange(S), first] * used[:, i, None]
    colors = rng.permuted(np.tile(np.arange(len(COLORS)), (S, 1)), axis=1)[:, :SLOTS]
    symbols = rng.integers(0, len(SYMBOLS), (S, SLOTS))
    shapes = symbols + len(SYMBOLS) * (large & (rng.random((S, SLOTS)) < 0.5))
    origin = rng.uniform(0, (WIDTH, HEIGHT), (S, PANELS, 2))
    panels = np.concatenate([origin, origin + rng.uniform(10, 60, (S, PANELS, 2))], -1).astype(np.float32)
    shades = rng.uniform(-0.12, 0.06, (S, PANELS)).astype(np.float32)
    target = np.where(used, rng.random((S, SLOTS)), -1).argmax(1)
    background = rng.integers(0, len(BACKGROUNDS), S)
    return Scenes(boxes, used, _ints(colors), _ints(shapes), _ints(background), panels, shades, _ints(target))


def _ints(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32)


@functools.cache
def masks() -> np.ndarray:
    """float32 [2 len(SYMBOLS), RESOLUTION, RESOLUTION] in 0..1: how much of each part of a shape's box is ink."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    side = RESOLUTION * 8
    symbols = []
    for symbol in SYMBOLS:
        path = TextPath((0, 0), symbol, size=100, prop=FontProperties(family="DejaVu Sans"))
        ink = path.get_extents()
        figure = Figure(figsize=(1, 1), dpi=side)
        canvas = FigureCanvasAgg(figure)
        fit = Affine2D().translate(-ink.x0, -ink.y0).scale(side / ink.width, side / ink.height)
        figure.add_artist(PathPatch(path.transformed(fit), transform=None, facecolor="black", edgecolor="none"))
        canvas.draw()
        dark = 1 - np.asarray(canvas.buffer_rgba())[..., 0].astype(np.float32) / 255
        symbols.append(dark.reshape(RESOLUTION, 8, RESOLUTION, 8).mean((1, 3)))
    shapes = np.array(symbols)
    half = RESOLUTION // 2
    held = np.zeros_like(shapes)
    held[:, half // 2 : half // 2 + half, half // 2 : half // 2 + half] = shapes.reshape(-1, half, 2, half, 2).mean((2, 4))
    return np.concatenate([shapes, 1 - held]).astype(np.float32)


@functools.cache
def _sums() -> np.ndarray:
    """Integrals of `masks` from their upper left corner: [shapes, RESOLUTION + 1, RESOLUTION + 1], 1 for a full box."""
    sums = np.pad(masks(), ((0, 0), (1, 0), (1, 0))).cumsum(1).cumsum(2)
    return (sums / RESOLUTION**2).astype(np.float32)


def draw(scenes: Scenes) -> Any:
    """The pictures: [S, HEIGHT / 2, WIDTH / 2, 3] in 0..1, every pixel the exact mean over its area. May be compiled."""
    picture = jnp.asarray(BACKGROUNDS)[scenes.background][:, None, None]
    for i in range(PANELS):
        x, y = (_shares(scenes.panels[:, i], axis) for axis in (0, 1))
        picture = picture + (y[:, :, None] * x[:, None, :] * scenes.shades[:, i, None, None])[..., None]
    ink = coverage(scenes)
    tones = jnp.asarray(COLORS)[scenes.colors]
    # Icons do not touch, so that a pixel on a seam takes its share of each.
    bare = 1 - ink.sum(1)
    return bare[..., None] * jnp.clip(picture, 0, 1) + jnp.einsum("sihw,sic->shwc", ink, tones)


def coverage(scenes: Scenes) -> Any:
    """[S, SLOTS, HEIGHT / 2, WIDTH / 2]: the share of each pixel that an icon's ink covers."""
    sums = jnp.asarray(_sums())[scenes.shapes]
    x, y = (_steps(scenes.boxes, axis) for axis in (0, 1))
    inside = jnp.einsum("siyv,sivu,sixu->siyx", y, sums, x)
    sides = scenes.boxes[..., 2:] - scenes.boxes[..., :2]
    area = sides[..., 0] * sides[..., 1] * scenes.used
    return inside * area[..., None, None] / UNIT**2


def _steps(boxes: Any, axis: int) -> Any:
    """[S, SLOTS, pixels, RESOLUTION + 1]: times a row of integrals, what they gain from one edge of a pixel to the next."""
    edges = jnp.arange(0, (WIDTH, HEIGHT)[axis] + UNIT, UNIT)
    low, high = boxes[..., axis, None], boxes[..., axis + 2, None]
    at = jnp.clip((edges - low) / jnp.maximum(high - low, 1), 0, 1) * RESOLUTION
    weights = jnp.maximum(1 - jnp.abs(at[..., None] - jnp.arange(RESOLUTION + 1)), 0)
    return weights[..., 1:, :] - weights[..., :-1, :]


def _shares(boxes: Any, axis: int) -> Any:
    """[S, pixels]: the share of each pixel's extent along an axis that lies in the box."""
    edges = jnp.arange(0, (WIDTH, HEIGHT)[axis], UNIT)
    low, high = boxes[:, axis, None], boxes[:, axis + 2, None]
    return jnp.clip(jnp.minimum(edges + UNIT, high) - jnp.maximum(edges, low), 0, UNIT) / UNIT

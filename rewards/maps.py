"""Rewards as pictures: what a prediction at each place of the screen would earn, one panel per reward.

screen = Screen(target=(100, 100, 200, 150), width=1920, height=1080)
png([reward_map(get(name), screen) for name in ("gui_g2", "binary_hit")], screen)
"""

import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from jaxllm.errors import UserError
from rewards.picture_size import picture_size
from rewards.registry import Reward, get

MOST_PANELS = 8
LONGEST_SIDE, MOST_PIXELS = 1 << 15, 1 << 26  # of a screen, and of a screenshot that is decoded
SAMPLES = 1920  # along the longer side of the whole screen; the close-up has as many as its panel has pixels
CLOSE_UP = 4.0  # sides of the target that the close-up shows at least
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)  # of a map's largest value
ROOM = 0.002  # share of a panel on each side of a line with about its value, for the line to get a number
SIGNAL = 0.01  # share of the largest value from which on a place counts as having a signal
COLORS = "viridis"  # even steps of lightness, which colour-blind readers and grey printers keep
# One answer, and a right action: what a map supplies to rewards that look at more than the box.
SUPPLIED = {"action_ok": True, "confidence": 1.0}
PRESETS: dict[str, dict[str, Any]] = {"gta1_click": {"target": "pixels"}}


@dataclasses.dataclass(frozen=True)
class Screen:
    """A screen with one target."""

    target: tuple[float, float, float, float]
    """x1, y1, x2, y2 in pixels, inside the screen"""
    width: int
    """pixels, 1 to 32768"""
    height: int
    """pixels, 1 to 32768"""

    def __post_init__(self) -> None:
        x1, y1, x2, y2 = self.target
        shown = ",".join(f"{v:g}" for v in self.target)
        if not (1 <= self.width <= LONGEST_SIDE and 1 <= self.height <= LONGEST_SIDE):
            raise UserError(f"the image is {self.width}x{self.height}; each side must be 1 to {LONGEST_SIDE} pixels")
        if not all(map(math.isfinite, self.target)) or not (x2 > x1 and y2 > y1):
            raise UserError(f"the target {shown} has no area; write x1,y1,x2,y2 with x1 < x2 and y1 < y2")
        if x1 < 0 or y1 < 0 or x2 > self.width or y2 > self.height:
            raise UserError(
                f"the target {shown} leaves the image of {self.width}x{self.height}; "
                "both must be in the same pixels, and the target is x1,y1,x2,y2, not x,y,width,height"
            )

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the target."""
        x1, y1, x2, y2 = self.target
        return (x1 + x2) / 2, (y1 + y2) / 2

    @property
    def close_up(self) -> tuple[float, float, float, float] | None:
        """x1, y1, x2, y2 around the target, shaped about like the screen; None where that is most of the screen."""
        x1, y1, x2, y2 = self.target
        ratio = min(max(self.height / self.width, 0.4), 1.2)
        width = max(CLOSE_UP * (x2 - x1), CLOSE_UP * (y2 - y1) / ratio, 32.0)
        height = width * ratio
        if width > 0.7 * self.width or height > 0.7 * self.height:
            return None
        left = min(max(self.centre[0] - width / 2, 0), self.width - width)
        top = min(max(self.centre[1] - height / 2, 0), self.height - height)
        return left, top, left + width, top + height


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A reward at evenly spaced places."""

    x: np.ndarray  # float32 [W], pixels
    y: np.ndarray  # float32 [H]
    values: np.ndarray  # float32 [H, W]


@dataclasses.dataclass(frozen=True, eq=False)
class Map:
    """One reward over a screen."""

    title: str
    whole: Grid  # every pixel, or every k-th on large screens
    near: Grid | None  # the close-up, finer
    best: float  # reward of the target itself: the top of the scale
    least: float  # smallest value; 0 for most rewards
    signal: float  # share of the screen where the reward is at least 1 % of the best
    places: dict[str, float]  # reward at the places of `places`


def from_text(text: str) -> Reward:
    """The reward that ``name`` or ``name:option=value:option=value`` means, such as ``gui_g2:alpha=2``.

    Raises:
      UserError: an unknown name or option, or a reward that needs more than one predicted box.
    """
    name, *settings = text.strip().split(":")
    options = dict(PRESETS.get(name, {}))
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{text!r}: write options as option=value, such as gui_g2:alpha=2")
        options[key.strip()] = _value(value.strip())
    reward = get(name, **options)
    lacking = [array for array in reward.required if array not in SUPPLIED]
    if reward.grouped or lacking:
        why = "rewards a group of answers together" if reward.grouped else f"needs {', '.join(lacking)} beside the box"
        raise UserError(f"{name} {why}, so that it has no map; choose rewards of a single box, such as gui_g2 or binary_hit")
    return reward


def reward_map(reward: Reward, screen: Screen, title: str = "") -> Map:
    """What boxes of the target's size earn, by the place of their centre; terms for the form of the answer are left out."""
    step = math.ceil(max(screen.width, screen.height) / SAMPLES)
    whole = _grid(reward, screen, np.arange(0, screen.width, step), np.arange(0, screen.height, step))
    near, box = None, screen.close_up
    if box is not None:
        W = 560
        H = round(W * (box[3] - box[1]) / (box[2] - box[0]))
        near = _grid(reward, screen, np.linspace(box[0], box[2], W), np.linspace(box[1], box[3], H))
    spots = places(screen)
    found = evaluate(reward, screen, np.array(list(spots.values())))
    at = {name: float(value) for name, value in zip(spots, found, strict=True)}
    best = max(at["centre"], float(whole.values.max()))
    least = min(0.0, float(whole.values.min()))
    signal = float((whole.values >= SIGNAL * best).mean()) if best > 0 else 0.0
    return Map(title or reward.name, whole, near, best, least, signal, at)


def places(screen: Screen) -> dict[str, tuple[float, float]]:
    """Points of interest: the target's centre and border, its width and three widths beyond the centre, the farthest corner."""
    (x, y), (x1, _, x2, _) = screen.centre, screen.target
    away = 1 if x <= screen.width / 2 else -1
    corner = (0 if x > screen.width / 2 else screen.width, 0 if y > screen.height / 2 else screen.height)
    edge = x2 if away > 0 else x1
    return {
        "centre": (x, y),
        "border": (edge, y),
        "1 width off": (x + away * (x2 - x1), y),
        "3 widths off": (x + 3 * away * (x2 - x1), y),
        "far corner": corner,
    }


def evaluate(reward: Reward, screen: Screen, centres: np.ndarray) -> np.ndarray:
    """The reward, [...] float32, of boxes of the target's size with the given centres [..., 2]."""
    x1, y1, x2, y2 = screen.target
    half = np.array([x2 - x1, y2 - y1], np.float32) / 2
    middle = np.asarray(centres, np.float32)
    boxes = np.concatenate([middle - half, middle + half], -1)
    supplied = {name: value for name, value in SUPPLIED.items() if name in reward.arrays}
    size = np.array([screen.width, screen.height], np.float32)
    target = np.array(screen.target, np.float32)
    parts = reward(boxes, target, image_wh=size, **supplied)
    return np.asarray(parts.reward, np.float32)


def read_screenshot(path: Path, size: tuple[int, int] | None) -> np.ndarray:
    """The picture in grey, float32 [H, W] in 0..1.

    Raises:
      UserError: it cannot be read, is too large, or is not of ``size`` (width, height).
    """
    found = picture_size(path)
    if size is not None and found != size:
        raise UserError(
            f"{path} is {found[0]}x{found[1]}, but the image is said to be {size[0]}x{size[1]}; "
            f"targets are in the picture's own pixels: give --image {found[0]}x{found[1]}, or leave --image out"
        )
    if found[0] * found[1] > MOST_PIXELS:
        raise UserError(f"{path} has {found[0]}x{found[1]} pixels; at most {MOST_PIXELS:,} are decoded")
    try:
        picture = np.asarray(imread(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} cannot be decoded: {error}") from None
    scale = 255.0 if picture.dtype == np.uint8 else 1.0
    grey = picture if picture.ndim == 2 else picture[..., :3] @ np.array([0.299, 0.587, 0.114])
    return (grey / scale).astype(np.float32)


def png(maps: list[Map], screen: Screen, screenshot: np.ndarray | None = None) -> bytes:
    """The maps side by side, the whole screen above, a close-up of the target below.

    Args:
      maps: 1 to 8.
      screenshot: [H, W] in 0..1, shown in grey below the colours.
    """
    if not 1 <= len(maps) <= MOST_PANELS:
        raise UserError(f"a picture shows 1 to {MOST_PANELS} rewards, not {len(maps)}")
    rows = [(0.0, 0.0, float(screen.width), float(screen.height))] + ([screen.close_up] if screen.close_up else [])
    width = min(max(3.6 * screen.width / screen.height, 2.2), 3.9)
    heights = [min(max(width * (box[3] - box[1]) / (box[2] - box[0]), 0.8), 5.0) for box in rows]
    size = (0.5 + (width + 0.25) * len(maps), 1.2 + sum(heights) + 0.2 * len(rows))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), len(maps), squeeze=False, gridspec_kw={"height_ratios": heights})
    x1, y1, x2, y2 = screen.target
    figure.suptitle(
        f"Reward of a prediction centred at each pixel; target {x2 - x1:g} × {y2 - y1:g} on {screen.width} × {screen.height}",
        fontsize=12,
    )
    for column, one in zip(axes.T, maps, strict=True):
        shown = _panel(column[0], one.whole, one, screen, screenshot)
        column[0].set_title(f"{one.title}\nsignal on {_percent(one.signal)} of the screen", fontsize=10, parse_math=False)
        if one.near is not None and screen.close_up is not None:
            _panel(column[1], one.near, one, screen, screenshot)
            left, top, right, bottom = screen.close_up
            style: dict[str, Any] = {"fill": False, "edgecolor": "white", "linewidth": 0.9, "linestyle": (0, (3, 2))}
            column[0].add_patch(Rectangle((left, top), right - left, bottom - top, **style))
        bar = figure.colorbar(
            ScalarMappable(shown.norm, COLORS), ax=list(column), orientation="horizontal", fraction=0.05, pad=0.02, aspect=32
        )
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
    axes[0, 0].set_ylabel("whole screen", fontsize=9)
    if len(rows) == 2:
        axes[1, 0].set_ylabel("close-up", fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _grid(reward: Reward, screen: Screen, x: np.ndarray, y: np.ndarray) -> Grid:
    x, y = x.astype(np.float32), y.astype(np.float32)
    return Grid(x, y, evaluate(reward, screen, np.stack(np.meshgrid(x, y), -1)))


def _panel(axis: Any, grid: Grid, one: Map, screen: Screen, screenshot: np.ndarray | None) -> Any:
    x, y, every = grid.x, grid.y, max(1, max(grid.values.shape) // 640)
    dx, dy = (x[1] - x[0]) / 2 if len(x) > 1 else 0.5, (y[1] - y[0]) / 2 if len(y) > 1 else 0.5
    extent = (x[0] - dx, x[-1] + dx, y[-1] + dy, y[0] - dy)
    if screenshot is not None:
        axis.imshow(screenshot, cmap="gray", vmin=0, vmax=1, extent=(0, screen.width, screen.height, 0), aspect="equal")
    top = one.best if one.best > one.least else one.least + 1
    limits = {"cmap": COLORS, "vmin": one.least, "vmax": top}
    # Where the reward is low, the picture below shows through.
    alpha = 1.0 if screenshot is None else 0.35 + 0.4 * np.clip((grid.values - one.least) / (top - one.least), 0, 1)
    shown = axis.imshow(grid.values, extent=extent, aspect="equal", interpolation="antialiased", alpha=alpha, **limits)
    levels = one.least + np.array(LEVELS) * (top - one.least)
    inside = levels[(levels > grid.values.min()) & (levels < grid.values.max())]
    if len(inside):
        # Each line in the colour that stands out from the colours around it.
        tones = ["white" if level < one.least + 0.6 * (top - one.least) else "black" for level in inside]
        lines = axis.contour(x[::every], y[::every], grid.values[::every, ::every], levels=inside, colors=tones, linewidths=0.8)
        roomy = [level for level in inside if _room(grid.values, level, 0.03 * (top - one.least)) > ROOM]
        texts = axis.clabel(lines, levels=roomy, fmt=lambda level: f"{level:.2g}", fontsize=8, inline=False) if roomy else []
        for text in texts:
            halo = "#333333" if to_rgb(text.get_color())[0] > 0.5 else "#ffffff"
            text.set_path_effects([patheffects.withStroke(linewidth=1.8, foreground=halo, alpha=0.6)])
    x1, y1, x2, y2 = screen.target
    for color, linewidth in (("black", 2.4), ("white", 1.2)):
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=color, linewidth=linewidth))
    axis.set_xlim(extent[0], extent[1])
    axis.set_ylim(extent[2], extent[3])
    axis.locator_params(nbins=5)
    axis.tick_params(labelsize=7, length=2)
    axis.spines[:].set_visible(False)
    return shown


def _room(values: np.ndarray, level: float, by: float) -> float:
    """Share of the panel just above or just below a line, the smaller one: nothing along a step."""
    below, above = (values > level - by) & (values < level), (values >= level) & (values < level + by)
    return float(min(below.mean(), above.mean()))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text

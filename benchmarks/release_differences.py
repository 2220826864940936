"""Where the published GUI-G² code differs from its paper, in numbers and as a picture: the page docs/rewards.md.

    python benchmarks/release_differences.py                      prints the table of the page
    python benchmarks/release_differences.py --picture docs/rewards-release.png

Both columns come from this package: `compat="gui_g2_release"` with the parser's dialect of the same name, against the defaults.
"""

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from rewards.parse import parse

TARGET = np.array([100, 100, 200, 150], float)
ICON = np.array([1898, 1058, 1910, 1070], float)  # 12 pixels near the lower right corner of 1920 x 1080
FILE, SEEN = (1920, 1080), (1932, 1092)  # the picture's size in the file, and as the model sees it
INK, OURS, THEIRS = "#222222", "#0072B2", "#D55E00"
RELEASE = rewards.get("gui_g2", compat="gui_g2_release")
DEFAULT = rewards.get("gui_g2")


def both(pred: Any, target: Any = TARGET, **inputs: Any) -> tuple[Any, Any]:
    """The parts as published, and ours."""
    pred, target = np.asarray(pred, float), np.asarray(target, float)
    return RELEASE(pred, target, **inputs), DEFAULT(pred, target, **inputs)


def from_text(text: str) -> tuple[Any, Any]:
    """The same of an answer, read as each side reads it."""
    found = []
    for dialect, reward in (("gui_g2_release", RELEASE), ("bracket", DEFAULT)):
        parsed = parse([text], dialect)
        inputs = {"pred_point": parsed.point.astype(float), "kind": parsed.kind, "format_ok": parsed.format_ok}
        parts = reward(parsed.box.astype(float), TARGET, **inputs)
        found.append(type(parts)(*(part[0] for part in parts)))
    return found[0], found[1]


def pair(parts: Any) -> str:
    """Point / coverage."""
    return f"{parts.point:.4g} / {parts.coverage:.4g}"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """What, the case, the published value, ours."""
    a, b = both([195, 0, 295, 50], [0, 0, 100, 50])
    yield "1 rounding", "3.9 σ beside the target, point", f"{a.point:.4g}", f"{b.point:.4g}, log {b.log_point:.4g}"
    unit = [0.5, 0.5, 0.54, 0.52]
    a, b = both(unit, unit)
    yield "2 stabiliser", "two equal boxes in 0..1 coordinates, coverage", f"{a.coverage:.4g}", f"{b.coverage:.4g}"
    a, b = both([150, 125, 150, 125], [150, 125, 150, 125])
    yield "2 stabiliser", "two equal points as boxes, coverage", f"{a.coverage:.4g}", f"{b.coverage:.4g}, invalid"
    a, b = both([200, 150, 100, 100])
    yield "3 order", "corners swapped, point / coverage", pair(a), f'{pair(b)}, invalid; `order="sort"` gives 1 / 1'
    a, b = both([150, 100, 150, 150])
    yield "4 no width", "prediction without width, point / coverage", pair(a), pair(b)
    floored = rewards.get("gui_g2", degenerate="floor", min_sigma=0.5)(np.array([150, 100, 150, 150.0]), TARGET)
    yield "4 no width", 'the same with `degenerate="floor", min_sigma=0.5`', "-", pair(floored)
    long = "9" * 400
    a, b = from_text(f"[{long},100,{long},150]")
    yield "5 NaN", "two equal coordinates of 400 digits, coverage", f"{a.coverage:.4g}", f"{b.coverage:.4g}, invalid"
    a, b = from_text("<think>maybe [0,0,9,9]</think>[100,100,200,150]")
    yield "6 first match", "a box in the think block, then the right one", pair(a), pair(b)
    a, b = from_text("[100.,100,200,150]")
    yield "6 numbers", "`[100.,100,200,150]`", pair(a), pair(b)
    a, b = from_text("[\uff11\uff10\uff10,100,200,150]")
    yield "6 numbers", "full-width digits, point + coverage + format", f"{a.reward:.4g}", f"{b.reward:.4g}"
    a, b = both([1910, 1070, 1922, 1082], ICON)
    _, c = both(np.array([1910, 1070, 1922, 1082]) * np.tile([FILE[0] / SEEN[0], FILE[1] / SEEN[1]], 2), ICON)
    yield "8 frames", "the right icon in the resized picture's pixels, point", f"{a.point:.4g}", f"{c.point:.4g}, mapped back"
    a, _ = both(TARGET, format_ok=np.array(True))
    b = DEFAULT(TARGET, TARGET, format_ok=np.array(True))
    yield "9 format term", "a perfect answer in the right form, total", f"{a.reward:.4g}", f"{b.reward:.4g}; `phi=1` gives 3"
    a, b = from_text("[150,125]")
    yield "10 points", "`[150,125]`, the centre, point / coverage", pair(a), pair(b)
    group = np.array([[195, 0, 295, 50], [0, 0, 100, 50], [10, 0, 110, 50]], float)
    broken = np.stack([*group, [np.inf, 0, np.inf, 50]])
    a, b = both(broken, [0, 0, 100, 50])
    poisoned = (a.reward - a.reward.mean()) / (a.reward.std(ddof=1) + 1e-4)
    ours = rewards.group_advantages(b.reward)
    yield "5 NaN", "advantages of its group", ", ".join(f"{x:.2f}" for x in poisoned), ", ".join(f"{x:.2f}" for x in ours)


def table() -> list[str]:
    """The rows as Markdown."""
    head = ["| | case | published | ours |", "| --- | --- | --- | --- |"]
    return head + [f"| {' | '.join(row)} |" for row in sorted(rows(), key=lambda row: int(row[0].split()[0]))]


def digits_seconds(digits: int) -> tuple[float, float]:
    """Seconds to search a run of digits: with a fraction pattern that can split it anywhere, and by `parse`."""
    number = r"(\s*-?\d*\.?\d+\s*)"
    ambiguous, text = re.compile(r"\[" + ",".join([number] * 4) + r"\]"), "[" + "1" * digits
    begun = time.perf_counter()
    assert ambiguous.search(text) is None
    middle = time.perf_counter()
    parse([text])
    return middle - begun, time.perf_counter() - middle


def picture(path: Path) -> None:
    """Four of the differences as curves and a map."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    target = np.array([0, 0, 100, 50], float)
    shift = np.linspace(0, 400, 1601)
    a, b = both(target + shift[:, None] * [1, 0, 1, 0], target)
    here = axes[0, 0]
    here.semilogy(shift / 50, b.point, color=OURS, label="ours")
    here.semilogy(shift / 50, np.where(a.point > 0, a.point, np.nan), color=THEIRS, label="published: 0 from 3.9 σ on")
    here.axvline(3.9, color=THEIRS, linestyle=":")
    here.set(xlabel="distance of the centres, in σ (half a target)", ylabel="point reward", ylim=(1e-12, 2), title="1 rounding")

    here = axes[0, 1]
    sides = np.logspace(-3, 3, 400)
    equal = sides[:, None] * [0, 0, 2, 1]
    a, b = both(equal, equal)
    here.loglog(sides, b.coverage, color=OURS, label="ours")
    here.loglog(sides, a.coverage, color=THEIRS, linestyle="--", label="published")
    here.axvspan(1e-3, 0.1, color="#DDDDDD", zorder=0, label="boxes in 0..1 coordinates")
    here.set(xlabel="height of two equal boxes", ylabel="coverage", title="2 stabiliser in small units")

    here = axes[1, 0]
    edge = np.linspace(0, 300, 601)
    pred = np.stack([np.full_like(edge, 100), np.full_like(edge, 100), edge, np.full_like(edge, 150)], -1)
    a, b = both(pred)
    here.plot(edge, a.coverage, color=THEIRS, linestyle="--", label="published")
    here.plot(edge, b.coverage, color=OURS, label="ours")
    here.axvspan(0, 100, color="#DDDDDD", zorder=0, label="right edge left of the left one")
    here.set(xlabel="right edge of the prediction; the target's is 200", ylabel="coverage", title="3 order of the corners")

    here = axes[1, 1]
    x, y = np.meshgrid(np.linspace(6, 1914, 240), np.linspace(6, 1074, 135))
    centres = np.stack([x, y], -1)
    icons = np.concatenate([centres - 6, centres + 6], -1)
    seen = icons * np.tile([SEEN[0] / FILE[0], SEEN[1] / FILE[1]], 2)
    a, _ = both(seen, icons)
    image = here.imshow(a.point, extent=(0, 1920, 1080, 0), cmap="cividis", vmin=0, vmax=1)
    here.set(title="8 frames: a perfect answer, as published", xlabel="where the 12-pixel icon is on 1920 x 1080")
    figure.colorbar(image, ax=here, label="point reward", shrink=0.8)
    for other in (axes[0, 0], axes[0, 1], axes[1, 0]):
        other.legend(frameon=False, labelcolor=INK, fontsize=8)
    figure.savefig(path, dpi=80, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    arguments = parser.parse_args()
    print("\n".join(table()))
    theirs, ours = digits_seconds(4000)
    print(f"\n4,000 digits: {theirs:.2f} s by an ambiguous pattern, {1e3 * ours:.2f} ms by parse")
    if arguments.picture:
        picture(arguments.picture)


if __name__ == "__main__":
    main()

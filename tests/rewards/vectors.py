"""The reference values of the Gaussian rewards: 50-digit arithmetic, the closed form checked by numerical integration.

``release`` is what the published functions returned when they were run: point, coverage, format.
"""

from typing import NamedTuple

import numpy as np

from rewards.gaussian import GuiG2Options

INF = float("inf")
NAN = float("nan")
G0 = (100, 100, 200, 150)


class Vector(NamedTuple):
    name: str
    pred: tuple[float, ...]
    target: tuple[float, ...]
    point: float
    coverage: float
    log_point: float
    log_coverage: float
    release: tuple[float, float, int] | None
    alpha: float = 0.5


ICON = (1898, 1058, 1910, 1070)
SHIFTED = (150, 100, 250, 150)
WIDE = (0, 500, 1920, 504)
V20 = (1898.1366459627, 1058.2417582418, 1910.0621118012, 1070.1098901099)
V21 = (1909.8625, 1069.7555555556, 1921.9375, 1081.8888888889)
RELATIVE, MOVED = (0.5, 0.5, 0.54, 0.52), (0.51, 0.505, 0.55, 0.525)

VECTORS = [
    Vector("V01", G0, G0, 1, 1, 0, 0, (1.0, 1.0, 1)),
    Vector("V02", SHIFTED, G0, 0.606530659713, 0.882496902585, -0.5, -0.125, (0.607, 0.882, 1)),
    Vector("V03", (150, 125, 250, 175), G0, 0.367879441171, 0.778800783071, -1, -0.25, (0.368, 0.779, 1)),
    Vector("V04", (125, 112.5, 175, 137.5), G0, 1, 0.8, 0, -0.2231435513, (1.0, 0.8, 0)),
    Vector("V05", (50, 75, 250, 175), G0, 1, 0.8, 0, -0.2231435513, (1.0, 0.8, 1)),
    Vector("V06", (137.5, 100, 162.5, 150), G0, 1, 0.685994340570, 0, -0.3768859012, (1.0, 0.686, 0)),
    Vector(
        "V07", (30, 25, 150, 85), (10, 20, 110, 60), 0.630495033935, 0.879465905367, -0.46125, -0.1284404815, (0.63, 0.879, 1)
    ),
    Vector("V08", (0, 502, 1920, 506), WIDE, 0.606530659713, 0.882496902585, -0.5, -0.125, (0.607, 0.882, 1)),
    Vector("V09", (958, -458, 962, 1462), WIDE, 1, 0.00416664858225, 0, -5.480643264, (1.0, 0.004, 0)),
    Vector("V10", (1000, 800, 1020, 820), (100, 100, 120, 120), 0, 0, -6500, -1625, (0.0, 0.0, 1)),
    Vector("V11", (195, 0, 295, 50), (0, 0, 100, 50), 0.000497955421503, 0.149381775250, -7.605, -1.90125, (0.0, 0.149, 1)),
    Vector("V12", (190, 0, 290, 50), (0, 0, 100, 50), 0.000731802418880, 0.164474456577, -7.22, -1.805, (0.001, 0.164, 1)),
    Vector(
        "V13",
        (-10, -10, 30, 20),
        (0, 0, 40, 30),
        0.706648277858,
        0.916855355732,
        -0.3472222222,
        -0.08680555556,
        (0.707, 0.917, 0),
    ),
    Vector(
        "V14",
        (10.25, 20.5, 22.75, 33.125),
        (10, 20, 22, 32),
        0.987438503554,
        0.995939026652,
        -0.01264105903,
        -0.004069241492,
        (0.987, 0.996, 0),
    ),
    Vector(
        "V15",
        (7001, 4000, 7005, 4003),
        (7000, 4000, 7004, 4003),
        0.882496902585,
        0.969233234476,
        -0.125,
        -0.03125,
        (0.882, 0.969, 1),
    ),
    Vector("V16", (100, 100, 101, 150), (100, 100, 101, 150), 1, 1, 0, 0, (1.0, 1.0, 1)),
    Vector("V17", RELATIVE, RELATIVE, 1, 1, 0, 0, (1.0, 50.0, 0)),
    Vector("V18", MOVED, RELATIVE, 0.778800783071, 0.939413062813, -0.25, -0.0625, (0.779, 46.971, 0)),
    Vector("V19", (1910, 1070, 1922, 1082), ICON, 0.0183156388887, 0.367879441171, -4, -1, (0.018, 0.368, 1)),
    Vector("V20", V20, ICON, 0.999433628463, 0.999816755115, -0.0005665319860, -0.0001832616763, (0.999, 1.0, 0)),
    Vector("V21", V21, ICON, 0.0200809182872, 0.379610025875, -3.907985254, -0.9686108009, (0.02, 0.38, 0)),
    Vector("V22", SHIFTED, G0, 0.882496902585, 0.969233234476, -0.125, -0.03125, None, 1.0),
    Vector("V23", SHIFTED, G0, 0.969233234476, 0.992217938260, -0.03125, -0.0078125, None, 2.0),
    Vector("V24", SHIFTED, G0, 3.72665317208e-6, 0.0439369336234, -12.5, -3.125, None, 0.1),
]


class Edge(NamedTuple):
    name: str
    pred: tuple[float, ...]
    target: tuple[float, ...]
    options: GuiG2Options
    point: float
    coverage: float
    valid: bool
    release: tuple[float, float] | None = None


DEFAULT = GuiG2Options()
THIN = (150, 100, 150, 150)
DOT = (150, 125, 150, 125)


def floor(sigma: float) -> GuiG2Options:
    return GuiG2Options(degenerate="floor", min_sigma=sigma)


EDGES = [
    Edge("E01", THIN, G0, DEFAULT, 1, 0, True, (1.0, 0.0)),
    Edge("E02", THIN, G0, floor(0.5), 1, 0.141414285700, True),
    Edge("E03", THIN, G0, floor(1.0), 1, 0.199960011996, True),
    Edge("E04", DOT, G0, DEFAULT, 1, 0, True, (1.0, 0.0)),
    Edge("E05", G0, THIN, DEFAULT, 0, 0, False, (0.0, 0.0)),
    Edge("E06", G0, THIN, floor(0.5), 1, 0.141414285700, True),
    Edge("E07", (151, 125, 151, 125), DOT, floor(0.5), 0.135335283237, 0.606530659713, True),
    Edge("E08", DOT, DOT, DEFAULT, 0, 0, False, (0.0, INF)),
    Edge("E09 strict", (200, 150, 100, 100), G0, DEFAULT, 0, 0, False, (1.0, 1.0)),
    Edge("E09 sort", (200, 150, 100, 100), G0, GuiG2Options(order="sort"), 1, 1, True),
    *(Edge(f"E10 at {i}", tuple(NAN if j == i else x for j, x in enumerate(G0)), G0, DEFAULT, 0, 0, False) for i in range(4)),
    *(
        Edge(f"E11 {bad} at {i}", tuple(bad if j == i else x for j, x in enumerate(G0)), G0, DEFAULT, 0, 0, False)
        for i in range(4)
        for bad in (INF, -INF)
    ),
    *(
        Edge(f"E12 {bad} at {i}", G0, tuple(bad if j == i else x for j, x in enumerate(G0)), DEFAULT, 0, 0, False)
        for i in range(4)
        for bad in (INF, -INF, NAN)
    ),
    Edge("E17", SHIFTED, G0, GuiG2Options(inside=True), 0.606530659713, 0.882496902585, True),
    Edge("E18", (1000, 800, 1020, 820), (100, 100, 120, 120), GuiG2Options(inside=True), 0, 0, True),
]


def boxes(seed: int, N: int, *, spread: float = 2000, sides: float = 300) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, spread, (N, 2))
    return np.concatenate([corner, corner + rng.uniform(1, sides, (N, 2))], -1).astype(np.float32)

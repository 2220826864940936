"""How many rewards a second: the kernel of point and coverage, for NumPy and JAX, small batches to ten million rows.

    python benchmarks/reward_throughput.py                    all parts on this machine's cores
    python benchmarks/reward_throughput.py --parts kernel     one part
    python benchmarks/reward_throughput.py --device gpu       the kernel on one accelerator, against its memory

Rates are medians over rounds, after one that is not counted; in a round every side runs once. A row is 32 bytes of boxes in and
8 bytes of rewards out; the share of memory bandwidth sets a rate's bytes against a copy of large arrays on the same cores, just
before. The published style is a Python function called row by row, with the 2 x 2 matrices of the paper's form. Every side's
rewards are compared before anything is timed. The last line is JSON: rates in million rows a second, ratios and targets.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import reward_text

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
TEXTS = 1_000_000  # the most texts at once: ten million of them need gigabytes
ROW_BYTES = 40
DEVICES = 8
TARGETS = {  # million rows a second; the share of an accelerator's memory bandwidth; growth of the cost per row, 10 k to 10 M
    "numpy": 100.0,
    "jax": 60.0,
    "gpu_share": 0.8,
    "growth": 1.5,
}
PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {}


def boxes(N: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and targets [N, 4] float32 on a screen, some pixels apart, one row in a hundred improper."""
    rng = np.random.default_rng(seed)
    corner, sides = rng.uniform(0, 1800, (N, 2)), rng.uniform(8, 200, (N, 2))
    target = np.concatenate([corner, corner + sides], -1).astype(np.float32)
    pred = target + rng.normal(0, 6, (N, 4)).astype(np.float32)
    pred[::100, 0] = np.nan
    return pred, target


def seconds(sides: dict[str, Callable[[], Any]], rounds: int, *, at_least: float = 2e-3) -> dict[str, float]:
    """Median seconds of one call of each side. Short calls are repeated within a round, ``at_least`` seconds long."""
    repeats = {}
    for name, side in sides.items():
        side()
        begun = time.perf_counter()
        side()
        repeats[name] = max(1, math.ceil(at_least / (time.perf_counter() - begun)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begun = time.perf_counter()
            for _ in range(repeats[name]):
                side()
            times[name].append((time.perf_counter() - begun) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


def copy_bandwidth(rounds: int) -> float:
    """Bytes read and written a second by copies of 256 MB in all, a piece on each core."""
    cores = os.cpu_count() or 1
    source = np.ones((cores, (256 << 20) // 4 // cores), np.float32)
    goal = np.empty_like(source)
    goal[:] = 0
    with ThreadPoolExecutor(cores) as pool:
        median = seconds({"copy": lambda: list(pool.map(np.copyto, goal, source))}, rounds)["copy"]
    return 2 * source.nbytes / median


def published_style(pred: list[float], target: list[float]) -> tuple[float, float]:
    """Both rewards of one row as equations 2 and 4 are written, by matrices and determinants."""
    try:
        means, covariances = [], []
        for x1, y1, x2, y2 in (pred, target):
            means.append(np.array([(x1 + x2) / 2, (y1 + y2) / 2]))
            covariances.append(np.diag([(0.5 * (x2 - x1)) ** 2, (0.5 * (y2 - y1)) ** 2]))
        offset, average = means[0] - means[1], (covariances[0] + covariances[1]) / 2
        point = math.exp(-0.5 * float(offset @ np.linalg.inv(covariances[1]) @ offset))
        product = np.linalg.det(covariances[0]) * np.linalg.det(covariances[1])
        distance = offset @ np.linalg.inv(average) @ offset / 8 + 0.5 * math.log(np.linalg.det(average) / math.sqrt(product))
        return point, math.exp(-distance)
    except (ValueError, ZeroDivisionError, np.linalg.LinAlgError):
        return 0.0, 0.0


def by_row(pred: np.ndarray, target: np.ndarray) -> list[tuple[float, float]]:
    """`published_style` over rows."""
    with np.errstate(all="ignore"):
        return [published_style(p, g) for p, g in zip(pred.tolist(), target.tolist(), strict=True)]


def kernel(arguments: argparse.Namespace) -> dict[str, Any]:
    """Point and coverage of boxes that are arrays already: NumPy, JAX on the CPU, eight simulated devices, row by row."""
    import jax

    from rewards.batches import bucket, in_buckets
    from rewards.gaussian import gui_g2, point_coverage

    few = boxes(1000)
    by_hand, ours = np.array(by_row(*few)), np.stack(point_coverage(*few), -1)
    ordered = np.isfinite(few[0]).all(-1) & (few[0][:, 2:] > few[0][:, :2]).all(-1)  # the published style scores any other box
    assert np.abs(by_hand - ours)[ordered].max() < 1e-5
    assert (ours[~ordered] == 0).all()
    program = jax.jit(point_coverage)
    bandwidth = copy_bandwidth(arguments.rounds)
    print(f"kernel: {os.cpu_count()} cores, copies at {bandwidth / 1e9:.1f} GB/s; million rows a second (share of that)")
    table: dict[str, dict[int, float]] = {}
    for N in arguments.sizes:
        pred, target = boxes(N)
        on_device = jax.device_put(pred), jax.device_put(target)
        np.testing.assert_allclose(program(*on_device).coverage, point_coverage(pred, target).coverage, atol=5e-6)

        def numpy_side(pair: Any = (pred, target)) -> Any:
            return point_coverage(*pair)

        def jax_side(pair: Any = on_device) -> Any:
            return jax.block_until_ready(program(*pair))

        def parts_side(pair: Any = (pred, target)) -> Any:
            return gui_g2(*pair)

        medians = seconds({"numpy": numpy_side, "jax": jax_side, "numpy_all_parts": parts_side}, arguments.rounds)
        for name, median in medians.items():
            table.setdefault(name, {})[N] = N / median / 1e6
    row = seconds({"row": lambda: by_row(*few)}, arguments.rounds)["row"]
    table["published_style"] = {1000: len(few[0]) / row / 1e6}
    for name, rates in table.items():
        cells = [f"{N:>10,} {rate:8.3g} ({rate * 1e6 * ROW_BYTES / bandwidth:4.0%})" for N, rate in rates.items()]
        print(f"  {name:16}" + "".join(cells))

    largest, middle = max(arguments.sizes), min((N for N in arguments.sizes if N >= 10_000), default=max(arguments.sizes))
    rates = {name: round(table[name][largest], 1) for name in ("numpy", "jax", "numpy_all_parts")}
    growth = {name: round(table[name][middle] / table[name][largest], 2) for name in ("numpy", "jax")}
    style = table["published_style"][1000]
    times = {name: round(rate / style) for name, rate in rates.items()}
    print(f"  against the published style, {largest:,} rows: NumPy {times['numpy']:,} x, JAX {times['jax']:,} x")
    print(f"  cost per row at {largest:,} against {middle:,}: NumPy {growth['numpy']} x, JAX {growth['jax']} x")

    batched = in_buckets(lambda pred, target: point_coverage(pred, target))
    programs: Callable[[], int] = batched.program._cache_size  # type: ignore[attr-defined]
    pool = boxes(200_000)
    for B in sorted({bucket(N) for N in range(1, 200_000, 100)}):
        batched(pool[0][:B], pool[1][:B])
    sizes, before, begun = np.random.default_rng(0).integers(1, 200_000, 50).tolist(), programs(), time.perf_counter()
    for N in sizes:
        batched(pool[0][:N], pool[1][:N])
    rate, recompiled = sum(sizes) / (time.perf_counter() - begun) / 1e6, programs() - before
    print(f"  50 batch sizes: {recompiled} recompilations after {before} programs; {rate:.1f} M rows/s from host to host")

    command = [sys.executable, __file__, "--child", str(min(1_000_000, largest)), "--rounds", str(arguments.rounds)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    devices = json.loads(child.stdout.splitlines()[-1])
    print(f"  {DEVICES} simulated devices: {devices['rate']:.1f} M rows/s, largest difference {devices['difference']:.1e}")
    met = {
        "numpy": rates["numpy"] >= TARGETS["numpy"],
        "jax": rates["jax"] >= TARGETS["jax"],
        "growth": max(growth.values()) <= TARGETS["growth"],
        "recompilations": recompiled == 0,
    }
    return {
        "million_rows_per_second": rates,
        "published_style": round(style, 4),
        "times_published_style": times,
        "share_of_bandwidth": {name: round(rate * 1e6 * ROW_BYTES / bandwidth, 3) for name, rate in rates.items()},
        "bandwidth_gb_per_second": round(bandwidth / 1e9, 1),
        "cost_growth": growth,
        "recompilations": recompiled,
        "eight_devices": devices,
        "targets": TARGETS,
        "met": met,
    }


def eight_devices(N: int, rounds: int) -> None:
    """The kernel with its rows spread over simulated devices; prints its rate and how far it is from NumPy's result."""
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    from rewards.gaussian import point_coverage

    N = N // DEVICES * DEVICES
    host = boxes(N)
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = [jax.device_put(array, jax.NamedSharding(mesh, jax.P("data"))) for array in host]
    program = jax.jit(point_coverage)
    found = program(*spread)
    assert len(found.point.sharding.device_set) == DEVICES
    difference = max(float(np.abs(np.asarray(a) - b).max()) for a, b in zip(found, point_coverage(*host), strict=True))
    median = seconds({"jax": lambda: jax.block_until_ready(program(*spread))}, rounds)["jax"]
    print(json.dumps({"rate": round(N / median / 1e6, 1), "difference": difference}))


def accelerator(arguments: argparse.Namespace) -> dict[str, Any]:
    """The kernel on the default accelerator, against a copy in its own memory."""
    import jax

    from rewards.gaussian import point_coverage

    x = jax.numpy.zeros(1 << 28, np.float32)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 2 * x.nbytes / seconds({"copy": lambda: copy(x).block_until_ready()}, arguments.rounds)["copy"]
    program, rates = jax.jit(point_coverage), {}
    print(f"{jax.devices()[0].device_kind}: copies at {bandwidth / 1e9:,.0f} GB/s; million rows a second (share of that)")
    for N in (*arguments.sizes, 100_000_000):
        key = jax.random.key(0)
        corner = jax.random.uniform(key, (N, 2), maxval=1800)
        target = jax.numpy.concatenate([corner, corner + 50], -1)
        pred = target + jax.random.normal(key, (N, 4))

        def side(pair: Any = (pred, target)) -> Any:
            return jax.block_until_ready(program(*pair))

        rates[N] = N / seconds({"jax": side}, arguments.rounds)["jax"] / 1e6
        print(f"  {N:>12,} {rates[N]:10.1f} ({rates[N] * 1e6 * ROW_BYTES / bandwidth:.0%})")
    share = max(rates.values()) * 1e6 * ROW_BYTES / bandwidth
    return {"million_rows_per_second": rates, "share_of_bandwidth": round(share, 3), "target": TARGETS["gpu_share"]}


def parse(arguments: argparse.Namespace) -> dict[str, Any]:
    """Texts to boxes."""
    return reward_text.parse([N for N in arguments.sizes if N <= TEXTS], arguments.rounds, seconds)


def text_to_reward(arguments: argparse.Namespace) -> dict[str, Any]:
    """Texts to rewards, the published style beside it."""
    return reward_text.text_to_reward([N for N in arguments.sizes if N <= TEXTS], arguments.rounds, seconds, by_row)


PARTS |= {"kernel": kernel, "parse": parse, "text_to_reward": text_to_reward}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="rows of the kernel")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        eight_devices(arguments.child, arguments.rounds)
        return
    result: dict[str, Any] = {"benchmark": "reward_throughput", "device": arguments.device}
    if arguments.device == "gpu":
        import jax

        if jax.default_backend() == "cpu":
            parser.error("JAX finds no accelerator; install the gpu extra, or leave --device out")
        result |= accelerator(arguments)
    else:
        result |= {part: PARTS[part](arguments) for part in arguments.parts}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""What the sections have in common: sides that take turns, ratios against targets, memory of processes."""

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from envs.browser.launch import memory, tree


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int  # of which the medians are taken
    size: float  # 1 for the real thing; steps and environments are scaled by less for a trial


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs every side once in each round, after one round that is not counted; what each returned."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            value = side()
            if number:
                found[name].append(value)
    return found


def medians(found: Mapping[str, list[float]], unit: str, base: str, *, digits: int = 0) -> dict[str, float]:
    """Prints a line for each side, with the ratio of `base` to it; returns the medians."""
    values = {name: statistics.median(rates) for name, rates in found.items()}
    width = max(map(len, found))
    for name, rates in found.items():
        spread = f"({min(rates):,.{digits}f} to {max(rates):,.{digits}f})"
        ratio = "" if name == base else f"   ours is {values[base] / values[name]:.2f} x"
        print(f"  {name:{width}} {values[name]:>10,.{digits}f} {unit} {spread}{ratio}", flush=True)
    return values


def verdict(ratios: Mapping[str, float], targets: Mapping[str, float], *, at_most: Iterable[str] = ()) -> dict[str, bool]:
    """Which targets are met, of those that were measured; prints each. Ratios are at least the target, or `at_most` it."""
    met = {}
    for name, target in targets.items():
        if name not in ratios:
            continue
        below = name in at_most
        met[name] = ratios[name] <= target if below else ratios[name] >= target
        sign = "at most" if below else "at least"
        print(f"  {name}: {ratios[name]:.2f}, target {sign} {target}: {'met' if met[name] else 'missed'}", flush=True)
    return met


def rounded(values: Mapping[str, float], digits: int = 2) -> dict[str, float]:
    """For the line of JSON."""
    return {name: round(value, digits) for name, value in values.items()}


def processes(pids: Iterable[int]) -> set[int]:
    """These processes and all that descend from them."""
    return {pid for root in pids for pid in tree(root)}


def megabytes(pids: Iterable[int]) -> float:
    """Memory of processes in MB, with shared pages counted in parts (PSS)."""
    return sum(memory(pid) for pid in pids) / 1e6


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes and all that descend from them, to the nanosecond: other load does not change it."""
    total = 0
    for pid in processes(pids):
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it has just ended
                total += int(task.read_text().split()[0])
    return total / 1e9


def last(error: BaseException) -> str:
    """An exception in one line."""
    lines: list[Any] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]

"""Do dense rewards teach grounding better than sparse ones? GRPO on toy screens, reward against reward, from the same starts.

    python benchmarks/reward_learning.py --quick      6 rewards, 3 seeds, a shorter start: 5 minutes on two idle cores
    python benchmarks/reward_learning.py              21 rewards, 5 seeds: about 40 minutes
    python benchmarks/reward_learning.py --starts far --rewards "point + coverage,binary point"

A policy of 0.7 M parameters sees a picture of icons and an instruction, and answers with a box. Supervised learning on noisy
boxes makes the starts: "shifted" finds the icon but answers 5 units beside it; "weak" often looks in the wrong place. From
each, GRPO runs under one reward at a time, on the same prompts and sampling keys for every reward of a seed; odd seeds begin
with another initialisation than even ones. Held-out scenes tell hits and IoU by size of the target.

Every finished training is a line of runs.jsonl under --out, so that an interrupted run goes on where it was. results.md and
learning.png are made from that file. The last line is JSON.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grounding import work
from grounding.work import Task
from jaxllm.cli.runtime import configure_jax

MAIN = ("point + coverage", "point", "coverage", "binary point", "binary IoU", "random")
WEAK = (*MAIN, "both binaries", "IoU", "distance", "inside Gaussian")
BASES = 2
# (size class, measure, other reward, points that point + coverage should be ahead from the shifted start)
TARGETS = (("all", "greedy", "binary point", 2.0), ("all", "iou", "binary point", 4.0), ("all", "sampled", "binary IoU", 3.0))


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run."""

    seeds: int
    steps: int  # of each training
    every: int
    curve: int
    end: int
    warm: dict[str, Any]
    rewards: dict[str, tuple[str, ...]]  # start -> rewards; () for all


QUICK = Plan(3, 80, 40, 256, 1024, {"steps": 700, "weak": 350, "shifting": 100}, {"shifted": MAIN, "weak": MAIN[:1] + MAIN[3:]})
FULL = Plan(5, 200, 50, 384, 1280, {"steps": 1400, "weak": 600, "shifting": 140}, {"shifted": (), "weak": WEAK})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("reward-learning"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int, help="of each training")
    parser.add_argument("--starts", help="with commas: shifted, weak, warm, far")
    parser.add_argument("--rewards", help="with commas, as in the table; for every start")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes of one thread each")
    arguments = parser.parse_args()
    configure_jax()
    os.environ.update(work.ENVIRONMENT)
    from grounding import report, train  # JAX starts here with one thread; it only reads names in this process

    plan = _plan(arguments, tuple(train.CONTENDERS), tuple(train.STARTS), parser)
    folder = arguments.out / ("quick" if arguments.quick else "full")
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    file = folder / "runs.jsonl"
    setup = {"steps": plan.steps, "end": plan.end, "warm": plan.warm}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        try:
            _run(pool, plan, tuple(train.CONTENDERS), folder, file, setup)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            sys.exit("interrupted; the same command goes on")
    rows = [row for row in _read(file) if row["setup"] == setup]
    starts, runs = [row for row in rows if row["reward"] == "start"], [row for row in rows if row["reward"] != "start"]
    pages = []
    for start in plan.rewards:
        pages.append(f"## From the {start} start: {train.STARTS[start].about}\n\n")
        pages[-1] += report.table(runs, starts, start, tuple(train.CONTENDERS))
    text = "\n\n".join(pages) + "\n"
    (folder / "results.md").write_text(text)
    (folder / "learning.png").write_bytes(report.picture(runs, starts, list(plan.rewards)))
    print(text)
    print(f"Tables: {folder / 'results.md'}\nCurves: {folder / 'learning.png'}")
    print(json.dumps(_summary(runs, report, arguments.quick, plan, time.perf_counter() - begun)))


def _plan(arguments: argparse.Namespace, rewards: tuple[str, ...], starts: tuple[str, ...], parser: Any) -> Plan:
    plan = QUICK if arguments.quick else FULL
    chosen = {name: plan.rewards.get(name, WEAK) for name in _names(arguments.starts, starts, parser) or plan.rewards}
    if named := _names(arguments.rewards, rewards, parser):
        chosen = dict.fromkeys(chosen, named)
    for option in ("seeds", "steps", "workers"):
        if getattr(arguments, option) is not None and getattr(arguments, option) < 1:
            parser.error(f"--{option} must be at least 1")
    return dataclasses.replace(plan, rewards=chosen, seeds=arguments.seeds or plan.seeds, steps=arguments.steps or plan.steps)


def _names(text: str | None, known: tuple[str, ...], parser: Any) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    for name in names:
        if name not in known:
            parser.error(f"{name!r} is none of: {', '.join(known)}")
    return names


def _run(pool: Any, plan: Plan, order: tuple[str, ...], folder: Path, file: Path, setup: dict[str, Any]) -> None:
    bases = range(min(BASES, plan.seeds))
    done = {(row["start"], row["reward"], row["seed"]) for row in _read(file) if row["setup"] == setup}
    print(f"{len(bases)} starts by supervised learning", flush=True)
    futures = [pool.submit(work.warm, folder, base, plan.warm, tuple(plan.rewards)) for base in bases]
    paths = [future.result() for future in futures]
    waiting: dict[Any, dict[str, Any]] = {}
    for start in plan.rewards:
        for base in bases:
            if (start, "start", base) not in done:
                future = pool.submit(work.measure, paths[base], start, plan.end)
                waiting[future] = {"start": start, "reward": "start", "seed": base, "base": base}
    # Seed by seed, so that what there is after an interruption compares all rewards.
    for seed in range(plan.seeds):
        for start, rewards in plan.rewards.items():
            for reward in rewards or order:
                if (start, reward, seed) not in done:
                    task = Task(start, reward, seed, plan.steps, plan.every, plan.curve, plan.end)
                    future = pool.submit(work.one, paths[seed % BASES], task)
                    waiting[future] = {"start": start, "reward": reward, "seed": seed, "base": seed % BASES}
    for i, future in enumerate(concurrent.futures.as_completed(waiting), 1):
        row, found = waiting[future], future.result()
        row |= {"setup": setup, **(found if "end" in found else {"end": found, "curve": found})}
        with file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        end = {size: 100 * row["end"][size]["greedy"] for size in ("all", "small")}
        print(
            f"[{i}/{len(waiting)}] {row['start']}, {row['reward']}, seed {row['seed']}: {end['all']:.1f} % hits, "
            f"{end['small']:.1f} % of small, IoU {100 * row['end']['all']['iou']:.1f}",
            flush=True,
        )


def _read(file: Path) -> Iterator[dict[str, Any]]:
    """Finished trainings; a line that an interruption cut short is left out."""
    if not file.exists():
        return
    text = file.read_text()
    if text and not text.endswith("\n"):
        file.write_text(text[: text.rfind("\n") + 1])
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and {"setup", "start", "reward", "seed", "base", "end", "curve"} <= row.keys():
            yield row


def _summary(runs: list[dict[str, Any]], report: Any, quick: bool, plan: Plan, seconds: float) -> dict[str, Any]:
    def round_all(found: tuple[float, ...]) -> list[float | None]:
        return [None if math.isnan(value) else round(value, 2) for value in found]

    differences, met = {}, {}
    for size, measure, other, least in TARGETS:
        name = f"{measure}, point + coverage minus {other}"
        found = report.against(runs, "shifted", "point + coverage", other, size, measure)
        differences[name] = round_all(found)
        met[name] = bool(found[0] >= least)
    small = report.against(runs, "shifted", "point + coverage", "binary point", "small", "greedy")
    differences["small greedy, point + coverage minus binary point"] = round_all(small)
    return {
        "benchmark": "reward_learning",
        "quick": quick,
        "seeds": plan.seeds,
        "trainings": len(runs),
        "seconds": round(seconds, 1),
        "shifted_start_points": differences,
        "targets": {f"{measure}, point + coverage minus {other}": least for _, measure, other, least in TARGETS},
        "met": met,
    }


if __name__ == "__main__":
    main()

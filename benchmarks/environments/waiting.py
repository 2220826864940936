"""Environments whose steps take log-normal times: how busy they are kept, how much of the learner's time hides in theirs."""

import statistics
import time
from typing import Any

from envs import Action, make_vec

from .common import Scale, rounded, verdict

SESSIONS, BATCH = 32, 8
LEAST = 4  # results that a learner's batch waits for; it takes up to BATCH
STEPS = 2048  # of all sessions together
SCALE = 0.02  # seconds of the median step
TARGETS = {"utilisation": 0.75, "over_lock_step": 3.0, "overlap": 1.3}
GO = Action("go")


def run(scale: Scale) -> dict[str, Any]:
    """Batches of what is ready against lock step, then with a learner that takes as long as the environments."""
    steps = max(2 * SESSIONS, int(STEPS * scale.size) // SESSIONS * SESSIONS)
    print(f"latency: {SESSIONS} sessions, {steps} steps of log-normal(0, 1) x {SCALE * 1e3:g} ms, batches of {BATCH}")
    found: dict[str, list[float]] = {"utilisation": [], "over_lock_step": [], "overlap": [], "overlap_of_full_batches": []}
    waiting = {"name": "environments.noop:Waiting", "num_envs": SESSIONS, "options": {"scale": SCALE}}
    with make_vec(**waiting, batch_size=BATCH) as vector, make_vec(**waiting) as lock_step:
        stream(vector, 2 * SESSIONS, 0.0, range(SESSIONS))  # which environments are slow is learned
        lock_step.reset()
        lock_step.step([GO] * SESSIONS)
        for number in range(scale.rounds):
            seeds = range(number * SESSIONS, (number + 1) * SESSIONS)
            wall, busy, _ = stream(vector, steps, 0.0, seeds)
            barrier = lock(lock_step, steps, seeds)
            thinking = wall / steps
            both, _, thought = stream(vector, steps, thinking, seeds, LEAST)
            full, _, _ = stream(vector, steps, thinking, seeds)
            found["utilisation"].append(busy / (SESSIONS * wall))
            found["over_lock_step"].append(barrier / wall)
            found["overlap"].append(both / max(wall, thought))
            found["overlap_of_full_batches"].append(full / max(wall, thought))
            print(
                f"  round {number}: {wall:.2f} s, lock step {barrier:.2f} s; with {thought:.2f} s of a learner's thinking "
                f"{both:.2f} s in batches of {LEAST} to {BATCH}, {full:.2f} s in batches of {BATCH}",
                flush=True,
            )
    values = {name: statistics.median(each) for name, each in found.items()}
    met = verdict(values, TARGETS, at_most=("overlap",))
    return {"sessions": SESSIONS, "batch": BATCH, "steps": steps, "ratios": rounded(values), "targets": TARGETS, "met": met}


def stream(vector: Any, steps: int, thinking: float, seeds: range, least: int = BATCH) -> tuple[float, float, float]:
    """Steps what is ready, `least` to `BATCH` at a time, after `thinking` seconds of the learner for each of them.

    Returns seconds from the first action to the last result, the seconds that environments were busy in all, and those that
    the learner was.
    """
    vector.reset(seeds=list(seeds))
    begun = time.perf_counter()
    vector.send([GO] * SESSIONS)
    sent, received, busy, thought = SESSIONS, 0, 0.0, 0.0
    while received < steps:
        batch = vector.recv(least)
        received += len(batch)
        busy += sum(info["waited"] for info in batch.info)
        if thinking:
            before = time.perf_counter()
            time.sleep(thinking * len(batch))
            thought += time.perf_counter() - before
        ids = batch.ids[: steps - sent]
        if len(ids):
            vector.send([GO] * len(ids), ids)
            sent += len(ids)
    return time.perf_counter() - begun, busy, thought


def lock(vector: Any, steps: int, seeds: range) -> float:
    """Seconds of so many steps where each waits for all of the one before."""
    vector.reset(seeds=list(seeds))
    begun = time.perf_counter()
    for _ in range(steps // SESSIONS):
        vector.step([GO] * SESSIONS)
    return time.perf_counter() - begun

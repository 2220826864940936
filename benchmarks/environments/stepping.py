"""Steps a second of environments that do nothing: a step server, gymnasium's AsyncVectorEnv, an OpenEnv server."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from envs import Action, make_vec

from . import noop, openenv_peer
from .common import Scale, alternate, cpu_seconds, last, medians, rounded, verdict

SESSIONS = 64
SECONDS = 1.0  # of one side in one round, about
TARGETS = {"gymnasium_text": 5.0, "openenv_text": 15.0, "gymnasium_frames": 3.0}
FIRST = {"text": "bytes", "frames": "frames"}  # what gymnasium has in shared memory
OTHER = {"text": ("gymnasium, text by pipes", "text"), "frames": ("gymnasium, no copy", "frames")}  # a second form of the peer
GO = Action("go")


def run(scale: Scale) -> dict[str, Any]:
    """Texts of 2 KB, then frames of 224 x 224 x 3 bytes."""
    N = max(4, int(SESSIONS * scale.size))
    seconds = max(0.05, SECONDS * scale.size)
    print(f"vector: {N} sessions that do nothing, steps/s of all together")
    rates: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    notes: list[str] = []
    cost: dict[str, dict[str, float]] = {}
    for what in ("text", "frames"):
        found, cost[what], said = measure(what, N, seconds, scale.rounds)
        notes += said
        print(f" {what}:")
        rates[what] = values = medians(found, "steps/s", "ours")
        print(f"  microseconds of processor time a step: {', '.join(f'{name} {us:.0f}' for name, us in cost[what].items())}")
        for peer in ("gymnasium", OTHER[what][0], "openenv"):
            if peer in values:
                ratios[f"{peer.replace(', ', '_').replace(' ', '_')}_{what}"] = values["ours"] / values[peer]
    met = verdict(ratios, TARGETS)
    return {
        "sessions": N,
        "steps_per_second": {what: rounded(values, 0) for what, values in rates.items()},
        "cpu_microseconds_per_step": {what: rounded(values, 1) for what, values in cost.items()},
        "ratios": rounded(ratios),
        "targets": TARGETS,
        "met": met,
        "notes": notes,
    }


def measure(what: str, N: int, seconds: float, rounds: int) -> tuple[dict[str, list[float]], dict[str, float], list[str]]:
    """Steps/s of every side, round by round; its processor time a step in microseconds; what there is to say."""
    from . import gym_noop

    notes = []
    ours = make_vec("environments.noop:Noop", N, options={"frame": what == "frames"})
    halves = make_vec("environments.noop:Noop", N, N // 2, options={"frame": what == "frames"})
    theirs, other = gym_noop.make(N, FIRST[what], copy=True), gym_noop.make(N, OTHER[what][1], copy=what == "text")
    opened: list[Any] = [ours, halves, theirs, other]
    try:
        check(ours, theirs, what)
        halves.reset()
        halves.send([GO] * N)
        other.reset()
        sides: dict[str, Callable[[], float]] = {
            "ours": timed(lambda: ours.step([GO] * N), N, seconds),
            "ours, send and recv of halves": timed(lambda: turn(halves), N // 2, seconds),
            "gymnasium": timed(lambda: texts(theirs.step(np.zeros(N, int))[0], what), N, seconds),
            OTHER[what][0]: timed(lambda: other.step(np.zeros(N, int)), N, seconds),
        }
        if what == "text":
            try:
                peer = openenv_peer.Peer(N)
            except Exception as error:
                notes.append(f"no OpenEnv: {last(error)}")
            else:
                opened.append(peer)
                notes.append(f"OpenEnv gave {peer.sessions} of {N} sessions")
                steps = max(1, int(seconds * peer.rate(2) / max(peer.sessions, 1)))
                sides["openenv"] = lambda: peer.rate(steps)
            print(f" {notes[-1]}", flush=True)
        spent: dict[str, list[float]] = {name: [] for name in sides}
        found = alternate({name: metered(side, spent[name]) for name, side in sides.items()}, rounds)
        halves.recv()
        return found, {name: 1e6 * min(each) for name, each in spent.items()}, notes
    finally:
        for each in opened:
            each.close()


def check(ours: Any, theirs: Any, what: str) -> None:
    """Both give the same: so many bytes of text, or pixels that hold the number of the step."""
    ours.reset()
    theirs.reset()
    for step in (1, 2):
        batch, seen = ours.step([GO] * ours.num_envs), texts(theirs.step(np.zeros(ours.num_envs, int))[0], what)
        for obs, row in zip(batch.obs, seen, strict=True):
            if what == "text":
                assert obs.text == row == "x" * noop.TEXT
            else:
                np.testing.assert_array_equal(obs.arrays["frame"], row)
                assert (row == step).all()


def texts(seen: np.ndarray, what: str) -> Any:
    """What a learner needs of gymnasium's array: its rows as texts, or the frames as they are."""
    return [row.tobytes().decode() for row in seen] if what == "text" else seen


def turn(vector: Any) -> None:
    """Takes what is ready and sends its next actions."""
    batch = vector.recv()
    vector.send([GO] * len(batch), batch.ids)


def metered(side: Callable[[], float], spent: list[float]) -> Callable[[], float]:
    """A side that also notes the processor seconds of a step, in all processes: the others' wait meanwhile."""

    def run() -> float:
        before, begun = cpu_seconds([os.getpid()]), time.perf_counter()
        rate = side()
        steps = rate * (time.perf_counter() - begun)
        spent.append((cpu_seconds([os.getpid()]) - before) / steps)
        return rate

    return run


def timed(step: Callable[[], Any], count: int, seconds: float) -> Callable[[], float]:
    """A side: steps/s of calls that make `count` steps each."""

    def side() -> float:
        calls, begun = 0, time.perf_counter()
        while (taken := time.perf_counter() - begun) < seconds:
            step()
            calls += 1
        return calls * count / taken

    return side

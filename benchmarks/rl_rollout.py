"""Rollouts of many turns: resident caches against reading each turn's whole context anew, uneven answers, the host's part.

    python benchmarks/rl_rollout.py [--parts turns slots host compiles] [--rounds 3]

turns: SmolLM2 plays 10 turns, its context grows from 660 to 1,000 tokens, in float32, with caches that stay in their slots; the
same with caches dropped after each turn; and transformers' `generate` on the same weights and token counts, in a process of its
own, for each turn anew and with its own cache kept. Rates are sampled tokens a second of the whole round.
slots: 16 slots of SmolLM2 answer with uneven lengths, refilled as they end, against the same number of tokens in answers of one
length that begin and end together.
host: what a decode step of a tiny model takes beyond the compiled loop itself.
compiles: programs compiled in 100 iterations of uneven play with new weights after each, once warmed up.

Rounds of all sides alternate; what is compiled is warmed up before. Without the `peers` extra there is no transformers side.
The last line is JSON: ratios and their targets.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.cli.runtime import configure_jax
from sides import Run, Side, peer, timed

TURNS, SESSIONS = 10, 4
OPENING, OBSERVED, ANSWER = 640, 20, 16  # tokens: before the first turn, and of each turn
SLOTS, PROMPT, MEAN = 16, 32, 48
TARGETS = {"turns": 3.0, "slots": 0.8, "host_ms": 0.5, "compiles": 0}
Rows = dict[str, list[Run]]


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Ids that SmolLM2 has."""
    return np.random.default_rng(seed).integers(3, 49000, (count, length)).tolist()


def finish(machine: Any) -> list[Any]:
    """All answers under way."""
    found = []
    while machine.busy:
        found += machine.advance()
    return found


def turns_of_ours(machine: Any, seen: list[list[list[int]]], *, resident: bool) -> None:
    """All turns of all sessions. Without resident caches a session's whole context is read for each turn."""
    streams: list[list[int]] = [[] for _ in range(SESSIONS)]
    for turn in range(len(seen)):
        for k in range(SESSIONS):
            streams[k] += seen[turn][k]
            key = k if resident else (k, turn)
            machine.submit(key, seen[turn][k] if resident else streams[k], max_tokens=ANSWER)
        for done in finish(machine):
            streams[done.key if resident else done.key[0]] += done.ids
            if not resident:
                machine.release(done.key)
    if resident:
        for k in range(SESSIONS):
            machine.release(k)


def turns_of_transformers(model: Any, seen: list[list[list[int]]], *, resident: bool) -> None:
    """The same with ``generate``, sampling at temperature 1."""
    import torch
    from transformers import DynamicCache

    options = {"do_sample": True, "top_k": 0, "max_new_tokens": ANSWER, "min_new_tokens": ANSWER, "pad_token_id": 0}
    stream = torch.zeros((SESSIONS, 0), dtype=torch.long)
    cache = DynamicCache(config=model.config) if resident else None
    with torch.inference_mode():
        for turn in range(len(seen)):
            stream = torch.cat([stream, torch.tensor(seen[turn])], dim=1)
            kept = {"past_key_values": cache} if resident else {}
            stream = model.generate(stream, attention_mask=torch.ones_like(stream), **options, **kept)


def transformers_sides(folder: Path, seen: list[list[list[int]]]) -> dict[str, Callable[[], None]]:
    """What transformers does on all cores, with the checkpoint."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return {
        "transformers, each turn anew": lambda: turns_of_transformers(model, seen, resident=False),
        "transformers, cache kept": lambda: turns_of_transformers(model, seen, resident=True),
    }


def alternate(sides: Mapping[str, Side], rounds: int) -> Rows:
    """Runs of each side in alternating rounds."""
    found: Rows = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def middle(runs: list[Run]) -> Run:
    """Medians."""
    return Run(statistics.median(run.wall for run in runs), statistics.median(run.processor for run in runs))


def report(rows: Rows, tokens: int) -> dict[str, Run]:
    """Prints medians with the lowest and highest, and returns the medians."""
    for name, runs in rows.items():
        mid, walls = middle(runs), [run.wall for run in runs]
        spread = f"({min(walls):.2f} to {max(walls):.2f})"
        print(
            f"  {name:30}{mid.wall:8.2f} s {spread:20}{mid.processor:8.2f} s of the cores {tokens / mid.wall:8.1f} tokens/s",
            flush=True,
        )
    return {name: middle(runs) for name, runs in rows.items()}


def over(name: str, other: Run, mine: Run) -> dict[str, float]:
    """How many times as fast mine is; by the cores' time as well, which others on the machine disturb less."""
    return {name: other.wall / mine.wall, f"{name}, by cores": other.processor / mine.processor}


def turns(rounds: int) -> dict[str, float]:
    from jaxllm import hub, load
    from rl.engine import Engine

    folder = hub.resolve("smollm2")
    checkpoint = load.open_checkpoint(folder)
    machine = Engine(load.load_params(checkpoint, dtype="float32"), checkpoint.config, slots=SESSIONS, context=1024)
    seen = [prompts(SESSIONS, OBSERVED + (0 if turn else OPENING), turn) for turn in range(TURNS)]
    sides: dict[str, Side] = {
        "resident caches": lambda: timed(lambda: turns_of_ours(machine, seen, resident=True)),
        "each turn anew": lambda: timed(lambda: turns_of_ours(machine, seen, resident=False)),
    }
    ends = [seen[0], prompts(SESSIONS, OBSERVED + (TURNS - 2) * (OBSERVED + ANSWER))]  # all programs, in two turns
    turns_of_ours(machine, ends, resident=True)
    turns_of_ours(machine, ends, resident=False)
    turns_of_ours(machine, seen[:2], resident=True)
    print(f"turns: {SESSIONS} sessions, {OPENING} tokens and {TURNS} turns of {OBSERVED} observed, {ANSWER} sampled, float32")
    with peer(transformers_sides, folder, seen) as theirs:
        taken = report(alternate(sides | theirs, rounds), SESSIONS * TURNS * ANSWER)
    mine, found = taken.pop("resident caches"), {}
    for name, other in taken.items():
        found |= over(f"turns over {name}", other, mine)
    return found


def slots(rounds: int) -> dict[str, float]:
    from jaxllm import hub, load
    from rl.engine import Engine

    checkpoint = load.open_checkpoint(hub.resolve("smollm2"))
    machine = Engine(load.load_params(checkpoint, dtype="float32"), checkpoint.config, slots=SLOTS, context=256)
    rng = np.random.default_rng(0)
    uneven = np.clip(rng.lognormal(np.log(MEAN) - 0.32, 0.8, 4096), 4, 200).astype(int)
    enough = 2 * SLOTS * MEAN
    sides = {
        "one length, all in step": lambda: play(machine, itertools.repeat(MEAN), enough),
        "uneven lengths": lambda: play(machine, iter(uneven.tolist()), enough),
    }
    print(
        f"slots: {SLOTS} slots, {PROMPT} tokens read and {MEAN} sampled on average"
        f" (5 to 95 %: {np.percentile(uneven, 5):.0f} to {np.percentile(uneven, 95):.0f})"
    )
    alternate(sides, 1)
    taken = report(alternate(sides, rounds), enough)
    return over("slots", taken["one length, all in step"], taken["uneven lengths"])


def play(machine: Any, lengths: Iterator[int], enough: int) -> Run:
    """What ``enough`` tokens take, sampled while a new answer begins in every slot that is free."""
    start, cpu, live, sampled = time.perf_counter(), time.process_time(), set(), 0
    while True:
        while machine.free:
            number = len(live) + sampled
            key, length = object(), next(lengths)
            live.add(key)
            machine.submit(key, prompts(1, PROMPT, number)[0], max_tokens=length)
        for done in machine.advance():
            sampled += len(done.ids)
            live.remove(done.key)
            machine.release(done.key)
        under_way = sum(machine.context - machine.room(key) - PROMPT for key in live)
        if sampled + under_way >= enough:
            break
    taken = time.perf_counter() - start, time.process_time() - cpu
    for key in live:
        machine.release(key)
    share = enough / (sampled + under_way)
    return Run(taken[0] * share, taken[1] * share)


def tiny() -> tuple[Any, Any]:
    """Parameters and shape of the model that `jaxllm train` begins with."""
    import jax

    from jaxllm import params
    from rl.config import TINY

    return params.init(jax.random.key(0), TINY), TINY


def host(rounds: int) -> dict[str, float]:
    """The wall time of a step by `advance`, less that of a step inside the compiled loop: longer loops against shorter ones."""
    from rl.engine import Engine

    weights, cfg = tiny()

    def seconds(steps: int, tokens: int = 192) -> Run:
        """Of a step, over all steps of 16 answers of ``tokens``, without the reading."""
        machine = machines[steps]
        for key in range(SLOTS):
            machine.submit(key, [1], max_tokens=tokens)
        machine.advance()
        taken = timed(lambda: finish(machine))
        for key in range(SLOTS):
            machine.release(key)
        return Run(taken.wall / (tokens - steps), taken.processor / (tokens - steps))

    machines = {steps: Engine(weights, cfg, slots=SLOTS, context=256, steps=steps) for steps in (1, 16, 48, 96)}
    sides: dict[str, Side] = {f"{steps}": lambda steps=steps: seconds(steps) for steps in machines}  # type: ignore[misc]
    alternate(sides, 1)
    rows = alternate(sides, 5 * rounds)
    step = {steps: middle(rows[f"{steps}"]).wall for steps in machines}
    # wall(n) = device + call / n, of which two lengths give the device's part.
    device = (96 * step[96] - 48 * step[48]) / 48
    print("host: milliseconds of a decode step, 16 slots of the tiny model")
    print(f"  inside the compiled loop {1e3 * device:.3f}")
    for steps in (1, 16):
        print(f"  beyond it, {steps} steps a call {1e3 * (step[steps] - device):.3f}")
    return {"host_ms": 1e3 * (step[16] - device), "host_ms one step a call": 1e3 * (step[1] - device)}


def compiles(rounds: int) -> dict[str, float]:
    import jax

    from rl.engine import Engine

    weights, cfg = tiny()
    machine = Engine(weights, cfg, slots=SLOTS, context=128)
    start = time.perf_counter()
    before = machine.warm_up()
    print(f"compiles: {before} programs, {time.perf_counter() - start:.1f} s to warm up")
    rng = np.random.default_rng(0)
    tokens = 0
    for iteration in range(100):
        for turn in range(3):
            for key in range(SLOTS):
                ids = rng.integers(0, cfg.vocab_size, rng.integers(1, 30)).tolist()
                machine.submit(key, ids, max_tokens=int(rng.integers(1, 12)))
            if turn == 1:
                machine.advance()
                weights = jax.tree.map(lambda leaf: leaf * 1.0001, weights)
                machine.publish(weights, iteration + 1)  # in the middle of answers
            tokens += sum(len(done.ids) for done in finish(machine))
        for key in range(SLOTS):
            machine.release(key)
    print(f"  {tokens} tokens in 100 iterations of 3 turns, new weights in each: {machine.compilations - before} more programs")
    return {"compiles": machine.compilations - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"turns": turns, "slots": slots, "host": host, "compiles": compiles}
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=list(parts))
    parser.add_argument("--rounds", type=int, default=3, help="that are measured")
    args = parser.parse_args()
    configure_jax()
    print(f"{os.cpu_count()} cores, medians of {args.rounds} alternating rounds (lowest to highest)")
    found: dict[str, float] = {}
    for name in args.parts:
        found |= parts[name](args.rounds)
    print(json.dumps({**{name: round(value, 3) for name, value in found.items()}, "targets": TARGETS}))


if __name__ == "__main__":
    main()

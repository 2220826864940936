"""What does each part of PPO, as UI-TARS-2 has it, bring on a game of several turns? Each variant lacks one part.

    python benchmarks/rl_ablation.py --quick      2 seeds, fewer updates
    python benchmarks/rl_ablation.py              5 seeds

A model of 0.32 M parameters imitates a clumsy player of toy/hilo, then plays and learns; the variants of a seed begin with the
same weights and meet the same tasks in the same order. Two figures of a run count: the score on held-out tasks after the last
update, and the mean score of all training episodes, which tells how fast it got there. Differences are paired by seed, with
intervals of 95 % by Student's t.

Every finished run is a line of runs.jsonl under --out, so that an interrupted ablation goes on where it was. The last line is
JSON.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import rl.models
from jaxllm.cli.runtime import configure_jax
from rl.config import PRESETS, TrainConfig, with_algorithm
from rl.trainer import Trainer
from rl.types import Trajectory

MODEL = dataclasses.replace(
    rl.models.TINY, hidden_size=96, intermediate_size=384, num_attention_heads=2, num_key_value_heads=2, head_dim=48
)
FULL, SHUFFLED = "PPO", "shuffled rewards"
VARIANTS: dict[str, dict[str, Any]] = {
    FULL: {},
    "without value pretraining": {"value_pretrain": 0},
    "one lambda of 0.95 for both": {"lambda_policy": 0.95, "lambda_critic": 0.95},
    "lambda of 0.95 for the policy": {"lambda_policy": 0.95},
    "lambda of 1 for the policy": {"lambda_policy": 1.0},
    "without clip-higher": {"eps_high": 0.2},
    "VAPO": {"name": "vapo"},
    "GRPO": {"name": "grpo"},
    "DAPO": {"name": "dapo"},
    "GiGPO": {"name": "gigpo"},
    SHUFFLED: {},
}
PAPER = {
    "GRPO": "PPO ahead, with less variance (UI-TARS-2, browsing and GUI tasks)",
    "without value pretraining": "11 against 60 (VAPO, AIME 2024)",
    "one lambda of 0.95 for both": "33 against 60 (VAPO: GAE not decoupled)",
    "lambda of 0.95 for the policy": "45 against 60 (VAPO: lambda not adaptive)",
    "without clip-higher": "46 against 60 (VAPO)",
    "DAPO": "50 against 60 of VAPO",
}
QUANTILE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # of Student's t at 0.975, by degrees of freedom


class Shuffled(Trainer):
    """The control: each episode is paid for another one."""

    def _collect(self) -> tuple[list[Trajectory], list[int]]:
        trajectories, group_of = super()._collect()
        order = np.random.default_rng(self.counters.update).permutation(len(trajectories))
        return [_paid_for(one, trajectories[other]) for one, other in zip(trajectories, order, strict=True)], group_of


def _paid_for(one: Trajectory, other: Trajectory) -> Trajectory:
    rewards = [0.0] * (len(one.turns) - 1) + [other.outcome]
    turns = tuple(dataclasses.replace(turn, reward=reward) for turn, reward in zip(one.turns, rewards, strict=True))
    return dataclasses.replace(one, turns=turns, outcome=other.outcome, success=other.success)


def settings(variant: str, seed: int, updates: int) -> TrainConfig:
    """The run of a variant."""
    hilo = PRESETS["toy-hilo"]
    changed = dict(VARIANTS[variant])
    config = with_algorithm(hilo, changed.pop("name", "ppo"))
    return dataclasses.replace(
        config,
        seed=seed,
        updates=updates,
        eval_every=0,
        eval_episodes=512,
        checkpoint_every=0,
        algo=dataclasses.replace(config.algo, **changed),
        optim=dataclasses.replace(config.optim, actor_lr=5e-4, critic_lr=1e-3, decay=4 * updates),
        imitate=dataclasses.replace(config.imitate, lr=3e-3, steps=100),
    )


def train(variant: str, seed: int, updates: int) -> dict[str, Any]:
    """One run, in a folder that goes again."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = (Shuffled if variant == SHUFFLED else Trainer)(settings(variant, seed, updates), Path(folder))
        curve = [figures["reward/outcome"] for figures in run.run()]
        end = run.evaluate()["reward/outcome"]
    return {
        "variant": variant,
        "seed": seed,
        "updates": updates,
        "curve": curve,
        "end": end,
        "mean": statistics.mean(curve),
        "seconds": time.perf_counter() - begin,
    }


def finished(path: Path, updates: int) -> list[dict[str, Any]]:
    """The runs of this length that a file has."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [row for row in rows if row["updates"] == updates]


def interval(differences: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its interval of 95 %."""
    count = len(differences)
    half = QUANTILE[count - 1] * statistics.stdev(differences) / count**0.5
    return statistics.mean(differences), half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    arguments = parser.parse_args()
    seeds, updates = (2, 15) if arguments.quick else (5, 40)
    configure_jax()
    rl.models.TINY = MODEL
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "runs.jsonl"
    rows = finished(path, updates)
    done = {(row["variant"], row["seed"]) for row in rows}
    for variant in VARIANTS:
        for seed in range(seeds):
            if (variant, seed) in done:
                continue
            row = train(variant, seed, updates)
            rows.append(row)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{variant}, seed {seed}: {row['end']:.3f} in the end, {row['mean']:.3f} on the way, {row['seconds']:.0f} s",
                flush=True,
            )
    print_table(rows, seeds, updates)


def print_table(rows: list[dict[str, Any]], seeds: int, updates: int) -> None:
    """Scores and paired differences; then the JSON."""
    of = {name: {row["seed"]: row for row in rows if row["variant"] == name and row["seed"] < seeds} for name in VARIANTS}
    print(f"\ntoy/hilo, {updates} updates, {seeds} seeds; differences to {FULL}, paired, 95 %\n")
    print("| variant | score in the end | difference | score on the way | difference | in the papers |")
    print("| --- | --- | --- | --- | --- | --- |")
    summary: dict[str, Any] = {}
    for name, runs in of.items():
        cells, found = [], {}
        for figure in ("end", "mean"):
            score = statistics.mean(run[figure] for run in runs.values())
            mean, half = interval([runs[seed][figure] - of[FULL][seed][figure] for seed in runs])
            cells += [f"{score:.3f}", "" if name == FULL else f"{mean:+.3f} ± {half:.3f}"]
            found[figure] = {"score": round(score, 4), "difference": round(mean, 4), "half_width": round(half, 4)}
        found["least"] = round(min(run["end"] for run in runs.values()), 4)
        summary[name] = found
        print(f"| {name} | {' | '.join(cells)} | {PAPER.get(name, '')} |")
    learned = {name: summary[name]["least"] >= 0.9 for name in (FULL, "GRPO", "GiGPO", "DAPO", "VAPO")}
    print(json.dumps({"benchmark": "rl_ablation", "variants": summary, "reaches_0.9_on_every_seed": learned}))


if __name__ == "__main__":
    main()

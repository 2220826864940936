"""A training step of SmolLM2 (forward, backward, clipping, AdamW) against PyTorch, and against the matmul peak.

    python benchmarks/rl_step.py [--dtype float32 bfloat16] [--rounds 5]

4 rows of 512 tokens, every token trained, on the same weights: ours is `rl.update.imitation_step`; PyTorch, in a process of its
own, runs transformers' model with its own loss, clips by the global norm and steps AdamW (the fused one). In bfloat16 both keep
float32 weights and moments and pass in bfloat16 (PyTorch by autocast). Rounds alternate. The share of the peak counts 6
operations for each parameter and token and causal attention; what is computed twice counts once. A step is also told in
processor time, of all threads, which other load changes less. Then the parts of our step, and what compiled log-probabilities
with their gradient hold at T and at 4 T, in chunks and with all logits at once. Without the `peers` extra it prints our side
alone. The last line is JSON: ratios and targets.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.cli.runtime import configure_jax
from sides import Run, Side, peer, timed

B, T = 4, 512
LR, WEIGHT_DECAY, CLIP = 1e-5, 0.1, 1.0
TARGETS = {"float32": {"ratio": 1.0, "peak": 0.6}, "bfloat16": {}}  # for bfloat16 the gap is reported


def ready(f: Callable[[], Any]) -> Run:
    """One call, until its result is there."""
    import jax

    return timed(lambda: jax.block_until_ready(f()))


def peak(dtype: str) -> tuple[float, float]:
    """Operations a second of a 2048^3 matmul: by the clock, by processor time."""
    import jax
    import jax.numpy as jnp

    a = jax.random.normal(jax.random.key(0), (2048, 2048)).astype(dtype)
    product = jax.jit(lambda a: jax.lax.dot(a, a, preferred_element_type=jnp.float32))
    product(a).block_until_ready()
    runs = [ready(lambda: product(a)) for _ in range(5)]
    return 2 * 2048**3 / min(run.wall for run in runs), 2 * 2048**3 / min(run.processor for run in runs)


def torch_step(folder: Path, ids: np.ndarray, dtype: str) -> dict[str, Callable[[], float]]:
    """One step of PyTorch, which returns the loss."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    adamw = torch.optim.AdamW(model.parameters(), LR, (0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=True)
    tokens = torch.from_numpy(ids).long()

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        return loss.item()

    return {"PyTorch": step}


class Ours:
    """Our step, which keeps its weights and moments, and its parts alone."""

    def __init__(self, cfg: Any, weights: Any, ids: np.ndarray, dtype: str):
        import jax
        import jax.numpy as jnp

        from jaxllm import logprobs, model, params
        from rl import update
        from rl.config import Algo, Optim

        optim = Optim(actor_lr=LR, warmup=1, weight_decay=WEIGHT_DECAY, clip_norm=CLIP, compute_dtype=dtype)  # type: ignore[arg-type]
        self.setting = update.Setting(cfg, Algo(), optim, 1.0)
        self.weights = jax.tree.map(jnp.copy, weights)
        self.opt = update.optimiser(LR, optim).init(self.weights)
        self.ids = jnp.asarray(ids)
        self.mask = jnp.ones(ids.shape, bool).at[:, 0].set(False)
        compute, tokens = self.setting.compute, self.ids

        def trunk(weights: Any) -> Any:
            return model.forward(compute(weights), cfg, tokens)

        def head(table: Any, hidden: Any) -> Any:
            return -logprobs.token_logprobs(compute(table), hidden[:, :-1], tokens[:, 1:])[0].mean()

        self._trunk = jax.jit(trunk)
        self._pull = jax.jit(lambda weights, along: jax.vjp(trunk, weights)[1](along)[0], compiler_options=update.LEAN)
        self._head = jax.jit(head)
        self._head_grad = jax.jit(jax.grad(head, argnums=(0, 1)), compiler_options=update.LEAN)
        self._hidden = self._trunk(self.weights)
        self._table = {"embed_tokens": {"weight": params.head(self.weights)}}

    def step(self) -> Any:
        """One step; the loss before it."""
        from rl import update

        done = update.imitation_step(self.setting, self.weights, self.opt, self.ids, self.mask)
        self.weights, self.opt = done.params, done.opt
        self._table = {"embed_tokens": self.weights["embed_tokens"]}
        return done.metrics["sft/loss"]

    def parts(self) -> dict[str, Callable[[], Any]]:
        """What the step is made of; each gradient's part has its forward pass in it."""
        return {
            "layers, forward": lambda: self._trunk(self.weights),
            "layers, forward and backward": lambda: self._pull(self.weights, self._hidden),
            "head, forward": lambda: self._head(self._table, self._hidden),
            "head, forward and backward": lambda: self._head_grad(self._table, self._hidden),
        }


def held(cfg: Any, dtype: str) -> dict[str, float]:
    """MB that compiled log-probabilities of T and 4 T tokens with their gradient hold beside inputs and outputs."""
    import jax
    import jax.numpy as jnp

    from jaxllm import logprobs, model

    def chunked(table: Any, hidden: Any, ids: Any) -> Any:
        return logprobs.token_logprobs({"embed_tokens": {"weight": table}}, hidden, ids)[0].sum()

    def at_once(table: Any, hidden: Any, ids: Any) -> Any:
        logits = model.logits({"embed_tokens": {"weight": table}}, hidden)
        return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1).sum()

    result = {}
    for name, loss in (("in chunks", chunked), ("at once", at_once)):
        for rows in (T, 4 * T):
            shapes = (
                jax.ShapeDtypeStruct((cfg.vocab_size, cfg.hidden_size), dtype),
                jax.ShapeDtypeStruct((1, rows, cfg.hidden_size), dtype),
                jax.ShapeDtypeStruct((1, rows), "int32"),
            )
            compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile()
            result[f"{name}, {rows} tokens"] = round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 1)
    return result


def operations(cfg: Any, size: int) -> float:
    """Of one step on ``size`` parameters: 2 forward and 4 backward for each parameter and token, and causal attention."""
    attention = 2 * 2 * B * T * (T + 1) / 2 * cfg.num_attention_heads * cfg.head_dim * cfg.num_hidden_layers
    return 6 * size * B * T + 3 * attention


def compare(checkpoint: Any, folder: Path, dtype: str, rounds: int, with_parts: bool) -> dict[str, Any]:
    """Alternating rounds of both sides in one dtype."""
    import jax.numpy as jnp

    from jaxllm import load, params

    cfg = checkpoint.config
    ids = np.random.default_rng(0).integers(3, 49000, (B, T)).astype(np.int32)
    mine = Ours(cfg, load.load_params(checkpoint, dtype=jnp.float32, stacked=True), ids, dtype)
    with peer(torch_step, folder, ids, dtype) as theirs:
        sides: dict[str, Side] = {"ours": lambda: ready(mine.step), **theirs}
        first = {name: float(step().value) for name, step in sides.items()}
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in first.items())
        print(f"{dtype}: loss before the first step: {losses}", flush=True)
        for step in sides.values():  # once more: arrays that a program made may need another one than those that were loaded
            step()
        if with_parts:
            parts: dict[str, Side] = {name: lambda part=part: ready(part) for name, part in mine.parts().items()}  # type: ignore[misc]
            for part in parts.values():
                part()
            sides |= parts
        runs: dict[str, list[Run]] = {name: [] for name in sides}
        peaks = []
        for _ in range(rounds):
            for name, side in sides.items():
                peaks.append(peak(dtype))
                runs[name].append(side())
    wall = {name: statistics.median(run.wall for run in each) for name, each in runs.items()}
    processor = {name: statistics.median(run.processor for run in each) for name, each in runs.items()}
    by_clock, by_processor = (statistics.median(values) for values in zip(*peaks, strict=True))
    flops = operations(cfg, params.count(cfg))
    print(f"  {flops / 1e12:.2f} TFLOP a step; matmul peak {by_clock / 1e9:,.0f} GFLOP/s")
    for name, each in runs.items():
        spread = f"({min(run.wall for run in each):.2f} to {max(run.wall for run in each):.2f})"
        share = f"  {flops / wall[name] / by_clock:.3f} of the peak" if name in first else ""
        print(f"  {name:30} {wall[name]:7.2f} s {spread}, processors {processor[name]:7.2f} s{share}", flush=True)
    result: dict[str, Any] = {
        "seconds": round(wall["ours"], 3),
        "peak_share": round(flops / wall["ours"] / by_clock, 3),
        "peak_share_processor": round(flops / processor["ours"] / by_processor, 3),
    }
    if theirs:
        result["ratio"] = round(wall["PyTorch"] / wall["ours"], 3)
        result["ratio_processor"] = round(processor["PyTorch"] / processor["ours"], 3)
    else:
        print("  PyTorch and transformers are not installed: no peer (pip install '.[peers]')")
    return {**result, "targets": TARGETS[dtype]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-parts", action="store_true", help="the steps alone")
    arguments = parser.parse_args()
    configure_jax()
    from jaxllm import hub, load

    folder = hub.resolve("smollm2")
    checkpoint = load.open_checkpoint(folder)
    print(f"SmolLM2-135M, {B} x {T} tokens, {os.cpu_count()} cores, medians of {arguments.rounds} alternating rounds")
    results: dict[str, Any] = {"benchmark": "rl_step"}
    for dtype in arguments.dtype:
        results[dtype] = compare(checkpoint, folder, dtype, arguments.rounds, not arguments.no_parts)
    results["held_mb"] = held(checkpoint.config, "float32")
    for name, size in results["held_mb"].items():
        print(f"  log-probabilities and gradient, {name}: {size:,.1f} MB beside inputs and outputs")
    print(json.dumps(results))


if __name__ == "__main__":
    main()

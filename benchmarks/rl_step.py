"""A training step of SmolLM2 (forward, backward, clipping, AdamW) against PyTorch, and against the matmul peak.

    python benchmarks/rl_step.py [--dtype float32 bfloat16] [--rounds 5]

4 rows of 512 tokens, every token trained, on the same weights: ours is `rl.update.imitation_step`; PyTorch runs transformers'
model with its own loss, clips by the global norm and steps AdamW (the fused one). In bfloat16 both keep float32 weights and
moments and pass in bfloat16 (PyTorch by autocast). Rounds alternate. The share of the peak counts 6 operations for each
parameter and token and causal attention; what is computed twice counts once. A step is also told in processor time, of all
threads, which other load changes less. Then the parts of our step, and what compiled log-probabilities with their gradient hold
at T and at 4 T, in chunks and with all logits at once. Without the `peers` extra it prints our side alone. The last line is
JSON: ratios and targets.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.cli.runtime import configure_jax

B, T = 4, 512
LR, WEIGHT_DECAY, CLIP = 1e-5, 0.1, 1.0
TARGETS = {"float32": {"ratio": 1.0, "peak": 0.6}, "bfloat16": {}}  # for bfloat16 the gap is reported


def timed(f: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of one call whose result is ready: of the clock, of all processors."""
    import jax

    clock, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(f())
    return time.perf_counter() - clock, time.process_time() - processor


def peak(dtype: str) -> tuple[float, float]:
    """Operations a second of a 2048^3 matmul: by the clock, by processor time."""
    import jax
    import jax.numpy as jnp

    a = jax.random.normal(jax.random.key(0), (2048, 2048)).astype(dtype)
    product = jax.jit(lambda a: jax.lax.dot(a, a, preferred_element_type=jnp.float32))
    product(a).block_until_ready()
    clock, processor = zip(*(timed(lambda: product(a)) for _ in range(5)), strict=True)
    return 2 * 2048**3 / min(clock), 2 * 2048**3 / min(processor)


def torch_step(folder: Any, ids: np.ndarray, dtype: str) -> Callable[[], float] | None:
    """One step of PyTorch, which returns the loss; None where it is not installed."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
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

    return step


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
        self._pull = jax.jit(lambda weights, along: jax.vjp(trunk, weights)[1](along)[0])
        self._head = jax.jit(head)
        self._head_grad = jax.jit(jax.grad(head, argnums=(0, 1)))
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


def compare(checkpoint: Any, folder: Any, dtype: str, rounds: int, with_parts: bool) -> dict[str, Any]:
    """Alternating rounds of both sides in one dtype."""
    import jax
    import jax.numpy as jnp

    from jaxllm import load, params

    cfg = checkpoint.config
    ids = np.random.default_rng(0).integers(3, 49000, (B, T)).astype(np.int32)
    mine = Ours(cfg, load.load_params(checkpoint, dtype=jnp.float32, stacked=True), ids, dtype)
    sides: dict[str, Callable[[], Any]] = {"ours": mine.step}
    peer = torch_step(folder, ids, dtype)
    if peer is not None:
        sides["PyTorch"] = peer
    first = {name: float(step()) for name, step in sides.items()}
    print(
        f"{dtype}: loss before the first step: " + ", ".join(f"{name} {loss:.4f}" for name, loss in first.items()), flush=True
    )
    for step in sides.values():  # once more: arrays that a program made may need another one than those that were loaded
        step()
    if with_parts:
        sides |= mine.parts()
        for part in mine.parts().values():
            jax.block_until_ready(part())
    clock: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    peaks = []
    for _ in range(rounds):
        for name, side in sides.items():
            peaks.append(peak(dtype))
            one = timed(side)
            clock[name].append(one[0])
            processor[name].append(one[1])
    by_clock, by_processor = (statistics.median(values) for values in zip(*peaks, strict=True))
    flops = operations(cfg, params.count(cfg))
    print(f"  {flops / 1e12:.2f} TFLOP a step; matmul peak {by_clock / 1e9:,.0f} GFLOP/s")
    for name in sides:
        mid, work = statistics.median(clock[name]), statistics.median(processor[name])
        print(f"  {name:30} {mid:7.2f} s ({min(clock[name]):.2f} to {max(clock[name]):.2f}), processors {work:7.2f} s", end="")
        print(f"  {flops / mid / by_clock:.3f} of the peak" if name in ("ours", "PyTorch") else "", flush=True)
    result: dict[str, Any] = {
        "seconds": round(statistics.median(clock["ours"]), 3),
        "peak_share": round(flops / statistics.median(clock["ours"]) / by_clock, 3),
        "peak_share_processor": round(flops / statistics.median(processor["ours"]) / by_processor, 3),
    }
    if peer is not None:
        result["ratio"] = round(statistics.median(clock["PyTorch"]) / statistics.median(clock["ours"]), 3)
        result["ratio_processor"] = round(statistics.median(processor["PyTorch"]) / statistics.median(processor["ours"]), 3)
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

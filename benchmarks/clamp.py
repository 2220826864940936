"""The cost of clamps on SmolLM2, and a sweep of one neuron's values against one call per point and against TransformerLens.

Decode: the same prompts with and without one clamp, in alternating rounds. Sweep: 9 values x 16 prompts x 4 neurons (one and
three controls), next-token distributions. Ours is `interp.effects`: one batch, which goes once through the layers below the
clamp. One by one is one prompt and one clamp per call of one compiled forward pass; a sample of the points is timed and scaled
up. TransformerLens holds the same neuron of the same weights by a hook on the up-projection's output, all prompts of a value
and neuron in one batch, the head on the last position only. All sides compute in float32 on all cores, in one process, in
alternating rounds.

    python benchmarks/clamp.py [--parts decode sweep]

Without the `peers` extra it prints its own side alone. The last line is JSON: the ratios and their targets.
"""

import argparse
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.cli.runtime import configure_jax

PROMPT, NEW, ROUNDS = 64, 32, 5
DECODE_TARGET, ONE_BY_ONE_TARGET, PEER_TARGET, LOGITS_TARGET = 0.95, 10.0, 3.0, 1e-3
VALUES = np.linspace(-100, 100, 9).tolist()
NEURONS = [(29, 1342), (29, 17), (29, 403), (29, 911)]  # one and three controls
PROMPTS = 16
SAMPLE = 36  # points that are run one by one
SWEEP_ROUNDS = 3


def alternate(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each side, after one unmeasured round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def decode(checkpoint: Any, dtype: str, B: int) -> dict[str, float]:
    """Milliseconds per decode step, plain and with one clamp."""
    import jax
    import jax.numpy as jnp

    from jaxllm import generate, load
    from jaxllm.clamp import NeuronClamp, make_clamp

    cfg, weights = checkpoint.config, load.load_params(checkpoint, dtype=jnp.dtype(dtype))
    prompts = np.random.default_rng(0).integers(3, 49000, (B, PROMPT)).tolist()
    clamp = make_clamp(cfg, [NeuronClamp(29, 1342, -10.0)])
    seconds: dict[str, list[float]] = {"plain": [], "clamped": []}
    for i in range(ROUNDS + 1):
        for name, here in (("plain", None), ("clamped", clamp)):
            state, stops = generate.start(weights, cfg, prompts, max_tokens=NEW, clamp=here)
            jax.block_until_ready(state)
            start = time.perf_counter()
            jax.block_until_ready(generate.decode(weights, cfg, state, stops, NEW, clamp=here))
            if i:
                seconds[name].append(time.perf_counter() - start)
    plain, clamped = (1e3 * statistics.median(values) / (NEW - 1) for values in seconds.values())
    return {"ratio": plain / clamped, "target": DECODE_TARGET, "plain_ms": plain, "clamped_ms": clamped}


def texts(checkpoint: Any) -> np.ndarray:
    """Sixteen prompts of eight tokens."""
    words = ("water", "dogs", "music", "a city", "the sea", "bread", "a house", "snow")
    starts = ("My favourite thing in the world is", "I think that the story of")
    tok = checkpoint.tokenizer()
    rows = [tok.encode(f"{start} {word} and the", bos=False)[:8] for start in starts for word in words]
    assert [len(row) for row in rows] == [8] * PROMPTS
    return np.array(rows, np.int32)


def sweep(checkpoint: Any) -> dict[str, float]:
    """Seconds of the sweep as one batch, one by one, and with the peer; and how far the peer's logits are."""
    import jax

    from interp.effects import effects
    from jaxllm import load, model
    from jaxllm.clamp import NeuronClamp, make_clamp

    cfg, weights, tokens = checkpoint.config, load.load_params(checkpoint), texts(checkpoint)
    points = [(neuron, value) for neuron in NEURONS for value in VALUES]
    rows = [(prompt, [NeuronClamp(*neuron, value)]) for neuron, value in points for prompt in range(PROMPTS)]
    concept = checkpoint.tokenizer().encode(" water", bos=False)

    @jax.jit
    def next_logits(weights: Any, tokens: Any, clamp: Any) -> jax.Array:
        return model.logits(weights, model.forward(weights, cfg, tokens, clamp=clamp)[:, -1])

    def batch() -> None:
        effects(weights, cfg, tokens.tolist(), rows, concept)

    chosen = np.linspace(0, len(points) * PROMPTS - 1, SAMPLE).astype(int).tolist()

    def one_by_one() -> None:
        for i in chosen:
            prompt, clamps = rows[i]
            np.asarray(next_logits(weights, tokens[prompt][None], make_clamp(cfg, clamps)))

    sides: dict[str, Callable[[], Any]] = {"batch": batch, "one_by_one": one_by_one}
    peer = load_peer(checkpoint.path)
    if peer is not None:
        sides["peer"] = functools.partial(theirs, peer, tokens, points)
    seconds = alternate(sides, SWEEP_ROUNDS)
    all_one_by_one = seconds["one_by_one"] * len(points) * PROMPTS / SAMPLE
    result = {
        "one_by_one_ratio": all_one_by_one / seconds["batch"],
        "one_by_one_target": ONE_BY_ONE_TARGET,
        "batch_s": seconds["batch"],
        "one_by_one_s": all_one_by_one,
    }
    if peer is not None:
        some = points[:: len(VALUES) - 1]
        ours = [next_logits(weights, tokens, make_clamp(cfg, [NeuronClamp(*neuron, value)])) for neuron, value in some]
        difference = float(np.abs(theirs(peer, tokens, some) - np.concatenate(ours)).max())
        result |= {
            "peer_ratio": seconds["peer"] / seconds["batch"],
            "peer_target": PEER_TARGET,
            "peer_s": seconds["peer"],
            "logits_difference": difference,
            "logits_target": LOGITS_TARGET,
        }
    return result


def load_peer(folder: Any) -> Any:
    """The checkpoint as TransformerLens's bridge, its weights unprocessed; None where it is not installed."""
    try:
        import torch
        import transformers
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError:
        return None

    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    return TransformerBridge.boot_transformers(str(folder), hf_model=hf, dtype=torch.float32, device="cpu")


def theirs(peer: Any, tokens: np.ndarray, points: list[tuple[tuple[int, int], float]]) -> np.ndarray:
    """Next-token logits ``[points * prompts, V]``: a batch of prompts for each point, with a hook on the up projection."""
    import torch

    out = []
    with torch.inference_mode():
        prompts = torch.tensor(tokens, dtype=torch.int64)
        for (layer, neuron), value in points:

            def hold(up: Any, hook: Any, neuron: int = neuron, value: float = value) -> Any:
                up[..., neuron] = value
                return up

            with peer.hooks(fwd_hooks=[(f"blocks.{layer}.mlp.in.hook_out", hold)]):
                out.append(peer(prompts, logits_to_keep=1)[:, -1].numpy())
    return np.concatenate(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["decode", "sweep"], choices=["decode", "sweep"])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    args = parser.parse_args()
    configure_jax()
    from jaxllm import hub, load

    checkpoint = load.open_checkpoint(hub.resolve("smollm2"))
    results: dict[str, dict[str, float]] = {}
    print(f"SmolLM2-135M, {os.cpu_count()} cores, medians of alternating rounds")
    if "decode" in args.parts:
        print(f"{'dtype':10}{'batch':>6}{'plain ms/step':>15}{'clamped':>9}{'ratio':>7}{'target':>8}")
        for dtype in args.dtype:
            for B in args.batch:
                r = results[f"decode {dtype} batch {B}"] = decode(checkpoint, dtype, B)
                print(f"{dtype:10}{B:6d}{r['plain_ms']:15.1f}{r['clamped_ms']:9.1f}{r['ratio']:7.2f}{DECODE_TARGET:8.2f}")
    if "sweep" in args.parts:
        r = results["sweep"] = sweep(checkpoint)
        print(f"sweep of {len(VALUES)} values x {PROMPTS} prompts x {len(NEURONS)} neurons, next-token distributions, float32")
        print(f"one batch {r['batch_s']:8.2f} s")
        print(f"one by one{r['one_by_one_s']:8.2f} s, ratio {r['one_by_one_ratio']:.1f}, target {ONE_BY_ONE_TARGET:.0f}")
        if "peer_s" in r:
            print(f"hooks     {r['peer_s']:8.2f} s, ratio {r['peer_ratio']:.1f}, target {PEER_TARGET:.0f}")
            print(f"largest difference of a logit {r['logits_difference']:.1e}, target {LOGITS_TARGET:.0e}")
        else:
            print("transformer_lens is not installed: no peer (pip install '.[peers]')")
    print(json.dumps({name: {k: v for k, v in r.items() if not math.isnan(v)} for name, r in results.items()}))


if __name__ == "__main__":
    main()

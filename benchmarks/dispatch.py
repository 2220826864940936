"""What a call of a compiled step of the 8B tree costs the host: plain dict, NNX State, and nnx.jit side by side.

Every one of the 291 leaves is shrunk to a few numbers, so that the call is all there is. The step merges the parameters with
the model's definition and touches each leaf, in all variants alike.

    python benchmarks/dispatch.py
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm import model, params
from jaxllm.config import PRESETS

TARGET_MS = 0.5
CFG = PRESETS["llama-3.1-8b"]


def touch(llama: nnx.Module, x: jax.Array) -> jax.Array:
    """A result that depends on every parameter of the merged model."""
    leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state(llama)))
    return x + sum(leaf.reshape(-1)[0] for leaf in leaves)


def milliseconds(call: Callable[[], Any], calls: int) -> float:
    """Median over 7 rounds of the host's time per call, without waiting for the result within a round."""
    jax.block_until_ready(call())
    rounds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(calls):
            out = call()
        rounds.append((time.perf_counter() - start) / calls * 1e3)
        jax.block_until_ready(out)
    return statistics.median(rounds)


def main() -> None:
    tree = params.build(CFG, lambda _, spec: jnp.ones((1,) * len(spec.shape)))
    definition = model.definition(CFG)
    llama = nnx.merge(definition, tree)
    state = nnx.state(llama)
    x = jnp.zeros(())

    plain = jax.jit(lambda tree, x: touch(nnx.merge(definition, tree), x))
    with_state = jax.jit(lambda state, x: touch(nnx.merge(definition, state), x))
    module = nnx.jit(touch)
    table = {
        "plain dict, merged inside": milliseconds(lambda: plain(tree, x), 200),
        "nnx.State, merged inside": milliseconds(lambda: with_state(state, x), 50),
        "nnx.jit of the module": milliseconds(lambda: module(llama, x), 5),
    }
    leaves = len(jax.tree.leaves(tree))
    print(f"host time per call, {leaves} leaves, JAX {jax.__version__}")
    for name, ms in table.items():
        print(f"  {name:28s} {ms:9.3f} ms")
    best = table["plain dict, merged inside"]
    print(json.dumps({"leaves": leaves, "ms": table, "target_ms": TARGET_MS, "met": best <= TARGET_MS}))


if __name__ == "__main__":
    main()

"""The steps of RL at the size of Llama 3.1 8B, compiled ahead of time for TPUs that are not there: memory of each chip.

    python benchmarks/tpu_compile.py                                   every case, every step; v5e:2x4 is refused
    python benchmarks/tpu_compile.py --topology v5e:8x8 --step decode  one of them

Needs libtpu (the `tpu` extra) and no TPU. What is compiled is what a training run calls, on the mesh and by the rules of
`jaxllm.sharding`: log-probabilities and values of a batch (`score`), a step of the policy and one of the critic (bfloat16
passes over float32 weights and moments, layers recomputed), and sampling (bfloat16, caches of all slots). On one chip of a v5p
adapters of one model in bfloat16 are trained, the policy's and the critic's. A step's total is all that rests on a chip during
training (what is trained with its moments, the model that is adapted, the sampler's weights and caches), and what the step
itself needs beside it. On v5e:2x4 the compiler has to refuse the policy's step. The last line is JSON.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import sys
import time
from typing import Any
from unittest import mock

PRESET = "llama-3.1-8b"
STEPS = ("score", "policy", "critic", "decode")


@dataclasses.dataclass(frozen=True)
class Case:
    """A topology, or the first of its chips: the mesh, and how much is trained and sampled at a time."""

    fsdp: int
    tensor: int
    hbm_gib: float  # memory of a chip as the compiler counts it
    rows: int  # of a mini-batch, each of `tokens`
    tokens: int
    micro_batches: int
    slots: int  # sessions of the sampler, each with a cache of `tokens`
    fits: bool = True
    lora: int = 0  # rank of the adapters that are trained; 0 for all weights
    topology: str = ""  # where the name is not that


CASES = {
    "v5p:2x2x4": Case(fsdp=4, tensor=4, hbm_gib=95.74, rows=64, tokens=4096, micro_batches=4, slots=64),
    "v5e:8x8": Case(fsdp=16, tensor=4, hbm_gib=15.75, rows=64, tokens=4096, micro_batches=4, slots=64),
    "v5p:1": Case(1, 1, 95.74, rows=16, tokens=4096, micro_batches=16, slots=16, lora=16, topology="v5p:2x2x1"),
    "v5e:2x4": Case(fsdp=2, tensor=4, hbm_gib=15.75, rows=8, tokens=2048, micro_batches=4, slots=8, fits=False),
}


def on_chip(tree: Any) -> int:
    """Bytes of a tree of placed abstract arrays on one chip."""
    import jax
    import jax.numpy as jnp

    def size(leaf: Any) -> int:
        width = jnp.dtype(leaf.dtype).itemsize if jnp.issubdtype(leaf.dtype, jnp.number) else 1
        return math.prod(leaf.sharding.shard_shape(leaf.shape)) * width

    return sum(map(size, jax.tree.leaves(tree)))


class Run:
    """All that a training run holds, as abstract arrays on a mesh, and its steps."""

    def __init__(self, cfg: Any, mesh: Any, case: Case):
        import jax
        import jax.numpy as jnp

        from jaxllm import params, sharding
        from rl import critic, lora, placement, slots, update
        from rl.config import Algo, Optim

        def placed(tree: Any, places: Any) -> Any:
            return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places)

        def weights(dtype: Any, stacked: bool) -> Any:
            return placed(params.abstract(cfg, dtype, stacked=stacked), sharding.shardings(cfg, mesh, stacked=stacked))

        def moments(lr: float, moved: Any) -> Any:
            opt = jax.eval_shape(update.optimiser(lr, optim).init, moved)
            return placed(opt, placement.placements(opt, cfg, mesh))

        optim = Optim(micro_batches=case.micro_batches, compute_dtype="bfloat16", remat=True)
        small, base = lora.Lora(case.lora) if case.lora else None, None
        if small:
            base = weights(jnp.bfloat16, stacked=True)
            policy = jax.eval_shape(lambda: lora.init(jax.random.key(0), cfg, small, stacked=True))
            policy = placed(policy, placement.placements(policy, cfg, mesh))
        else:
            policy = weights(jnp.float32, stacked=True)
        judge = jax.eval_shape(lambda trunk: critic.init(cfg, trunk=trunk), policy)
        judge = placed(judge, placement.placements(judge, cfg, mesh))
        self.setting = update.Setting(cfg, Algo(), optim, 1.0, mesh, small)
        opts = moments(optim.actor_lr, policy), moments(optim.critic_lr, judge)
        self.state = update.TrainState(policy, judge, *opts, None, base)
        self.served = weights(jnp.bfloat16, stacked=False)
        if small:
            adapted = jax.eval_shape(lambda served, a: lora.beside(served, params.unstack(a), small), self.served, policy)
            self.served = placed(adapted, jax.tree.map(lambda _: jax.NamedSharding(mesh, jax.P()), adapted))
        seed = jax.eval_shape(lambda: jax.random.key(0))
        held = jax.eval_shape(lambda seed: slots.blank(cfg, seed, case.slots, case.tokens, jnp.bfloat16), seed)
        self.slots = placed(held, slots.placements(held, mesh))
        self.shape = case.rows, case.tokens

    def resident(self) -> int:
        """Bytes that rest on each chip between steps."""
        return on_chip((self.state, self.served, self.slots))

    def lower(self, step: str) -> tuple[Any, int]:
        """A step, lowered as a training run calls it, and the bytes of its arguments that rest on the chip anyway."""
        import jax
        import jax.numpy as jnp

        from rl import slots, update

        setting, state = self.setting, self.state
        where = jax.NamedSharding(setting.mesh, jax.P())

        def of(dtype: Any, *shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

        B, T = self.shape
        ids, f = of(jnp.int32, B, T), of(jnp.float32, B, T)
        aims = update.Targets(f, f, f, f, f, f, of(jnp.bool_, B, T), of(jnp.bool_, B))
        if step == "score":
            return update.score.lower(setting, state, ids), on_chip((state.policy, state.critic, state.base))
        if step == "policy":
            held = state.policy, state.policy_opt
            return update.policy_step.lower(setting, *held, ids, of(jnp.int32, B), aims, state.base), on_chip(
                (held, state.base)
            )
        if step == "critic":
            held = state.critic, state.critic_opt
            return update.critic_step.lower(setting, *held, ids, aims, None, state.base), on_chip((held, state.base))
        held = self.served, self.slots
        options: dict[str, Any] = {"steps": 16, "span": T, "mesh": setting.mesh}
        return slots.sample.lower(held[0], setting.cfg, held[1], of(jnp.int32), None, **options), on_chip(held)


def gathered(program: str) -> tuple[int, str]:
    """The largest array that a chip puts together from others' parts: bytes and shape."""
    sizes = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1}
    largest = (0, "none")
    for result in re.findall(r"= (.{0,400}?) all-gather(?:-start)?\(", program):
        for kind, shape in re.findall(r"(f32|bf16|s32|u32|pred)\[([\d,]*)\]", result):
            count = math.prod(int(n) for n in shape.split(",") if n) * sizes[kind]
            largest = max(largest, (count, f"{kind}[{shape}]"))
    return largest


def refusal(error: Exception) -> str:
    """What the compiler says of the memory that it lacks, in one line."""
    text = str(error)
    found = re.search(r"Used .*? of .*? hbm\..*?\.(?=\s)|Ran out of memory[^\n]*", text, re.S)
    return " ".join((found.group() if found else text.splitlines()[0]).split())


def compile_step(run: Run, step: str, hbm: float) -> dict[str, Any]:
    """Compiles a step and prints what it takes of a chip; a refusal is a result too."""
    import jax

    begun = time.perf_counter()
    with mock.patch("jax.default_backend", return_value="tpu"):  # the model is written for the backend that is there
        lowered, held = run.lower(step)
    traced = time.perf_counter() - begun
    print(f"  {step:7} traced in {traced:.0f} s, compiling ...", flush=True)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"  {step:7} REFUSED after {time.perf_counter() - begun:.0f} s: {refusal(error)}", flush=True)
        return {"refused": refusal(error)}
    memory = compiled.memory_analysis()
    beside = memory.output_size_in_bytes - memory.alias_size_in_bytes
    total = run.resident() + memory.argument_size_in_bytes - held + memory.temp_size_in_bytes + beside
    size, shape = gathered(compiled.as_text())
    seconds = time.perf_counter() - begun
    gib = {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "outputs": beside,
        "total": total,
        "largest_gathered": size,
    }
    result = {name: round(value / 2**30, 3) for name, value in gib.items()}
    print(
        f"  {step:7} arguments {result['arguments']:6.2f}  temporaries {result['temporaries']:6.2f}  outputs beside them "
        f"{result['outputs']:5.2f}  total {result['total']:6.2f} of {hbm} GiB ({result['total'] / hbm:.0%}); "
        f"largest gathered {shape}, {result['largest_gathered']:.2f} GiB; {seconds:.0f} s",
        flush=True,
    )
    return {**result, "seconds": round(seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--step", nargs="+", choices=STEPS, help="default: all; where it can't fit, the policy's")
    parser.add_argument("--layers", type=int, help="of the model; fewer for a quick look")
    arguments = parser.parse_args()
    # Nobody is there to be asked what machine this is.
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import importlib.util

    if importlib.util.find_spec("libtpu") is None:
        parser.error("libtpu is not installed: pip install '.[tpu]'")
    from jax.experimental import topologies

    from jaxllm.config import PRESETS
    from jaxllm.sharding import make_mesh

    cfg = PRESETS[PRESET]
    if arguments.layers:
        cfg = dataclasses.replace(cfg, num_hidden_layers=arguments.layers)
    results: dict[str, Any] = {"benchmark": "tpu_compile", "unit": "GiB of a chip"}
    good = True
    for name in arguments.topology:
        case = CASES[name]
        devices = topologies.get_topology_desc(platform="tpu", topology_name=case.topology or name).devices
        devices = devices[: case.fsdp * case.tensor]
        run = Run(cfg, make_mesh(fsdp=case.fsdp, tensor=case.tensor, devices=devices), case)
        print(
            f"{name}: {len(devices)} chips of {case.hbm_gib} GiB, fsdp {case.fsdp} x tensor {case.tensor}; {case.rows} rows of "
            f"{case.tokens} tokens in {case.micro_batches} micro-batches, {case.slots} slots; at rest "
            f"{run.resident() / 2**30:.2f} GiB on each chip",
            flush=True,
        )
        results[name] = {"hbm": case.hbm_gib, "resident": round(run.resident() / 2**30, 3), "expected": case.fits}
        for step in arguments.step or (STEPS if case.fits else ("policy",)):
            found = results[name][step] = compile_step(run, step, case.hbm_gib)
            good &= case.fits == ("total" in found and found["total"] <= case.hbm_gib)
    print(json.dumps({**results, "as_expected": good}))
    return not good


if __name__ == "__main__":
    sys.exit(main())

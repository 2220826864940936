"""A run that is killed while it saves goes on from its last whole checkpoint as if nothing had happened."""

import signal
import subprocess
import sys
from pathlib import Path

import chex
import jax
import numpy as np

from jaxllm import load, params
from jaxllm.config import Config
from jaxllm.logprobs import sequence_logprobs
from jaxllm.sharding import make_mesh, shardings

ROOT = Path(__file__).parents[2]
CFG = Config(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=32,
    max_position_embeddings=64,
)
TOKENS = np.random.default_rng(0).integers(0, 32, (4, 12)).astype(np.int32)
STEPS, KILLED_AT = 3, 1


@jax.jit
def descend(tree: params.Params) -> params.Params:
    """One step down the gradient of the mean negative log-probability."""

    def loss(tree: params.Params) -> jax.Array:
        return -sequence_logprobs(tree, CFG, TOKENS)[0].mean()

    return jax.tree.map(lambda weight, slope: weight - 0.3 * slope, tree, jax.grad(loss)(tree))


def begin() -> params.Params:
    tree = jax.jit(lambda key: params.stack(params.init(key, CFG)))(jax.random.key(0))
    return jax.device_put(tree, shardings(CFG, make_mesh(fsdp=2, devices=jax.devices()[:2]), stacked=True))


CHILD = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 8)
sys.path.insert(0, "tests/jaxllm")
import test_resume as run
from jaxllm.checkpoint import save_checkpoint
signal.alarm(100)
tree = run.begin()
for step in range(run.STEPS):
    tree = run.descend(tree)
    if step == run.KILLED_AT:  # the arrays are written, the folder has not its name yet
        Path.write_text = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    save_checkpoint(tree, run.CFG, Path(sys.argv[1]) / str(step))
"""


def test_save_kill_resume_equals_an_unbroken_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert whole == [0]  # nothing half-written has the name of a checkpoint

    states = [begin()]
    for _ in range(STEPS):
        states.append(descend(states[-1]))
    last = load.open_checkpoint(tmp_path / "0")
    resumed = load.load_params(last, mesh=make_mesh(fsdp=2, devices=jax.devices()[:2]), stacked=True)
    for state in states[KILLED_AT:]:
        chex.assert_trees_all_equal(resumed, state)
        resumed = descend(resumed)

    alone = load.load_params(last, mesh=make_mesh(devices=jax.devices()[5:6]), stacked=True)
    chex.assert_trees_all_equal(alone, states[KILLED_AT])
    for state in states[KILLED_AT:]:  # one device adds in another order
        chex.assert_trees_all_close(jax.device_get(alone), jax.device_get(state), rtol=1e-5, atol=1e-6)
        alone = descend(alone)
    assert np.abs(states[-1]["norm"]["weight"] - states[KILLED_AT]["norm"]["weight"]).max() > 1e-3  # the steps do something

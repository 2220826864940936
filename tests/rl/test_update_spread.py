"""An update is the same on one device, on many, and in two processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import small_update

from jaxllm import sharding
from rl import placement

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def alone():
    """State and figures after an update on one device, without a mesh."""
    how = small_update.setting()
    state, figures = small_update.run(how, small_update.begin(how), small_update.batch())
    assert figures["ppo/grad_norm"] > 0.01
    assert figures["critic/grad_norm"] > 0.01
    return jax.device_get(state), figures


def assert_close(state, figures, alone) -> None:
    """The weights are compared by their gradients, which the first moments are: Adam's first step is near to a sign."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(alone[0]), strict=True):
        name = jax.tree_util.keystr(path)
        if "opt" in name:
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7, err_msg=name)
    assert figures == pytest.approx(alone[1], rel=1e-4, abs=1e-6)


# The slow ones have each axis alone, and no mesh; all axes together need what they need.
ALONE = [pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))]


@pytest.mark.parametrize("sizes", [*ALONE, (2, 2, 2)])
def test_a_mesh_changes_nothing(sizes, alone):
    mesh = sharding.make_mesh(*sizes)
    how = small_update.setting(mesh, micro_batches=2)  # as if the batch were cut, too
    state = small_update.begin(how)
    places = [leaf.sharding for leaf in jax.tree.leaves(state)]
    after, figures = small_update.run(how, state, small_update.batch())
    assert_close(after, figures, alone)
    now = jax.tree.leaves(after)
    assert all(leaf.sharding.is_equivalent_to(place, leaf.ndim) for leaf, place in zip(now, places, strict=True))
    assert state.policy["embed_tokens"]["weight"].is_deleted()  # its memory was used again
    split = after.policy_opt[1][0].mu["layers"]["mlp"]["up_proj"]["weight"]
    assert split.addressable_shards[0].data.size == split.size // (sizes[1] * sizes[2])


@pytest.mark.slow  # all axes above have two of them; test_update.py has the policy's step alone
@pytest.mark.parametrize("count", [2, 4])
def test_micro_batches_change_nothing(count, alone):
    how = small_update.setting(micro_batches=count)
    assert_close(*small_update.run(how, small_update.begin(how), small_update.batch()), alone)


def test_means_of_parts_would_change_it(alone):
    """Of two shards with 6 and 40 policy tokens: what averaging each one's mean would give, and what counting gives."""
    how, host = small_update.setting(), small_update.batch()
    counts, parts = [], []
    for shard in (np.arange(16) < 8, np.arange(16) >= 8):
        state, _ = small_update.run(how, small_update.begin(how), host, keep=shard)
        parts.append(state.policy_opt[1][0].mu["embed_tokens"]["weight"])
        counts.append(host.mask[shard].sum())
    assert counts == [6, 40]
    expected = alone[0].policy_opt[1][0].mu["embed_tokens"]["weight"]
    assert np.abs((parts[0] + parts[1]) / 2 - expected).max() > 0.2 * np.abs(expected).max()


def test_a_state_has_its_place_by_the_table_of_the_parameters():
    how = small_update.setting()
    state = small_update.begin(how)
    mesh = sharding.make_mesh(1, 2, 2)
    places = placement.placements(state, small_update.CFG, mesh)
    expected = sharding.shardings(small_update.CFG, mesh, stacked=True)
    for tree in (places.policy, places.critic["trunk"], places.policy_opt[1][0].mu, places.critic_opt[1][0].nu["trunk"]):
        same = jax.tree.map(lambda a, b: a.is_equivalent_to(b, 3), tree, expected)
        assert all(jax.tree.leaves(same))
    assert places.critic["head"]["weight"].is_fully_replicated
    assert places.policy_opt[1][0].count.is_fully_replicated
    assert placement.rows(mesh) == 2
    assert placement.rows(None) == 1


def test_weights_move_between_meshes_in_one_call(monkeypatch: pytest.MonkeyPatch):
    state = small_update.begin(small_update.setting())
    expected = jax.device_get(state)
    calls, former = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda *found: calls.append(1) or former(*found))
    for number, sizes in enumerate([(8, 1, 1), (1, 2, 2), (2, 1, 2), (1, 1, 1)], 1):
        state = placement.put(state, small_update.CFG, sharding.make_mesh(*sizes))
        assert len(calls) == number  # of the whole tree, not of each leaf
        jax.tree.map(np.testing.assert_array_equal, state, expected)
    state = placement.put(jax.device_get(state), small_update.CFG, None)  # by way of the host
    jax.tree.map(np.testing.assert_array_equal, state, expected)


CHILD = """
import signal, sys
import jax
rank, port, file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
signal.alarm(280)
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_disable_most_optimizations", True)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
sys.path.insert(0, "tests/rl")
import numpy as np
import small_update
from jaxllm import sharding
assert (len(jax.devices()), jax.process_count()) == (4, 2)
mesh = sharding.make_mesh(data=2, fsdp=2)
rows = jax.NamedSharding(mesh, jax.P(("data", "fsdp")))

def place(column):
    own = np.asarray(column)[8 * rank : 8 * rank + 8]  # a process knows the tokens of its own rows alone
    return jax.make_array_from_process_local_data(rows, own)

how = small_update.setting(mesh, micro_batches=2)
state, figures = small_update.run(how, small_update.begin(how), small_update.batch(), place)
with np.load(file) as expected:
    for name, value in figures.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    compared = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path((state.policy_opt, state.critic_opt)):
        name = jax.tree_util.keystr(path)
        for shard in leaf.addressable_shards:
            np.testing.assert_allclose(shard.data, expected[name][shard.index], rtol=1e-3, atol=1e-7, err_msg=name)
            compared += 1
assert compared > 100
print("equal")
"""


def test_two_processes_do_what_one_does(alone, tmp_path: Path):
    state, figures = alone
    named = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path((state.policy_opt, state.critic_opt))}
    np.savez(tmp_path / "alone.npz", **named, **figures)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    arguments = [[sys.executable, "-c", CHILD, str(rank), port, tmp_path / "alone.npz"] for rank in range(2)]
    children = [subprocess.Popen(one, **options) for one in arguments]
    try:
        for child in children:
            out, err = child.communicate(timeout=280)
            assert child.returncode == 0, err
            assert out.split()[-1] == "equal"  # after what the library of collectives has to say
    finally:
        for child in children:
            child.kill()
            child.wait()

"""The training step of Llama 3.1 8B, from shapes alone: nothing large is whole on a device, and no table of logits exists."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxllm import logprobs, model, params, sharding
from jaxllm.config import PRESETS
from rl import placement, slots, update
from rl.config import Algo, Optim

CFG = PRESETS["llama-3.1-8b"]
B, T, MICRO = 16, 1024, 2
DEVICES = 8
LARGE = 1 << 20  # elements
MATRICES = 9  # seven of a block, the embedding, the head


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(fsdp=2, tensor=4)


def state(mesh):
    """Weights and moments of the policy as abstract arrays in their places."""
    weights = params.abstract(CFG, stacked=True)
    held = weights, jax.eval_shape(update.optimiser(1e-6, Optim()).init, weights)
    places = placement.placements(held, CFG, mesh)
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), held, places)


def large_parts(tree):
    """Of each large array: the share of it that is on one device."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size > LARGE]
    return [math.prod(leaf.sharding.shard_shape(leaf.shape)) / leaf.size for leaf in leaves]


def shapes(jaxpr):
    """Shapes of all that a program computes, also in its inner programs."""
    found = set()
    for equation in jaxpr.eqns:
        found |= {var.aval.shape for var in equation.outvars if hasattr(var.aval, "shape")}
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found |= shapes(inner)
    return found


@pytest.fixture(scope="module")
def traced(mesh):
    """The policy's step as the trainer calls it, not compiled."""
    optim = Optim(micro_batches=MICRO, compute_dtype="bfloat16", remat=True)
    setting = update.Setting(CFG, Algo(), optim, 1.0, mesh)

    def of(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    number = of(jnp.float32, B, T)
    aims = update.Targets(*[number] * 6, of(jnp.bool_, B, T), of(jnp.bool_, B))
    return update.policy_step.trace(setting, *state(mesh), of(jnp.int32, B, T), of(jnp.int32, B), aims)


def test_every_large_array_of_the_state_is_split_over_all_devices(mesh):
    assert large_parts(state(mesh)) == [1 / DEVICES] * 3 * MATRICES  # weights and two moments


def test_a_rule_that_leaves_an_axis_whole_is_noticed(mesh, monkeypatch):
    monkeypatch.setitem(sharding.RULES, "mlp", None)
    assert large_parts(state(mesh)).count(1 / 2) == 3 * 3  # gate, up and down are split by fsdp alone


def test_the_step_lowers_with_these_placements(traced):
    text = traced.lower().as_text()
    signature = text[text.index("@main(") :].split("\n", 1)[0]
    arguments, _ = signature.split(" -> (")
    large = [part for part in arguments.split("%arg") if "32x14336x4096xf32" in part or "128256x4096xf32" in part]
    assert len(large) == 3 * 4  # gate, up, embedding and head, with two moments each
    assert all('"fsdp"' in part and '"tensor"' in part for part in large)


def test_the_step_makes_neither_tables_of_logits_nor_whole_attention(traced):
    V, H, rows = CFG.vocab_size, CFG.num_attention_heads, B // MICRO
    weights = {spec.shape for spec in params.table(CFG, stacked=True).values()}
    others = {shape for shape in shapes(traced.jaxpr.jaxpr) if shape not in weights and shape[1:] not in weights}
    tables = [shape for shape in others if shape[-1:] == (V,)]
    assert tables
    assert max(map(math.prod, tables)) <= 2 * logprobs.CHUNK * V  # the batch is split over two
    squares = [
        shape
        for shape in others
        if len(shape) > 2 and shape[-1] == T and shape[-2] <= T and H in (shape[1], math.prod(shape[1:3]))
    ]
    assert max(map(math.prod, squares)) <= rows * H * T * T // 8


def test_caches_are_made_where_they_stay(mesh):
    small = PRESETS["smollm2-135m"].__class__(**{**vars(CFG), "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 4})
    made = slots.blank(small, jax.random.key(0), 8, 16, jnp.float32, mesh)
    shard = made.cache.k[0].addressable_shards[0].data.shape
    assert shard == (4, 2, 16, 4)  # 8 slots over fsdp, 8 heads over tensor


def held(loss, rows, V=4096, D=32):
    """Bytes that the compiled gradient of a loss of ``rows`` tokens needs beside its arguments and results."""
    table, hidden = jax.ShapeDtypeStruct((V, D), "float32"), jax.ShapeDtypeStruct((1, rows, D), "float32")
    step = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return step.lower(table, hidden, jax.ShapeDtypeStruct((1, rows), "int32")).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_hidden_states_and_not_with_logits():
    few, many, V, D = 512, 2048, 4096, 32

    def chunked(table, hidden, ids):
        return logprobs.token_logprobs({"embed_tokens": {"weight": table}}, hidden, ids)[0].sum()

    def at_once(table, hidden, ids):
        logits = model.logits({"embed_tokens": {"weight": table}}, hidden)
        return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1).sum()

    more = 4 * (many - few)
    assert held(chunked, many) - held(chunked, few) <= 8 * more * D
    assert held(at_once, many) - held(at_once, few) >= more * V

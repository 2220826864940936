"""The forward pass: against a float64 reference, in both forms of layers, in bfloat16, and on meshes of eight devices."""

import dataclasses

import dense_llama
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from trees import by_name

from jaxllm import model, params, sharding
from jaxllm.config import PRESETS, Config, RopeScaling

SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
# Theta 1000 and an original length of 64 put pairs in all three bands of the scaling.
CFG = Config(
    hidden_size=48,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=97,
    max_position_embeddings=512,
    rope_theta=1000.0,
    rope_scaling=SCALING,
)
T = 40


def random_params(cfg: Config, seed: int = 0) -> params.Params:
    """Weights far from symmetric: gains are not ones, and the embedding is so small that eps matters."""
    rng = np.random.default_rng(seed)

    def leaf(path: params.Path, spec: params.Spec) -> jax.Array:
        if spec.init == "ones":
            return jnp.asarray(rng.uniform(0.5, 1.5, spec.shape), jnp.float32)
        scale = 0.003 if path[0] == "embed_tokens" else 1.2 / np.sqrt(spec.shape[-1])
        return jnp.asarray(scale * rng.standard_normal(spec.shape), jnp.float32)

    return params.build(cfg, leaf)


@pytest.fixture(scope="module")
def weights() -> params.Params:
    return random_params(CFG)


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, CFG.vocab_size, T).astype(np.int32)


@pytest.fixture(scope="module")
def expected(weights: params.Params, ids: np.ndarray) -> np.ndarray:
    freq = dense_llama.frequencies(16, 1000.0, {"factor": 8.0, "low": 1.0, "high": 4.0, "original": 64})
    return dense_llama.forward(by_name(weights, CFG), ids.tolist(), H=6, K=2, C=16, eps=1e-5, freq=freq)


def run(weights: params.Params, cfg: Config, ids: np.ndarray, **options) -> jax.Array:
    tokens = jnp.atleast_2d(jnp.asarray(ids))
    compute = jax.jit(lambda weights, tokens: model.logits(weights, model.forward(weights, cfg, tokens, **options)))
    return compute(weights, tokens)


def test_modules_have_the_paths_of_the_table():
    for stacked in (False, True):
        for name in ("smollm2-135m", "llama-3.1-8b"):
            cfg = PRESETS[name]
            state = nnx.to_pure_dict(nnx.split(nnx.eval_shape(lambda cfg=cfg, s=stacked: model.Llama(cfg, stacked=s)))[1])
            found = jax.tree_util.tree_flatten_with_path(state)[0]
            paths = {tuple(key.key for key in path) for path, _ in found}
            assert paths == set(params.table(cfg, stacked=stacked))
            if not stacked:
                assert {tuple(k.key for k in path): leaf.shape for path, leaf in found} == {
                    path: spec.shape for path, spec in params.table(cfg).items()
                }


def test_equals_float64_reference(weights, ids, expected):
    assert np.abs(np.asarray(run(weights, CFG, ids))[0] - expected).max() <= 1e-4


@pytest.mark.parametrize("slip", ["head groups", "no scaling", "eps", "theta"])
def test_each_slip_breaks_the_agreement(slip: str, weights, ids, expected):
    cfg = CFG
    if slip == "no scaling":
        cfg = dataclasses.replace(CFG, rope_scaling=None)
    elif slip == "eps":
        cfg = dataclasses.replace(CFG, rms_norm_eps=1e-6)
    elif slip == "theta":
        cfg = dataclasses.replace(CFG, rope_theta=1e6)
    else:
        weights = jax.tree.map(lambda x: x, weights)
        for layer in weights["layers"].values():
            attn = layer["self_attn"]
            attn["q_proj"] = {"weight": _swap(attn["q_proj"]["weight"])}
            attn["o_proj"] = {"weight": _swap(attn["o_proj"]["weight"].T).T}
    assert np.abs(np.asarray(run(weights, cfg, ids))[0] - expected).max() > 1e-3


def _swap(rows: jax.Array) -> jax.Array:
    """Heads in the order (G, K) where (K, G) is meant."""
    return rows.reshape(2, 3, 16, -1).swapaxes(0, 1).reshape(rows.shape)


def test_stacked_and_remat_give_the_same_logits(weights, ids):
    reference = run(weights, CFG, ids)
    stacked = params.stack(weights)
    for tree, remat in ((stacked, False), (stacked, True), (weights, True)):
        np.testing.assert_allclose(run(tree, CFG, ids, remat=remat), reference, atol=2e-6)


def test_remat_gives_the_same_gradient(weights, ids):
    def loss(weights, remat):
        hidden = model.forward(weights, CFG, ids[None], remat=remat)
        return jnp.mean(model.logits(weights, hidden) ** 2)

    grad = jax.jit(jax.grad(loss), static_argnums=1)
    stacked = params.stack(weights)
    plain = params.stack(grad(weights, False))
    for remat in (False, True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), grad(stacked, remat), plain)


def test_padding_on_the_right_does_not_matter(weights, ids):
    padded = np.stack([np.concatenate([ids[:20], filler]) for filler in (np.zeros(20, np.int32), ids[20:])])
    out = run(weights, CFG, padded)
    np.testing.assert_array_equal(out[0, :20], out[1, :20])
    assert np.abs(out[0, 20:] - out[1, 20:]).max() > 1e-3


def test_token_zero_is_a_token(weights, ids):
    with_zero, without = ids.copy(), ids.copy()
    with_zero[3], without[3] = 0, 1
    out = run(weights, CFG, np.stack([with_zero, without]))
    assert np.abs(out[0, 5] - out[1, 5]).max() > 1e-3


def test_bfloat16_stays_near_float32():
    """Mean KL at most 0.015 and the same top-1 at 95 % of positions: MaxText's gate for bfloat16."""
    cfg = dataclasses.replace(CFG, hidden_size=192, intermediate_size=256, num_attention_heads=12, num_key_value_heads=4)
    weights = params.init(jax.random.key(3), cfg)
    weights["lm_head"]["weight"] = weights["lm_head"]["weight"] * 20
    tokens = np.random.default_rng(2).integers(0, 97, (8, 64)).astype(np.int32)
    exact = np.asarray(jax.nn.log_softmax(run(weights, cfg, tokens)))
    low = run(jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights), cfg, tokens)
    assert low.dtype == jnp.float32
    low = np.asarray(jax.nn.log_softmax(low))
    assert (np.exp(exact) * (exact - low)).sum(-1).mean() <= 0.015
    assert (exact.argmax(-1) == low.argmax(-1)).mean() >= 0.95


@pytest.mark.parametrize("mesh_shape", [(8, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (1, 4, 2), (1, 1, 8)])
@pytest.mark.parametrize("stacked", [False, True])
def test_sharded_equals_one_device(mesh_shape: tuple[int, int, int], stacked: bool, weights, ids):
    """Heads 6 and 2 divide by 2 but not by 8; the vocabulary of 97 divides by nothing."""
    mesh = sharding.make_mesh(*mesh_shape)
    tokens = np.stack([np.roll(ids, i) for i in range(8)])
    tree = params.stack(weights) if stacked else weights
    reference = run(tree, CFG, tokens)
    placed = jax.device_put(tree, sharding.shardings(CFG, mesh, stacked=stacked))
    np.testing.assert_allclose(run(placed, CFG, tokens, mesh=mesh), reference, atol=1e-5)


def test_tensor_parallel_activations_are_split(weights, ids):
    """With two devices on the tensor axis each holds half of the MLP's activations: the program says so."""
    mesh = sharding.make_mesh(tensor=2)
    placed = jax.device_put(weights, sharding.shardings(CFG, mesh))
    compute = jax.jit(lambda weights, tokens: model.forward(weights, CFG, tokens, mesh=mesh))
    text = compute.lower(placed, jnp.asarray(ids)[None]).compile().as_text()
    assert "all-reduce" in text
    assert "f32[1,40,20]" in text.replace("f32[40,20]", "f32[1,40,20]")


def test_cache_needs_unstacked_parameters(weights):
    from jaxllm import cache

    with pytest.raises(ValueError, match="unstack"):
        model.forward(params.stack(weights), CFG, jnp.zeros((1, 1), jnp.int32), cache=cache.create(CFG, 1, 4, jnp.float32))

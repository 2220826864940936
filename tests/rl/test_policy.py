"""Log-probabilities, values and adapters of a policy: alignment, sharding, who gets gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import load, model, params, save, sharding
from jaxllm.config import Config
from jaxllm.errors import UserError
from rl import critic, lora, policy

CFG = Config(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=64,
    max_position_embeddings=128,
    rope_theta=10000.0,
)
LORA = lora.Lora(rank=3, alpha=6.0, targets=("q_proj", "down_proj"))


@pytest.fixture(scope="module")
def weights():
    return jax.tree.map(lambda x: 8 * x if x.ndim > 1 else x, params.init(jax.random.key(0), CFG))


@pytest.fixture(scope="module")
def tokens():
    # Every first and last row of a vocabulary that is split into eight occurs as a target.
    borders = jnp.concatenate([jnp.arange(0, 64, 8), jnp.arange(7, 64, 8)])
    return jnp.concatenate([borders, jax.random.randint(jax.random.key(1), (16,), 0, 64)]).reshape(4, 8)


@pytest.fixture(scope="module")
def adapters():
    fresh = lora.init(jax.random.key(2), CFG, LORA)
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), fresh)


score = jax.jit(policy.logprobs, static_argnames=("cfg", "temperature", "chunk", "remat", "mesh"))


valued = jax.jit(critic.values, static_argnames="cfg")


@functools.partial(jax.jit, static_argnums=2)
def dense(weights, tokens, temperature=1.0):
    """The whole table of log-probabilities, [B, T, V], of what follows each token."""
    hidden = model.forward(weights, CFG, tokens)
    return jax.nn.log_softmax(model.logits(weights, hidden) / temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_entry_t_is_about_token_t(temperature, weights, tokens):
    logp, entropy = score(weights, CFG, tokens, temperature=temperature)
    logp, entropy, table = map(np.asarray, (logp, entropy, dense(weights, tokens, temperature)))
    for t in range(1, 8):
        np.testing.assert_allclose(logp[:, t], table[np.arange(4), t - 1, tokens[:, t]], atol=1e-4)
    np.testing.assert_allclose(entropy[:, 1:], -(np.exp(table) * table).sum(-1)[:, :-1], atol=1e-4)
    assert (logp[:, 0] == 0).all()
    unshifted = np.take_along_axis(table, np.asarray(tokens)[..., None], -1)[..., 0]
    assert not np.allclose(unshifted, logp, atol=0.1)


def test_padding_on_the_right_does_not_matter(weights, tokens):
    alone = score(weights, CFG, tokens[:1, :5])[0]  # test_packing.py has other amounts
    np.testing.assert_allclose(score(weights, CFG, tokens)[0][:1, :5], alone, atol=1e-5)


@pytest.mark.parametrize(("sizes", "remat"), [((2, 2, 2), True), ((1, 1, 8), False)])
def test_a_mesh_gives_the_same(sizes, remat, weights, tokens):
    mesh = sharding.make_mesh(*sizes)
    places = sharding.shardings(CFG, mesh)
    many = jnp.concatenate([tokens, tokens + 1])  # ids at both sides of each border
    on_mesh = jax.device_put(weights, places)
    found = score(on_mesh, CFG, many, mesh=mesh, remat=remat, chunk=16)
    for got, expected in zip(found, score(weights, CFG, many), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_critic_values_the_state_before_a_token(weights, tokens):
    judge = critic.init(CFG, trunk=weights, bias=0.25)
    assert (valued(judge, CFG, tokens)[:, 1:] == 0.25).all()
    judge["head"]["weight"] = jax.random.normal(jax.random.key(3), (CFG.hidden_size,))
    values = valued(judge, CFG, tokens)
    changed = valued(judge, CFG, tokens.at[:, 5].add(1))
    np.testing.assert_array_equal(changed[:, :6], values[:, :6])
    assert (changed[:, 6] != values[:, 6]).all()
    np.testing.assert_allclose(
        jax.jit(critic.after, static_argnames="cfg")(judge, CFG, tokens)[:, :-1], values[:, 1:], atol=1e-5
    )


def test_values_do_not_depend_on_padding(weights, tokens):
    judge = critic.init(CFG, trunk=weights, bias=0.25)
    judge["head"]["weight"] = np.linspace(-1, 1, CFG.hidden_size, dtype=np.float32)
    alone = np.asarray(valued(judge, CFG, tokens[:1, :5]))
    for pad in (1, 64):
        rows = np.stack([np.pad(tokens[0, :5], (0, pad), constant_values=junk) for junk in (0, 63)])
        np.testing.assert_allclose(valued(judge, CFG, rows)[:, :5], np.repeat(alone, 2, axis=0), atol=1e-5)
        # On the left it is text like any other, since a critic is told of no segments.
        assert not np.allclose(valued(judge, CFG, np.roll(rows, pad, axis=1))[:, pad + 1 :], alone[:, 1:], atol=1e-2)


def test_policy_and_critic_do_not_move_each_other(weights, tokens):
    judge = critic.init(CFG, bias=0.25)
    judge["head"]["weight"] = jnp.ones((CFG.hidden_size,))

    def loss(weights, judge):
        return (critic.values(judge, CFG, tokens, policy=weights) ** 2).sum()

    of_policy, of_critic = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, judge)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(of_policy))
    assert (of_critic["head"]["weight"] != 0).all()
    assert of_critic["head"]["bias"] != 0
    with pytest.raises(ValueError, match="needs the policy"):
        critic.values(judge, CFG, tokens)


def test_a_new_adapter_has_no_effect(weights, tokens):
    fresh = lora.attach(weights, lora.init(jax.random.key(2), CFG, LORA), LORA)
    assert params.adapters(fresh) == (("self_attn", "q_proj", 3), ("mlp", "down_proj", 3))
    np.testing.assert_array_equal(score(fresh, CFG, tokens)[0], score(weights, CFG, tokens)[0])


def test_merged_equals_attached(weights, adapters, tokens):
    merged = lora.merge(weights, adapters, LORA)
    assert jax.tree.structure(merged) == jax.tree.structure(weights)
    expected = score(merged, CFG, tokens)[0]
    np.testing.assert_allclose(score(lora.attach(weights, adapters, LORA), CFG, tokens)[0], expected, atol=1e-3)
    assert not np.allclose(score(weights, CFG, tokens)[0], expected, atol=0.1)
    by_hand = weights["layers"][1]["self_attn"]["q_proj"]["weight"] + 2.0 * (
        adapters["layers"][1]["self_attn"]["q_proj"]["lora_b"] @ adapters["layers"][1]["self_attn"]["q_proj"]["lora_a"]
    )
    np.testing.assert_allclose(merged["layers"][1]["self_attn"]["q_proj"]["weight"], by_hand, rtol=1e-5, atol=1e-5)
    stacked = lora.attach(params.stack(weights), params.stack(adapters), LORA)
    np.testing.assert_allclose(score(stacked, CFG, tokens)[0], expected, atol=1e-3)


def test_adapters_alone_are_trained(weights, adapters, tokens):
    def loss(weights, adapters):
        return policy.logprobs(lora.attach(weights, adapters, LORA), CFG, tokens)[0].sum()

    of_weights, of_adapters = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, adapters)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(of_weights))
    merged = jax.jit(jax.grad(lambda a: policy.logprobs(lora.merge(weights, a, LORA), CFG, tokens)[0].sum()))(adapters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-2), of_adapters, merged)


def test_adapters_on_a_mesh(weights, adapters, tokens):
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    placed = jax.device_put(adapters, lora.shardings(CFG, LORA, mesh))
    on_mesh = lora.attach(jax.device_put(weights, sharding.shardings(CFG, mesh)), placed, LORA)
    expected = score(lora.attach(weights, adapters, LORA), CFG, tokens)[0]
    np.testing.assert_allclose(score(on_mesh, CFG, tokens, mesh=mesh)[0], expected, atol=1e-4)
    fresh = lora.init(jax.random.key(2), CFG, LORA, mesh=mesh)
    assert fresh["layers"][0]["self_attn"]["q_proj"]["lora_b"].sharding.spec == jax.P("tensor", None)


def test_peft_files(adapters, tmp_path):
    lora.save_peft(params.stack(adapters), LORA, tmp_path / "adapter", base="tiny")
    found, sizes = lora.load_peft(tmp_path / "adapter", CFG)
    assert sizes == LORA
    jax.tree.map(np.testing.assert_array_equal, found, adapters)
    from safetensors.numpy import load_file

    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    key = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"
    np.testing.assert_array_equal(tensors[key], adapters["layers"][1]["mlp"]["down_proj"]["lora_a"])
    assert tensors[key].shape == (3, CFG.intermediate_size)
    with pytest.raises(UserError, match="already exists"):
        lora.save_peft(adapters, LORA, tmp_path / "adapter")
    other = Config(**{**{field: getattr(CFG, field) for field in CFG.__dataclass_fields__}, "hidden_size": 40})
    with pytest.raises(UserError, match="the model needs"):
        lora.load_peft(tmp_path / "adapter", other)
    text = (tmp_path / "adapter" / "adapter_config.json").read_text()
    (tmp_path / "adapter" / "adapter_config.json").write_text(text.replace('"LORA"', '"IA3"'))
    with pytest.raises(UserError, match="IA3"):
        lora.load_peft(tmp_path / "adapter", CFG)


def test_wrong_sizes_are_refused():
    for options, match in (({"targets": ("lm_head",)}, "lm_head"), ({"rank": 0}, "rank"), ({"alpha": 0.0}, "alpha")):
        with pytest.raises(UserError, match=match):
            lora.Lora(**options)


def test_a_merged_model_is_saved_like_any_other(weights, adapters, tmp_path):
    save.save_params(lora.merge(weights, adapters, LORA), CFG, tmp_path / "merged")
    back = load.load_params(load.open_checkpoint(tmp_path / "merged"))
    jax.tree.map(np.testing.assert_array_equal, back, lora.merge(weights, adapters, LORA))

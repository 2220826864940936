"""Log-probabilities in chunks: the same numbers as the whole table of logits, without ever holding it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import logprobs, model

V, D = 2048, 16


@pytest.fixture(scope="module")
def head() -> dict:
    return {"embed_tokens": {"weight": jax.random.normal(jax.random.key(0), (V, D))}}


def rows(T: int) -> tuple[jax.Array, jax.Array]:
    hidden = jax.random.normal(jax.random.key(1), (2, T, D))
    return hidden, jax.random.randint(jax.random.key(2), (2, T), 0, V)


def direct(head: dict, hidden: jax.Array, targets: jax.Array, temperature: float = 1.0) -> tuple[jax.Array, jax.Array]:
    table = jax.nn.log_softmax(hidden @ head["embed_tokens"]["weight"].T / temperature)
    return jnp.take_along_axis(table, targets[..., None], -1)[..., 0], -(jnp.exp(table) * table).sum(-1)


@pytest.mark.parametrize(("T", "chunk", "temperature"), [(13, 4, 1.0), (8, 16, 1.0), (9, 3, 0.7)])
def test_equals_the_whole_table(T: int, chunk: int, temperature: float, head):
    hidden, targets = rows(T)
    out = logprobs.token_logprobs(head, hidden, targets, temperature=temperature, chunk=chunk)
    for got, expected in zip(out, direct(head, hidden, targets, temperature), strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_bfloat16_is_scored_in_float32(head):
    """Logits in bfloat16 would quantise to steps of 1/32 and worse."""
    hidden, targets = rows(16)
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (head, hidden))
    out, _ = logprobs.token_logprobs(*low, targets)
    expected, _ = direct(*jax.tree.map(lambda x: x.astype(jnp.float32), low), targets)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_a_certain_token_has_log_probability_zero_at_most(head):
    unit = head["embed_tokens"]["weight"] / jnp.linalg.norm(head["embed_tokens"]["weight"], axis=-1, keepdims=True)
    hidden = 500 * unit[None, :6]
    out, entropy = logprobs.token_logprobs({"embed_tokens": {"weight": unit}}, hidden, jnp.arange(6)[None])
    assert (out <= 0).all()
    np.testing.assert_allclose(out, 0, atol=1e-3)
    np.testing.assert_allclose(entropy, 0, atol=1e-2)


def test_gradient_equals_the_whole_table(head):
    hidden, targets = rows(13)

    def loss(score):
        def of(head, hidden):
            chosen, entropy = score(head, hidden, targets)
            return (chosen * jnp.arange(13)).sum() + 0.1 * entropy.sum()

        return jax.grad(of, argnums=(0, 1))(head, hidden)

    chunked = loss(lambda *args: logprobs.token_logprobs(*args, chunk=4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), chunked, loss(direct))


def largest(jaxpr: jax.extend.core.Jaxpr) -> int:
    """Elements of the largest value that any equation makes, inner programs included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [getattr(out.aval, "size", 0) for out in equation.outvars]
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                sizes.append(largest(inner))
    return max(sizes)


@pytest.mark.parametrize("T", [1024, 4096])
def test_no_array_of_length_times_vocabulary_exists(T: int, head):
    """Forward and backward: neither in the program as written nor in what the compiler allocates."""
    hidden, targets = rows(T)

    def loss(head, hidden):
        return logprobs.token_logprobs(head, hidden, targets)[0].sum()

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    assert largest(jax.make_jaxpr(step)(head, hidden).jaxpr) <= logprobs.CHUNK * V
    temporary = step.lower(head, hidden).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 6 * 4 * logprobs.CHUNK * V + 8 * hidden.nbytes
    assert temporary < 4 * hidden.shape[0] * T * V or T == 1024


def test_the_control_would_be_caught(head):
    hidden, targets = rows(256)
    assert largest(jax.make_jaxpr(direct)(head, hidden, targets).jaxpr) >= 2 * 256 * V


def test_scores_of_a_text(tiny_params, tiny_config):
    tokens = jnp.array(np.random.default_rng(0).integers(0, 97, (3, 12)), jnp.int32)
    table = jax.nn.log_softmax(model.logits(tiny_params, model.forward(tiny_params, tiny_config, tokens)))
    out, entropy = logprobs.sequence_logprobs(tiny_params, tiny_config, tokens, chunk=5)
    assert out.shape == entropy.shape == (3, 11)
    np.testing.assert_allclose(out, np.take_along_axis(np.asarray(table)[:, :-1], tokens[:, 1:, None], -1)[..., 0], atol=1e-5)

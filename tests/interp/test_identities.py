"""What must hold between the map and the model's own forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny
from flax import nnx

from interp.decode import decode
from interp.head import read_head
from interp.rows import directions
from interp.tokens import Masks
from interp.vocabulary import describe, prepare
from jaxllm import model
from jaxllm.load import load_params

TOKENS = np.random.default_rng(0).integers(0, tiny.V, (2, 9)).astype(np.int32)


def logits(checkpoint):
    weights = load_params(checkpoint)
    return np.asarray(model.logits(weights, model.forward(weights, checkpoint.config, TOKENS)))


def test_the_last_residual_decodes_to_the_models_logits(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    llama = nnx.merge(model.definition(checkpoint.config), load_params(checkpoint))
    context, stream = llama.context(TOKENS.shape[1]), llama.embed(jnp.asarray(TOKENS))
    for block in llama.layers:
        stream, *_ = block(stream, context)
    head = read_head(checkpoint)
    w = directions(np.asarray(stream).reshape(-1, tiny.D), "final", eps=head.eps, final_gain=head.gain)
    got = jax.tree.map(np.asarray, decode(w, prepare(head, describe(checkpoint, head, Masks()).tokens), k=tiny.V))
    expected = logits(checkpoint).reshape(-1, tiny.V)
    np.testing.assert_allclose(got.logits[:, 0], np.take_along_axis(expected, got.ids[:, 0], -1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.lse[:, 0], np.log(np.exp(expected.astype(np.float64)).sum(-1)), rtol=1e-5)


def test_the_sign_of_a_neuron_is_a_free_choice_of_the_network(tmp_path):
    """So both poles of a row are mapped: turning it and its column changes nothing that the model computes."""

    def turn(weights, *sites):
        if "up" in sites:
            weights[tiny.mlp(1, "up")][4] *= -1
        if "down" in sites:
            weights[tiny.mlp(1, "down")][:, 4] *= -1

    plain = logits(tiny.checkpoint(tmp_path / "plain"))
    both = logits(tiny.checkpoint(tmp_path / "both", lambda weights: turn(weights, "up", "down")))
    one = logits(tiny.checkpoint(tmp_path / "one", lambda weights: turn(weights, "up")))
    np.testing.assert_array_equal(both, plain)
    assert np.abs(one - plain).max() > 1e-3

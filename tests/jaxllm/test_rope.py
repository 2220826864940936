"""Rotary frequencies against the published tables, and the rotation against complex numbers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import rope
from jaxllm.config import PRESETS

# llama3 scaling worked out by hand from the rule: 8B has C = 128, theta 5e5, factor 8; 1B has C = 64, factor 32.
GOLDENS = {
    "llama-3.1-8b": {
        0: 1.0,
        1: 0.814617234,
        28: 0.00321144599,
        29: 0.00216657076,
        30: 0.00137189357,
        32: 0.000524846161,
        34: 0.000178507813,
        35: 9.55621235e-05,
        63: 3.06892599e-07,
    },
    "llama-3.2-1b": {15: 0.00129054793, 16: 0.000429556797, 17: 9.7082878e-05},
}
BANDS = {"llama-3.1-8b": (29, 6, 29), "llama-3.2-1b": (15, 3, 14)}  # unchanged, blended, divided


@pytest.mark.parametrize("name", GOLDENS)
def test_scaled_frequencies(name: str):
    freq = rope.inv_freq(PRESETS[name])
    assert freq.dtype == np.float32
    for j, value in GOLDENS[name].items():
        np.testing.assert_allclose(freq[j], value, rtol=1e-6)


@pytest.mark.parametrize("name", BANDS)
def test_bands(name: str):
    cfg = PRESETS[name]
    ratio = rope.inv_freq(cfg) / rope.inv_freq(dataclasses.replace(cfg, rope_scaling=None))
    unchanged, divided = ratio == 1.0, np.isclose(ratio, 1 / cfg.rope_scaling.factor, rtol=1e-6)
    assert (unchanged.sum(), (~unchanged & ~divided).sum(), divided.sum()) == BANDS[name]


def test_no_scaling_is_plain():
    freq = rope.inv_freq(PRESETS["smollm2-135m"])
    np.testing.assert_allclose(freq, [100000.0 ** (-2 * j / 64) for j in range(32)], rtol=1e-7)


def test_rotation_multiplies_halves_as_complex_numbers():
    cfg = PRESETS["smollm2-135m"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 3, 64))
    positions = np.array([[0, 1, 2, 3, 4], [257, 1000, 4096, 8000, 8191]], np.int32)
    turned = rope.rotate(jnp.asarray(x, jnp.float32), *rope.angles(cfg, jnp.asarray(positions)))
    frequency = 100000.0 ** (-np.arange(32) / 32)
    expected = (x[..., :32] + 1j * x[..., 32:]) * np.exp(1j * positions[..., None, None] * frequency)
    np.testing.assert_allclose(turned, np.concatenate([expected.real, expected.imag], -1), atol=4e-3)
    np.testing.assert_allclose(turned[0], np.concatenate([expected.real, expected.imag], -1)[0], atol=1e-5)


def test_bfloat16_input_keeps_float32_angles():
    """Position 257 has no bfloat16 value; cast down it would turn as 256 does."""
    cfg = PRESETS["llama-3.1-8b"]
    x = jnp.ones((1, 1, 1, 128), jnp.bfloat16)
    at = [rope.rotate(x, *rope.angles(cfg, jnp.full((1, 1), p, jnp.int32))) for p in (256, 257)]
    assert at[0].dtype == jnp.bfloat16
    expected = np.cos(257.0) - np.sin(257.0)
    assert abs(float(at[1][0, 0, 0, 0]) - expected) < 0.01
    assert abs(float(at[0][0, 0, 0, 0]) - expected) > 0.1

"""Rotary position embeddings with Llama 3's frequency scaling, in the half-split layout of Hugging Face checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.config import Config


def inv_freq(cfg: Config) -> np.ndarray:
    """Angle per token of each pair of head dimensions, ``[C/2]`` float32, in radians.

    Plain frequencies are ``theta ** (-2j / C)``. With scaling, pairs whose wavelength exceeds ``original / low_freq_factor``
    turn ``factor`` times slower, those below ``original / high_freq_factor`` are left alone, and those between are blended
    (Llama 3.1; ``rope_type`` "llama3" in Hugging Face's ``config.json``). Computed in float64 and rounded once.
    """
    freq = cfg.rope_theta ** (-np.arange(0, cfg.head_dim, 2, dtype=np.float64) / cfg.head_dim)
    scaling = cfg.rope_scaling
    if scaling is None:
        return freq.astype(np.float32)
    turns = scaling.original_max_position_embeddings * freq / (2 * np.pi)  # within the original context
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return (keep * freq + (1.0 - keep) * freq / scaling.factor).astype(np.float32)


def angles(cfg: Config, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for `rotate`: positions ``[..., T]`` int32 to two arrays ``[..., T, C/2]``, always float32."""
    angle = positions[..., None].astype(jnp.float32) * inv_freq(cfg)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """``x`` ``[..., T, N, C]`` with each pair (j, j + C/2) turned by its angle, ``[..., T, C/2]``.

    Computed in float32 and returned in the dtype of ``x``.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

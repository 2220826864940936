"""The real 8B graph compiles from shapes alone, and its buffers are the weights, the cache and little else."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxllm import generate, params
from jaxllm.config import PRESETS

CFG = PRESETS["llama-3.1-8b"]
WEIGHTS = 16_060_522_496  # bytes in bfloat16, as the checkpoint's index declares
S = 2048
CACHE = 131_072 * S  # bytes: 32 layers of 2 x 8 x 128 bfloat16 per token


@functools.cache
def arguments() -> tuple:
    shape = jax.ShapeDtypeStruct
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    weights = params.abstract(CFG, jnp.bfloat16)
    tokens, lengths, stops = shape((1, S // 2), jnp.int32), shape((1,), jnp.int32), shape((16,), jnp.int32)
    return weights, tokens, lengths, key, stops


def test_prefill_compiles():
    weights, tokens, lengths, key, stops = arguments()
    memory = generate.prefill.lower(weights, CFG, tokens, lengths, key, stops, S=S, N=16).compile().memory_analysis()
    assert 0 <= memory.argument_size_in_bytes - WEIGHTS < 1 << 16
    assert 0 <= memory.output_size_in_bytes - CACHE < 1 << 16
    assert memory.temp_size_in_bytes < 1 << 30


def test_decode_compiles_and_reuses_the_cache():
    weights, tokens, lengths, key, stops = arguments()
    state = jax.eval_shape(
        functools.partial(generate.prefill, cfg=CFG, S=S, N=16), weights, tokens=tokens, lengths=lengths, keys=key, stops=stops
    )
    until = jax.ShapeDtypeStruct((), jnp.int32)
    memory = generate.decode.lower(weights, CFG, state, stops, until).compile().memory_analysis()
    assert 0 <= memory.argument_size_in_bytes - WEIGHTS - CACHE < 1 << 16
    assert memory.alias_size_in_bytes >= CACHE
    assert memory.temp_size_in_bytes < 64 << 20


@pytest.mark.parametrize("tied", ["llama-3.2-1b", "llama-3.2-3b"])
def test_smaller_presets_trace(tied: str):
    cfg = PRESETS[tied]
    _, tokens, lengths, key, stops = arguments()
    weights = params.abstract(cfg, jnp.bfloat16)
    state = jax.eval_shape(
        functools.partial(generate.prefill, cfg=cfg, S=S, N=16), weights, tokens=tokens, lengths=lengths, keys=key, stops=stops
    )
    assert state.cache.k[0].shape == (1, 8, S, cfg.head_dim)

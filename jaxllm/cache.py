"""Keys and values of the tokens seen so far, preallocated, one pair of arrays per layer."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from jaxllm.config import Config


@flax.struct.dataclass
class KVCache:
    """What attention remembers of B rows of text, up to S tokens each.

    Keys and values stay separate arrays, and so do layers: each is updated in place when the cache is donated. What one head
    has seen lies together, so that attention reads it as it is, as a batch of matrices [S, C]. Entries at or beyond a row's
    length are meaningless; nothing reads them.
    """

    k: tuple[jax.Array, ...]  # per layer [B, K, S, C], already rotated
    v: tuple[jax.Array, ...]  # per layer [B, K, S, C]
    lengths: jax.Array  # [B] int32, tokens held by each row

    @property
    def size(self) -> int:
        """S, the most tokens that a row can hold."""
        return self.k[0].shape[2]


def create(cfg: Config, B: int, S: int, dtype: jax.typing.DTypeLike) -> KVCache:
    """An empty cache for B rows of up to S tokens."""
    shape = (B, cfg.num_key_value_heads, S, cfg.head_dim)
    layers = range(cfg.num_hidden_layers)
    return KVCache(
        k=tuple(jnp.zeros(shape, dtype) for _ in layers),
        v=tuple(jnp.zeros(shape, dtype) for _ in layers),
        lengths=jnp.zeros((B,), jnp.int32),
    )


def grow(cache: KVCache, S: int) -> KVCache:
    """The same content with room for S tokens a row, S at least the present size."""
    extra = ((0, 0), (0, 0), (0, S - cache.size), (0, 0))
    k, v = (tuple(jnp.pad(x, extra) for x in side) for side in (cache.k, cache.v))
    return dataclasses.replace(cache, k=k, v=v)


def slots(cache: KVCache, positions: jax.Array, real: jax.Array) -> jax.Array:
    """Where in the cache to write tokens at ``positions`` [B, T]: S, which `write` drops, where ``real`` [B, T] is false."""
    return jnp.where(real, positions, cache.size)


def write(held: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
    """``held`` [B, K, S, C] with ``new`` [B, T, K, C] at slots ``at`` [B, T]; slots of S or more are dropped."""
    rows = jnp.arange(held.shape[0])[:, None]
    held = held.at[rows, :, at].set(new.astype(held.dtype), mode="drop")
    # Without the barrier XLA on CPU may write once for each reader, and so to copies of the whole cache.
    return jax.lax.optimization_barrier(held) if jax.default_backend() == "cpu" else held


def mask(positions: jax.Array, S: int) -> jax.Array:
    """Which of S keys each query may read, ``[B, 1, T, S]`` bool: those at its own position or before, ``positions`` [B, T]."""
    return (jnp.arange(S) <= positions[..., None])[:, None]

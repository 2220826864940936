"""From logits to the next token: greedy, temperature, top-k and top-p, with one random key per row."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxllm.errors import UserError

NUCLEUS = 1024  # top-p looks among this many best tokens, unless `Sampler.exact`
GROUP = 128  # logits whose maximum is taken at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """How to choose a token. Hashable, so that a compiled function can take it as a static argument."""

    temperature: float = 0.0  # 0 takes the most likely token; 1 samples from the model's own distribution
    top_k: int = 0  # keep only this many best tokens; 0 keeps all
    top_p: float = 1.0  # then keep the fewest best tokens whose probabilities sum to at least this
    exact: bool = False  # search the nucleus in the whole vocabulary, by a full sort

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be zero or a positive number, found {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top-k must be zero (all tokens) or positive, found {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top-p must be above 0 and at most 1, found {self.top_p}")


GREEDY = Sampler()


def sample(logits: jax.Array, keys: jax.Array, sampler: Sampler) -> jax.Array:
    """One token id per row, ``[B]`` int32, from ``logits`` ``[B, V]`` and typed keys ``[B]``.

    A row's draw depends on its logits and its key alone. Temperature comes first, then top-k, then top-p on what is left,
    renormalised; the token that crosses ``top_p`` is kept. Unless exact, a nucleus of more than `NUCLEUS` tokens is cut there.
    Greedy ties go to the lowest id.
    """
    logits = logits.astype(jnp.float32)
    if sampler.temperature == 0.0 or sampler.top_k == 1:
        return greedy(logits)
    V = logits.shape[-1]
    logits = logits / sampler.temperature
    if sampler.top_k == 0 and sampler.top_p == 1.0:
        return _draw(keys, logits)
    limit = sampler.top_k or (V if sampler.exact else NUCLEUS)
    best, ids = jax.lax.top_k(logits, min(limit, V))
    if sampler.top_p < 1.0:
        total = jax.nn.logsumexp(best if sampler.top_k else logits, axis=-1, keepdims=True)
        probabilities = jnp.exp(best - total)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        keep = (before < sampler.top_p).at[:, 0].set(True)
        best = jnp.where(keep, best, -jnp.inf)
    return jnp.take_along_axis(ids, _draw(keys, best)[:, None], axis=-1)[:, 0]


def greedy(logits: jax.Array) -> jax.Array:
    """The most likely id of each row, ``[B]`` int32; the lowest among equals."""
    B, V = logits.shape
    if V % GROUP:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    # Searching the groups' maxima first leaves little to argmax, which XLA on CPU does one number at a time.
    groups = logits.reshape(B, V // GROUP, GROUP)
    best = jnp.argmax(jax.lax.optimization_barrier(jnp.max(groups, axis=-1)), axis=-1)
    within = jnp.argmax(groups[jnp.arange(B), best], axis=-1)
    return (best * GROUP + within).astype(jnp.int32)


def _draw(keys: jax.Array, logits: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)

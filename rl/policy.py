"""The model as a policy: log-probabilities and entropies of the tokens of a batch."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxllm.config import Config
from jaxllm.logprobs import CHUNK, sequence_logprobs
from jaxllm.params import Params
from rl.tokens import to_tokens


def logprobs(
    params: Params,
    cfg: Config,
    tokens: jax.Array,
    *,
    temperature: float = 1.0,
    remat: bool = False,
    chunk: int = CHUNK,
    segments: jax.Array | None = None,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(log-probability of each token given those before it, entropy of the distribution that it was drawn from).

    Both are [B, T] float32 in nats, aligned to the token that they describe; position 0 holds 0. They are those of the sampled
    distribution: ``temperature`` is the sampler's. Logits exist for ``chunk`` positions at a time, in the backward pass too.
    What stands right of a token never matters to it, so padding on the right needs no mask.

    Args:
      params: stacked or not, with or without adapters.
      tokens: [B, T] int32.
      remat: recompute each layer in the backward pass.
      segments: int32 [B, T], where a row holds several sequences, as of `jaxllm.model.forward`; the first token of each, which
        nothing predicts, has 0 as position 0 has.
      mesh: where the parameters live; the vocabulary stays split.
    """
    logp, entropy = sequence_logprobs(
        params, cfg, tokens, temperature=temperature, remat=remat, chunk=chunk, segments=segments, mesh=mesh
    )
    if segments is not None:
        inside = segments[:, 1:] == segments[:, :-1]
        logp, entropy = jnp.where(inside, logp, 0), jnp.where(inside, entropy, 0)
    return to_tokens(logp), to_tokens(entropy)

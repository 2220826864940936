"""Log-probabilities of given tokens, without ever holding the logits of all positions."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxllm import model, sharding
from jaxllm.clamp import Clamp
from jaxllm.config import Config
from jaxllm.params import Params

CHUNK = 512  # positions of a device's rows together whose logits exist at one time


def token_logprobs(
    params: Params,
    hidden: jax.Array,
    targets: jax.Array,
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target and the entropy of each distribution, both ``[B, T]`` float32, in nats.

    A device makes logits of ``chunk`` positions at a time, in the backward pass again, so no array of size T x V exists. A
    log-probability is ``logit - logsumexp``, at most 0. On a mesh rows stay split as the batch is, the vocabulary as the head.

    Args:
      params: the parameters; only the head is used.
      hidden: ``[B, T, D]`` after the final norm, as of `jaxllm.model.forward`.
      targets: ids ``[B, T]`` int32; the one at [b, t] is scored by the hidden state at [b, t].
      temperature: divides the logits.
      chunk: positions at a time, of all rows on a device together; at least one of each row.
      mesh: where the parameters live, if on a mesh.
    """
    B, T, D = hidden.shape
    wide = min(max(chunk // sharding.shard_size("batch", B, mesh), 1), T)
    pieces = -(-T // wide)
    pad = ((0, 0), (0, pieces * wide - T))
    rows = jnp.pad(hidden, (*pad, (0, 0))).reshape(B, pieces, wide, D).swapaxes(0, 1)
    ids = jnp.pad(targets, pad).reshape(B, pieces, wide).swapaxes(0, 1)

    @jax.checkpoint
    def score(rows: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model.logits(params, rows, mesh=mesh) / temperature
        total = jax.nn.logsumexp(logits, axis=-1)
        # A sum over the vocabulary, since a look-up would gather a head that is split over devices.
        chosen = jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == ids[..., None], logits, 0.0), axis=-1)
        every = logits - total[..., None]
        return jnp.minimum(chosen - total, 0.0), -jnp.sum(jnp.exp(every) * every, axis=-1)

    def body(_: None, piece: tuple[jax.Array, jax.Array]) -> tuple[None, tuple[jax.Array, jax.Array]]:
        return None, score(*piece)

    _, scores = jax.lax.scan(body, None, (rows, ids))
    logprobs, entropy = (x.swapaxes(0, 1).reshape(B, -1)[:, :T] for x in scores)
    return logprobs, entropy


def sequence_logprobs(
    params: Params,
    cfg: Config,
    tokens: jax.Array,
    *,
    temperature: float = 1.0,
    remat: bool = False,
    chunk: int = CHUNK,
    clamp: Clamp | None = None,
    prompt_lengths: jax.Array | None = None,
    segments: jax.Array | None = None,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`token_logprobs` of texts: ids ``[B, T]`` to log-probabilities and entropies ``[B, T-1]``.

    Entry t is about token t + 1 given those up to t. Padding on the right gets numbers too; the caller knows the lengths.
    ``clamp``, ``prompt_lengths`` and ``segments`` are those of `jaxllm.model.forward`; across the border of two segments the
    numbers say nothing.
    """
    hidden = model.forward(
        params, cfg, tokens, remat=remat, clamp=clamp, prompt_lengths=prompt_lengths, segments=segments, mesh=mesh
    )
    return token_logprobs(params, hidden[:, :-1], tokens[:, 1:], temperature=temperature, chunk=chunk, mesh=mesh)

"""What a clamped model goes on to write: whether the concept comes up, and how likely the plain model finds the text."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interp.concept import Concept
from interp.effects import Row, pad
from jaxllm.clamp import make_clamp
from jaxllm.config import Config
from jaxllm.generate import bucket, generate
from jaxllm.logprobs import sequence_logprobs
from jaxllm.params import Params
from jaxllm.sampling import GREEDY, Sampler
from jaxllm.tokenizer import Tokenizer

TOGETHER = 8192  # tokens, of all rows that run together, that the cache has room for


@dataclasses.dataclass(frozen=True)
class Continuation:
    """What one row of a batch wrote."""

    ids: tuple[int, ...]  # new tokens, a stop token included
    text: str  # without special tokens
    occurs: bool  # a word of the concept stands in the text
    fluency: float  # mean log-probability of its tokens under the plain model, in nats, at most 0


def continuations(
    params: Params,
    cfg: Config,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Row],
    concept: Concept,
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    sampler: Sampler = GREEDY,
    seed: int = 0,
    progress: Callable[[int], None] = lambda rows: None,
) -> list[Continuation]:
    """Continues every row (a prompt under some clamps, as in `interp.effects`) by at most ``max_tokens`` tokens.

    Rows run in batches; a row that comes to a stop token ends there and leaves the others alone. What a sampled row draws
    depends on the seed and its place in its batch.

    Raises:
      UserError: a wrong prompt or clamp, before anything is computed.
    """
    longest = max(len(prompts[i]) for i, _ in rows)
    size = max(1, TOGETHER // bucket(longest + bucket(max_tokens)))
    make_clamp(cfg, [list(clamps) for _, clamps in rows])
    new: list[list[int]] = []
    for start in range(0, len(rows), size):
        some = list(rows[start : start + size])
        count = len(some)
        some += [some[-1]] * (min(size, _power(len(rows))) - count)  # one shape for all batches
        clamp = make_clamp(cfg, [list(clamps) for _, clamps in some], special_ids=tokenizer.special_ids)
        ids = generate(
            params,
            cfg,
            [prompts[i] for i, _ in some],
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            sampler=sampler,
            seed=seed + start,
            clamp=clamp,
        )
        new += ids[:count]
        progress(count)
    known = fluency(params, cfg, [(prompts[i], ids) for (i, _), ids in zip(rows, new, strict=True)])
    texts = [tokenizer.decode(ids, skip_specials=True) for ids in new]
    return [
        Continuation(tuple(ids), text, concept.occurs(text), float(value))
        for ids, text, value in zip(new, texts, known, strict=True)
    ]


def fluency(params: Params, cfg: Config, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> np.ndarray:
    """Mean log-probability ``[n]`` of each pair's second ids after its first, under the plain model; equal pairs run once."""
    unique = list(dict.fromkeys((tuple(prompt), tuple(new)) for prompt, new in pairs))
    tokens, lengths = pad([prompt + new for prompt, new in unique], cfg)
    starts = np.array([len(prompt) for prompt, _ in unique], np.int32)
    size = min(_power(len(unique)), max(1, TOGETHER // tokens.shape[1]))
    means: list[float] = []
    for start in range(0, len(unique), size):
        at = np.minimum(np.arange(start, start + size), len(unique) - 1)
        means += np.asarray(_mean_logprob(params, cfg, tokens[at], starts[at], lengths[at])).tolist()
    values = dict(zip(unique, means, strict=False))
    return np.array([values[tuple(prompt), tuple(new)] for prompt, new in pairs])


@functools.partial(jax.jit, static_argnames=("cfg",))
def _mean_logprob(params: Params, cfg: Config, tokens: Any, starts: Any, stops: Any) -> jax.Array:
    """Over the tokens at positions ``starts <= p < stops`` of each row, all [B]."""
    logprobs, _ = sequence_logprobs(params, cfg, jnp.asarray(tokens))
    position = jnp.arange(1, tokens.shape[1])
    counted = (position >= starts[:, None]) & (position < stops[:, None])
    return jnp.sum(jnp.where(counted, logprobs, 0), axis=1) / jnp.sum(counted, axis=1)


def _power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()

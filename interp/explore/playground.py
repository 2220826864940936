"""The playground: one prompt answered by the plain and by the clamped model, side by side, a few tokens at a time.

Both are rows of one batch that differ in their clamp alone. Between two pieces the caller may stop, which ends all work.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interp.explore.brain import Brain
from jaxllm import generate, model
from jaxllm.chat import encode_chat
from jaxllm.clamp import Clamp, NeuronClamp, make_clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params
from jaxllm.sampling import Sampler

MAX_PROMPT = 4000  # characters
MAX_PROMPT_TOKENS = 1024
MAX_NEW = 256  # tokens
MAX_CLAMPS = 32
MAX_VALUE = 1e6
EVERY = 4  # tokens between two looks at whether anybody still waits
NEXT_TOKENS = 10  # of each side, in the bars of the next token
OTHERS = 3  # likeliest tokens that are told of each place of an answer
FIELDS = {"prompt", "chat", "clamps", "max_tokens", "temperature", "seed"}
CLAMP_FIELDS = {"layer", "neuron", "value", "site", "mode", "positions"}


@dataclasses.dataclass(frozen=True)
class Request:
    """What the playground is asked, checked but for what only the model knows."""

    prompt: str
    chat: bool
    clamps: tuple[NeuronClamp, ...]
    max_tokens: int
    temperature: float
    seed: int


def parse(data: Any) -> Request:
    """A request from JSON. Raises UserError for a field that is unknown, of another type, or beyond its limit."""
    if not isinstance(data, Mapping) or not data.keys() <= FIELDS:
        raise UserError(f"the request must be an object with the fields {', '.join(sorted(FIELDS))} and no others")
    prompt = data.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise UserError("the prompt is empty; write some words")
    if len(prompt) > MAX_PROMPT:
        raise UserError(f"the prompt has {len(prompt)} characters; at most {MAX_PROMPT} are answered here")
    clamps = data.get("clamps", [])
    if not isinstance(clamps, list) or len(clamps) > MAX_CLAMPS:
        raise UserError(f"clamps must be a list of at most {MAX_CLAMPS}")
    chat = data.get("chat", False)
    if not isinstance(chat, bool):
        raise UserError(f"chat must be true or false, found {chat!r}")
    return Request(
        prompt,
        chat,
        tuple(map(_clamp, clamps)),
        int(_number(data, "max_tokens", 60, 1, MAX_NEW, whole=True)),
        _number(data, "temperature", 0.0, 0.0, 10.0),
        int(_number(data, "seed", 0, 0, 2**31 - 1, whole=True)),
    )


def _clamp(data: Any) -> NeuronClamp:
    if not isinstance(data, Mapping) or not data.keys() <= CLAMP_FIELDS:
        raise UserError(f"a clamp must be an object with the fields {', '.join(sorted(CLAMP_FIELDS))} and no others")
    words = {name: data[name] for name in ("site", "mode", "positions") if name in data}
    if not all(isinstance(word, str) for word in words.values()):
        raise UserError("site, mode and positions of a clamp are words")
    layer, neuron = (int(_number(data, name, None, 0, 1 << 30, whole=True)) for name in ("layer", "neuron"))
    return NeuronClamp(layer, neuron, _number(data, "value", None, -MAX_VALUE, MAX_VALUE), **words)


def _number(data: Mapping[str, Any], name: str, default: Any, low: float, high: float, *, whole: bool = False) -> float:
    value = data.get(name, default)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise UserError(f"{name} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}, found {value!r}")
    return float(value) if not whole else value


def encode(brain: Brain, request: Request) -> list[int]:
    """The prompt's token ids. Raises UserError for too many, or for a chat without a template."""
    if request.chat:
        ids = encode_chat(brain.tokenizer, brain.template, [{"role": "user", "content": request.prompt}])
    else:
        ids = brain.tokenizer.encode(request.prompt)
    if len(ids) > MAX_PROMPT_TOKENS:
        raise UserError(f"the prompt has {len(ids)} tokens; at most {MAX_PROMPT_TOKENS} are answered here")
    if not ids:
        raise UserError("the prompt has no token; write some words")
    return ids


def prepare(brain: Brain, request: Request) -> tuple[list[int], Clamp]:
    """The prompt's ids and the clamp of both rows. Raises UserError for anything wrong, before any compute."""
    ids = encode(brain, request)
    return ids, make_clamp(brain.checkpoint.config, [[], list(request.clamps)])


def answer(brain: Brain, request: Request, ids: list[int], clamp: Clamp) -> Iterator[dict[str, Any]]:
    """Events, as JSON values, of `prepare`'s result.

    ``next``: the likeliest next tokens as [token, p plain, p clamped], and KL(plain || clamped) in nats. ``piece``: further
    tokens of each side as [text, token]. ``scores``: for every token of each side its probability there and under the other
    model, and the likeliest ones. ``end``: tokens and seconds. Text that is held back half a character comes with ``end``.
    """
    begun, cfg = time.perf_counter(), brain.checkpoint.config
    yield {"event": "next", **_next(brain, ids, clamp)}
    room = min(MAX_NEW, cfg.max_position_embeddings - len(ids))  # one program for all lengths of answers
    limit = min(request.max_tokens, room)
    if limit < 1:
        raise UserError(f"a prompt of {len(ids)} tokens fills the model's {cfg.max_position_embeddings} positions")
    options: dict[str, Any] = {"sampler": Sampler(temperature=request.temperature), "clamp": clamp}
    state, stops = generate.start(
        brain.params, cfg, [ids, ids], max_tokens=room, stop_ids=brain.checkpoint.stop_ids, seed=request.seed, **options
    )
    texts = [brain.tokenizer.stream(skip_specials=True) for _ in range(2)]
    shown = 0
    while True:
        step, sampled = int(state.step), np.asarray(state.ids)
        new = [[int(i) for i in row[shown:step] if i != generate.NO_TOKEN] for row in sampled]
        pieces = [[[text.push(i), brain.tokenizer.display(i)] for i in row] for text, row in zip(texts, new, strict=True)]
        yield {"event": "piece", "plain": pieces[0], "clamped": pieces[1]}
        if step >= limit or bool(np.asarray(state.done).all()):
            break
        shown = step
        state = generate.decode(brain.params, cfg, state, stops, min(step + EVERY, limit), **options)
    answers = [[int(i) for i in row if i != generate.NO_TOKEN] for row in sampled]
    yield {"event": "scores", **_scores(brain, ids, answers, clamp)}
    rest, seconds = [text.finish() for text in texts], time.perf_counter() - begun
    yield {"event": "end", "rest": rest, "tokens": [len(row) for row in answers], "seconds": seconds}


def _next(brain: Brain, ids: list[int], clamp: Clamp) -> dict[str, Any]:
    tokens = np.zeros((2, generate.bucket(len(ids))), np.int32)
    tokens[:, : len(ids)] = ids
    k = min(NEXT_TOKENS, brain.checkpoint.config.vocab_size)
    length = np.full(2, len(ids), np.int32)
    found, p, kl = jax.tree.map(np.asarray, _next_token(brain.params, brain.checkpoint.config, tokens, length, clamp, k=k))
    chosen = list(dict.fromkeys(found.T.ravel().tolist()))
    order = sorted(chosen, key=lambda i: -max(p[0, i], p[1, i]))
    rows = [[_display(brain, i), float(p[0, i]), float(p[1, i])] for i in order]
    return {"tokens": rows, "kl": float(kl) if math.isfinite(kl) else None, "prompt_tokens": len(ids)}


def _display(brain: Brain, token: int) -> str:
    return brain.tokenizer.display(token)


@functools.partial(jax.jit, static_argnames=("cfg", "k"))
def _next_token(
    params: Params, cfg: Config, tokens: Any, lengths: Any, clamp: Clamp, *, k: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The k likeliest ids [2, k] of either row, all probabilities [2, V], and KL(first || second)."""
    tokens, lengths = jnp.asarray(tokens), jnp.asarray(lengths)
    hidden = model.forward(params, cfg, tokens, lengths=lengths, clamp=clamp)
    logp = jax.nn.log_softmax(model.logits(params, hidden[jnp.arange(2), lengths - 1]))
    kl = jnp.sum(jnp.exp(logp[0]) * (logp[0] - logp[1]))
    return jax.lax.top_k(logp, k)[1], jnp.exp(logp), jnp.maximum(kl, 0)


def _scores(brain: Brain, ids: list[int], answers: list[list[int]], clamp: Clamp) -> dict[str, Any]:
    """Each answer read again by both models."""
    longest = max(map(len, answers))
    A = generate.bucket(longest)
    tokens = np.zeros((2, generate.bucket(len(ids) + A)), np.int32)
    for row, new in zip(tokens, answers, strict=True):
        row[: len(ids) + len(new)] = ids + new
    prompt = np.full(2, len(ids), np.int32)
    cfg, k = brain.checkpoint.config, min(OTHERS, brain.checkpoint.config.vocab_size)
    swapped = jax.tree.map(lambda leaf: leaf[::-1] if leaf.shape[0] == 2 else leaf, clamp)
    own, best, best_p = jax.tree.map(np.asarray, _read(brain.params, cfg, tokens, prompt, clamp, A=A, k=k))
    other = np.asarray(_read(brain.params, cfg, tokens, prompt, swapped, A=A, k=k)[0])
    return {
        side: [
            {
                "p": float(own[row, t]),
                "other": float(other[row, t]),
                "best": [[_display(brain, i), float(p)] for i, p in zip(best[row, t].tolist(), best_p[row, t], strict=True)],
            }
            for t in range(len(answers[row]))
        ]
        for row, side in enumerate(("plain", "clamped"))
    }


@functools.partial(jax.jit, static_argnames=("cfg", "A", "k"))
def _read(params: Params, cfg: Config, tokens: Any, prompt: Any, clamp: Clamp, *, A: int, k: int) -> tuple[jax.Array, ...]:
    """Of the A tokens after the prompt: their probabilities [2, A], the k likeliest ids [2, A, k] and theirs."""
    tokens, prompt = jnp.asarray(tokens), jnp.asarray(prompt)
    hidden = model.forward(params, cfg, tokens, clamp=clamp, prompt_lengths=prompt)
    at = prompt[:, None] + jnp.arange(A)

    def row(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        states, targets = pair
        p = jax.nn.softmax(model.logits(params, states))
        values, ids = jax.lax.top_k(p, k)
        return jnp.take_along_axis(p, targets[:, None], 1)[:, 0], ids, values

    states = jnp.take_along_axis(hidden, (at - 1)[..., None], 1)
    return jax.lax.map(row, (states, jnp.take_along_axis(tokens, at, 1)))

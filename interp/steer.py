"""One prompt with and without clamps: continuations, the next token before and after, and what is known of the neurons."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from interp import concept as concepts
from interp import prompts
from interp.calibration import natural
from interp.clamp import MEASURED, Measured, Setting, Value, check_neurons, measure, metadata, resolve
from interp.concept import Concept
from interp.effects import Effect, both_logits, compare, neurons_of, pad
from interp.sign import SITES, Proposal, proposals
from interp.written import Written, written
from jaxllm.chat import encode_chat
from jaxllm.clamp import check_batch, make_clamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.generate import generate
from jaxllm.load import Checkpoint
from jaxllm.params import Params
from jaxllm.tokenizer import Tokenizer

TOP = 8  # tokens listed, of the plain model and of the clamped one


@dataclasses.dataclass(frozen=True)
class Token:
    """One row of the next-token table; pairs are (plain, clamped)."""

    id: int
    display: str
    p: tuple[float, float]
    logit: tuple[float, float]
    rank: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Position:
    """A neuron at one token of the prompt."""

    position: int
    display: str  # the token
    gate: float  # silu(gate), plain model
    natural: float  # the value at the clamp's site, plain model
    clamped: float  # the same under the clamp


@dataclasses.dataclass(frozen=True)
class Steered:
    """One clamped neuron."""

    name: str
    layer: int
    neuron: int
    site: str
    up: list[str]  # top tokens of the up row: what it reads
    up_opposite: list[str]
    down: list[str]  # of the down column, through the final norm: what it writes
    down_opposite: list[str]
    cosine: float  # of up row and down column
    concept: Concept
    effect: Effect
    natural: dict[str, float] | None  # mean, std, min, max at the site on the calibration text; None where not measured
    sign: Proposal | None  # None at sites without a sign of their own
    positions: list[Position]


@dataclasses.dataclass(frozen=True)
class Steering:
    """What `steer` finds."""

    prompt: str
    ids: list[int]
    clamps: list[dict[str, Any]]  # as `interp.clamp.metadata`
    plain: str  # the continuations
    clamped: str
    plain_ids: list[int]
    clamped_ids: list[int]
    kl: float  # KL(plain || clamped) of the next token, in nats
    tokens: list[Token]  # the best of both, by the larger probability
    neurons: list[Steered]


def steer(
    checkpoint: Checkpoint,
    settings: Sequence[Setting],
    prompt: str,
    *,
    chat: bool = False,
    token: str | None = None,
    max_tokens: int = 48,
    params: Callable[[], Params],
) -> Steering:
    """Runs a prompt greedily with and without clamps, in one batch.

    Args:
      settings: at least one, as of `interp.clamp.parse_clamp`.
      chat: whether the prompt is a user's message in the checkpoint's template.
      token: the concept to follow; by default each neuron's own, the top tokens of its up row.
      params: loads the parameters; called once everything that can be wrong is checked.
    Raises:
      UserError: no setting, or a wrong neuron, value, position, token or prompt.
    """
    cfg, tokenizer = checkpoint.config, checkpoint.tokenizer()
    if not settings:
        raise UserError("no clamp given; set one such as L29/N1342=-30")
    check_neurons(cfg, [(setting.layer, setting.neuron) for setting in settings])
    ids = _encode(checkpoint, tokenizer, prompt, chat)
    lengths = np.array([len(ids)])
    plausible = [dataclasses.replace(s, value=Value(0.0)) if s.site in MEASURED and s.value.unit else s for s in settings]
    check_batch(make_clamp(cfg, resolve(plausible)), lengths)
    concept = None if token is None else concepts.of_token(token, tokenizer, cfg.vocab_size)
    weights = params()
    measured = measure(settings, lambda neurons, site: natural(weights, cfg, tokenizer, neurons, site))
    clamps = resolve(settings, measured)
    clamp = make_clamp(cfg, clamps, special_ids=tokenizer.special_ids)
    both = make_clamp(cfg, [[], clamps], special_ids=tokenizer.special_ids)
    plain, clamped = generate(weights, cfg, [ids, ids], max_tokens=max_tokens, stop_ids=checkpoint.stop_ids, clamp=both)
    tokens, lengths = pad([ids], cfg)
    neurons = list(dict.fromkeys((setting.layer, setting.neuron) for setting in settings))
    logits, before, after = both_logits(weights, cfg, tokens, jnp.asarray(lengths), clamp, neurons_of(neurons))
    logits = np.asarray(logits)
    allowed = np.arange(cfg.vocab_size) < tokenizer.size
    found = [
        written(weights, cfg, *neuron, concept=None if concept is None else concept.ids, allowed=allowed) for neuron in neurons
    ]
    signs = _signs(weights, cfg, tokenizer, found, settings)
    steered = []
    for i, setting in enumerate(settings):
        j = neurons.index((setting.layer, setting.neuron))
        own = concept or concepts.of_ids(found[j].concept, tokenizer)
        values = [_at_site(x, setting.site)[0, : len(ids), j] for x in (before, after)]
        gate = _at_site(before, "gate_act")[0, : len(ids), j]
        places = zip(ids, gate.tolist(), *(v.tolist() for v in values), strict=True)
        readings = [[tokenizer.display(t) for t in side.ids] for side in (*found[j].up, *found[j].down)]
        steered.append(
            Steered(
                name=f"L{setting.layer}/N{setting.neuron}",
                layer=setting.layer,
                neuron=setting.neuron,
                site=setting.site,
                up=readings[0],
                up_opposite=readings[1],
                down=readings[2],
                down_opposite=readings[3],
                cosine=found[j].cosine,
                concept=own,
                effect=compare(logits[0], logits[1], own.ids),
                natural=_range(measured, i),
                sign=signs.get((j, setting.site)),
                positions=[Position(k, tokenizer.display(t), *numbers) for k, (t, *numbers) in enumerate(places)],
            )
        )
    return Steering(
        prompt=prompt,
        ids=ids,
        clamps=metadata(settings, clamps),
        plain=tokenizer.decode(plain, skip_specials=True),
        clamped=tokenizer.decode(clamped, skip_specials=True),
        plain_ids=plain,
        clamped_ids=clamped,
        kl=compare(logits[0], logits[1], [0]).kl,
        tokens=top_tokens(logits, tokenizer),
        neurons=steered,
    )


def top_tokens(logits: np.ndarray, tokenizer: Tokenizer, k: int = TOP) -> list[Token]:
    """The k best tokens of either row of ``logits`` [2, V] (plain, clamped), by the larger of both probabilities."""
    z = logits.astype(np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    best = np.argsort(-z, axis=1, kind="stable")[:, :k]
    chosen = sorted(set(best.ravel().tolist()), key=lambda i: -p[:, i].max())
    rank = {i: (1 + (z > z[:, [i]]).sum(1)).tolist() for i in chosen}
    return [
        Token(i, tokenizer.display(i), (p[0, i].item(), p[1, i].item()), (z[0, i].item(), z[1, i].item()), tuple(rank[i]))
        for i in chosen
    ]


def _encode(checkpoint: Checkpoint, tokenizer: Tokenizer, prompt: str, chat: bool) -> list[int]:
    if chat:
        return encode_chat(tokenizer, checkpoint.chat_template(), [{"role": "user", "content": prompt}])
    return prompts.encode([prompt], tokenizer)[0]


def _signs(
    params: Params, cfg: Config, tokenizer: Tokenizer, found: Sequence[Written], settings: Sequence[Setting]
) -> dict[tuple[int, str], Proposal]:
    """(index of the neuron, site) -> proposal, measured on the neutral prompts.

    For a chat too: where an answer begins gates are unlike those of the text that follows.
    """
    ids = prompts.encode(prompts.read(prompts.NEUTRAL).texts, tokenizer)
    out: dict[tuple[int, str], Proposal] = {}
    for site in dict.fromkeys(setting.site for setting in settings if setting.site in SITES):
        for j, proposal in enumerate(proposals(params, cfg, ids, found, site=site)):
            out[j, site] = proposal
    return out


def _at_site(recorded: Any, site: str) -> np.ndarray:
    """[B, T, m]: what was recorded, at a clamp's site."""
    gate = np.asarray(recorded.gate_pre)
    if site == "gate_pre":
        return gate
    if site == "gate_act":
        return gate / (1 + np.exp(-gate))
    return np.asarray(recorded.up if site == "up" else recorded.product)


def _range(measured: Measured, i: int) -> dict[str, float] | None:
    values = {field.name: float(getattr(measured, field.name)[i]) for field in dataclasses.fields(measured)}
    return values if np.isfinite(values["mean"]) else None

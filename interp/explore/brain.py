"""What needs the model: the decodes of a neuron's three vectors, its natural values, and the contexts that move it.

The model is loaded once; who calls these functions sees to it that only one runs at a time.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interp import acts, calibration, written
from interp.atlas import Atlas
from jaxllm import params as tree
from jaxllm.errors import UserError
from jaxllm.load import load_params
from jaxllm.params import Params
from jaxllm.tensors import Checkpoint
from jaxllm.tokenizer import Tokenizer

DECODED_TOKENS = 10  # per pole
CONTEXTS = 8  # at each end


@dataclasses.dataclass(frozen=True)
class Brain:
    """A model that is ready to run."""

    checkpoint: Checkpoint
    params: Params  # unstacked
    tokenizer: Tokenizer
    template: str | None  # of its chats
    name: str  # as the command line takes it
    allowed: np.ndarray  # [V] bool, the ids that the map allows


def load(checkpoint: Checkpoint, atlas: Atlas, name: str, dtype: Any = None) -> Brain:
    """Loads the model of a map. Raises UserError when it is another one, or has no tokenizer."""
    if checkpoint.config.to_hf() != atlas.meta["model"]["config"]:
        raise UserError(f"{checkpoint.path} is not the model of {atlas.path}: their configs differ")
    tokenizer = checkpoint.tokenizer()
    params = load_params(checkpoint, dtype=dtype)
    return Brain(checkpoint, params, tokenizer, tokenizer.chat_template, name, atlas.tokens.allowed)


def decodes(brain: Brain, atlas: Atlas, layer: int, neuron: int) -> dict[str, Any]:
    """Both poles of the up row, the gate row and the down column, as JSON values, and the sign that raises the concept.

    Rows are scaled to the size of a hidden state; the column also goes through the final norm's gain, as what it adds does.
    """
    cfg = brain.checkpoint.config
    found = written.written(brain.params, cfg, layer, neuron, allowed=brain.allowed, k=DECODED_TOKENS)
    row = brain.params["layers"][layer]["mlp"]["gate_proj"]["weight"][neuron]
    k = min(DECODED_TOKENS, int(brain.allowed.sum()))
    gate = jax.tree.map(np.asarray, _decode(tree.head(brain.params), row, brain.allowed, eps=cfg.rms_norm_eps, k=k))
    poles = {
        "up": [list(zip(pole.ids, pole.probabilities, strict=True)) for pole in found.up],
        "gate": [list(zip(ids.tolist(), p.tolist(), strict=True)) for ids, p in zip(*gate, strict=True)],
        "down": [list(zip(pole.ids, pole.probabilities, strict=True)) for pole in found.down],
    }
    shown: dict[str, list[Any]] = {
        site: [[[atlas.tokens.display[i], p] for i, p in pole] for pole in both] if _finite(both) else [[], []]
        for site, both in poles.items()
    }
    return {"decodes": shown, "cosine": found.cosine, "sign": _sign(brain, found)}


def _finite(poles: list[list[tuple[int, float]]]) -> bool:
    return all(np.isfinite(p) for pole in poles for _, p in pole)


def _sign(brain: Brain, found: written.Written) -> dict[str, Any]:
    from interp.sign import propose

    proposal = propose(found, brain.checkpoint.config.num_hidden_layers)
    return {name: getattr(proposal, name) for name in ("sign", "confidence", "reason")}


@functools.partial(jax.jit, static_argnames=("eps", "k"))
def _decode(head: jax.Array, row: jax.Array, allowed: Any, *, eps: float, k: int) -> tuple[jax.Array, jax.Array]:
    """Ids and probabilities [2, k] of the row and its opposite."""
    w = row.astype(jnp.float32)
    w = w * jax.lax.rsqrt(jnp.mean(w * w) + eps)
    precision = jax.lax.Precision.HIGHEST if head.dtype == jnp.float32 else None
    z = jnp.einsum("d,vd->v", w.astype(head.dtype), head, precision=precision, preferred_element_type=jnp.float32)
    poles = jnp.where(jnp.asarray(allowed), jnp.stack([z, -z]), -jnp.inf)
    values, ids = jax.lax.top_k(poles, k)
    return ids, jnp.exp(values - jax.nn.logsumexp(poles, axis=1, keepdims=True))


def natural(brain: Brain, layer: int, neuron: int, site: str) -> dict[str, float]:
    """Mean, standard deviation, least and greatest value of a neuron on the calibration text."""
    cfg = brain.checkpoint.config
    found = calibration.natural(brain.params, cfg, brain.tokenizer, [(layer, neuron)], site)
    return {name: float(getattr(found, name)[0]) for name in ("mean", "std", "min", "max")}


def contexts(
    brain: Brain, layer: int, neuron: int, text: Path, progress: Callable[[acts.Progress], None] | None = None
) -> dict[str, Any]:
    """Where a text moves the neuron most, upwards and downwards, as JSON values."""
    cfg = brain.checkpoint.config
    found = acts.activations(brain.params, cfg, brain.tokenizer, [(layer, neuron)], text, top=CONTEXTS, progress=progress)
    one = found.neurons[0]
    histogram = one.histogram()
    return {
        "tokens": found.tokens,
        "complete": found.complete,
        **{name: getattr(one, name) for name in ("count", "mean", "std", "min", "max")},
        "histogram": {"edges": histogram.edges.tolist(), "counts": histogram.counts.tolist()},
        "highest": [_context(brain, place) for place in one.highest],
        "lowest": [_context(brain, place) for place in one.lowest],
    }


def _context(brain: Brain, place: Any) -> dict[str, Any]:
    """One place of a text: its tokens as text, and which of them is meant."""
    return {
        "value": place.value,
        "line": place.line,
        "tokens": [brain.tokenizer.display(i) for i in place.ids],
        "at": place.marked,
    }

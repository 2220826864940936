"""Which sign of a clamp raises a neuron's concept, why, and how sure that is.

A clamp from the natural value u to c adds ``(c - u) * silu(gate) * down`` at the site `up`, and a multiple of ``down`` alone at
`product`. So the sign follows from what the down column writes and from the sign of the gate, which is slightly negative
where a neuron is off. Both are measured, and then tried: the concept's probability under a clamp far out on either side tells.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.effects import effects, record_last
from interp.written import Written
from jaxllm.clamp import NeuronClamp
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params

SITES = ("up", "product")
CLEAR, WEAK = 3.0, 1.5  # standard deviations of all tokens' logits by which the down column writes the concept
PULLING = 0.5  # share of the gates' squared weight by which one sign must outdo the other
RAISED, HARDLY = 2.0, 1.25  # how many times the plain, and the other sign's, probability
LATE = 0.75  # of the depth; from here on the down column's own logits say most of what a clamp does
TRIAL = 10.0  # a trial clamps this many times farther out than the natural values on the prompts


@dataclasses.dataclass(frozen=True)
class Gates:
    """``silu(gate)`` of a neuron where the next token is predicted."""

    mean: float
    low: float
    high: float
    pull: (
        float  # sum of the signed squares over the sum of squares, -1 to 1: large gates move a probability more than small ones
    )
    count: int


@dataclasses.dataclass(frozen=True)
class Trial:
    """Mean probability of the concept over the prompts."""

    value: float  # the positive clamp value; the other one is its opposite
    plain: float
    plus: float
    minus: float


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The sign of a clamp that raises the concept."""

    sign: int  # +1 or -1
    confidence: str  # "sure", "likely" or "unsure"
    reason: str
    gates: Gates | None
    trial: Trial | None


def propose(
    neuron: Written, num_layers: int, *, site: str = "up", gates: Gates | None = None, trial: Trial | None = None
) -> Proposal:
    """The sign, from all that is known.

    Args:
      neuron: what its down column writes.
      num_layers: of the model.
      site: one of `SITES`; only ``up`` is gated.
      gates: without them the gate is taken as open.
      trial: without it the sign follows from column and gate, and is sure only in late layers.
    """
    if site not in SITES:
        raise UserError(f"site {site!r} has no sign of its own; choose one of {', '.join(SITES)}")
    column, amount = (1 if neuron.writing >= 0 else -1), abs(neuron.writing)
    if amount >= WEAK:
        reasons = [f"the {'+' if column > 0 else '-'} down column writes it, {amount:.1f} standard deviations above the mean"]
    else:
        reasons = [f"the down column hardly writes it ({neuron.writing:+.1f} standard deviations)"]
    expected, pull = column, 1.0
    if site == "up" and gates is None:
        pull = PULLING
        reasons.append("its gate is not measured and taken as open")
    elif site == "up" and gates is not None:
        pull = abs(gates.pull)
        expected = column if gates.pull >= 0 else -column
        kind = "open" if gates.low >= 0 else "negative" if gates.high <= 0 else "of both signs"
        reasons.append(f"its gate is {kind}: silu {gates.low:+.2f} to {gates.high:+.2f}, mean {gates.mean:+.2f}")
    late = neuron.layer >= LATE * num_layers
    firm = amount >= WEAK and pull >= PULLING and late
    if trial is None:
        if not late:
            reasons.append(f"layer {neuron.layer} of {num_layers} is early, and later layers may turn the effect around")
        sure = firm and amount >= CLEAR and (site != "up" or gates is not None)
        return Proposal(
            expected,
            "sure" if sure else "likely" if amount >= WEAK and pull >= PULLING else "unsure",
            "; ".join(reasons),
            gates,
            None,
        )
    sign, best, other = (1, trial.plus, trial.minus) if trial.plus >= trial.minus else (-1, trial.minus, trial.plus)
    gain = best / max(trial.plain, other, 1e-30)
    reasons.append(
        f"tried: {trial.plus:.2g} at {trial.value:+.3g}, {trial.minus:.2g} at {-trial.value:+.3g}, {trial.plain:.2g} without"
    )
    grade = 2 if gain >= RAISED else 1 if gain >= HARDLY else 0
    if firm and expected != sign:
        grade = max(0, grade - 1)
        reasons.append("column and gate let expect the other sign")
    return Proposal(sign, ("unsure", "likely", "sure")[grade], "; ".join(reasons), gates, trial)


def proposals(
    params: Params,
    cfg: Config,
    prompts: Sequence[Sequence[int]],
    neurons: Sequence[Written],
    *,
    site: str = "up",
) -> list[Proposal]:
    """Measures gates and tries both signs of every neuron, on prompts given as token ids; one proposal per neuron.

    Raises UserError for a site other than `SITES`.
    """
    if not neurons:
        return []
    if site not in SITES:
        raise UserError(f"site {site!r} has no sign of its own; choose one of {', '.join(SITES)}")
    gates, up, product = record_last(params, cfg, prompts, [(n.layer, n.neuron) for n in neurons])
    found = []
    for j, neuron in enumerate(neurons):
        natural = (up if site == "up" else product)[:, j]
        value = TRIAL * float(np.abs(natural).max())
        rows: list[Any] = [(i, []) for i in range(len(prompts))]
        for c in (value, -value):
            rows += [(i, [NeuronClamp(neuron.layer, neuron.neuron, c, site=site)]) for i in range(len(prompts))]
        plain, plus, minus = effects(params, cfg, prompts, rows, neuron.concept).p.reshape(3, -1).mean(1).tolist()
        trial = Trial(value, plain, plus, minus)
        found.append(propose(neuron, cfg.num_hidden_layers, site=site, gates=summarise(gates[:, j]), trial=trial))
    return found


def summarise(silu_gate: Any) -> Gates:
    """Gates of one position or more."""
    values = np.asarray(silu_gate, np.float64).ravel()
    squares = float((values**2).sum())
    pull = float((values * np.abs(values)).sum() / squares) if squares > 0 else 0.0
    return Gates(float(values.mean()), float(values.min()), float(values.max()), pull, values.size)

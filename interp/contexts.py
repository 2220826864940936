"""What a search for activations found, as plain values and as text that a person can read."""

import dataclasses
from typing import Any

from interp.acts import Activations, NeuronActivations
from interp.tally import Place
from jaxllm.tokenizer import Tokenizer, show_bytes

QUANTILES = {"1 %": 0.01, "median": 0.5, "99 %": 0.99}


def facts(found: Activations, tokenizer: Tokenizer) -> dict[str, Any]:
    """All of it as JSON's values, except that what no value was found for is infinite: see `interp.query.as_json`."""
    return {
        "site": found.site,
        "tokens": found.tokens,
        "bytes": found.size,
        "complete": found.complete,
        "neurons": [
            {
                "layer": neuron.layer,
                "neuron": neuron.neuron,
                **statistics(neuron),
                "nonfinite": neuron.nonfinite,
                "tails": [dataclasses.asdict(tail) for tail in neuron.tails()],
                "histogram": {name: array.tolist() for name, array in vars(neuron.histogram()).items()},
                "highest": [context(place, tokenizer) for place in neuron.highest],
                "lowest": [context(place, tokenizer) for place in neuron.lowest],
            }
            for neuron in found.neurons
        ],
    }


def statistics(neuron: NeuronActivations) -> dict[str, float]:
    """Mean, standard deviation, and values from the smallest to the largest."""
    quantiles = {name: neuron.quantile(q) for name, q in QUANTILES.items()}
    return {"mean": neuron.mean, "std": neuron.std, "min": neuron.min, **quantiles, "max": neuron.max}


def context(place: Place, tokenizer: Tokenizer) -> dict[str, Any]:
    """One place: its value, where it is, the text and the ids around it."""
    before, token, after = parts(place, tokenizer)
    where = {"value": place.value, "token_index": place.index, "line": place.line, "token_id": place.ids[place.marked]}
    return {**where, "before": before, "token": token, "after": after, "ids": list(place.ids), "marked": place.marked}


def parts(place: Place, tokenizer: Tokenizer) -> tuple[str, str, str]:
    """The text before the token, the token, and the text after it. All that is invisible but spaces is shown by a mark."""
    cuts = (slice(0, place.marked), slice(place.marked, place.marked + 1), slice(place.marked + 1, None))
    pieces = (b"".join(map(tokenizer.token_bytes, place.ids[cut])) for cut in cuts)
    before, token, after = (show_bytes(piece).replace("␣", " ") for piece in pieces)
    return before, token, after

"""Clamps on SmolLM2-135M-Instruct against measurements with another implementation.

``tests/data/clamp.json`` says what was measured: per neuron the mean probability of its ten tokens after eight prompts, for
eight values held at ``up``, on the last prompt token or on all, in float32.
"""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxllm import load, model
from jaxllm.clamp import NeuronClamp, make_clamp

MEASURED = json.loads((Path(__file__).parents[1] / "data" / "clamp.json").read_text())
# Water and space in the last layers, days in the first. The others take another minute.
QUICK = [(29, 1342), (28, 605), (0, 1469)]


@pytest.fixture(scope="module")
def checkpoint(smollm2: Path):
    return load.open_checkpoint(smollm2)


@pytest.fixture(scope="module")
def next_probabilities(checkpoint):
    """Next-token probabilities [R, 8, V] after each prompt, for R clamps in one batch; the prompts padded on the right."""
    cfg, weights, tok = checkpoint.config, load.load_params(checkpoint), checkpoint.tokenizer()
    prompts = [tok.encode(prompt, bos=False) for prompt in MEASURED["prompts"]]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.zeros((len(prompts), lengths.max()), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt

    @jax.jit
    def forward(weights, tokens, lengths, clamp):
        hidden = model.forward(weights, cfg, tokens, lengths=lengths, clamp=clamp)
        return jax.nn.softmax(model.logits(weights, hidden[np.arange(len(tokens)), lengths - 1]))

    def run(rows: list[list[NeuronClamp]]) -> np.ndarray:
        each = make_clamp(cfg, [row for row in rows for _ in prompts])
        out = forward(weights, np.tile(tokens, (len(rows), 1)), np.tile(lengths, len(rows)), each)
        return np.asarray(out).reshape(len(rows), len(prompts), -1)

    return run


def close(value: float, measured: float) -> bool:
    """Relative 1e-3, beside the rounding of the measured value to three digits."""
    rounding = 0.5 * 10.0 ** (math.floor(math.log10(measured)) - 2)
    return abs(value - measured) <= 1e-3 * measured + rounding


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=f"L{entry['layer']}/N{entry['index']}", marks=[] if quick else [pytest.mark.slow])
        for entry in MEASURED["results"]
        for quick in [(entry["layer"], entry["index"]) in QUICK]
    ],
)
def test_a_clamps_effect_is_the_measured_one(entry, checkpoint, next_probabilities):
    """All sixteen measurements of a neuron and the unclamped ones, as one batch."""
    concept = [checkpoint.tokenizer().encode(token, bos=False) for token in entry["tokens"]]
    assert [len(ids) for ids in concept] == [1] * 10
    ids = [token for (token,) in concept]
    settings = [(key.split(":")[0], float(key.split(":")[1])) for key in entry["eff"]]
    rows = [[NeuronClamp(entry["layer"], entry["index"], value, positions=at)] for at, value in settings]
    p = next_probabilities([[], *rows])
    means = p[..., ids].sum(-1).mean(-1)
    tops = np.isin(p.argmax(-1), ids).sum(-1)
    np.testing.assert_allclose(means[0], entry["base_mean"], rtol=1e-3)
    for mean, top, (key, (measured, count)) in zip(means[1:], tops[1:], entry["eff"].items(), strict=True):
        assert close(mean, measured), (key, mean, measured)
        assert top == count, key


def test_the_tolerance_tells_the_site_from_another(checkpoint, next_probabilities):
    """The water neuron held at -30 behind its gate instead of before it: a slip that the measurements would show."""
    entry = next(entry for entry in MEASURED["results"] if entry["index"] == 1342)
    ids = [checkpoint.tokenizer().encode(token, bos=False)[0] for token in entry["tokens"]]
    rows = [[NeuronClamp(29, 1342, -30.0, site="product")]] * 17
    mean = next_probabilities(rows)[0][:, ids].sum(-1).mean()
    assert not close(mean, entry["eff"]["all:-30"][0])

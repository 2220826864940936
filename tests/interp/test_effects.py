"""What clamps do to the next token: against the model run in full, and against the measured numbers of `clamp.json`.

That file holds float32 measurements made with another implementation (PyTorch), rounded to three digits.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from interp.concept import of_ids, of_token
from interp.effects import compare, effects, record_last
from interp.sign import Gates, Trial, proposals, propose
from interp.sweep import matched, second_best
from interp.written import Written, written
from jaxllm import model, params
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.errors import UserError
from jaxllm.load import load_params, open_checkpoint

MEASURED = json.loads((Path(__file__).parents[1] / "data" / "clamp.json").read_text())
LATE = [r for r in MEASURED["results"] if r["layer"] == 29]  # all but four of the thirteen neurons
NAMED = {(28, 605), (29, 1342), (29, 812), (29, 1455)}  # whose concept rises with negative values
DOSES = ("all:-30", "all:30", "last:-100", "last:100")


@pytest.fixture(scope="module")
def llm(smollm2: Path):
    """SmolLM2 with its parameters."""
    checkpoint = open_checkpoint(smollm2)
    return checkpoint.config, checkpoint.tokenizer(), load_params(checkpoint)


@pytest.fixture(scope="module")
def prompts(llm):
    return [llm[1].encode(text) for text in MEASURED["prompts"]]


@pytest.fixture(scope="module")
def ids(llm):
    """(layer, neuron) -> the ids of its ten tokens."""
    index = {llm[1].token_bytes(i): i for i in range(llm[1].size)}
    return {(r["layer"], r["index"]): [index[t.encode()] for t in r["tokens"]] for r in MEASURED["results"]}


def test_rows_equal_the_model_run_in_full(tiny_params, tiny_config):
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    clamps = [NeuronClamp(1, 3, 40.0), NeuronClamp(2, 7, -9.0, site="product", positions="last")]
    rows = [(0, []), (0, clamps[:1]), (2, clamps), (1, clamps[1:]), (1, [])]
    concept = [17, 40, 41]
    found = effects(tiny_params, tiny_config, prompts, rows, concept)

    @jax.jit
    def last_logits(tokens, length, clamp):
        hidden = model.forward(tiny_params, tiny_config, tokens, lengths=length[None], clamp=clamp)
        return model.logits(tiny_params, hidden[0, length - 1])

    for i, (prompt, row) in enumerate(rows):
        tokens = jnp.array([[*prompts[prompt], *[0] * (5 - len(prompts[prompt]))]])
        length = jnp.array(len(prompts[prompt]))
        z = [np.asarray(last_logits(tokens, length, make_clamp(tiny_config, some)), np.float64) for some in ([], row)]
        p = [softmax(x) for x in z]
        assert found.p[i] == pytest.approx(p[1][concept].sum(), rel=1e-4)
        assert found.logit[i] == pytest.approx(logsumexp(z[1][concept]), abs=1e-4)
        assert found.rank[i] == 1 + np.sum(z[1] > z[1][concept].max())
        assert found.kl[i] == pytest.approx(np.sum(p[0] * np.log(p[0] / p[1])), rel=1e-3, abs=1e-6)
        assert found.top[i] == z[1].argmax()
        both = compare(*z, concept)
        assert both.p == pytest.approx((p[0][concept].sum(), p[1][concept].sum()), rel=1e-9)
        assert both.kl == pytest.approx(np.sum(p[0] * np.log(p[0] / p[1])), abs=1e-12)
    assert found.p[1] != pytest.approx(found.p[0], rel=1e-3)  # the clamp did something


def test_a_planted_concept_follows_the_value_and_a_closed_gate_stops_it(tiny_params, tiny_config):
    edited = jax.tree.map(lambda leaf: leaf, tiny_params)
    mlp, token, layer = edited["layers"][2]["mlp"], 33, 2
    head = np.array(params.head(edited))
    gates, down = np.array(mlp["gate_proj"]["weight"]), np.array(mlp["down_proj"]["weight"])
    down[:, 4] = down[:, 5] = head[token] / np.linalg.norm(head[token])
    gates[5] = 0  # silu(0) = 0: closed
    prompts, values = [[5, 6, 7, 8]], (-40.0, -10.0, 0.0, 10.0, 40.0)
    edited["layers"][2]["mlp"] = {**mlp, "gate_proj": {"weight": jnp.array(gates)}, "down_proj": {"weight": jnp.array(down)}}
    gate = record_last(edited, tiny_config, prompts, [(layer, 4)])[0][0, 0]
    for neuron, moved in ((4, True), (5, False)):
        p = effects(edited, tiny_config, prompts, [(0, [NeuronClamp(layer, neuron, v)]) for v in values], [token]).p
        steps = np.diff(p) * np.sign(gate)
        assert (steps > 0).all() if moved else (steps == 0).all()


@pytest.mark.parametrize("prompts", [[], [[]], [[1] * 600], [[97]], [[-1]]])
def test_wrong_prompts_are_refused(prompts, tiny_params, tiny_config):
    with pytest.raises(UserError, match="prompt"):
        effects(tiny_params, tiny_config, prompts, [(0, [])], [1])


def test_the_measured_numbers(llm, prompts, ids):
    cfg, _, weights = llm
    for r in LATE:
        at = r["layer"], r["index"]
        rows = [(i, []) for i in range(8)]
        for dose in DOSES:
            positions, value = dose.split(":")
            rows += [(i, [NeuronClamp(*at, float(value), positions=positions)]) for i in range(8)]
        found = effects(weights, cfg, prompts, rows, ids[at])
        means, tops = found.p.reshape(-1, 8).mean(1), np.isin(found.top, ids[at]).reshape(-1, 8).sum(1)
        np.testing.assert_allclose(means, [r["base_mean"], *(r["eff"][d][0] for d in DOSES)], rtol=6e-3, err_msg=str(at))
        assert tops[1:].tolist() == [r["eff"][d][1] for d in DOSES]
        assert (found.rank.reshape(-1, 8)[:, :] >= 1).all()


def test_water_at_minus_thirty(llm, prompts, ids):
    cfg, _, weights = llm
    at = (29, 1342)
    rows = [(i, [NeuronClamp(*at, value)] if value else []) for value in (0, -30.0, 30.0) for i in range(8)]
    plain, down, up = effects(weights, cfg, prompts, rows, ids[at]).p.reshape(3, 8).mean(1)
    assert plain == pytest.approx(0.0015, rel=0.05)
    assert down == pytest.approx(0.473, rel=5e-3)
    assert up < plain / 100


def test_random_neurons_of_the_layer_leave_the_concept_alone(llm, prompts, ids):
    """The reference drew twelve at c = ±100 and ±300: the median stayed, the highest mean was 0.016."""
    cfg, _, weights = llm
    at = (29, 1342)
    drawn = matched(weights, *at, count=12, seed=0)
    assert len(set(drawn)) == 12
    assert at[1] not in drawn
    lengths = np.linalg.norm(np.asarray(weights["layers"][29]["mlp"]["down_proj"]["weight"]), axis=0)
    ratio = lengths[drawn] / lengths[at[1]]
    assert ratio.min() > 0.9
    assert ratio.max() < 1.1
    rows = [(i, []) for i in range(8)]
    for neuron in drawn:
        for value in (-100.0, 100.0):
            rows += [(i, [NeuronClamp(29, neuron, value, positions="last")]) for i in range(8)]
    means = effects(weights, cfg, prompts, rows, ids[at]).p.reshape(-1, 8).mean(1)
    best = means[1:].reshape(12, 2).max(1)
    assert np.median(best) < 3 * means[0]
    assert best.max() < 0.03


def test_the_sign_that_raises_each_concept(llm, prompts, ids):
    cfg, _, weights = llm
    late = [r for r in MEASURED["results"] if r["layer"] >= 28]
    neurons = [written(weights, cfg, r["layer"], r["index"], concept=ids[r["layer"], r["index"]]) for r in late]
    for r, neuron, found in zip(late, neurons, proposals(weights, cfg, prompts, neurons), strict=True):
        truth = 1 if r["eff"]["all:30"][0] > r["eff"]["all:-30"][0] else -1
        assert found.sign == truth, (r["layer"], r["index"], found.reason)
        if (r["layer"], r["index"]) in NAMED:
            assert (found.sign, found.confidence) == (-1, "sure")
            assert neuron.writing < -3  # the - pole of the down column writes it
            assert neuron.cosine < -0.3
            # Without the trial three of the four are sure; white's gate has both signs, and that is said.
            alone = propose(neuron, cfg.num_hidden_layers, gates=found.gates)
            assert (alone.sign, alone.confidence) == (-1, "sure") or alone.confidence == "unsure"
        low, high = r["silu_gate"]
        assert (found.gates.low, found.gates.high) == pytest.approx((low, high), abs=2e-3)


def test_what_a_neuron_reads_and_writes(llm, ids):
    cfg, tokenizer, weights = llm
    for r in LATE:
        neuron = written(weights, cfg, r["layer"], r["index"])
        show = tokenizer.token_bytes
        assert [show(i).decode() for i in neuron.down[0].ids[:5]] == r["down_pos"]
        assert [show(i).decode() for i in neuron.down[1].ids[:5]] == r["down_neg"]
        if r["via"] == "up":
            assert list(neuron.up[0].ids) == ids[r["layer"], r["index"]] == list(neuron.concept)
    row = np.asarray(weights["layers"][29]["mlp"]["up_proj"]["weight"][1342], np.float64)
    column = np.asarray(weights["layers"][29]["mlp"]["down_proj"]["weight"][:, 1342], np.float64)
    neuron = written(weights, cfg, 29, 1342)
    assert neuron.cosine == pytest.approx(row @ column / np.linalg.norm(row) / np.linalg.norm(column), abs=1e-5)
    assert neuron.norm_down == pytest.approx(np.linalg.norm(column), rel=1e-5)


def test_the_second_best_neuron_of_a_concept(llm, ids):
    cfg, tokenizer, weights = llm
    first = second_best(weights, cfg, ids[29, 1342], besides=(0, 0))
    assert first == (29, 1342)
    assert second_best(weights, cfg, ids[29, 1342], besides=first) not in (None, first)
    # The reference names dog and cat for both: L29/N808 and L0/N350.
    dog = of_token(" dog", tokenizer, cfg.vocab_size).ids
    assert second_best(weights, cfg, dog, besides=(0, 0)) == (29, 808)
    assert second_best(weights, cfg, dog, besides=(29, 808)) == (0, 350)


def neuron(writing: float, layer: int = 29) -> Written:
    return Written(layer, 0, (), (), 0.0, 1.0, writing, (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("writing", "pull", "site", "sign", "confidence"),
    [
        (8.0, 0.9, "up", 1, "sure"),
        (-8.0, 0.9, "up", -1, "sure"),
        (-8.0, -0.9, "up", 1, "sure"),  # a negative gate turns the column around
        (-8.0, -0.9, "product", -1, "sure"),  # product is not gated
        (8.0, 0.1, "up", 1, "unsure"),
        (0.3, 0.9, "up", 1, "unsure"),
        (2.0, 0.9, "up", 1, "likely"),
    ],
)
def test_column_and_gate_without_a_trial(writing, pull, site, sign, confidence):
    found = propose(neuron(writing), 30, site=site, gates=Gates(0.1, -0.2, 0.4, pull, 8))
    assert (found.sign, found.confidence) == (sign, confidence)


def test_an_unmeasured_gate_or_an_early_layer_is_never_sure():
    assert propose(neuron(8.0), 30).confidence == "likely"
    early = propose(neuron(8.0, layer=3), 30, gates=Gates(0.5, 0.1, 0.9, 1.0, 8))
    assert early.confidence == "likely"
    assert "layer 3 of 30 is early" in early.reason


def test_a_trial_has_the_last_word():
    gates = Gates(0.5, 0.1, 0.9, 1.0, 8)
    assert propose(neuron(8.0), 30, gates=gates, trial=Trial(30, 0.001, 0.5, 0.0001)).confidence == "sure"
    turned = propose(neuron(8.0), 30, gates=gates, trial=Trial(30, 0.001, 0.0001, 0.5))
    assert (turned.sign, turned.confidence) == (-1, "likely")
    assert "other sign" in turned.reason
    assert propose(neuron(8.0), 30, gates=gates, trial=Trial(30, 0.001, 0.00101, 0.001)).confidence == "unsure"


def test_a_site_without_a_sign():
    with pytest.raises(UserError, match="gate_pre"):
        propose(neuron(1.0), 30, site="gate_pre")


def test_a_concept_occurs_as_whole_words(smollm2_tokenizer):
    water = of_token(" water", smollm2_tokenizer, 49152)
    assert {smollm2_tokenizer.token_bytes(i) for i in water.ids} >= {b" water", b"water", b"Water", b" Water"}
    assert water.words == ("water",)
    for text, found in (("Water!", True), ("the WATER.", True), ("waterfall", False), ("underwater", False), ("", False)):
        assert water.occurs(text) is found
    comma = of_ids(smollm2_tokenizer.encode(","), smollm2_tokenizer)
    assert comma.words == ()
    assert not comma.occurs("a, b")
    with pytest.raises(UserError, match="at least one token"):
        of_ids([], smollm2_tokenizer)

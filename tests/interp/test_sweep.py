"""Dose curves and continuations on a small random model with SmolLM2's vocabulary, and their files."""

import csv
import io
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import WORDS as CONFIG

from interp import prompts as prompt_lists
from interp import sweep_files
from interp.concept import of_ids
from interp.continuations import continuations, fluency
from interp.effects import effects
from interp.sweep import Dose, Sweep, rows_of, sweep
from interp.written import written
from jaxllm import params as params_lib
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.errors import UserError
from jaxllm.generate import generate
from jaxllm.logprobs import sequence_logprobs
from jaxllm.tokenizer import Tokenizer

NEURON = (1, 7)
CONCEPT = (3000, 3001)
VALUES = (-40.0, 0.0, 40.0)
P = 3


@pytest.fixture(scope="module")
def weights():
    """Random parameters whose neuron L1/N7 writes token 3000 by its - pole."""
    tree = params_lib.init(jax.random.key(3), CONFIG)
    tree = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, tree)
    mlp = tree["layers"][1]["mlp"]
    head = tree["embed_tokens"]["weight"][CONCEPT[0]]
    mlp["down_proj"]["weight"] = mlp["down_proj"]["weight"].at[:, NEURON[1]].set(-head)
    return tree


@pytest.fixture(scope="module")
def ids(smollm2_tokenizer: Tokenizer):
    return prompt_lists.encode(["I think that the", "She looked", "At the market one can"], smollm2_tokenizer)


@pytest.fixture(scope="module")
def found(weights, ids, smollm2_tokenizer: Tokenizer) -> Sweep:
    concept = of_ids(CONCEPT, smollm2_tokenizer)
    neuron = written(weights, CONFIG, *NEURON, concept=concept.ids)
    doses = {site: [Dose(value, f"{value:g}") for value in VALUES] for site in ("up", "product")}
    return sweep(
        weights, CONFIG, smollm2_tokenizer, ids, neuron, concept, doses, controls=2, max_tokens=4, samples=2, stop_ids={0}
    )


def test_the_curve_holds_the_effects_of_each_value(found: Sweep, weights, ids):
    for site in ("up", "product"):
        (curve,) = found.curve(site)
        assert curve.p.shape == (len(VALUES) + 1, P)
        for i, dose in enumerate(found.doses[site]):
            rows = [(p, [NeuronClamp(*NEURON, dose.value, site=site)]) for p in range(P)]
            np.testing.assert_allclose(curve.p[i], effects(weights, CONFIG, ids, rows, CONCEPT).p, rtol=1e-5)
    assert found.plain.p.shape == (1, P)


def test_the_natural_value_is_among_the_values_and_hardly_moves_the_concept(found: Sweep):
    for site, doses in found.doses.items():
        assert [d.value for d in doses] == sorted(d.value for d in doses)
        (natural,) = [i for i, d in enumerate(doses) if d.written == "natural"]
        assert doses[natural].value == pytest.approx(found.natural[site])
        change = np.abs(np.log(found.curve(site)[0].p.mean(1) / found.plain.p.mean()))
        assert change[natural] <= change[[0, -1]].max()


def test_the_other_pole_is_the_opposite_value(found: Sweep):
    at = {d.value: i for i, d in enumerate(found.doses["up"])}
    (own,), (other,) = found.curve("up"), found.curve("up", "other pole")
    np.testing.assert_array_equal(own.p[at[-40.0]], other.p[at[40.0]])
    np.testing.assert_array_equal(own.p[at[40.0]], other.p[at[-40.0]])


def test_controls_are_other_neurons(found: Sweep):
    random = found.curve("up", "random")
    assert len(random) == 2
    assert all(curve.layer == NEURON[0] and curve.neuron != NEURON[1] for curve in random)
    (second,) = found.curve("up", "second best")
    assert (second.layer, second.neuron) != NEURON


def test_at_product_the_pole_that_writes_the_concept_raises_it(found: Sweep):
    assert found.signs["product"].sign == -1
    assert found.signs["product"].confidence != "unsure"
    (own,) = found.curve("product")
    steps = np.diff(own.p.mean(1))
    assert (steps < 0).all()


def test_continuations_are_those_of_generation(found: Sweep, weights, ids, smollm2_tokenizer: Tokenizer):
    for curve, clamps in ((found.plain, []), (found.curve("up")[0], [NeuronClamp(*NEURON, -40.0)])):
        expected = generate(weights, CONFIG, ids, max_tokens=4, stop_ids={0}, clamp=make_clamp(CONFIG, clamps))
        assert [list(text.ids) for text in curve.greedy[0]] == expected
        for text in curve.greedy[0]:
            assert text.text == smollm2_tokenizer.decode(text.ids, skip_specials=True)
            assert text.occurs == found.concept.occurs(text.text)
    assert len(found.curve("up")[0].sampled) == len(VALUES) + 1
    assert all(len(row) == 2 * P for row in found.curve("up")[0].sampled)


def test_fluency_is_the_plain_models_mean_log_probability(found: Sweep, weights, ids):
    (own,) = found.curve("up")
    score = jax.jit(lambda tokens: sequence_logprobs(weights, CONFIG, tokens)[0])
    for prompt, text in zip(ids, own.greedy[0], strict=True):
        tokens = [*prompt, *text.ids]
        logprobs = score(jnp.array([tokens + [0] * (16 - len(tokens))]))[0, len(prompt) - 1 : len(tokens) - 1]
        assert text.fluency == pytest.approx(float(logprobs.mean()), rel=1e-4)


def test_rows_that_stop_early_leave_the_others_alone(weights, ids, smollm2_tokenizer: Tokenizer):
    concept = of_ids(CONCEPT, smollm2_tokenizer)
    rows = [(i, [NeuronClamp(*NEURON, -40.0)]) for i in range(P)]
    free = continuations(weights, CONFIG, smollm2_tokenizer, ids, rows, concept, max_tokens=4)
    stop = free[0].ids[1]
    stopped = continuations(weights, CONFIG, smollm2_tokenizer, ids, rows, concept, max_tokens=4, stop_ids={stop})
    for before, after in zip(free, stopped, strict=True):
        end = before.ids.index(stop) + 1 if stop in before.ids else len(before.ids)
        assert after.ids == before.ids[:end]


def test_equal_texts_are_scored_once_and_equally(weights, ids):
    pairs = [(ids[0], [5, 6]), (ids[1], [7]), (ids[0], [5, 6])]
    values = fluency(weights, CONFIG, pairs)
    assert values[0] == values[2] != values[1]


def test_progress_counts_all_rows(weights, ids, smollm2_tokenizer: Tokenizer):
    concept = of_ids(CONCEPT, smollm2_tokenizer)
    neuron = written(weights, CONFIG, *NEURON, concept=concept.ids)
    done: list[int] = []
    doses = {"up": [Dose(7.0, "7"), Dose(9.0, "9")]}
    sweep(weights, CONFIG, smollm2_tokenizer, ids, neuron, concept, doses, controls=1, max_tokens=0, progress=done.append)
    assert sum(done) == rows_of(P, doses, 1, 0, 0)


def test_files(found: Sweep, smollm2_tokenizer: Tokenizer, tmp_path: Path):
    texts = ["I think that the", "=cmd()", 'a "quoted", text']
    files = sweep_files.write(found, texts, smollm2_tokenizer, tmp_path / "a" / "b", {"model": "small"})
    assert {file.name for file in files} == {"sweep.json", "sweep.csv", "prompts.csv", "continuations.csv", "sweep.png"}
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == sorted(
        file.name for file in files
    )  # nothing half-written
    facts = json.loads(files[0].read_text())
    curves = 2 * (1 + 1 + 1 + 2)  # sites, times neuron, other pole, second best, two random
    assert len(facts["rows"]) == 1 + curves * (len(VALUES) + 1)
    assert facts["neuron"] == "L1/N7"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a" / "b" / "sweep.csv").read_text())))
    assert len(rows) == len(facts["rows"])
    assert float(rows[1]["p_mean"]) == pytest.approx(facts["rows"][1]["p_mean"])
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "a" / "b" / "prompts.csv").read_text())))) == P * len(rows)
    picture = (tmp_path / "a" / "b" / "sweep.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_a_file_where_the_folder_should_be(tmp_path: Path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"taken: cannot be a folder.*another --out"):
        sweep_files.make_folder(tmp_path / "taken")


def test_shipped_prompts_have_no_chat_marks_and_one_bos_at_most(smollm2_tokenizer: Tokenizer):
    for name in (prompt_lists.NEUTRAL, prompt_lists.QUESTIONS):
        listed = prompt_lists.read(name)
        assert len(listed.texts) >= 8
        assert len(set(listed.texts)) == len(listed.texts)
        assert not any("<|" in text for text in listed.texts)
    chat = prompt_lists.encode(["Hello"], smollm2_tokenizer, chat=True)[0]
    assert chat.count(smollm2_tokenizer.bos_id) == 3  # system, user, assistant: SmolLM2's <|im_start|> is its bos


def test_prompts_of_llama_start_with_one_bos(llama3_tokenizer: Tokenizer):
    for chat in (False, True):
        for ids in prompt_lists.encode(prompt_lists.read(prompt_lists.QUESTIONS).texts, llama3_tokenizer, chat=chat):
            assert ids[0] == llama3_tokenizer.bos_id
            assert ids.count(llama3_tokenizer.bos_id) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "0 prompts"), (b"# only a remark\n\n", "0 prompts"), (b"\xff\xfe", "not UTF-8"), (b"a\n" * 1001, "1001 prompts")],
)
def test_wrong_prompt_files(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        prompt_lists.read(tmp_path / "p.txt")
    with pytest.raises(UserError, match="cannot be read"):
        prompt_lists.read(tmp_path / "absent.txt")

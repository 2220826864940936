"""Clamps in generation: on the prompt and on every new token, as if the whole text were computed anew at each step."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import generate, model, params, sharding
from jaxllm.clamp import SITES, NeuronClamp, make_clamp
from jaxllm.errors import UserError

PROMPTS = [[5, 0, 17, 80, 3], [9], [96, 2, 2, 41, 7, 7, 30, 12, 64, 1, 1]]
SPECIAL = (2, 9)
NEW = 10
RULES = ("all", "prompt", "generated", "last", (0,))
# A strong clamp for every site and position rule, each on a prompt of another length; half of them spare special tokens.
CASES = [
    (PROMPTS[i % 3], NeuronClamp(i % 3, 7, 25.0, site=site, positions=rule, exclude_special=i % 2 == 0))
    for i, (site, rule) in enumerate(itertools.product(SITES, RULES))
]
TEXTS = [prompt for prompt, _ in CASES]


@pytest.fixture(scope="module")
def weights(tiny_params) -> params.Params:
    """The tiny model with louder MLPs and head, so that clamps decide and the best token is far ahead of the second."""
    loud = jax.tree.map(lambda x: 10 * x, {i: layer["mlp"] for i, layer in tiny_params["layers"].items()})
    layers = {i: {**layer, "mlp": loud[i]} for i, layer in tiny_params["layers"].items()}
    return {**tiny_params, "layers": layers, "lm_head": {"weight": 50 * tiny_params["lm_head"]["weight"]}}


@pytest.fixture(scope="module")
def clamp(tiny_config):
    return make_clamp(tiny_config, [[clamp] for _, clamp in CASES], special_ids=SPECIAL)


@pytest.fixture(scope="module")
def greedy(weights, tiny_config, clamp) -> list[list[int]]:
    """The answers, each token from a pass over the whole clamped text without a cache."""
    forward = jax.jit(
        lambda w, tokens, c, n: model.logits(w, model.forward(w, tiny_config, tokens, clamp=c, prompt_lengths=n)).argmax(-1)
    )
    prompt_lengths = np.array([len(text) for text in TEXTS], np.int32)
    texts = np.zeros((len(CASES), 32), np.int32)
    for row, text in zip(texts, TEXTS, strict=True):
        row[: len(text)] = text
    rows = np.arange(len(CASES))
    for step in range(NEW):
        at = prompt_lengths + step
        texts[rows, at] = np.asarray(forward(weights, texts, clamp, prompt_lengths))[rows, at - 1]
    return [row[n : n + NEW].tolist() for row, n in zip(texts, prompt_lengths, strict=True)]


@pytest.fixture(scope="module")
def plain(weights, tiny_config) -> list[list[int]]:
    return generate.generate(weights, tiny_config, TEXTS, max_tokens=NEW)


def test_cached_equals_uncached_at_every_site_and_position_rule(weights, tiny_config, clamp, greedy, plain):
    assert generate.generate(weights, tiny_config, TEXTS, max_tokens=NEW, clamp=clamp) == greedy
    changed = [clamp for (_, clamp), row, other in zip(CASES, greedy, plain, strict=True) if row != other]
    assert {clamp.site for clamp in changed} == set(SITES)
    assert {clamp.positions for clamp in changed} >= {"all", "prompt", "generated", "last"}
    for prompt, rule in itertools.product(PROMPTS, RULES):
        assert any(text == prompt and c.positions == rule for text, c in CASES), (prompt, rule)


def test_a_batch_equals_one_by_one(weights, tiny_config, greedy):
    for (prompt, clamp), expected in zip(CASES, greedy, strict=True):
        alone = make_clamp(tiny_config, [clamp], special_ids=SPECIAL)
        assert generate.generate(weights, tiny_config, [prompt], max_tokens=NEW, clamp=alone) == [expected]


def test_stream_gives_the_same_ids_and_stops_cleanly(weights, tiny_config, greedy):
    i = next(i for i, row in enumerate(greedy) if row[4] not in row[:4])
    alone = make_clamp(tiny_config, [CASES[i][1]], special_ids=SPECIAL)
    pieces = generate.stream(weights, tiny_config, TEXTS[i], max_tokens=NEW, clamp=alone, every=3)
    assert [token for piece in pieces for token in piece] == greedy[i]
    pieces = generate.stream(weights, tiny_config, TEXTS[i], max_tokens=NEW, clamp=alone, stop_ids={greedy[i][4]})
    assert [token for piece in pieces for token in piece] == greedy[i][:5]


def test_from_which_token_on_a_clamp_acts(weights, tiny_config):
    """Clamps on the prompt decide the first new token already; those on generated tokens the one after it."""

    def answer(positions) -> list[int]:
        clamp = make_clamp(tiny_config, [NeuronClamp(2, 7, 60.0, site="product", positions=positions)], special_ids=SPECIAL)
        return generate.generate(weights, tiny_config, PROMPTS[:1], max_tokens=3, clamp=clamp)[0]

    plain = generate.generate(weights, tiny_config, PROMPTS[:1], max_tokens=3)[0]
    assert answer("all")[0] == answer("last")[0] == answer("prompt")[0] != plain[0]
    assert answer("generated")[0] == plain[0]
    assert answer("generated")[1] != plain[1]
    assert answer((0,)) == plain  # in the last layer, an early token is out of reach


def test_nothing_outlives_a_call(weights, tiny_config, clamp, plain):
    def still_plain() -> bool:
        return generate.generate(weights, tiny_config, TEXTS, max_tokens=NEW) == plain

    generate.generate(weights, tiny_config, TEXTS, max_tokens=NEW, clamp=clamp)
    assert still_plain()
    pieces = generate.stream(
        weights, tiny_config, PROMPTS[0], max_tokens=NEW, clamp=make_clamp(tiny_config, [CASES[0][1]], special_ids=SPECIAL)
    )
    next(pieces)
    with pytest.raises(RuntimeError, match="the reader went away"):
        pieces.throw(RuntimeError("the reader went away"))
    assert still_plain()
    with pytest.raises(UserError):
        generate.generate(weights, tiny_config, PROMPTS, max_tokens=NEW, clamp=clamp)
    assert still_plain()


def test_an_empty_clamp_generates_as_the_plain_model(weights, tiny_config, plain):
    assert generate.generate(weights, tiny_config, TEXTS, max_tokens=NEW, clamp=make_clamp(tiny_config, [])) == plain


def test_other_clamps_compile_nothing_anew(weights, tiny_config):
    def programs() -> tuple[int, int]:
        return generate.prefill._cache_size(), generate.decode._cache_size()

    def run(**options) -> None:
        clamp = make_clamp(tiny_config, [NeuronClamp(**options)], special_ids=SPECIAL)
        generate.generate(weights, tiny_config, [[1, 2, 3, 4]], max_tokens=4, clamp=clamp)

    run(layer=0, neuron=0, value=1.0)
    before = programs()
    run(layer=2, neuron=47, value=-3.0)
    run(layer=1, neuron=5, value=2.0, site="product", mode="ceil", positions="generated", exclude_special=True)
    run(layer=1, neuron=5, value=2.0, mode="set_if_active", positions=(1, 2))
    assert programs() == before


def test_clamped_generation_on_a_mesh(weights, tiny_config, clamp, greedy):
    mesh = sharding.make_mesh(2, 1, 4)
    placed = jax.device_put(weights, sharding.shardings(tiny_config, mesh))
    assert generate.generate(placed, tiny_config, TEXTS, max_tokens=NEW, clamp=clamp, mesh=mesh) == greedy


def test_a_clamp_in_decode_copies_no_cache(tiny_config):
    """Two layers in float32, whose cache XLA likes to copy: the compiled loop has as many such copies as the plain one."""
    cfg = dataclasses.replace(tiny_config, num_hidden_layers=2)
    weights = params.init(jax.random.key(0), cfg)
    state, stops = generate.start(weights, cfg, [[1] * 5], max_tokens=40)
    size = ",".join(map(str, state.cache.k[0].shape))

    def copies(clamp) -> int:
        text = generate.decode.lower(weights, cfg, state, stops, 40, clamp=clamp).compile().as_text()
        return len(re.findall(rf"f32\[{size}\]\S* copy\(", text))

    assert copies(make_clamp(cfg, [NeuronClamp(1, 3, 5.0)])) == copies(None)


def test_a_clamp_with_a_cache_needs_the_prompts_lengths(weights, tiny_config):
    state, _ = generate.start(weights, tiny_config, PROMPTS[:1], max_tokens=NEW)
    with pytest.raises(ValueError, match="prompt_lengths"):
        model.forward(
            weights,
            tiny_config,
            jnp.zeros((1, 1), jnp.int32),
            cache=state.cache,
            clamp=make_clamp(tiny_config, [CASES[0][1]]),
        )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[], []], None),
        ([[NeuronClamp(0, 0, 1.0)], []], "a clamp of 2 rows for 3 prompts"),
        ([NeuronClamp(1, 3, 1.0, positions=(0, 1))], "L1/N3: position 1 is beyond prompt 1, whose tokens are 0 to 0"),
        (
            [[], [], [NeuronClamp(1, 3, 1.0, positions=(11,))]],
            "L1/N3: position 11 is beyond prompt 2, whose tokens are 0 to 10",
        ),
    ],
)
def test_clamps_that_do_not_fit_the_prompts(rows, message, weights, tiny_config):
    clamp = make_clamp(tiny_config, rows)
    if message is None:
        assert generate.generate(weights, tiny_config, PROMPTS[:2], max_tokens=1, clamp=clamp)
        return
    with pytest.raises(UserError, match=message):
        generate.generate(weights, tiny_config, PROMPTS, max_tokens=1, clamp=clamp)

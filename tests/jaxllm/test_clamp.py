"""Clamps in one forward pass: against a float64 reference, as data, at the right places, and nowhere else."""

import dataclasses
import re

import dense_llama
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import by_name

from jaxllm import logprobs, model, params, sharding
from jaxllm.clamp import FEW, MODES, NO_LAYER, SITES, NeuronClamp, make_clamp
from jaxllm.config import PRESETS, Config
from jaxllm.errors import UserError

TOKENS = np.array([[5, 0, 17, 80, 3, 96, 41, 7]], np.int32)
T = TOKENS.shape[1]
SPECIAL = (0, 3)
READ = model.Neurons(np.array([1, 1, 0, 2]), np.array([3, 4, 3, 47]))
KINDS = [(site, mode) for site in SITES for mode in MODES]
REFERENCE = {  # what a mode makes of values x, given value c and threshold 0
    "set": lambda x, c: np.full_like(x, c),
    "add": lambda x, c: x + c,
    "scale": lambda x, c: x * c,
    "floor": lambda x, c: np.where(x < c, c, x),
    "ceil": lambda x, c: np.where(x > c, c, x),
    "set_if_active": lambda x, c: np.where(x > 0, c, x),
}


@pytest.fixture(scope="module")
def weights(tiny_params) -> params.Params:
    """The tiny model with louder MLPs, so that clamps bound values and gates are open and closed."""
    loud = jax.tree.map(lambda x: 10 * x, tiny_params["layers"])
    return {**tiny_params, "layers": {i: {**tiny_params["layers"][i], "mlp": loud[i]["mlp"]} for i in loud}}


@pytest.fixture(scope="module")
def run(tiny_config: Config):
    """Hidden states and the record of a batch, compiled once per shape."""

    def forward(weights, tokens, clamp, prompt_lengths=None, remat=False, mesh=None):
        options = {"prompt_lengths": prompt_lengths, "remat": remat, "mesh": mesh}
        return model.forward(weights, tiny_config, tokens, clamp=clamp, record=READ, **options)

    return jax.jit(forward, static_argnames=("remat", "mesh"))


def dense(weights, cfg: Config, ids: list[int], change=None, inner=None) -> np.ndarray:
    freq = dense_llama.frequencies(16, 10000.0, {"factor": 8.0, "low": 1.0, "high": 4.0, "original": 64})
    options = {} if change is None else {"change": change}
    return dense_llama.forward(by_name(weights, cfg), ids, H=6, K=2, C=16, eps=1e-5, freq=freq, inner=inner, **options)


def one(site: str = "up", mode: str = "set", value: float = 0.5, **options) -> NeuronClamp:
    return NeuronClamp(1, 3, value, site=site, mode=mode, **options)


def test_every_site_and_mode_equals_the_reference(weights, tiny_config, run):
    """All 24 in one batch, a clamp of its own for each row, from one compiled program."""
    clamp = make_clamp(tiny_config, [[one(site, mode)] for site, mode in KINDS])
    hidden, recorded = run(weights, np.repeat(TOKENS, len(KINDS), 0), clamp)
    logits = np.asarray(model.logits(weights, hidden))
    plain = dense(weights, tiny_config, TOKENS[0].tolist())
    for row, (site, mode) in enumerate(KINDS):

        def change(layer: int, at: str, values: np.ndarray, site=site, mode=mode) -> np.ndarray:
            if (layer, at) == (1, site):
                values = values.copy()
                values[:, 3] = REFERENCE[mode](values[:, 3], 0.5)
            return values

        inner: list[dict[str, np.ndarray]] = []
        expected = dense(weights, tiny_config, TOKENS[0].tolist(), change, inner)
        np.testing.assert_allclose(logits[row], expected, atol=2e-5, err_msg=f"{site} {mode}")
        assert np.abs(expected - plain).max() > 1e-3, (site, mode)
        for name in ("gate_pre", "up", "product"):
            values = np.stack([inner[layer][name][:, j] for layer, j in zip(READ.layer, READ.neuron, strict=True)], -1)
            np.testing.assert_allclose(getattr(recorded, name)[row], values, atol=2e-5)


def test_several_clamps_act_in_the_order_of_the_sites(weights, tiny_config, run):
    rows = [one("product", "add", 2.0), one("up", "scale", -3.0), one("gate_act", "floor", 0.4), one("gate_pre", "ceil", 0.2)]
    other = NeuronClamp(1, 4, 7.0)
    _, recorded = run(weights, TOKENS, make_clamp(tiny_config, [*rows, other]))
    _, plain = run(weights, TOKENS, None)
    gate, up = np.minimum(plain.gate_pre[..., 0], 0.2), -3 * plain.up[..., 0]
    np.testing.assert_allclose(recorded.gate_pre[..., 0], gate, rtol=1e-6)
    np.testing.assert_allclose(recorded.up[..., 0], up, rtol=1e-6)
    act = np.maximum(gate / (1 + np.exp(-gate)), 0.4)
    np.testing.assert_allclose(recorded.product[..., 0], act * up + 2, rtol=1e-5)
    assert (np.asarray(recorded.up[..., 1]) == 7).all()
    np.testing.assert_array_equal(recorded.up[..., 2], plain.up[..., 2])  # layer 0, the same neuron


@pytest.mark.parametrize("site", SITES)
def test_a_clamp_at_up_is_gated_and_one_at_product_is_not(site, weights, tiny_config, run):
    """Effect of ``set`` on the block's output: (c - u) silu(a) D[:, j] at up, (c - s) D[:, j] at product."""
    closed = one("gate_pre", "set", -200.0)
    clamps = [[closed], [closed, one(site, "set", 50.0)]] if site != "gate_pre" else [[closed], [closed]]
    hidden, _ = run(weights, np.repeat(TOKENS, 2, 0), make_clamp(tiny_config, clamps))
    assert np.array_equal(hidden[0], hidden[1]) == (site in ("gate_pre", "up"))


def test_a_planted_concept_follows_the_clamps_value(tiny_params, tiny_config):
    """With a down column along the head's row of token t, p(t) rises with the value while the gate is open."""
    t = 23
    weights = jax.tree.map(lambda x: x, tiny_params)
    mlp = weights["layers"][2]["mlp"]
    mlp["down_proj"]["weight"] = mlp["down_proj"]["weight"].at[:, 3].set(tiny_params["lm_head"]["weight"][t])
    values = np.linspace(-1, 1, 9)
    forward = jax.jit(lambda w, t, c: model.logits(w, model.forward(w, tiny_config, t, clamp=c)[:, -1]))
    for gate, moves in ((2.0, True), (-200.0, False)):
        rows = [[NeuronClamp(2, 3, gate, site="gate_pre"), NeuronClamp(2, 3, value)] for value in values]
        clamp = make_clamp(tiny_config, rows)
        p = jax.nn.softmax(forward(weights, np.repeat(TOKENS, len(rows), 0), clamp))[:, t]
        steps = np.diff(p)
        assert (steps > 0).all() if moves else (steps == 0).all()


def test_no_clamp_is_the_plain_model_bit_for_bit(weights, tiny_config, run):
    tokens = np.repeat(TOKENS, 2, 0)
    plain = run(weights, tokens, None)
    empty = make_clamp(tiny_config, [[], [one()]])
    for clamp in (make_clamp(tiny_config, []), make_clamp(tiny_config, [[], []])):
        assert clamp.slots == 0
        jax.tree.map(np.testing.assert_array_equal, run(weights, tokens, clamp), plain)
    hidden, _ = run(weights, tokens, empty)
    np.testing.assert_array_equal(hidden[0], plain[0][0])  # a row whose slots are empty
    assert np.abs(hidden[1] - plain[0][1]).max() > 1e-2
    slotless = dataclasses.replace(empty, layer=np.full_like(empty.layer, NO_LAYER))
    jax.tree.map(np.testing.assert_array_equal, run(weights, tokens, slotless), plain)


def test_the_natural_value_changes_nothing(weights, tiny_config, run):
    plain, recorded = run(weights, TOKENS, None)
    at = 4
    for site in ("gate_pre", "up", "product"):
        clamp = make_clamp(tiny_config, [one(site, "set", float(getattr(recorded, site)[0, at, 0]), positions=(at,))])
        np.testing.assert_allclose(run(weights, TOKENS, clamp)[0], plain, atol=1e-6)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("prompt", [0, 1, 2, 3, 4]),
        ("generated", [5, 6, 7]),
        ("last", [4]),
        ((3,), [3]),
        ((0, 2, 3, 4), [0, 2, 3, 4]),
        ((4, 6), [4]),  # only the prompt has numbered positions
    ],
)
@pytest.mark.parametrize("exclude_special", [False, True])
def test_positions(positions, expected, exclude_special, weights, tiny_config, run):
    """A prompt of five tokens of which the second and the fifth are special, and three generated ones."""
    clamp = make_clamp(tiny_config, [one(positions=positions, exclude_special=exclude_special)], special_ids=SPECIAL)
    _, recorded = run(weights, TOKENS, clamp, np.array([5]))
    expected = [at for at in expected if not (exclude_special and TOKENS[0, at] in SPECIAL)]
    assert np.flatnonzero(recorded.up[0, :, 0] == 0.5).tolist() == expected


def test_a_prompts_length_is_that_of_the_text_unless_told(weights, tiny_config, run):
    clamp = make_clamp(tiny_config, [one(positions="last")])
    assert np.flatnonzero(run(weights, TOKENS, clamp)[1].up[0, :, 0] == 0.5).tolist() == [T - 1]
    padded = np.repeat(TOKENS, 2, 0)
    forward = jax.jit(lambda w, c, n: model.forward(w, tiny_config, padded, clamp=c, lengths=n, record=READ)[1].up)
    up = forward(weights, clamp, np.array([3, 6]))
    assert [np.flatnonzero(row == 0.5).tolist() for row in up[..., 0]] == [[2], [5]]


def test_stacked_and_rematerialised_layers_give_the_same(weights, tiny_config, run):
    clamp = make_clamp(tiny_config, [one("product", value=2.0)])
    expected = run(weights, TOKENS, clamp)
    stacked = params.stack(weights)
    for tree, remat in ((weights, True), (stacked, False), (stacked, True)):
        got = run(tree, TOKENS, clamp, remat=remat)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), got, expected)


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_on_eight_devices(count, weights, tiny_config, run):
    """48 neurons over two and four devices; a few slots and many take different ways."""
    rows = [[NeuronClamp(i % 3, 47 - j, 0.1 * (i + j), site=SITES[j % 4]) for j in range(count)] for i in range(8)]
    clamp = make_clamp(tiny_config, rows)
    tokens = np.stack([np.roll(TOKENS[0], i) for i in range(8)])
    expected = run(weights, tokens, clamp)
    for shape, stacked in (((1, 2, 4), False), ((2, 2, 2), True)):
        mesh = sharding.make_mesh(*shape)
        tree = params.stack(weights) if stacked else weights
        placed = jax.device_put(tree, sharding.shardings(tiny_config, mesh, stacked=stacked))
        got = run(placed, tokens, clamp, mesh=mesh)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, expected)


def test_many_clamps_equal_few(weights, tiny_config, run):
    """Slots that act on nothing make the same clamps go the other way."""
    parts = [[NeuronClamp(i // 2, 5 * i, i - 1.5, mode=MODES[i], site=SITES[i % 4])] for i in range(6)]
    few = make_clamp(tiny_config, parts)
    spare = [NeuronClamp(0, 20 + j, 1.0, positions=(500,)) for j in range(FEW)]  # beyond the text
    many = make_clamp(tiny_config, [[*part, *spare] for part in parts])
    assert few.slots <= FEW < many.slots
    tokens = np.repeat(TOKENS, 6, 0)
    expected = run(weights, tokens, few)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), run(weights, tokens, many), expected)


def test_other_neurons_values_sites_and_positions_compile_nothing(weights, tiny_config):
    traces = []

    @jax.jit
    def forward(weights, clamp, prompt_lengths):
        traces.append(1)
        return model.forward(weights, tiny_config, TOKENS, clamp=clamp, prompt_lengths=prompt_lengths)

    results = []
    for row in (
        [one()],
        [one(value=-7.0)],
        [NeuronClamp(2, 40, 1.0, site="product", mode="add", positions="last")],
        [NeuronClamp(0, 0, 1.0, site="gate_pre", mode="set_if_active", threshold=0.2, positions=(2,), exclude_special=True)],
    ):
        results.append(
            np.asarray(forward(weights, make_clamp(tiny_config, row, special_ids=SPECIAL), np.array([len(row) + 4])))
        )
    assert len(traces) == 1
    assert len({array.tobytes() for array in results}) == 4


def test_gradients_flow_past_a_clamp_and_into_its_value(weights, tiny_config):
    clamp = make_clamp(tiny_config, [one(value=0.3)])

    def loss(value, up, mode):  # mode [1, 1]
        tree = jax.tree.map(lambda x: x, weights)
        tree["layers"][1]["mlp"]["up_proj"]["weight"] = up
        here = dataclasses.replace(clamp, value=value, mode=mode)
        return jnp.sum(model.forward(tree, tiny_config, TOKENS, clamp=here)[0, -1] ** 3)

    grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    up, step = weights["layers"][1]["mlp"]["up_proj"]["weight"], 1e-2
    for name in ("set", "scale"):
        mode = np.full_like(clamp.mode, MODES.index(name))
        _, (by_value, by_up) = grad(clamp.value, up, mode)
        above, below = (grad(clamp.value + sign * step, up, mode)[0] for sign in (1, -1))
        np.testing.assert_allclose(by_value[0, 0], (above - below) / (2 * step), rtol=2e-2)
        assert (np.asarray(by_up[3]) == 0).all() == (name == "set")  # what is set no longer depends on the weights
        assert np.abs(by_up[4]).max() > 0


def test_bfloat16_holds_the_value_as_it_is(weights, tiny_config, run):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights)
    hidden, recorded = run(half, TOKENS, make_clamp(tiny_config, [one(value=-30.0)]))
    assert hidden.dtype == jnp.bfloat16
    assert (np.asarray(recorded.up[..., 0]) == -30).all()


def test_layers_above_the_last_one_do_not_run(weights, tiny_config):
    full, some = (
        jax.jit(lambda w, t, n=n: model.forward(w, tiny_config, t, record=READ, last_layer=n))(tree, TOKENS)[1]
        for tree, n in ((weights, None), (params.stack(weights), 1))
    )
    np.testing.assert_allclose(some.up[..., :3], full.up[..., :3], atol=2e-6)
    assert (np.asarray(some.up[..., 3]) == 0).all()
    with pytest.raises(ValueError, match="last_layer"):
        model.forward(weights, tiny_config, TOKENS, last_layer=3)


def test_logprobs_under_a_clamp(weights, tiny_config):
    clamp = make_clamp(tiny_config, [one(value=9.0, positions="generated")])
    score = jax.jit(lambda w, c, n: logprobs.sequence_logprobs(w, tiny_config, TOKENS, clamp=c, prompt_lengths=n)[0])
    plain, clamped = (score(weights, c, np.array([5])) for c in (None, clamp))
    np.testing.assert_allclose(clamped[0, :5], plain[0, :5], atol=1e-6)
    assert np.abs(clamped[0, 5:] - plain[0, 5:]).min() > 1e-6


def test_explicit_positions_take_a_slot_for_each_run_of_neighbours(tiny_config):
    clamp = make_clamp(tiny_config, [one(positions=(7, 0, 1, 2, 1, 5))])
    used = np.asarray(clamp.layer)[0] != NO_LAYER
    assert sorted(zip(clamp.start[0, used], clamp.stop[0, used], strict=True)) == [(0, 3), (5, 6), (7, 8)]
    assert clamp.slots == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([NeuronClamp(32, 0, 1.0)], "L32/N0: the model has layers 0 to 31 and neurons 0 to 14335"),
        ([NeuronClamp(0, 14336, 1.0)], "L0/N14336: the model has"),
        ([NeuronClamp(-1, 0, 1.0)], "L-1/N0: the model has"),
        ([NeuronClamp(29, 1342, float("nan"))], "L29/N1342: value nan"),
        ([NeuronClamp(29, 1342, 1e39)], "L29/N1342: value 1e+39"),
        ([NeuronClamp(29, 1342, 1.0, threshold=float("inf"))], "L29/N1342: threshold inf"),
        (
            [NeuronClamp(29, 1342, 1.0, site="down")],
            "L29/N1342: unknown site 'down'; there are gate_pre, gate_act, up, product",
        ),
        ([NeuronClamp(29, 1342, 1.0, mode="freeze")], "L29/N1342: unknown mode 'freeze'"),
        ([NeuronClamp(29, 1342, 1.0, positions="first")], "L29/N1342: unknown positions 'first'"),
        ([NeuronClamp(29, 1342, 1.0, positions=())], "L29/N1342: positions ()"),
        ([NeuronClamp(29, 1342, 1.0, positions=(-1,))], "L29/N1342: positions (-1,)"),
        ([NeuronClamp(29, 1342, 1.0), NeuronClamp(29, 1342, 2.0)], "L29/N1342: two clamps at site up"),
        ([[], [NeuronClamp(0, 1, 1.0), NeuronClamp(0, 1, 2.0, positions="last")]], "L0/N1: two clamps"),
    ],
)
def test_mistakes_are_named_before_anything_runs(wrong, message):
    with pytest.raises(UserError, match=re.escape(message)):
        make_clamp(PRESETS["llama-3.1-8b"], wrong)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("prompt", "generated", True),
        ("last", "generated", True),
        ((0, 1), "generated", True),
        ((0, 1), (2, 3), True),
        ((0, 1), (1, 2), False),
        ("last", (3,), False),
        ("last", "prompt", False),
        ("all", "generated", False),
        ("generated", "generated", False),
    ],
)
def test_two_clamps_of_a_neuron_need_positions_apart(one, other, apart, tiny_config):
    clamps = [NeuronClamp(1, 3, 1.0, positions=one), NeuronClamp(1, 3, 2.0, positions=other)]
    for row in (clamps, clamps[::-1]):
        if apart:
            assert make_clamp(tiny_config, row).slots == 2
        else:
            with pytest.raises(UserError, match="may be the same"):
                make_clamp(tiny_config, row)
    assert make_clamp(tiny_config, [clamps[0], dataclasses.replace(clamps[1], site="product")]).slots == 2


def test_rows_that_do_not_fit_the_batch(weights, tiny_config):
    with pytest.raises(UserError, match="a clamp of 2 rows for a batch of 1"):
        model.forward(weights, tiny_config, TOKENS, clamp=make_clamp(tiny_config, [[one()], []]))

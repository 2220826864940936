"""Natural activations against a dense float64 model written from the definition, and against measured values of SmolLM2."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from interp import acts
from interp.acts import Activations, activations
from interp.windows import NO_ID, Batch, Shape, shape_for
from jaxllm import cli, params, sharding
from jaxllm.cli import console, runtime
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.load import load_params, open_checkpoint
from jaxllm.record import Neurons
from tests.jaxllm import dense_llama

L, F = 3, 20
CFG = Config(
    hidden_size=12,
    intermediate_size=F,
    num_hidden_layers=L,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    vocab_size=128,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
SHAPE = Shape(length=12, context=3, batch=2)
NEURONS = [(0, 3), (2, 19), (1, 0)]
TEXT = "The tea is hot.\nThe sea is not; the bee can see the tea."
CLAMP = json.loads((Path(__file__).parents[1] / "data" / "clamp.json").read_text())


class Ascii:
    """A vocabulary of single characters."""

    size, bos_id, add_bos = 128, None, False

    def encode_parts(self, parts: Iterable[tuple[str, bool]], *, bos: bool | None = False, start: bool = True) -> list[int]:
        return [ord(char) for text, _ in parts for char in text]

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


ASCII: Any = Ascii()


def tree(values: tiny.Weights) -> params.Params:
    return params.build(CFG, lambda path, _: jnp.asarray(values[params.hf_name(path)]))


@pytest.fixture(scope="module")
def weights() -> tiny.Weights:
    return {name: value / (1 if value.ndim == 1 else 3) for name, value in tiny.weights(3, CFG).items()}


@pytest.fixture(scope="module")
def tiny_tree(weights: tiny.Weights) -> params.Params:
    return tree(weights)


def dense(weights: tiny.Weights, site: str) -> np.ndarray:
    """The values [n, m] of all counted characters, window by window: 12 characters, of which all but the first window's
    first one, or the three that the window before had too, count."""
    freq = dense_llama.frequencies(4, CFG.rope_theta, None)
    found = []
    for start in range(0, len(TEXT) - 3, 9):
        inner: list[dict[str, np.ndarray]] = []
        ids = [ord(char) for char in TEXT[start : start + 12]]
        dense_llama.forward(weights, ids, H=4, K=2, C=4, eps=CFG.rms_norm_eps, freq=freq, inner=inner)
        values = np.stack([inner[layer][site][:, neuron] for layer, neuron in NEURONS], 1)
        found.append(values[3 if start else 1 :])
    return np.concatenate(found)


@pytest.mark.parametrize("site", acts.SITES)
@pytest.mark.parametrize("stacked", [False, True])
def test_statistics_and_places_are_those_of_the_dense_model(
    site: str, stacked: bool, weights: tiny.Weights, tiny_tree: params.Params
):
    expected = dense(weights, site)
    assert len(expected) == len(TEXT) - 1
    values = params.stack(tiny_tree) if stacked else tiny_tree
    found = activations(values, CFG, ASCII, NEURONS, [TEXT], site=site, top=60, shape=SHAPE)
    assert (found.site, found.tokens, found.size, found.complete) == (site, len(TEXT) - 1, len(TEXT) - 1, True)
    for j, neuron in enumerate(found.neurons):
        column = expected[:, j]
        assert (neuron.layer, neuron.neuron, neuron.count, neuron.nonfinite) == (*NEURONS[j], len(TEXT) - 1, 0)
        statistics = (neuron.mean, neuron.std, neuron.min, neuron.max)
        np.testing.assert_allclose(statistics, (column.mean(), column.std(), column.min(), column.max()), rtol=2e-4, atol=1e-5)
        assert neuron.counts.sum() == neuron.histogram().counts.sum() == len(column)
        for places, sign in ((neuron.highest, 1), (neuron.lowest, -1)):
            at = [place.index for place in places]
            assert len(set(at)) == len(at) > 40
            np.testing.assert_allclose([place.value for place in places], column[np.array(at) - 1], rtol=2e-4, atol=1e-5)
            assert (np.diff([sign * place.value for place in places]) <= 0).all()
            assert places[0].value == (neuron.max if sign == 1 else neuron.min)


def test_places_show_the_text_around_them(tiny_tree: params.Params):
    found = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], top=60, shape=SHAPE)
    for place in (*found.neurons[0].highest, *found.neurons[1].lowest):
        shown = "".join(map(chr, place.ids))
        start = place.index - place.marked
        assert TEXT[start : start + len(shown)] == shown
        assert len(shown) >= 4
        assert place.line == 1 + TEXT[: place.index].count("\n")


def test_tails_are_shares_of_the_values(tiny_tree: params.Params, weights: tiny.Weights):
    column = dense(weights, "up")[:, 0]
    tails = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], shape=SHAPE).neurons[0].tails()
    assert [tail.sigmas for tail in tails] == [1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6]
    for tail in tails:
        assert tail.value == pytest.approx(column.mean() + tail.sigmas * column.std(), rel=1 / 64, abs=1e-6)
        outside = column >= tail.value if tail.sigmas > 0 else column < tail.value
        assert tail.share == pytest.approx(outside.mean())


@pytest.mark.parametrize("size", [1, 5])
def test_how_the_text_arrives_changes_nothing(size: int, tiny_tree: params.Params, tmp_path: Path):
    whole = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], shape=SHAPE)
    pieces = [TEXT[i : i + size] for i in range(0, len(TEXT), size)]
    same(activations(tiny_tree, CFG, ASCII, NEURONS, pieces, shape=SHAPE), whole)
    (tmp_path / "text").write_text(TEXT)
    same(activations(tiny_tree, CFG, ASCII, NEURONS, tmp_path / "text", shape=SHAPE), whole)


def same(a: Activations, b: Activations) -> None:
    assert (a.tokens, a.size) == (b.tokens, b.size)
    for x, y in zip(a.neurons, b.neurons, strict=True):
        assert (x.highest, x.lowest, x.mean, x.std) == (y.highest, y.lowest, y.mean, y.std)
        assert (x.counts == y.counts).all()


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_batches_of_another_size_find_the_same(batch: int, tiny_tree: params.Params):
    a = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], top=5, shape=SHAPE)
    b = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], top=5, shape=Shape(12, 3, batch))
    for x, y in zip(a.neurons, b.neurons, strict=True):
        for first, second in ((x.highest, y.highest), (x.lowest, y.lowest)):
            assert [(place.index, place.ids) for place in first] == [(place.index, place.ids) for place in second]
            np.testing.assert_allclose([p.value for p in first], [p.value for p in second], rtol=1e-4)
        np.testing.assert_allclose((x.mean, x.std), (y.mean, y.std), rtol=1e-4, atol=1e-6)


def test_repeated_contexts_are_listed_once(tiny_tree: params.Params):
    line = "tea and bread. "
    (found,) = activations(tiny_tree, CFG, ASCII, [(1, 2)], [line * 50], top=20, shape=Shape(32, 8, 4)).neurons
    assert found.count == 50 * len(line) - 1
    endings = [place.same for place in found.highest]
    assert len(set(endings)) == len(endings) == 20  # 15 of the line, and those of its beginning
    assert found.max == found.highest[0].value


def test_other_neurons_of_the_same_depth_compile_nothing(tiny_tree: params.Params):
    activations(tiny_tree, CFG, ASCII, [(2, 0), (0, 1), (1, 1)], [TEXT], shape=SHAPE)
    before = acts.run._cache_size()
    for neurons in ([(2, 5), (2, 6), (0, 0)], [(1, 4), (0, 1), (2, 1), (2, 2)]):
        activations(tiny_tree, CFG, ASCII, neurons, [TEXT * 3], site="product", shape=SHAPE)
    assert acts.run._cache_size() == before


def test_nothing_as_large_as_all_layers_or_all_logits_is_formed(tiny_tree: params.Params):
    B, T, m = 4, 16, 2
    wanted = Neurons(jnp.array([2, 0]), jnp.array([1, 1]))
    tokens = np.zeros((B, T), np.int32)
    program = jax.make_jaxpr(lambda p, t, n: acts.run(p, CFG, t, n, last=2))(tiny_tree, tokens, wanted)
    sizes = [size(shape) for shape in shapes(program.jaxpr)]
    assert max(sizes) == B * CFG.num_attention_heads * T * T  # the attention's scores
    assert B * T * F * L not in sizes
    assert B * T * CFG.vocab_size not in sizes
    assert [v.aval.shape for v in program.jaxpr.outvars] == [(B, T, m)] * 3


def size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def shapes(program: Any) -> Iterable[tuple[int, ...]]:
    """The shape of every value that a program computes, inner programs included."""
    for equation in program.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in equation.params.values():
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):  # some hold a program with its constants
                yield from shapes(inner)


def test_parameters_on_a_mesh_find_the_same(tiny_tree: params.Params):
    mesh = sharding.make_mesh(data=2, tensor=2)
    spread = jax.device_put(tiny_tree, sharding.shardings(CFG, mesh))
    a = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], top=5, shape=SHAPE)
    b = activations(spread, CFG, ASCII, NEURONS, [TEXT], top=5, shape=SHAPE, mesh=mesh)
    for x, y in zip(a.neurons, b.neurons, strict=True):
        assert [place.index for place in x.highest] == [place.index for place in y.highest]
        np.testing.assert_allclose((x.mean, x.std, x.min, x.max), (y.mean, y.std, y.min, y.max), rtol=1e-4, atol=1e-6)


def test_layers_above_the_neurons_are_not_run(tiny_tree: params.Params, weights: tiny.Weights):
    broken = tree({name: np.full_like(v, np.nan) if ".layers.2." in name else v for name, v in weights.items()})
    low = [(0, 3), (1, 0)]
    a = activations(tiny_tree, CFG, ASCII, low, [TEXT], shape=SHAPE)
    same(a, activations(broken, CFG, ASCII, low, [TEXT], shape=SHAPE))


def test_what_is_not_finite_is_counted_and_left_out(weights: tiny.Weights):
    row = dict(weights)
    name = tiny.mlp(2, "up")
    row[name] = row[name].copy()
    row[name][7] = np.nan
    bad, good = activations(tree(row), CFG, ASCII, [(2, 7), (2, 6)], [TEXT], shape=SHAPE).neurons
    assert (bad.count, bad.nonfinite, bad.highest, bad.lowest) == (0, len(TEXT) - 1, (), ())
    assert bad.histogram().counts.tolist() == []
    assert (good.count, good.nonfinite) == (len(TEXT) - 1, 0)


def test_ctrl_c_returns_what_was_found_until_then(tiny_tree: params.Params):
    calls: list[acts.Progress] = []

    def stop(progress: acts.Progress) -> None:
        calls.append(progress)
        if len(calls) == 2:
            raise KeyboardInterrupt

    found = activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT], shape=SHAPE, progress=stop)
    # Two batches of two windows: 11, 9, 9 and 9 characters.
    assert (found.complete, found.tokens, calls[-1].tokens) == (False, 38, 38)
    same(found, activations(tiny_tree, CFG, ASCII, NEURONS, [TEXT[:39]], shape=SHAPE))

    def never() -> Iterable[str]:
        raise KeyboardInterrupt
        yield ""

    with pytest.raises(KeyboardInterrupt):
        activations(tiny_tree, CFG, ASCII, NEURONS, never(), shape=SHAPE)


@pytest.mark.parametrize(
    ("neurons", "options", "message"),
    [
        ([(3, 0)], {}, r"L3/N0: the model has layers 0 to 2 with neurons 0 to 19"),
        ([(0, 0), (2, 20)], {}, r"L2/N20: the model has"),
        ([(-1, 0)], {}, r"L-1/N0: the model has"),
        ([], {}, "no neuron given"),
        ([(0, 0)] * 65, {}, "65 neurons are too many"),
        ([(0, 0)], {"site": "down"}, "site 'down' is not known; choose one of up, gate_pre, product"),
        ([(0, 0)], {"top": 0}, "at least one context"),
        ([(0, 0)], {"shape": shape_for(65)}, "windows of 65 tokens exceed the model's 64 positions"),
        ([(0, 0)], {"text": ["x"]}, "the text: a text needs at least two tokens"),
        ([(0, 0)], {"text": Path("absent.txt")}, r"absent.txt: cannot be read: No such file"),
    ],
)
def test_mistakes_are_one_message(neurons: Any, options: dict[str, Any], message: str, tiny_tree: params.Params):
    with pytest.raises(UserError, match=message):
        activations(tiny_tree, CFG, ASCII, neurons, **{"text": [TEXT], **options})


@pytest.fixture(scope="module")
def model(smollm2: Path) -> SimpleNamespace:
    checkpoint = open_checkpoint(smollm2)
    return SimpleNamespace(params=load_params(checkpoint), cfg=checkpoint.config, tokenizer=checkpoint.tokenizer())


@pytest.mark.parametrize("site", ["up", "gate_pre"])
def test_values_of_smollm2_are_those_measured_elsewhere(site: str, model: SimpleNamespace):
    """`clamp.json`: the up output and silu(gate) at the last position of eight prompts, two and three digits."""
    prompts = [model.tokenizer.encode(prompt) for prompt in CLAMP["prompts"]]
    T = max(map(len, prompts))
    tokens, index = np.zeros((len(prompts), T), np.int32), np.full((len(prompts), T), NO_ID, np.int64)
    counted = np.zeros((len(prompts), T), bool)
    for b, ids in enumerate(prompts):
        tokens[b, : len(ids)], index[b, : len(ids)], counted[b, len(ids) - 1] = ids, range(len(ids)), True
    batch = Batch(tokens, index, np.ones_like(index), counted, 0)
    neurons = [(result["layer"], result["index"]) for result in CLAMP["results"]]
    ((_, values),) = acts.record(model.params, model.cfg, [batch], neurons, site)
    last = values[counted]
    if site == "gate_pre":
        last = last / (1 + np.exp(-last))
    field, tolerance = {"up": ("up_act", 0.0051), "gate_pre": ("silu_gate", 0.00051)}[site]
    expected = np.array([result[field] for result in CLAMP["results"]])
    np.testing.assert_allclose(np.stack([last.min(0), last.max(0)], 1), expected, atol=tolerance)


def test_the_command_prints_json_tables_and_csv(
    model: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text(
        "Monday, the cat slept.\nOn Tuesday the dog barked; <b>\x1b[31m on Friday [bold]nobody[/bold] did."
    )
    line = ["acts", "smollm2", "--neuron", "L0/N1469", "--text", "notes.txt", "--window", "64", "--top", "3"]
    assert cli.main([*line, "--neuron", "L0/N350", "--json", "--csv", "acts.csv"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["site"], found["complete"], len(found["neurons"])) == ("up", True, 2)
    days = found["neurons"][0]
    assert (days["layer"], days["neuron"]) == (0, 1469)
    # The map reads this row as the days of the week.
    assert {place["token"].strip() for place in days["highest"] + days["lowest"]} >= {"Tuesday", "Friday"}
    top = days["highest"][0]
    assert top["token_id"] == top["ids"][top["marked"]]
    assert sum(days["histogram"]["counts"]) == found["tokens"]
    assert days["min"] <= days["1 %"] <= days["median"] <= days["99 %"] <= days["max"]
    rows = Path("acts.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 * 3
    assert rows[0].startswith("layer,neuron,site,end,rank,value,token_index,line,token_id,before,token,after")
    assert cli.main(line) == 0
    shown = capsys.readouterr().out
    assert "L0/N1469, up:" in shown
    assert "« Tuesday»" in shown
    assert "\x1b" not in shown
    assert "█" in shown


def test_ctrl_c_in_the_command_shows_what_was_found_and_ends_with_130(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    add = acts.Search.add

    def add_once(search: acts.Search, *batch: Any) -> None:
        if search.tokens:
            raise KeyboardInterrupt
        add(search, *batch)

    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    monkeypatch.setattr(acts.Search, "add", add_once)
    console.stderr.cache_clear()
    assert cli.main(["acts", "smollm2", "--neuron", "L0/N350", "--window", "64", "--top", "1"]) == 130
    console.stderr.cache_clear()
    out, err = capsys.readouterr()
    assert "L0/N350, up: 399 tokens" in out  # eight windows, of which 48 tokens each are new, and 16 more but the first
    assert "Stopped after 399 tokens" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--neuron", "12"], "'12' is not a neuron; write layer and number as in L12/N345"),
        (["--neuron", "L30/N0"], "L30/N0: the model has layers 0 to 29"),
        (["--neuron", "L0/N0", "--text", "absent.txt"], "absent.txt: cannot be read: No such file or directory"),
        (["--neuron", "L0/N0", "--text", "empty.txt"], "empty.txt: the file is empty"),
        (["--neuron", "L0/N0", "--text", "latin.txt"], "latin.txt: not UTF-8: byte 0xe9 at offset 3"),
        (["--neuron", "L0/N0", "--csv", "no/acts.csv"], "--csv no/acts.csv: there is no folder no"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str],
    message: str,
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(runtime, "prepare", lambda verbose: None)
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("latin.txt").write_bytes(b"caf\xe9")
    assert cli.main(["acts", str(smollm2), *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"jaxllm: {message}")
    assert err.count("\n") == 1

"""SmolLM2-135M-Instruct against outputs of a PyTorch Llama in eager attention, float32 and float64, on the same weights.

``tests/data/forward.json`` explains the arrays of ``forward.npz``.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm import generate, load, model
from jaxllm.cli.text import Generate

DATA = Path(__file__).parents[1] / "data"
NOTES = json.loads((DATA / "forward.json").read_text())
LAYERS = NOTES["hidden_layers"]
PROMPTS = range(len(NOTES["prompts"]))


@pytest.fixture(scope="module")
def checkpoint(smollm2: Path):
    return load.open_checkpoint(smollm2)


@pytest.fixture(scope="module")
def weights(checkpoint):
    return load.load_params(checkpoint)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(DATA / "forward.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def traces(checkpoint, weights, reference) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per prompt: the residual stream after k blocks [8, T, D], after the final norm [T, D], and the logits [T, V]."""
    cfg = checkpoint.config

    @jax.jit
    def trace(weights, tokens):
        llama = nnx.merge(model.definition(cfg), weights)
        ctx, x = llama.context(tokens.shape[1]), llama.embed(tokens)
        stream = [x]
        for block in llama.layers:
            x, *_ = block(x, ctx)
            stream.append(x)
        final = model.forward(weights, cfg, tokens)
        return jnp.stack([stream[k] for k in LAYERS]), final, model.logits(weights, final)

    longest = max(len(reference[f"ids_{i}"]) for i in PROMPTS)
    tokens = np.zeros((len(PROMPTS), longest), np.int32)
    for i in PROMPTS:
        tokens[i, : len(reference[f"ids_{i}"])] = reference[f"ids_{i}"]
    stream, final, logits = jax.tree.map(np.asarray, trace(weights, tokens))
    lengths = [len(reference[f"ids_{i}"]) for i in PROMPTS]
    return [(stream[:, i, :n], final[i, :n], logits[i, :n]) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("i", PROMPTS)
def test_logits(i: int, traces, reference):
    _, _, logits = traces[i]
    last = logits[-1].astype(np.float64)
    np.testing.assert_allclose(last[reference[f"top50_ids_{i}"]], reference[f"top50_logits64_{i}"], atol=1e-3)
    np.testing.assert_allclose(np.log(np.exp(last).sum()), reference[f"lse_{i}"], atol=1e-3)
    np.testing.assert_array_equal(logits.argmax(-1), reference[f"argmax_all_{i}"])


@pytest.mark.parametrize("i", PROMPTS)
def test_hidden_states(i: int, traces, reference):
    stream, final, _ = traces[i]
    np.testing.assert_allclose(np.linalg.norm(stream, axis=-1), reference[f"hidden_l2_{i}"], rtol=1e-4)
    for got, expected in ((stream[..., ::36], reference[f"hidden_{i}"]), (final[..., ::36], reference[f"final_norm_{i}"])):
        assert np.linalg.norm(got - expected) <= 1e-4 * np.linalg.norm(expected)


def test_greedy_continuations(checkpoint, weights, reference):
    """All six prompts in one batch, through prefill and the cached decode loop; the chat prompts hold id 2, pad and eos."""
    prompts = [reference[f"ids_{i}"].tolist() for i in PROMPTS]
    assert sum(2 in prompt for prompt in prompts) == 2
    out = generate.generate(weights, checkpoint.config, prompts, max_tokens=32)
    assert out == [reference[f"greedy_{i}"].tolist() for i in PROMPTS]
    tokenizer = checkpoint.tokenizer()
    assert [tokenizer.decode(ids) for ids in out] == [prompt["greedy_text"] for prompt in NOTES["prompts"]]


def test_the_rotary_row_order_of_the_file_would_be_noticed(checkpoint, weights, reference):
    """Rows of q and k left in GGUF's interleaved order: still " Paris", but logits off by far more than the tolerance."""

    def interleave(w: jax.Array, heads: int) -> jax.Array:
        return w.reshape(heads, 2, 32, 576).swapaxes(1, 2).reshape(heads * 64, 576)

    wrong = jax.tree.map(lambda x: x, weights)
    for layer in wrong["layers"].values():
        attn = layer["self_attn"]
        attn["q_proj"]["weight"] = interleave(attn["q_proj"]["weight"], 9)
        attn["k_proj"]["weight"] = interleave(attn["k_proj"]["weight"], 3)
    cfg = checkpoint.config
    tokens = jnp.asarray(reference["ids_0"])[None]
    last = np.asarray(jax.jit(lambda w, t: model.logits(w, model.forward(w, cfg, t)[:, -1]))(wrong, tokens))[0]
    error = np.abs(last[reference["top50_ids_0"]] - reference["top50_logits64_0"]).max()
    assert error > 1
    assert last.argmax() == reference["argmax_all_0"][-1]


def test_command_streams_the_answer(smollm2: Path, capsys: pytest.CaptureFixture[str]):
    Generate(model=str(smollm2), prompt="The capital of France is", max_tokens=9).run()
    assert capsys.readouterr().out == " Paris.\n\nThe answer is: \n"


def test_command_answers_a_chat(smollm2: Path, capsys: pytest.CaptureFixture[str]):
    Generate(model=str(smollm2), prompt="What is your favourite animal?", chat=True, max_tokens=9).run()
    assert capsys.readouterr().out == "The most elusive of all, I have no\n"

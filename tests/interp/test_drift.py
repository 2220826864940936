"""Drift between parameter trees: equal to the comparison of their maps, in every form that a training loop may hold them in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from reference import dense_decode
from tiny import CONFIG, D, F, L, V, mlp

from benchmarks import finetune_pair
from interp.compare import compare, drift, label
from interp.run import Settings, map_model
from jaxllm import params as params_lib
from jaxllm.errors import UserError
from jaxllm.load import load_params
from jaxllm.sharding import make_mesh, shardings

CHANGED = {"lm_head.weight": 0.3, **{mlp(layer, "up"): 0.1 for layer in range(L)}}


def tree(weights):
    """Unstacked parameters of the tiny model."""
    return params_lib.build(CONFIG, lambda path, _: jnp.asarray(weights[params_lib.hf_name(path)]))


def trained():
    """The tiny model's weights, a little away from their start."""
    weights, rng = tiny.weights(), np.random.default_rng(3)
    for name, size in CHANGED.items():
        weights[name] += rng.normal(0, size, weights[name].shape).astype(np.float32)
    return weights


def facts(found):
    """What two drifts must agree on."""
    moved = [values.tolist() for values in vars(found.moved).values()][:4]
    return found.match, found.by_layer, moved, found.labels


def test_a_tree_does_not_drift_from_itself():
    params = tree(tiny.weights())
    found = drift(params, params, CONFIG)
    assert found.match.count == found.match.total == L * F
    assert found.row_cos.value == pytest.approx(1)
    assert len(found.moved.layer) == 0
    assert found.gained() == found.lost() == []


def test_drift_is_the_comparison_of_the_maps(tmp_path):
    one, two = tiny.save(tmp_path / "a", tiny.weights()), tiny.save(tmp_path / "b", trained())
    comparison = compare(
        map_model(one, tmp_path / "map_a", Settings(top_k=6)),
        map_model(two, tmp_path / "map_b", Settings(top_k=6)),
        checkpoints=(one, two),
    )
    found = drift(load_params(one), load_params(two), CONFIG)
    assert 0 < found.match.count < L * F
    assert found.match == comparison.overall.match
    assert found.by_layer == [layer.match for layer in comparison.by_layer]
    assert found.row_cos.value == pytest.approx(comparison.weights.row_cos.value)
    for name in ("layer", "neuron", "old", "new"):
        assert getattr(found.moved, name).tolist() == getattr(comparison.changed, name).tolist()
    np.testing.assert_allclose(found.moved.margin_before, comparison.changed.margin_a, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.moved.margin_after, comparison.changed.margin_b, rtol=1e-3, atol=1e-5)
    assert found.labels == comparison.labels


@pytest.mark.parametrize(("site", "norm"), [("gate", "rms"), ("down", "final"), ("up", "none")])
def test_labels_are_those_of_the_dense_decode(site, norm):
    weights = tiny.weights()
    found = label(tree(weights), CONFIG, site=site, norm=norm)
    rows = [weights[mlp(layer, site)] for layer in range(L)]
    rows = np.concatenate([row.T if site == "down" else row for row in rows])
    gain = weights["model.norm.weight"]
    want = dense_decode(rows, weights["lm_head.weight"], 2, norm=norm, eps=CONFIG.rms_norm_eps, gain=gain)
    assert found.ids.tolist() == want.ids[:, 0, 0].tolist()
    np.testing.assert_allclose(found.margin, want.logits[:, 0, 0] - want.logits[:, 0, 1], rtol=1e-3, atol=1e-4)


def test_stacked_and_sharded_parameters_drift_alike():
    before, after = tree(tiny.weights()), tree(trained())
    want = facts(drift(before, after, CONFIG))
    assert facts(drift(params_lib.stack(before), params_lib.stack(after), CONFIG)) == want
    mesh = make_mesh(data=2, tensor=2)
    places = shardings(CONFIG, mesh)
    spread = [jax.tree.map(jax.device_put, tree, places) for tree in (before, after)]
    assert facts(drift(*spread, CONFIG, mesh=mesh)) == want
    assert facts(drift(*spread, CONFIG)) == want


def test_a_sample_is_a_part_of_the_whole():
    before, after = tree(tiny.weights()), tree(trained())
    whole, part = drift(before, after, CONFIG), drift(before, after, CONFIG, sample=30, seed=1)
    assert part.match.total == 30
    assert sum(rate.total for rate in part.by_layer) == 30
    moved = set(zip(whole.moved.layer.tolist(), whole.moved.neuron.tolist(), whole.moved.new.tolist(), strict=True))
    assert set(zip(part.moved.layer.tolist(), part.moved.neuron.tolist(), part.moved.new.tolist(), strict=True)) <= moved
    assert facts(drift(before, after, CONFIG, sample=10**9)) == facts(whole)
    with pytest.raises(ValueError, match="at least 1"):
        drift(before, after, CONFIG, sample=0)


def test_labels_outlive_the_parameters_that_they_were_made_of():
    before, after = tree(tiny.weights()), tree(trained())
    want = facts(drift(before, after, CONFIG, norm="final", sample=40))
    start, all_of_it = label(before, CONFIG, norm="final", sample=40), label(before, CONFIG)
    jax.tree.map(lambda leaf: leaf.delete(), before)  # as a donating training step does
    assert facts(drift(start, after, CONFIG)) == want
    assert drift(all_of_it, after, CONFIG).match.total == L * F
    with pytest.raises(ValueError, match="leave sample out"):
        drift(start, after, CONFIG, sample=3)


def test_words_that_gain_and_lose_neurons_are_told():
    weights = tiny.weights()
    head = weights["lm_head.weight"] / np.linalg.norm(weights["lm_head.weight"], axis=1, keepdims=True)
    weights["lm_head.weight"] = 4 * head  # rows of equal length: the row along one of them has it on top
    before = tree(weights)
    weights[mlp(1, "up")] = weights[mlp(1, "up")].copy()
    weights[mlp(1, "up")][:9] = head[7]
    groups = np.arange(V)
    groups[8] = 7
    found = drift(before, tree(weights), CONFIG, groups=groups)
    best = found.gained(1)[0]
    assert best.id == 7
    assert best.after - best.before >= 7
    assert sum(word.before for word in found.labels) == sum(word.after for word in found.labels) == L * F
    assert all(word.before > word.after for word in found.lost())
    assert set(found.moved.layer.tolist()) == {1}


def test_only_allowed_ids_are_labels():
    allowed = np.arange(V) % 3 == 0
    found = label(tree(tiny.weights()), CONFIG, allowed=allowed)
    assert set((found.ids % 3).tolist()) == {0}


def test_rows_without_a_label_are_left_out():
    weights = trained()
    weights[mlp(0, "up")][1], weights[mlp(0, "up")][2] = np.nan, 0
    weights["lm_head.weight"][5] = np.inf
    found = drift(tree(tiny.weights()), tree(weights), CONFIG)
    assert found.left_out == 2
    assert found.match.total == L * F - 2
    assert 5 not in found.moved.new
    assert found.row_cos.count == L * F - 2


def test_diverged_parameters_are_named():
    weights = tiny.weights()
    weights["lm_head.weight"][:] = np.nan
    with pytest.raises(UserError, match="have diverged"):
        drift(tree(tiny.weights()), tree(weights), CONFIG)


def test_scalars_are_for_a_logger():
    scalars = drift(tree(tiny.weights()), tree(trained()), CONFIG).scalars()
    assert {type(value) for value in scalars.values()} == {float}
    assert scalars["match_low"] < scalars["match"] < scalars["match_high"]
    assert {"row_cos", "moved", "left_out", "match/layer_00", f"match/layer_{L - 1:02d}"} <= set(scalars)


def test_training_on_a_text_lowers_its_loss_and_moves_labels():
    start = params_lib.stack(tree({name: 0.3 * values for name, values in tiny.weights().items()}))
    kept = jax.tree.map(np.asarray, start)
    ids = np.resize(np.random.default_rng(0).permutation(V)[:20], 100).astype(np.int32)
    losses = []

    def each(number, loss, params):
        losses.append(loss)
        assert params["norm"]["weight"].shape == (D,)

    after = finetune_pair.train(start, CONFIG, ids, steps=25, batch=2, length=16, learning_rate=0.02, each=each)
    assert len(losses) == 25
    assert losses[-1] < losses[0] - 1
    jax.tree.map(np.testing.assert_array_equal, start, kept)  # the given parameters are as they were
    found = drift(start, after, CONFIG)
    assert 0 < found.match.count < found.match.total
    text = set(ids.tolist())
    gain = sum(word.after - word.before for word in found.labels if word.id in text)
    assert gain > 0  # neurons turn towards the words of the text

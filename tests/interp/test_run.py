"""The way from a checkpoint to a map, against dense arithmetic, and what happens to odd weights and stopped runs."""

import json

import numpy as np
import pytest
import tiny
from reference import dense_decode, scale_rows
from tiny import D, F, L, V, mlp

from interp import run as run_module
from interp.atlas import AMBIGUOUS, DEGENERATE, DUPLICATE, NO_TOKEN, NONFINITE, Atlas
from interp.query import find
from interp.run import Control, Settings, map_model
from jaxllm import sharding
from jaxllm.config import Config
from jaxllm.errors import UserError

EPS = tiny.CONFIG.rms_norm_eps
HEAD, EMBEDDING, FINAL = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"


def site_rows(values, site, layer):
    return values[mlp(layer, site)].T if site == "down" else values[mlp(layer, site)]


@pytest.mark.parametrize("site", ["up", "gate", "down"])
@pytest.mark.parametrize("norm", ["rms", "final", "none"])
def test_all_columns_equal_the_dense_decode(tmp_path, site, norm):
    values = tiny.weights()
    atlas = map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", Settings(site=site, norm=norm, top_k=11))
    for layer in range(L):
        rows = site_rows(values, site, layer)
        want = dense_decode(rows, values[HEAD], 11, norm=norm, eps=EPS, gain=values[FINAL])
        assert np.array_equal(atlas.column("ids")[layer], want.ids)
        signs = np.array([1, -1])
        expected = {
            "logits": want.logits,
            "lse": want.lse,
            "p1": np.exp(want.logits[..., 0] - want.lse),
            "margin": want.logits[..., 0] - want.logits[..., 1],
            "group_mass": want.group_mass,
            "entropy": want.entropy,
            "coherence": want.coherence,
            "mean": want.mean[:, None] * signs,
            "std": np.stack([want.std] * 2, 1),
            "skew": want.skew[:, None] * signs,
            "kurtosis": np.stack([want.kurtosis] * 2, 1),
            "zmax_sigma": (want.logits[..., 0] - want.mean[:, None] * signs) / want.std[:, None],
        }
        for name, column in expected.items():
            np.testing.assert_allclose(atlas.column(name)[layer], column, rtol=2e-4, atol=2e-5, err_msg=name)


def test_norms_and_read_write_are_those_of_the_three_matrices(tmp_path):
    values = tiny.weights()
    atlas = map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", Settings(site="gate"))
    for layer in range(L):
        up, gate, down = (site_rows(values, site, layer).astype(np.float64) for site in ("up", "gate", "down"))
        for name, rows in (("norm_up", up), ("norm_gate", gate), ("norm_down", down)):
            np.testing.assert_allclose(atlas.column(name)[layer, :, 0], np.linalg.norm(rows, axis=1), rtol=1e-5)
        cosine = (up * down).sum(1) / np.linalg.norm(up, axis=1) / np.linalg.norm(down, axis=1)
        np.testing.assert_allclose(atlas.column("read_write")[layer, :, 1], cosine, rtol=1e-4, atol=1e-6)


def test_the_input_gain_is_folded_in_on_request(tmp_path):
    values = tiny.weights()
    atlas = map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", Settings(fold_input_norm=True, top_k=4))
    gains = [values[f"model.layers.{layer}.post_attention_layernorm.weight"] for layer in range(L)]
    folded = [dense_decode(values[mlp(i, "up")] * gains[i], values[HEAD], 4, norm="rms", eps=EPS).ids for i in range(L)]
    plain = [dense_decode(values[mlp(i, "up")], values[HEAD], 4, norm="rms", eps=EPS).ids for i in range(L)]
    assert np.array_equal(atlas.column("ids"), np.stack(folded))
    assert not np.array_equal(np.stack(folded), np.stack(plain))


def test_cosine_ignores_the_length_of_head_rows(tmp_path):
    values = tiny.weights()

    def stretch(weights):
        weights[HEAD] *= np.random.default_rng(5).uniform(0.1, 10, (V, 1)).astype(np.float32)

    atlas = map_model(tiny.checkpoint(tmp_path / "model", stretch), tmp_path / "map", Settings(score="cosine", top_k=5))
    want = dense_decode(values[mlp(1, "up")], values[HEAD], 5, cosine=True)
    assert np.array_equal(atlas.column("ids")[1], want.ids)
    np.testing.assert_allclose(atlas.column("logits")[1], want.logits, rtol=1e-4)


def test_none_and_rms_label_alike_and_final_is_the_models_own_norm(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    ids = {n: map_model(checkpoint, tmp_path / n, Settings(norm=n)).column("ids") for n in ("none", "rms", "final")}
    assert np.array_equal(ids["none"], ids["rms"])
    assert not np.array_equal(ids["final"], ids["rms"])
    values = tiny.weights()
    normed = scale_rows(values[mlp(0, "up")], "final", eps=EPS, gain=values[FINAL])
    assert np.array_equal(ids["final"][0], dense_decode(normed, values[HEAD], 16).ids)


def test_the_sign_of_a_row_swaps_its_poles_and_its_scale_changes_no_id(tmp_path):
    plain = map_model(tiny.checkpoint(tmp_path / "a"), tmp_path / "map a")

    def gauge(weights):
        weights[mlp(1, "up")][4] *= -1
        weights[mlp(1, "down")][:, 4] *= -1
        weights[mlp(2, "up")][7] *= 8
        weights[mlp(2, "down")][:, 7] /= 8

    turned = map_model(tiny.checkpoint(tmp_path / "b", gauge), tmp_path / "map b")
    assert np.array_equal(turned.column("ids")[1, 4], plain.column("ids")[1, 4, ::-1])
    assert np.array_equal(turned.column("ids")[2, 7], plain.column("ids")[2, 7])
    np.testing.assert_allclose(turned.column("read_write"), plain.column("read_write"), rtol=1e-5)


def test_permuting_neurons_or_tokens_permutes_the_map(tmp_path):
    rng = np.random.default_rng(1)
    neurons, tokens = rng.permutation(F), rng.permutation(V)

    def shuffle(weights):
        for site in ("up", "gate"):
            weights[mlp(0, site)] = weights[mlp(0, site)][neurons]
        weights[mlp(0, "down")] = weights[mlp(0, "down")][:, neurons]
        weights[HEAD] = weights[HEAD][tokens]

    plain = map_model(tiny.checkpoint(tmp_path / "a"), tmp_path / "map a", layers=[0])
    moved = map_model(tiny.checkpoint(tmp_path / "b", shuffle), tmp_path / "map b", layers=[0])
    assert np.array_equal(tokens[moved.column("ids")[0]], plain.column("ids")[0, neurons])
    np.testing.assert_allclose(moved.column("p1")[0], plain.column("p1")[0, neurons], rtol=1e-4)
    assert np.array_equal(moved.column("norm_down")[0], plain.column("norm_down")[0, neurons])


def test_a_planted_neuron_is_found_first(tmp_path):
    token = 41

    def plant(weights):
        weights[HEAD] /= np.linalg.norm(weights[HEAD], axis=1, keepdims=True)
        weights[mlp(2, "up")][13] = 0.3 * weights[HEAD][token] / weights[FINAL]

    atlas = map_model(tiny.checkpoint(tmp_path / "model", plant), tmp_path / "map", Settings(norm="final"))
    first = find(atlas, [token])[0]
    assert (first.layer, first.neuron, first.pole, first.place) == (2, 13, "+", 0)


@pytest.mark.parametrize("axes", [{"data": 8}, {"tensor": 8}, {"data": 2, "tensor": 4}])
def test_eight_devices_give_the_ids_of_one(tmp_path, axes):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    one = map_model(checkpoint, tmp_path / "one")
    many = map_model(checkpoint, tmp_path / "many", mesh=sharding.make_mesh(**axes))
    assert np.array_equal(one.column("ids"), many.column("ids"))
    for name in ("lse", "coherence", "kurtosis", "entropy"):
        np.testing.assert_allclose(one.column(name), many.column(name), rtol=1e-4, atol=1e-5)
    assert many.meta["device"]["count"] == 8


def test_only_the_tensors_of_the_map_are_read(tmp_path, monkeypatch):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    read, names = checkpoint.read, set()

    def recording(name, *args, **kwargs):
        names.add(name)
        return read(name, *args, **kwargs)

    monkeypatch.setattr(checkpoint, "read", recording)
    map_model(checkpoint, tmp_path / "map", layers=[1])
    assert names == {HEAD, FINAL, mlp(1, "up"), mlp(1, "gate"), mlp(1, "down")}


def test_zero_and_damaged_rows_get_no_label_and_leave_the_others_alone(tmp_path):
    def damage(weights):
        weights[mlp(0, "up")][3] = 0
        weights[mlp(0, "up")][5, 2] = np.nan
        weights[mlp(0, "up")][6, 0] = -np.inf
        weights[mlp(0, "up")][7, 1] = -np.nan

    plain = map_model(tiny.checkpoint(tmp_path / "a"), tmp_path / "map a")
    atlas = map_model(tiny.checkpoint(tmp_path / "b", damage), tmp_path / "map b", control=Control(rows=6))
    flags = atlas.column("flags")[0]
    assert flags[3].tolist() == [DEGENERATE] * 2
    assert [flags[j].tolist() for j in (5, 6, 7)] == [[NONFINITE] * 2] * 3
    lost = [3, 5, 6, 7]
    assert (atlas.column("ids")[0, lost] == NO_TOKEN).all()
    others = np.setdiff1d(np.arange(F), lost)
    assert np.array_equal(atlas.column("ids")[0, others], plain.column("ids")[0, others])
    for name in ("p1", "lse", "kurtosis", "coherence", "logits", "zmax_sigma"):
        assert np.isfinite(atlas.column(name)).all(), name
    assert (atlas.meta["layers"]["0"]["degenerate"], atlas.meta["layers"]["0"]["nonfinite"]) == (1, 3)
    assert np.isfinite(atlas.control("coherence")).all()
    found = {(m.layer, m.neuron) for token in range(V) for m in find(atlas, [token], limit=1000)}
    assert not {(0, j) for j in lost} & found


def test_damaged_head_rows_are_named_or_left_out(tmp_path):
    def damage(weights):
        weights[HEAD][[9, 30], 4] = np.nan, np.inf

    checkpoint = tiny.checkpoint(tmp_path / "model", damage)
    with pytest.raises(UserError, match=r"lm_head.*2 token ids: 9, 30;.*--mask-nonfinite-head"):
        map_model(checkpoint, tmp_path / "map")
    atlas = map_model(checkpoint, tmp_path / "map", Settings(mask_nonfinite_head=True, top_k=16))
    allowed = np.setdiff1d(np.arange(V), [9, 30])
    values = tiny.weights()
    want = dense_decode(values[mlp(0, "up")], values[HEAD], 16, norm="rms", eps=EPS, allowed=np.isin(np.arange(V), allowed))
    assert np.array_equal(atlas.column("ids")[0], want.ids)
    np.testing.assert_allclose(atlas.column("lse")[0], want.lse, rtol=1e-5)
    assert atlas.meta["tokens"]["nonfinite"] == [9, 30]


def test_equal_head_rows_are_listed_together_lower_id_first(tmp_path):
    def repeat(weights):
        weights[HEAD][50] = weights[HEAD][20]
        weights[mlp(0, "up")][2] = weights[HEAD][20]

    atlas = map_model(tiny.checkpoint(tmp_path / "model", repeat), tmp_path / "map")
    assert atlas.column("ids")[0, 2, 0, :2].tolist() == [20, 50]
    assert atlas.column("flags")[0, 2, 0] == DUPLICATE | AMBIGUOUS
    assert atlas.tokens.same_row[50] == 20
    assert atlas.meta["tokens"]["repeated_rows"] == 2


def test_more_tokens_than_there_are_is_cut_and_said(tmp_path):
    atlas = map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", Settings(top_k=500))
    assert atlas.top_k == V
    assert atlas.meta["tokens"]["top_k_requested"] == 500
    assert np.array_equal(np.sort(atlas.column("ids"), -1), np.broadcast_to(np.arange(V), (L, F, 2, V)))
    np.testing.assert_allclose(atlas.probabilities().sum(-1), 1, rtol=1e-5)


def test_one_token_per_pole_keeps_margin_and_coherence(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    one, many = (map_model(checkpoint, tmp_path / str(k), Settings(top_k=k)) for k in (1, 16))
    for name in ("margin", "coherence", "p1"):
        assert np.array_equal(one.column(name), many.column(name))
    assert np.array_equal(one.column("ids"), many.column("ids")[..., :1])


@pytest.mark.parametrize("case", ["flag untied, no head", "tied, with an equal head", "tied, with another head"])
def test_the_embedding_is_the_head_of_a_tied_model(tmp_path, case, caplog):
    values = tiny.weights()
    folder = tmp_path / "model"
    if case == "tied, with an equal head":
        values[HEAD] = values[EMBEDDING]
    tiny.save(folder, values)
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = case != "flag untied, no head"
    (folder / "config.json").write_text(json.dumps(config))
    if case == "flag untied, no head":
        tied = Config(**{**vars(tiny.CONFIG), "tie_word_embeddings": True})
        tiny.save(tmp_path / "headless", values, config=tied)
        (tmp_path / "headless/config.json").write_text(json.dumps(config))
        folder = tmp_path / "headless"
    atlas = map_model(tiny.open_checkpoint(folder), tmp_path / "map")
    assert atlas.meta["settings"]["head"] == EMBEDDING
    want = dense_decode(values[mlp(0, "up")], values[EMBEDDING], 16, norm="rms", eps=EPS)
    assert np.array_equal(atlas.column("ids")[0], want.ids)
    warned = any(record.name == "jaxllm.tensors" and record.levelname == "WARNING" for record in caplog.records)
    assert warned == (case != "tied, with an equal head")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_are_decoded_exactly_as_stored(tmp_path, dtype):
    checkpoint = tiny.checkpoint(tmp_path / "model", dtype=dtype)
    rows, head = (checkpoint.read(name).astype(np.float64) for name in (mlp(1, "up"), HEAD))
    atlas = map_model(checkpoint, tmp_path / "map")
    want = dense_decode(rows, head, 16, norm="rms", eps=EPS)
    assert np.array_equal(atlas.column("ids")[1], want.ids)
    np.testing.assert_allclose(atlas.column("lse")[1], want.lse, rtol=1e-5)


def test_bfloat16_agrees_with_float32_where_it_is_not_flagged(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    full, half = (map_model(checkpoint, tmp_path / d, Settings(dtype=d)) for d in ("float32", "bfloat16"))
    same = full.column("ids")[..., 0] == half.column("ids")[..., 0]
    ambiguous = (half.column("flags") & AMBIGUOUS) != 0
    assert same[~ambiguous].all()
    assert ambiguous.mean() < 0.3
    assert full.meta["agreement"] == {"rows": L * F, "top1": 1.0}
    assert half.meta["agreement"]["top1"] == pytest.approx(same[..., 0].mean())


@pytest.mark.parametrize("kind", ["gaussian", "permuted"])
def test_control_rows_share_the_layers_statistics(kind):
    rng = np.random.default_rng(2)
    rows = (rng.normal(size=(4000, 6)) @ rng.normal(size=(6, 6)) + np.arange(6)).astype(np.float32)
    usable = np.ones(4000, bool)
    drawn = run_module.rows_lib.control_rows(rows, usable, 4000, kind, (0, 1))
    np.testing.assert_allclose(drawn.mean(0), rows.mean(0), atol=0.2)
    np.testing.assert_allclose(drawn.std(0), rows.std(0), rtol=0.06)
    correlation, original = np.corrcoef(drawn.T), np.corrcoef(rows.T)
    if kind == "gaussian":
        np.testing.assert_allclose(correlation, original, atol=0.06)
    else:
        assert np.array_equal(np.sort(drawn, 0), np.sort(rows, 0))
        np.testing.assert_allclose(correlation, np.eye(6), atol=0.06)
    assert np.array_equal(drawn, run_module.rows_lib.control_rows(rows, usable, 4000, kind, (0, 1)))
    assert not np.array_equal(drawn, run_module.rows_lib.control_rows(rows, usable, 4000, kind, (0, 2)))


def stop_after(rows):
    def progress(p):
        if p.done >= rows:
            raise KeyboardInterrupt

    return progress


def test_a_stopped_run_continues_to_the_same_map(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    with pytest.raises(KeyboardInterrupt):
        map_model(checkpoint, tmp_path / "map", control=Control(rows=8), progress=stop_after(F + 8 + F))
    assert Atlas(tmp_path / "map").layers == [0]
    assert not Atlas(tmp_path / "map").meta["complete"]
    reports = []
    resumed = map_model(checkpoint, tmp_path / "map", control=Control(rows=8), progress=reports.append)
    assert [r.layer for r in reports] == [1, 1, 2, 2]
    assert (reports[-1].done, reports[-1].total) == (2 * (F + 8), 2 * (F + 8))
    whole = map_model(checkpoint, tmp_path / "whole", control=Control(rows=8))
    for name in ("ids", "logits", "coherence", "flags"):
        assert np.array_equal(resumed.column(name), whole.column(name))
        assert np.array_equal(resumed.control(name), whole.control(name))
    assert resumed.meta["weights_sha256"] == whole.meta["weights_sha256"]
    assert resumed.meta["complete"]


def test_layers_and_control_can_be_added_later_and_nothing_is_done_twice(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    assert map_model(checkpoint, tmp_path / "map", layers=[2]).layers == [2]
    reports = []
    atlas = map_model(checkpoint, tmp_path / "map", control=Control(rows=5), progress=reports.append)
    assert (atlas.layers, atlas.has_control, reports[-1].total) == ([0, 1, 2], True, 2 * F + 3 * 5)
    reports.clear()
    map_model(checkpoint, tmp_path / "map", control=Control(rows=5), progress=reports.append)
    assert not reports


def test_a_damaged_layer_is_made_anew(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    before = map_model(checkpoint, tmp_path / "map").column("ids")
    (tmp_path / "map/layers/01.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match=r"01\.parquet is damaged"):
        Atlas(tmp_path / "map").column("ids")
    reports = []
    after = map_model(checkpoint, tmp_path / "map", progress=reports.append)
    assert [r.layer for r in reports] == [1]
    assert np.array_equal(after.column("ids"), before)


def test_the_log_tells_what_is_done_and_what_was_there(tmp_path, caplog):
    checkpoint = tiny.checkpoint(tmp_path / "model")
    map_model(checkpoint, tmp_path / "map", layers=[1])
    with caplog.at_level("INFO", "interp"):
        map_model(checkpoint, tmp_path / "map")
    assert f"{tmp_path / 'map'}: 2 layers to decode, 1 are there already" in caplog.messages
    assert [m.split(":")[0] for m in caplog.messages if m.startswith("layer ")] == ["layer 0", "layer 2"]


def test_two_runs_do_not_write_one_map(tmp_path):
    checkpoint = tiny.checkpoint(tmp_path / "model")

    def meanwhile(p):
        with pytest.raises(UserError, match="another run is writing this map"):
            map_model(checkpoint, tmp_path / "map")

    assert map_model(checkpoint, tmp_path / "map", progress=meanwhile).meta["complete"]


def test_another_models_map_is_not_continued(tmp_path):
    map_model(tiny.checkpoint(tmp_path / "a"), tmp_path / "map", layers=[0])
    with pytest.raises(UserError, match=r"head_sha256.*choose another --out"):
        map_model(tiny.checkpoint(tmp_path / "b", seed=1), tmp_path / "map")


@pytest.mark.parametrize("field", ["site", "norm", "score", "dtype"])
def test_unknown_switches_are_refused(field):
    with pytest.raises(UserError, match=f"{field} 'x' is not known; choose one of"):
        Settings(**{field: "x"})


@pytest.mark.parametrize("top_k", [0, -3, 1025, 10**9])
def test_only_the_top_is_kept(top_k):
    with pytest.raises(UserError, match=f"top_k must be from 1 to 1024, found {top_k}"):
        Settings(top_k=top_k)


@pytest.mark.parametrize("layers", [[3], [-1], []])
def test_unknown_layers_are_refused(tmp_path, layers):
    with pytest.raises(UserError, match="layers 0 to 2"):
        map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", layers=layers)


def test_the_description_holds_what_a_reader_needs(tmp_path):
    meta = map_model(tiny.checkpoint(tmp_path / "model"), tmp_path / "map", name="tiny").meta
    assert meta["model"]["name"] == "tiny"
    assert {k: meta["model"][k] for k in ("layers", "neurons", "width", "vocabulary")} == {
        "layers": L,
        "neurons": F,
        "width": D,
        "vocabulary": V,
    }
    settings = {"site", "norm", "fold_input_norm", "score", "poles", "top_k", "dtype", "eps", "head", "head_sha256"}
    settings |= {"config_sha256", "tokenizer_sha256", "mask_padding", "mask_special", "mask_untrained", "mask_bytes"}
    assert settings <= set(meta["settings"])
    assert set(meta["versions"]) == {"jaxllm", "python", "jax", "jaxlib", "numpy", "pyarrow"}
    assert meta["device"]["platform"] == "cpu"
    assert meta["layers"]["0"]["seconds"] > 0
    assert len(meta["weights_sha256"]) == 64

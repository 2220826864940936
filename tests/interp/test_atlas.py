"""The map on disk: what was written is read, partial maps continue, and damage is named."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from interp import atlas as atlas_module
from interp.atlas import NEURON_STATISTICS, POLE_STATISTICS, Atlas, AtlasWriter, Tokens
from jaxllm.errors import UserError
from jaxllm.files import write_atomically

F, K, V = 5, 3, 11
SETTINGS = {"norm": "rms", "top_k": K}
ABOUT = {"model": {"neurons": F, "name": "tiny"}}
TOKENS = Tokens(
    data=[bytes([i, 255]) for i in range(V)],
    display=[f"t{i}" for i in range(V)],
    group=np.arange(V, dtype=np.int32) // 2,
    kind=["normal"] * V,
    allowed=np.arange(V) != 4,
    same_row=np.arange(V, dtype=np.int32),
)


def columns(seed: int, rows: int = F) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    out = {name: rng.normal(size=(rows, 2)).astype(np.float32) for name in POLE_STATISTICS}
    out |= {name: rng.normal(size=rows).astype(np.float32) for name in NEURON_STATISTICS}
    out["ids"] = rng.integers(0, V, (rows, 2, K), dtype=np.int32)
    out["logits"] = rng.normal(size=(rows, 2, K)).astype(np.float32)
    out["flags"] = rng.integers(0, 16, (rows, 2), dtype=np.uint8)
    return out


@pytest.fixture
def folder(tmp_path):
    """A map of layers 0 and 2 with a control."""
    writer = AtlasWriter(tmp_path / "map", SETTINGS, ABOUT, TOKENS)
    writer.set_control("gaussian", 4, 0)
    for layer in (0, 2):
        writer.write_layer(layer, columns(layer), {"degenerate": layer})
        writer.write_control(layer, columns(10 + layer, 4), {})
    writer.finish(agreement={"rows": 0})
    return tmp_path / "map"


def test_every_column_comes_back_bit_for_bit(folder):
    atlas = Atlas(folder)
    assert (atlas.layers, atlas.top_k, atlas.num_neurons, atlas.has_control) == ([0, 2], K, F, True)
    for position, layer in enumerate((0, 2)):
        for name, values in columns(layer).items():
            expected = np.stack([values, values], 1) if name in NEURON_STATISTICS else values
            assert np.array_equal(atlas.column(name)[position], expected), name
        assert np.array_equal(atlas.control("coherence")[position], columns(10 + layer, 4)["coherence"])
    assert atlas.meta["layers"]["2"]["degenerate"] == 2
    assert atlas.tokens.data == TOKENS.data
    assert atlas.tokens.allowed.tolist() == TOKENS.allowed.tolist()


def test_the_files_are_plain_parquet_with_one_row_per_neuron_and_pole(folder):
    table = pq.read_table(folder / "layers/02.parquet")
    assert table.num_rows == 2 * F
    assert table["neuron"].to_pylist() == [j for j in range(F) for _ in range(2)]
    assert table["pole"].to_pylist() == [1, -1] * F
    assert set(table["layer"].to_pylist()) == {2}
    assert table["ids"].to_pylist()[3] == columns(2)["ids"][1, 1].tolist()
    assert sorted(p.name for p in folder.iterdir()) == ["control", "layers", "meta.json", "tokens.parquet"]


def test_a_writer_with_the_same_settings_continues(folder):
    writer = AtlasWriter(folder, SETTINGS, ABOUT, TOKENS)
    assert [writer.has_layer(layer) for layer in range(4)] == [True, False, True, False]
    assert [writer.has_control(layer) for layer in range(3)] == [True, False, True]
    writer.write_layer(1, columns(1), {})
    assert np.array_equal(Atlas(folder).column("p1")[1], columns(1)["p1"])
    assert not Atlas(folder).has_control  # layer 1 has none yet


def test_other_settings_or_another_folder_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"norm is 'rms', not 'final'.*choose another --out"):
        AtlasWriter(folder, {**SETTINGS, "norm": "final"}, ABOUT, TOKENS)
    with pytest.raises(UserError, match="control rows are"):
        AtlasWriter(folder, SETTINGS, ABOUT, TOKENS).set_control("permuted", 4, 0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists and holds no map"):
        AtlasWriter(tmp_path / "other", SETTINGS, ABOUT, TOKENS)
    with pytest.raises(UserError, match=r"no meta\.json here"):
        Atlas(tmp_path / "other")


@pytest.mark.parametrize("name", ["tokens.parquet", "layers/00.parquet", "control/02.parquet"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_named_and_made_anew(folder, name, damage):
    path = folder / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "truncate":
        path.write_bytes(data[:-7])
    else:
        path.unlink()
    with pytest.raises(UserError, match=f"{name}.*run `jaxllm map` again"):
        Atlas(folder).verify()
    writer = AtlasWriter(folder, SETTINGS, ABOUT, TOKENS)  # writes the tokens
    if name == "layers/00.parquet":
        assert not writer.has_layer(0)
        writer.write_layer(0, columns(0), {})
    elif name == "control/02.parquet":
        assert not writer.has_control(2)
        writer.write_control(2, columns(12, 4), {})
    Atlas(folder).verify()


def test_an_untouched_map_passes(folder):
    Atlas(folder).verify()


@pytest.mark.parametrize(
    "edit",
    [
        lambda meta: meta.update(format="a shopping list"),
        lambda meta: meta.update(version=99),
        lambda meta: meta["settings"].update(norm="final"),
        lambda meta: meta["settings"].pop("top_k"),
        lambda meta: meta["layers"].update({"../../x": meta["layers"]["0"]}),
        lambda meta: meta.pop("tokens_sha256"),
        lambda meta: meta.update(layers=[]),
        lambda meta: meta["model"].update(neurons="many"),
        lambda meta: meta.pop("sha256"),
    ],
)
def test_a_damaged_description_is_refused(folder, edit):
    meta = json.loads((folder / "meta.json").read_text())
    edit(meta)
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json"):
        Atlas(folder)


def test_a_map_without_a_finished_layer_says_so(tmp_path):
    AtlasWriter(tmp_path / "map", SETTINGS, ABOUT, TOKENS)
    with pytest.raises(UserError, match="no finished layer yet"):
        Atlas(tmp_path / "map")


@pytest.mark.parametrize("moment", [1, 2])
def test_a_map_whose_first_files_were_cut_off_can_be_continued(tmp_path, monkeypatch, moment):
    written = []

    def killed(path, data):
        written.append(path.name)
        if len(written) == moment:
            raise KeyboardInterrupt
        write_atomically(path, data)

    monkeypatch.setattr(atlas_module, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        AtlasWriter(tmp_path / "map", SETTINGS, ABOUT, TOKENS)
    monkeypatch.undo()
    AtlasWriter(tmp_path / "map", SETTINGS, ABOUT, TOKENS).write_layer(0, columns(0), {})
    Atlas(tmp_path / "map").verify()


def test_a_map_can_be_moved(folder, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")
    Atlas(tmp_path / "elsewhere").verify()


def test_unknown_neurons_are_refused(folder):
    atlas = Atlas(folder)
    assert atlas.position(2, 4) == (1, 4)
    for layer, neuron in ((1, 0), (2, F), (2, -1)):
        with pytest.raises(UserError, match="no neuron"):
            atlas.position(layer, neuron)

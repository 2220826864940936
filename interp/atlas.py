"""The map of a model's neurons on disk: a folder that is written layer by layer and read column by column.

    meta.json            how the map was made, with a sha256 of every other file and of itself
    tokens.parquet       one row per vocabulary entry: bytes, display text, group, class, allowed, same_row
    layers/00.parquet    one row per neuron and pole, pole +w before -w; see `LAYER_COLUMNS`
    control/00.parquet   the same columns for random rows with the layer's statistics, when the map has a control

Ids are the identity; text is a view. Every file appears whole or not at all, so a run that was killed can be continued.
"""

import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from interp.files import read_checked, sha256
from jaxllm.config import read_json
from jaxllm.errors import UserError
from jaxllm.files import write_atomically

FORMAT = "jaxllm neuron map"
VERSION = 1
NO_TOKEN = -1  # in `ids`: no label, because the row is zero or not finite
MAX_META_BYTES = 16 << 20

# Bits of the column `flags`.
DEGENERATE = 1  # the row is zero: nothing to decode
NONFINITE = 2  # the row holds NaN or infinity
AMBIGUOUS = 4  # the margin is within the rounding error of the compute dtype
DUPLICATE = 8  # another token has exactly the top token's head row
FLAGS = {"degenerate": DEGENERATE, "nonfinite": NONFINITE, "ambiguous": AMBIGUOUS, "duplicate": DUPLICATE}

POLE_STATISTICS = {
    "lse": "natural log of the sum of exp(logits) over the allowed ids",
    "p1": "probability of the top token",
    "margin": "logit of the top token minus the second's",
    "group_mass": "probability of the top token's group",
    "entropy": "entropy of the token distribution over its maximum, 0 to 1; 1 is flat",
    "mean": "mean logit over the allowed ids",
    "std": "standard deviation of the logits",
    "skew": "skewness of the logits; positive on the pole whose tokens stand out",
    "kurtosis": "excess kurtosis of the logits; large when few tokens stand out",
    "zmax_sigma": "top logit in standard deviations above the mean",
    "coherence": "mean cosine between the centred head rows of the top ten tokens",
}
NEURON_STATISTICS = {
    "read_write": "cosine of the up row and the down column",
    "norm_up": "length of the up row",
    "norm_gate": "length of the gate row",
    "norm_down": "length of the down column",
}
STATISTICS = POLE_STATISTICS | NEURON_STATISTICS
LAYER_COLUMNS = ("layer", "neuron", "pole", "ids", "logits", *STATISTICS, "flags")

Columns = Mapping[str, np.ndarray]  # ids, logits [N, 2, k]; POLE_STATISTICS, flags [N, 2]; NEURON_STATISTICS [N]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The vocabulary as the map saw it, V entries (head rows)."""

    data: list[bytes]  # the bytes a token stands for; empty for head rows without a token
    display: list[str]  # those bytes made visible
    group: np.ndarray  # [V] int32, equal for spellings that differ only in leading space and case
    kind: list[str]  # class of the token, one of `interp.tokens.KINDS`
    allowed: np.ndarray  # [V] bool, False for ids that were masked out of the map
    same_row: np.ndarray  # [V] int32, the lowest id with exactly this head row; the id itself when there is no other


class Atlas:
    """A finished or partial map, opened for reading. Columns are read when asked for; a file's hash is checked first.

    Raises UserError when the folder holds no map, or a file is missing or damaged (it is named).
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.meta = read_meta(self.path)
        self.layers = sorted(map(int, self.meta["layers"]))
        self.num_neurons: int = self.meta["model"]["neurons"]
        self.top_k: int = self.meta["settings"]["top_k"]
        self.has_control = bool(self.layers) and all(str(layer) in self.meta["controls"] for layer in self.layers)
        self._files: dict[str, pq.ParquetFile] = {}
        self._columns: dict[tuple[str, str], np.ndarray] = {}
        if not self.layers:
            raise UserError(f"{self.path}: the map has no finished layer yet; run `jaxllm map` again to continue it")

    def column(self, name: str) -> np.ndarray:
        """A column of all mapped layers, ``[L, F, 2]``, or ``[L, F, 2, k]`` for ids and logits; L follows `layers`."""
        return self._column(name, "layers", self.num_neurons)

    def control(self, name: str) -> np.ndarray:
        """The same for the control rows, ``[L, C, 2]`` or ``[L, C, 2, k]``. Raises UserError when the map has none."""
        if not self.has_control:
            raise UserError(f"{self.path}: the map has no control rows; run `jaxllm map` with --control to add them")
        return self._column(name, "control", self.meta["control"]["rows"])

    def probabilities(self) -> np.ndarray:
        """``[L, F, 2, k]`` float32: the probability of each stored token."""
        return np.exp(self.column("logits") - self.column("lse")[..., None])

    def position(self, layer: int, neuron: int) -> tuple[int, int]:
        """Where ``L{layer}/N{neuron}`` stands in a column. Raises UserError when the map does not hold it."""
        if layer not in self.layers or not 0 <= neuron < self.num_neurons:
            span = f"{self.layers[0]} to {self.layers[-1]}"
            raise UserError(
                f"{self.path}: no neuron L{layer}/N{neuron}; layers {span} are mapped, with neurons 0 to {self.num_neurons - 1}"
            )
        return self.layers.index(layer), neuron

    @cached_property
    def tokens(self) -> Tokens:
        table = self._open("tokens.parquet").read()
        return Tokens(
            data=table["bytes"].to_pylist(),
            display=table["display"].to_pylist(),
            group=table["group"].to_numpy(),
            kind=table["class"].to_pylist(),
            allowed=table["allowed"].to_numpy(),
            same_row=table["same_row"].to_numpy(),
        )

    def verify(self) -> None:
        """Reads every file. Raises UserError naming the first that is missing or differs from its hash."""
        for name in file_hashes(self.meta):
            self._open(name)

    def _column(self, name: str, folder: str, rows: int) -> np.ndarray:
        if (folder, name) not in self._columns:
            with ThreadPoolExecutor() as pool:
                parts = list(pool.map(lambda layer: self._read(f"{folder}/{layer:02d}.parquet", name, rows), self.layers))
            self._columns[folder, name] = np.stack(parts)
        return self._columns[folder, name]

    def _read(self, file: str, name: str, rows: int) -> np.ndarray:
        try:
            values = self._open(file).read(columns=[name], use_threads=False)[name].combine_chunks()
            if name in ("ids", "logits"):
                return values.flatten().to_numpy().reshape(rows, 2, self.top_k)
            return values.to_numpy().reshape(rows, 2)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise UserError(f"{self.path / file}: not a file of this map: {error}") from None

    def _open(self, name: str) -> pq.ParquetFile:
        if name not in self._files:
            data = read_checked(self.path / name, file_hashes(self.meta)[name])
            try:
                self._files[name] = pq.ParquetFile(pa.BufferReader(data))
            except pa.ArrowException as error:
                raise UserError(f"{self.path / name}: not a Parquet file: {error}") from None
        return self._files[name]


class AtlasWriter:
    """Writes a map, or continues one that was made with the same settings.

    ``settings`` decides what the numbers mean (switches, top_k, dtype, hashes of head and config); ``about`` is the rest of
    what is known before the first layer (model, device, versions). Raises UserError when the folder holds something else.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], about: Mapping[str, Any], tokens: Tokens):
        self.path = Path(path)
        if (self.path / "meta.json").exists():
            self.meta = read_meta(self.path)
            differing = [k for k in {**settings, **self.meta["settings"]} if settings.get(k) != self.meta["settings"].get(k)]
            if differing:
                changes = "; ".join(f"{k} is {self.meta['settings'].get(k)!r}, not {settings.get(k)!r}" for k in differing)
                raise UserError(f"{self.path} holds another map ({changes}); choose another --out or delete it")
            self.meta.update(about)
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(f"{self.path} exists and holds no map; choose another --out")
        else:
            self.meta = {
                "format": FORMAT,
                "version": VERSION,
                "complete": False,
                "settings": dict(settings),
                **about,
                "layers": {},
                "control": None,
                "controls": {},
            }
        data = _parquet(_tokens_table(tokens))
        self.meta["tokens_sha256"] = sha256(data)
        # The description comes first: a run that is killed from here on can be continued.
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_meta()
        for folder in ("layers", "control"):
            (self.path / folder).mkdir(exist_ok=True)
        write_atomically(self.path / "tokens.parquet", data)

    def has_layer(self, layer: int) -> bool:
        return self._intact("layers", layer)

    def has_control(self, layer: int) -> bool:
        return self._intact("control", layer)

    def set_control(self, kind: str, rows: int, seed: int) -> None:
        """Declares how control rows are drawn. Raises UserError when the map's earlier ones were drawn in another way."""
        control = {"kind": kind, "rows": rows, "seed": seed}
        if self.meta["control"] not in (None, control):
            raise UserError(f"{self.path}: its control rows are {self.meta['control']}, not {control}; choose another --out")
        self.meta["control"] = control

    def write_layer(self, layer: int, columns: Columns, record: Mapping[str, Any]) -> None:
        """Adds a layer's rows; ``record`` (timings, counts, hashes) goes to ``meta.json``."""
        digest = self._write_table(f"layers/{layer:02d}.parquet", _layer_table(layer, columns))
        self.meta["layers"][str(layer)] = {"sha256": digest, **record}
        self._write_meta()

    def write_control(self, layer: int, columns: Columns, record: Mapping[str, Any]) -> None:
        """Adds a layer's control rows; ``record`` holds their thresholds."""
        digest = self._write_table(f"control/{layer:02d}.parquet", _layer_table(layer, columns))
        self.meta["controls"][str(layer)] = {"sha256": digest, **record}
        self._write_meta()

    def finish(self, **facts: Any) -> None:
        """Marks the map complete and adds what is only known at the end."""
        self.meta.update(facts, complete=True)
        self._write_meta()

    def _intact(self, folder: str, layer: int) -> bool:
        record = self.meta["layers" if folder == "layers" else "controls"].get(str(layer))
        try:
            return record is not None and bool(read_checked(self.path / folder / f"{layer:02d}.parquet", record["sha256"]))
        except UserError:
            return False

    def _write_table(self, name: str, table: pa.Table) -> str:
        data = _parquet(table)
        write_atomically(self.path / name, data)
        return sha256(data)

    def _write_meta(self) -> None:
        self.meta["sha256"] = _meta_hash(self.meta)
        write_atomically(self.path / "meta.json", json.dumps(self.meta, indent=1).encode())


def read_meta(path: Path) -> dict[str, Any]:
    """``meta.json`` of a map. Raises UserError when ``path`` is no map or one of another version."""
    file = path / "meta.json"
    if not file.is_file():
        raise UserError(f"{path}: no meta.json here; give the folder that `jaxllm map` wrote")
    meta = read_json(file, limit=MAX_META_BYTES)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise UserError(f"{file}: not the description of a neuron map")
    if meta.get("version") != VERSION:
        raise UserError(f"{file}: version {meta.get('version')!r} of the format, not {VERSION}; map the model again")
    if meta.get("sha256") != _meta_hash(meta):
        raise UserError(f"{file} is damaged: it does not match its own sha256; delete the folder and map the model again")
    return meta


def _meta_hash(meta: Mapping[str, Any]) -> str:
    return sha256(json.dumps({k: v for k, v in meta.items() if k != "sha256"}, sort_keys=True).encode())


def file_hashes(meta: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of every file of a map but ``meta.json``, by name inside the folder."""
    files = {"tokens.parquet": meta["tokens_sha256"]}
    files.update((f"layers/{int(layer):02d}.parquet", record["sha256"]) for layer, record in meta["layers"].items())
    files.update((f"control/{int(layer):02d}.parquet", record["sha256"]) for layer, record in meta["controls"].items())
    return files


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    floats = [_leaf(field) for field in table.schema if pa.types.is_floating(_value_type(field))]
    others = [_leaf(field) for field in table.schema if not pa.types.is_floating(_value_type(field))]
    pq.write_table(table, sink, compression="zstd", use_dictionary=others, use_byte_stream_split=floats)
    return sink.getvalue()


def _layer_table(layer: int, columns: Columns) -> pa.Table:
    N, P, k = columns["ids"].shape
    out: dict[str, pa.Array] = {
        "layer": pa.array(np.full(N * P, layer, np.int16)),
        "neuron": pa.array(np.repeat(np.arange(N, dtype=np.int32), P)),
        "pole": pa.array(np.tile(np.array([1, -1], np.int8), N)),
        "ids": pa.FixedSizeListArray.from_arrays(pa.array(columns["ids"].astype(np.int32).ravel()), k),
        "logits": pa.FixedSizeListArray.from_arrays(pa.array(columns["logits"].astype(np.float32).ravel()), k),
    }
    for name in STATISTICS:
        values = np.asarray(columns[name], np.float32)
        out[name] = pa.array((np.repeat(values, P) if name in NEURON_STATISTICS else values).ravel())
    out["flags"] = pa.array(columns["flags"].astype(np.uint8).ravel())
    return pa.table(out)


def _tokens_table(tokens: Tokens) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(np.arange(len(tokens.data), dtype=np.int32)),
            "bytes": pa.array(tokens.data, pa.binary()),
            "display": pa.array(tokens.display, pa.string()),
            "group": pa.array(tokens.group.astype(np.int32)),
            "class": pa.array(tokens.kind, pa.string()),
            "allowed": pa.array(tokens.allowed.astype(bool)),
            "same_row": pa.array(tokens.same_row.astype(np.int32)),
        }
    )


def _value_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if pa.types.is_fixed_size_list(field.type) else field.type


def _leaf(field: pa.Field) -> str:
    """The name by which Parquet knows a column."""
    return f"{field.name}.list.element" if pa.types.is_fixed_size_list(field.type) else field.name

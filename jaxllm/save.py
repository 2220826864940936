"""Writing a Hugging Face folder: safetensors in one file or shards, the config, and the tokenizer's files.

Tensors are streamed in blocks of rows, so that nothing holds a second copy of the model. A folder appears whole or not at all.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxllm import params as params_lib
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.folder import INDEX, SINGLE, STORED
from jaxllm.tensors import Checkpoint, names_and_shapes

MAX_SHARD_BYTES = 5_000_000_000  # as Hugging Face's own writer
_BLOCK_BYTES = 64 << 20


class TextFiles(Protocol):
    """What comes with a model beside its weights, such as a `Checkpoint`."""

    def save_text_files(self, folder: Path) -> None:
        """Writes the tokenizer, the chat template and the generation defaults into a Hugging Face folder."""


class Source(NamedTuple):
    """One tensor to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Callable[[int, int], np.ndarray]  # entries start:stop of the first axis, in dtype

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


def save_params(
    params: params_lib.Params,
    cfg: Config,
    folder: Path,
    *,
    dtype: Any = None,
    like: TextFiles | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes parameters as a Hugging Face folder that reads back bit for bit.

    Args:
      params: stacked or unstacked tree, sharded in any way over this process's devices.
      folder: must not exist, or be empty.
      dtype: element type in the file; by default that of each leaf.
      like: the checkpoint whose tokenizer, chat template and generation defaults are copied.
      max_shard_bytes: a larger model is split into shards with an index.
    Raises:
      UserError: the folder is in use, the tree is not a model of ``cfg``, or an element type is not F32, F16 or BF16.
    """
    leaves = dict(_unstacked(params, cfg))
    expected = {params_lib.hf_name(path): spec.shape for path, spec in params_lib.table(cfg).items()}
    found = {name: shape for name, (shape, _, _) in leaves.items()}
    if found != expected:
        wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))[0]
        raise UserError(f"{folder}: {wrong} has shape {found.get(wrong)} in the tree; the config implies {expected.get(wrong)}")
    sources = [
        Source(name, shape, np.dtype(dtype or leaves[name][1]), _leaf_rows(leaves[name][2], np.dtype(dtype or leaves[name][1])))
        for name, shape in expected.items()
    ]
    write_folder(folder, cfg, sources, like, max_shard_bytes)


def convert(checkpoint: Checkpoint, folder: Path, *, dtype: Any = None, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Writes a checkpoint of any format as a Hugging Face folder, without going through a device.

    Args:
      dtype: element type of all tensors; by default each keeps its own, and quantised ones become float32.
    Raises:
      UserError: as `save_params`.
    """

    def source(name: str, shape: tuple[int, ...]) -> Source:
        kind = np.dtype(dtype or checkpoint.tensors[name].dtype)
        return Source(name, shape, kind, lambda start, stop: checkpoint.read(name, (slice(start, stop),), dtype=kind))

    checkpoint.require_head()
    sources = [source(name, shape) for name, shape in names_and_shapes(checkpoint.config).items()]
    write_folder(folder, checkpoint.config, sources, checkpoint, max_shard_bytes)


@contextlib.contextmanager
def new_folder(folder: Path, nbytes: int) -> Iterator[Path]:
    """A temporary folder beside ``folder`` that takes its place when the block ends well, and vanishes when it does not.

    Raises UserError when the place is taken, cannot be written, or has less than ``nbytes`` bytes left.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: already exists; remove it or choose another name")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}; choose another place") from None
    try:
        free = shutil.disk_usage(partial).free
        if free < nbytes:
            raise UserError(f"{folder}: needs {nbytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free; choose another place")
        partial.chmod(0o755)
        yield partial
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unstacked(params: params_lib.Params, cfg: Config) -> Iterator[tuple[str, tuple[tuple[int, ...], Any, Any]]]:
    """Name -> (shape, dtype, (leaf, layer number or None)) for every tensor, whichever form the tree has."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        path: params_lib.Path = tuple(key.key for key in keys)
        if path[0] == "layers" and not isinstance(path[1], int):
            for layer in range(min(leaf.shape[0], cfg.num_hidden_layers)):
                yield params_lib.hf_name(("layers", layer, *path[1:])), (leaf.shape[1:], leaf.dtype, (leaf, layer))
        else:
            yield params_lib.hf_name(path), (leaf.shape, leaf.dtype, (leaf, None))


@jax.jit(static_argnums=(3,))
def _slice(leaf: jax.Array, layer: Any, start: Any, count: int) -> jax.Array:
    """Some entries of a tensor's first axis; one compilation per shape."""
    if layer is not None:
        leaf = jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False)
    return jax.lax.dynamic_slice_in_dim(leaf, start, count)


def _leaf_rows(place: tuple[Any, int | None], dtype: np.dtype) -> Callable[[int, int], np.ndarray]:
    leaf, layer = place

    def rows(start: int, stop: int) -> np.ndarray:
        # A fresh array: converting the leaf itself would leave a host copy of it cached inside.
        return np.asarray(_slice(leaf, layer, start, stop - start)).astype(dtype, copy=False)

    return rows


def write_folder(folder: Path, cfg: Config, sources: list[Source], like: TextFiles | None, max_shard_bytes: int) -> None:
    """Writes tensors from anywhere as a Hugging Face folder; `save_params` and `convert` say what may go wrong."""
    kinds = {source.dtype for source in sources}
    if unknown := kinds - STORED.keys():
        raise UserError(f"{folder}: cannot store {unknown.pop()}; choose float32, float16 or bfloat16")
    shards: list[list[Source]] = [[]]
    for source in sources:
        if shards[-1] and sum(s.nbytes for s in shards[-1]) + source.nbytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(source)
    total = sum(source.nbytes for source in sources)
    with new_folder(folder, total) as partial:
        names = [SINGLE] if len(shards) == 1 else [_shard_name(i, len(shards)) for i in range(len(shards))]
        for name, shard in zip(names, shards, strict=True):
            _write_safetensors(partial / name, shard)
        if len(shards) > 1:
            weight_map = {source.name: name for name, shard in zip(names, shards, strict=True) for source in shard}
            _write_json(partial / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        dtype = max(kinds, key=lambda kind: sum(source.nbytes for source in sources if source.dtype == kind))
        _write_json(partial / "config.json", {**cfg.to_hf(), "torch_dtype": dtype.name})
        if like is not None:
            like.save_text_files(partial)


def _write_safetensors(path: Path, sources: list[Source]) -> None:
    sources = sorted(sources, key=lambda source: -source.dtype.itemsize)  # every tensor stays aligned to its element
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for source in sources:
        entry = {"dtype": STORED[source.dtype], "shape": list(source.shape), "data_offsets": [end, end + source.nbytes]}
        header[source.name] = entry
        end += source.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for source in sources:
            step = max(1, _BLOCK_BYTES * source.shape[0] // source.nbytes)
            for start in range(0, source.shape[0], step):
                block = source.rows(start, min(start + step, source.shape[0]))
                file.write(np.ascontiguousarray(block).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _shard_name(i: int, n: int) -> str:
    return f"model-{i + 1:05d}-of-{n:05d}.safetensors"

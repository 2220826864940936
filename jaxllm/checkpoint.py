"""Orbax folders of parameters: saved from one mesh, restored on another. The only module that knows Orbax.

A folder holds ``config.json`` and the tokenizer's files as a Hugging Face folder does, and the arrays under ``params/``, each
by its Hugging Face name; leaves of a stacked tree are named ``model.layers.*.mlp.up_proj.weight``.
"""

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxllm import params as params_lib
from jaxllm import sharding
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.folder import STORED, copy_text_files
from jaxllm.params import Params
from jaxllm.save import new_folder
from jaxllm.tensors import Checkpoint, TensorInfo, names_and_shapes, stop_ids

if TYPE_CHECKING:
    from jaxllm.tokenizer import Tokenizer

ARRAYS = "params"
FAULTS = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what Orbax raises over a damaged folder


def save_checkpoint(params: Params, cfg: Config, folder: Path | str, *, like: Checkpoint | None = None) -> None:
    """Writes parameters, stacked or not and however sharded, with their config.

    Args:
      folder: must not exist, or be empty. A relative path is taken from the working directory.
      like: the checkpoint whose tokenizer files are copied.
    Raises:
      UserError: the folder is in use, or the tree is not a model of ``cfg``.
    """
    folder = Path(folder).absolute()
    stacked = not isinstance(next(iter(params["layers"])), int)
    leaves = {}
    for path, spec in params_lib.table(cfg, stacked=stacked).items():
        leaf: Any = functools.reduce(lambda node, key: node.get(key, {}), path, params)
        if getattr(leaf, "shape", None) != spec.shape:
            raise UserError(f"{folder}: {_name(path)} is {getattr(leaf, 'shape', 'absent')}; the config implies {spec.shape}")
        leaves[_name(path)] = leaf
    with new_folder(folder, sum(leaf.nbytes for leaf in leaves.values())) as partial:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(partial / ARRAYS, leaves)
        (partial / "config.json").write_text(json.dumps(cfg.to_hf(), indent=2) + "\n", encoding="utf-8")
        if like is not None:
            like.save_text_files(partial)


class OrbaxCheckpoint(Checkpoint):
    """A folder written by `save_checkpoint`. `read` restores a whole leaf and keeps the last one; `restore` reads shards.

    Raises:
      UserError: no such folder, or its arrays are not those of its config.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.config = Config.read(self.path / "config.json")
        self.stop_ids = stop_ids(self.path, self.config)
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                found = dict(checkpointer.metadata(self.path / ARRAYS).item_metadata)
        except FAULTS as error:
            raise UserError(f"{self.path / ARRAYS}: not a sound Orbax folder: {error}") from None
        self._stacked = any(".*." in name for name in found)
        expected = {_name(path): spec.shape for path, spec in params_lib.table(self.config, stacked=self._stacked).items()}
        shapes = {name: tuple(value.shape) for name, value in found.items()}
        if shapes != expected:
            wrong = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))[0]
            raise UserError(f"{self.path}: {wrong} has shape {shapes.get(wrong)}; the config implies {expected.get(wrong)}")
        self._dtypes = {name: np.dtype(value.dtype) for name, value in found.items()}
        self.tensors = {}
        for name, shape in names_and_shapes(self.config).items():
            dtype = self._dtypes[self._stored_name(name)]
            stored = STORED.get(dtype, dtype.name)
            self.tensors[name] = TensorInfo(shape, dtype, stored, dtype.itemsize * math.prod(shape), self.path / ARRAYS, 0)

    def restore(self, *, mesh: jax.sharding.Mesh | None = None, dtype: Any = None, stacked: bool = False) -> Params:
        """The parameters on a mesh, which need not be the one that they were saved from; each device reads its shards.

        Asking for the other form than the saved one takes a second copy of the layers while it is made.
        """
        places = sharding.shardings(self.config, mesh, stacked=self._stacked)
        target = {}
        for path, spec in params_lib.table(self.config, stacked=self._stacked).items():
            place = functools.reduce(lambda node, key: node[key], path, places)
            kind = dtype or self._dtypes[_name(path)]
            target[_name(path)] = jax.ShapeDtypeStruct(spec.shape, kind, sharding=place)
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                leaves = checkpointer.restore(self.path / ARRAYS, target)
        except FAULTS as error:
            raise UserError(f"{self.path / ARRAYS}: cannot be restored: {error}") from None
        tree = params_lib.build(self.config, lambda path, _: leaves[_name(path)], stacked=self._stacked)
        if stacked == self._stacked:
            return tree
        convert = params_lib.stack if stacked else params_lib.unstack
        return jax.jit(convert, out_shardings=sharding.shardings(self.config, mesh, stacked=stacked))(tree)

    def save_text_files(self, folder: Path) -> None:
        copy_text_files(self.path, folder)

    def _load_tokenizer(self) -> "Tokenizer":
        from jaxllm.tokenizer import Tokenizer

        return Tokenizer.load(self.path)

    def _stored_name(self, name: str) -> str:
        parts = name.split(".")
        if self._stacked and len(parts) > 3:
            parts[2] = "*"
        return ".".join(parts)

    @functools.lru_cache(maxsize=1)  # noqa: B019 - one leaf, dropped with the next
    def _leaf(self, name: str) -> np.ndarray:
        shape = (self.config.num_hidden_layers,) if ".*." in name else ()
        like = next(info for known, info in self.tensors.items() if self._stored_name(known) == name)
        item = {name: jax.ShapeDtypeStruct((*shape, *like.shape), like.dtype)}
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray)}
        try:
            with ocp.PyTreeCheckpointer() as checkpointer:
                args = ocp.args.PyTreeRestore(item, restore_args=how, partial_restore=True)
                return checkpointer.restore(self.path / ARRAYS, args=args)[name]
        except FAULTS as error:
            raise UserError(f"{self.path / ARRAYS}: {name} cannot be read: {error}") from None

    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        leaf = self._leaf(self._stored_name(name))
        if self._stacked and name.startswith("model.layers."):
            leaf = leaf[int(name.split(".")[2])]
        return leaf[start:stop].copy()


def is_orbax(path: Path) -> bool:
    """Whether a folder was written by `save_checkpoint`."""
    return (path / ARRAYS / "_CHECKPOINT_METADATA").exists()


def _name(path: params_lib.Path) -> str:
    """Name of a leaf in the folder: Hugging Face's, with ``*`` for the layer number of a stacked tree."""
    if path[0] == "layers" and not isinstance(path[1], int):
        path = ("layers", "*", *path[1:])
    return params_lib.hf_name(path)

"""A Hugging Face folder: one safetensors file, or shards with an index.

Format: https://huggingface.co/docs/safetensors. Headers are parsed here, with every length and offset checked against the file
before it is used; the folder's faults are reported together.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from jaxllm.config import Config, read_json
from jaxllm.errors import UserError
from jaxllm.tensors import Checkpoint, TensorInfo, check_tensors, raise_faults, read_bytes, stop_ids

if TYPE_CHECKING:
    from jaxllm.tokenizer import Tokenizer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

MAX_HEADER_BYTES = 8 << 20  # the 291 tensors of an 8B model take 0.04; parsed, JSON grows twentyfold

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
STORED = {dtype: name for name, dtype in DTYPES.items()}
_ITEM_BYTES = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}
_IGNORED = re.compile(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # old exports; follows from the config
_TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


class FolderCheckpoint(Checkpoint):
    """A folder of safetensors with ``config.json``. See `Checkpoint` for the attributes.

    Raises:
      UserError: all faults of the folder at once: missing shards, bad headers, missing, repeated or unexpected tensors, shapes
        other than the config's, element types other than F32, F16 and BF16.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = Config.read(path / "config.json")
        self.stop_ids = stop_ids(path, self.config)
        self.tensors, faults, unread = _read_folder(path)
        raise_faults(path, [*faults, *check_tensors(self.config, self.tensors, excused=unread)])

    def _load_tokenizer(self) -> "Tokenizer":
        from jaxllm.tokenizer import Tokenizer

        return Tokenizer.load(self.path)

    def save_text_files(self, folder: Path) -> None:
        copy_text_files(self.path, folder)

    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        info = self.tensors[name]
        row_bytes = info.nbytes // info.shape[0]
        raw = read_bytes(info.file, info.offset + start * row_bytes, (stop - start) * row_bytes)
        return raw.view(info.dtype).reshape(stop - start, *info.shape[1:])


def copy_text_files(source: Path, folder: Path) -> None:
    """Copies the tokenizer's files, the chat template and the generation defaults, as far as there are any."""
    for name in _TEXT_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, whatever their names, without their data.

    Raises:
      UserError: the header is not exactly what the format prescribes for a file of this size: offsets that overlap, leave gaps
        or pass the end, sizes that disagree with shapes, names given twice, element types that cannot be computed with.
    """
    try:
        file_size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if file_size < 8:
        raise UserError(f"{path}: {file_size} bytes is too short for a safetensors file")
    length = int(read_bytes(path, 0, 8).view("<u8")[0])
    if length > min(MAX_HEADER_BYTES, file_size - 8):
        raise UserError(f"{path}: header of {length} bytes in a file of {file_size} (limit {MAX_HEADER_BYTES})")
    try:
        header = json.loads(read_bytes(path, 8, length).tobytes(), object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise UserError(f"{path}: header is not a JSON object")
    header.pop("__metadata__", None)
    infos = {name: _read_entry(path, name, entry, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for name, info in sorted(infos.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != end:
            raise UserError(f"{path}: {name} starts at byte {info.offset}; the tensor before it ends at {end}")
        end += info.nbytes
    if end != file_size:
        raise UserError(f"{path}: the header describes {end} bytes and the file has {file_size}; it is damaged or incomplete")
    return infos


def _read_entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"{path}: {name} needs exactly dtype, shape and data_offsets")
    stored, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(stored, str) or stored not in _ITEM_BYTES:
        raise UserError(f"{path}: {name} has the unknown element type {stored!r}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise UserError(f"{path}: {name} has a bad shape or bad offsets: {str(shape)[:80]}, {str(offsets)[:80]}")
    nbytes = _ITEM_BYTES[stored]
    for n in shape:
        nbytes *= n
    if nbytes != offsets[1] - offsets[0]:
        raise UserError(f"{path}: {name} {stored}{shape} needs {nbytes} bytes; its offsets span {offsets[1] - offsets[0]}")
    ignored = _IGNORED.fullmatch(name)
    if not ignored and stored not in DTYPES:
        raise UserError(f"{path}: {name} is stored as {stored}; supported are {', '.join(DTYPES)} (quantised folders are not)")
    dtype = DTYPES.get(stored, np.dtype(np.uint8))
    return TensorInfo(tuple(shape), dtype, stored, nbytes, path, data_start + offsets[0])


def _are_sizes(value: Any) -> bool:
    """Whether a JSON value is a short list of integers that can count bytes of a file."""
    return isinstance(value, list) and len(value) <= 8 and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _read_folder(path: Path) -> tuple[dict[str, TensorInfo], list[str], set[str]]:
    """The model's tensors, what is wrong with the files and the index, and the names in files that could not be read."""
    if (path / INDEX).exists():
        weight_map = _read_index(path / INDEX)
    elif (path / SINGLE).exists():
        weight_map = {}
    else:
        raise UserError(f"{path}: has neither {SINGLE} nor {INDEX}; is it a model folder in safetensors format?")
    tensors: dict[str, TensorInfo] = {}
    faults: list[str] = []
    unread: set[str] = set()
    for file in sorted(set(weight_map.values())) or [SINGLE]:
        try:
            if not (path / file).is_file():
                raise UserError(f"missing shard {file}, named by {INDEX}")
            header = read_header(path / file)
        except UserError as error:
            faults.append(str(error).removeprefix(f"{path}/"))
            unread.update(name for name, place in weight_map.items() if place == file)
            continue
        for name, info in header.items():
            if _IGNORED.fullmatch(name):
                continue
            if name in tensors:
                faults.append(f"{name} is in {tensors[name].file.name} and again in {file}")
            elif weight_map and weight_map.get(name) != file:
                faults.append(f"{file}: holds {name}, which {INDEX} places in {weight_map.get(name, 'no file')}")
            tensors[name] = info
        absent = [name for name, place in weight_map.items() if place == file and name not in header]
        faults += [f"{file}: lacks {name}, which {INDEX} places there" for name in absent if not _IGNORED.fullmatch(name)]
        unread.update(absent)
    return tensors, faults, unread


def _read_index(path: Path) -> Mapping[str, str]:
    data = read_json(path, limit=MAX_HEADER_BYTES)
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{path}: needs an object weight_map from tensor names to file names")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise UserError(f"{path}: {name} is placed in {file!r}, which is not a .safetensors file of this folder")
    return weight_map

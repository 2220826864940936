"""What a checkpoint offers, whatever its format: named tensors, read slice by slice, with nothing else held or mapped."""

import abc
import dataclasses
import functools
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxllm import params
from jaxllm.config import Config, read_json
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from jaxllm.tokenizer import Tokenizer

log = logging.getLogger(__name__)

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

BLOCK_BYTES = 8 << 20  # of the file, held while a read converts or cuts columns
_MAX_LISTED = 20  # faults in one message


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What the header says of one tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype  # of what `Checkpoint.read` returns
    stored: str  # element or block type in the file: "BF16", "Q4_1"
    nbytes: int  # in the file
    file: Path
    offset: int  # of the first byte, from the start of the file


class Checkpoint(abc.ABC):
    """A model on disk. Opening one reads headers only; `read` touches the bytes that were asked for.

    Attributes:
      path: the folder or file.
      config: the model's shape.
      tensors: every tensor of the model under its Hugging Face name. All names and shapes agree with ``config``, except that
        ``lm_head.weight`` may be absent from an untied model (see `head_name`) or present in a tied one.
      stop_ids: token ids that end a text.
    """

    path: Path
    config: Config
    tensors: Mapping[str, TensorInfo]
    stop_ids: frozenset[int]

    @functools.cached_property
    def _tokenizer(self) -> "Tokenizer":
        return self._load_tokenizer()

    def tokenizer(self) -> "Tokenizer":
        """The checkpoint's tokenizer, loaded once. Raises UserError when it has none."""
        return self._tokenizer

    def chat_template(self) -> str | None:
        """The Jinja source of the chat template, if there is one. Raises UserError when there is no tokenizer."""
        return self.tokenizer().chat_template

    @abc.abstractmethod
    def _load_tokenizer(self) -> "Tokenizer": ...

    @abc.abstractmethod
    def save_text_files(self, folder: Path) -> None:
        """Writes the tokenizer, the chat template and the generation defaults into a Hugging Face folder."""

    @abc.abstractmethod
    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Entries ``start:stop`` of the tensor's first axis, all of the other axes."""

    def read(self, name: str, index: tuple[slice, ...] = (), *, dtype: Any = None) -> np.ndarray:
        """A part of one tensor, in memory of its own.

        Args:
          name: Hugging Face name.
          index: one slice of step 1 per leading axis; axes not mentioned are read whole.
          dtype: what to convert to, block by block; by default the tensor's own ``dtype``.
        Raises:
          UserError: no such tensor, or the file ended early.
        """
        if name not in self.tensors:
            raise UserError(f"{self.path}: no tensor {name!r}")
        info = self.tensors[name]
        dtype = info.dtype if dtype is None else np.dtype(dtype)
        spans = _spans(index, info.shape)
        (start, stop), columns = spans[0], tuple(slice(*span) for span in spans[1:])
        whole_rows = all(span == (0, n) for span, n in zip(spans[1:], info.shape[1:], strict=True))
        if whole_rows and dtype == info.dtype and info.nbytes == info.dtype.itemsize * _size(info.shape):
            return self._rows(name, start, stop)
        out = np.empty([b - a for a, b in spans], dtype)
        step = max(1, BLOCK_BYTES * info.shape[0] // max(1, info.nbytes))
        for i in range(start, stop, step):
            block = self._rows(name, i, min(i + step, stop))
            out[i - start : i - start + len(block)] = block[:, *columns]
        return out

    def head_name(self) -> str:
        """Name of the tensor whose row v scores token v: the head, or the embedding of a tied model.

        A model that calls itself untied but ships no head is taken as tied, with a warning: its weights can still be read.
        A forward pass refuses such a model (see `require_head`).
        """
        if not self.config.tie_word_embeddings:
            if HEAD in self.tensors:
                return HEAD
            log.warning("%s: tie_word_embeddings is false but there is no %s; decoding with the embedding", self.path, HEAD)
        elif HEAD in self.tensors and not self._same_content(HEAD, EMBEDDING):
            log.warning("%s: %s differs from the embedding but the model is tied; it is ignored", self.path, HEAD)
        return EMBEDDING

    def require_head(self) -> None:
        """Raises UserError when the model calls itself untied and has no head: a forward pass would have to guess."""
        if not self.config.tie_word_embeddings and HEAD not in self.tensors:
            raise UserError(
                f"{self.path}: tie_word_embeddings is false but there is no {HEAD}; "
                "if the model is tied, set tie_word_embeddings to true in config.json"
            )

    def _same_content(self, one: str, other: str) -> bool:
        a, b = self.tensors[one], self.tensors[other]
        step = max(1, BLOCK_BYTES * a.shape[0] // max(1, a.nbytes))
        spans = [(slice(i, min(i + step, a.shape[0])),) for i in range(0, a.shape[0], step)]
        return a.shape == b.shape and all(np.array_equal(self.read(one, at), self.read(other, at)) for at in spans)


def names_and_shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a model under its Hugging Face name, in file order."""
    return {params.hf_name(path): spec.shape for path, spec in params.table(cfg).items()}


def check_tensors(cfg: Config, found: Mapping[str, TensorInfo], *, excused: Collection[str] = ()) -> list[str]:
    """All disagreements between the tensors of a checkpoint and its config, one sentence each.

    A tensor in ``excused`` may be missing: its file has a fault that is reported already.
    """
    if cfg.num_hidden_layers > len(found) + 1000:  # do not list the absurd
        return [f"the config has {cfg.num_hidden_layers} layers and the files hold {len(found)} tensors"]
    expected = names_and_shapes(cfg)
    missing = [name for name in expected if name not in found and name not in excused and name != HEAD]
    faults = [f"missing tensor {name} {expected[name]}" for name in missing]
    expected[HEAD] = expected[EMBEDDING]
    for name, info in found.items():
        if name not in expected:
            faults.append(f"{info.file.name}: unexpected tensor {name} {info.shape}")
        elif info.shape != expected[name]:
            faults.append(f"{info.file.name}: {name} has shape {info.shape}; the config implies {expected[name]}")
    return faults


def raise_faults(path: Path, faults: Iterable[str]) -> None:
    """Raises one UserError that lists all faults, if there are any."""
    lines = list(faults)
    if not lines:
        return
    if len(lines) > _MAX_LISTED:
        lines = [*lines[:_MAX_LISTED], f"and {len(lines) - _MAX_LISTED} more"]
    raise UserError(f"{path}: not a sound checkpoint:" + "".join(f"\n  - {line}" for line in lines))


def read_bytes(path: Path, offset: int, count: int) -> np.ndarray:
    """``count`` bytes of a file as uint8, from ``offset``, read once into memory aligned for any element type."""
    spare = np.empty(count + 64, np.uint8)
    shift = -spare.ctypes.data % 64
    out = spare[shift : shift + count]
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            while done < count:
                got = os.preadv(file.fileno(), [memoryview(out)[done : done + (1 << 30)]], offset + done)
                if not got:
                    raise UserError(f"{path}: ends at byte {offset + done}, before the data that its header announces")
                done += got
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    return out


def stop_ids(folder: Path, cfg: Config) -> frozenset[int]:
    """Ids that end a text: those of ``generation_config.json``, else those of the config."""
    path = folder / "generation_config.json"
    if not path.exists():
        return frozenset(cfg.eos_token_ids)
    data = read_json(path)
    value = data.get("eos_token_id") if isinstance(data, dict) else None
    if value is None:
        return frozenset(cfg.eos_token_ids)
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise UserError(f"{path}: eos_token_id must be a token id or a list of them, found {value!r}")
    return frozenset(ids)


def _spans(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    if len(index) > len(shape):
        raise ValueError(f"{len(index)} slices for a tensor of shape {shape}")
    spans = []
    for part, n in zip((*index, *[slice(None)] * (len(shape) - len(index))), shape, strict=True):
        start, stop, step = part.indices(n)
        if step != 1:
            raise ValueError(f"slices must have step 1, found {part}")
        spans.append((start, max(start, stop)))
    return spans


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size

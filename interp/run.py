"""From a checkpoint to a map on disk: reads what is needed, decodes layer after layer, writes each when it is done.

The next layer is read while the device computes. A run that was stopped continues where it was. Host memory: the
prepared head, beside the stored one while it is made, and two layers.
"""

import dataclasses
import importlib.metadata
import json
import logging
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from interp import head as head_lib
from interp import rows as rows_lib
from interp.atlas import AMBIGUOUS, DEGENERATE, DUPLICATE, FLAGS, NO_TOKEN, NONFINITE, Atlas, AtlasWriter, Tokens
from interp.decode import COHERENCE_K, Decoded, Vocabulary, decode
from interp.files import only_writer, sha256
from interp.rows import Layer, Norm, Site
from interp.tokens import Masks
from interp.vocabulary import describe, prepare
from jaxllm.errors import UserError
from jaxllm.load import Checkpoint

log = logging.getLogger(__name__)

ROWS_PER_CALL = 4096  # of an accelerator; also the step of the progress
CONTROL_ROWS = 1024  # per layer; the 99th percentile of 2048 poles leaves twenty above it
MAX_TOP_K = 1024  # a map holds the top of each distribution; all of it would be neurons times vocabulary
AGREEMENT_ROWS = 1024  # compared with float32
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-9}  # half a unit in the last place


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the numbers of a map mean. Two maps with equal settings of one model are equal."""

    site: Site = "up"
    norm: Norm = "rms"
    fold_input_norm: bool = False  # multiply rows by the gain of the norm before the MLP
    score: str = "logit"  # or "cosine"
    top_k: int = 16
    dtype: str = "float32"  # of the operands of the matmul; sums and logits are float32
    mask_padding: bool = True  # this and the next three: see `interp.tokens.Masks`
    mask_special: bool = False
    mask_untrained: bool = False
    mask_bytes: bool = False
    mask_nonfinite_head: bool = False  # leave out head rows with NaN or infinity instead of raising

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("site", self.site, rows_lib.SITES),
            ("norm", self.norm, rows_lib.NORMS),
            ("score", self.score, ("logit", "cosine")),
            ("dtype", self.dtype, tuple(ROUNDING)),
        ):
            if value not in choices:
                raise UserError(f"{name} {value!r} is not known; choose one of {', '.join(choices)}")
        if not 1 <= self.top_k <= MAX_TOP_K:
            raise UserError(f"top_k must be from 1 to {MAX_TOP_K}, found {self.top_k}")

    @property
    def masks(self) -> Masks:
        return Masks(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Masks)})


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands; a layer's control rows count as neurons here."""

    done: int  # rows decoded by this run
    total: int  # rows that this run will decode
    layer: int  # being decoded


@dataclasses.dataclass(frozen=True)
class Control:
    """How control rows are drawn."""

    kind: str = "gaussian"  # or "permuted", see `interp.rows.control_rows`
    rows: int = CONTROL_ROWS  # per layer, at most the number of neurons
    seed: int = 0


def map_model(
    checkpoint: Checkpoint,
    out: str | Path,
    settings: Settings | None = None,
    *,
    name: str | None = None,
    layers: Sequence[int] | None = None,
    control: Control | None = None,
    mesh: jax.sharding.Mesh | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Atlas:
    """Maps the neurons of a model, or continues a map that was begun with the same settings.

    Args:
      checkpoint: from `jaxllm.load.open_checkpoint`; only head, final norm and the MLP matrices are read.
      out: folder of the map; made if absent.
      settings: see `Settings`; the defaults when None.
      name: what the model is called in the map; the checkpoint's path by default.
      layers: which to map; all by default. Layers that the map already has stay.
      control: also decode random rows with each layer's statistics.
      mesh: spreads neurons and vocabulary over its devices; the default device when None.
      progress: called after every few thousand rows.
    Returns:
      The map, open for reading.
    Raises:
      UserError: unknown layer, damaged head, ``out`` holds something else, or another run is writing it.
    """
    begun = time.perf_counter()
    settings = settings or Settings()
    cfg = checkpoint.config
    layers = _check_layers(layers, cfg.num_hidden_layers)
    head = head_lib.read_head(checkpoint, mask_nonfinite=settings.mask_nonfinite_head)
    described = describe(checkpoint, head, settings.masks)
    tokens, allowed = described.tokens, int(described.tokens.allowed.sum())
    about = {
        "model": {
            "name": name or str(checkpoint.path),
            "path": str(checkpoint.path.resolve()),
            "layers": cfg.num_hidden_layers,
            "neurons": cfg.intermediate_size,
            "width": cfg.hidden_size,
            "vocabulary": cfg.vocab_size,
            "config": cfg.to_hf(),
        },
        "tokens": {**described.counts, "top_k_requested": settings.top_k},
        "device": _device(mesh),
        "versions": _versions(),
    }
    fixed = {
        **dataclasses.asdict(settings),
        "top_k": min(settings.top_k, allowed),
        "poles": ["+", "-"],
        "eps": head.eps,
        "head": head.name,
        "head_sha256": head.sha256,
        "config_sha256": _json_hash(cfg.to_hf()),
        "tokenizer_sha256": described.tokenizer_sha256,
    }
    with only_writer(out):
        writer = AtlasWriter(out, fixed, about, tokens)
        if control is not None:
            control = dataclasses.replace(control, rows=min(control.rows, cfg.intermediate_size))
            writer.set_control(**dataclasses.asdict(control))
        todo = [n for n in layers if not writer.has_layer(n) or (control is not None and not writer.has_control(n))]
        log.info("%s: %d layers to decode, %d are there already", out, len(todo), len(layers) - len(todo))
        if todo:
            vocabulary = prepare(head, tokens, score=settings.score, dtype=settings.dtype, mesh=mesh)
            head = head.without_rows()  # the prepared copy serves from here on; of an 8B model the rows are 1 GB
            run = _Run(checkpoint, settings, head, tokens, vocabulary, progress)
            run.map_layers(writer, todo, control)
        atlas = Atlas(out)
        if todo or "agreement" not in writer.meta:
            layer_hashes = {n: record["weights_sha256"] for n, record in writer.meta["layers"].items()}
            timings = writer.meta.get("timings", {})
            writer.finish(
                agreement=agreement(atlas, checkpoint, head, settings),
                weights_sha256=_json_hash({"head": head.sha256, **layer_hashes}),
                timings={**timings, "last_run_seconds": round(time.perf_counter() - begun, 3)},
            )
    return Atlas(out)


class _Run:
    """What stays the same from layer to layer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Settings,
        head: head_lib.Head,
        tokens: Tokens,
        vocabulary: Vocabulary,
        progress: Callable[[Progress], None] | None,
    ):
        self.checkpoint, self.settings, self.head, self.tokens, self.progress = checkpoint, settings, head, tokens, progress
        self.vocabulary = vocabulary
        self.lengths = np.ones_like(head.length) if settings.score == "cosine" else head.length
        self.allowed = int(tokens.allowed.sum())
        self.k = min(settings.top_k, self.allowed)
        same_row = tokens.same_row
        self.repeated = np.bincount(same_row[tokens.allowed], minlength=len(same_row))[same_row] > 1
        self.rows_per_call = _rows_per_call()
        self.done = self.total = 0

    def map_layers(self, writer: AtlasWriter, layers: Sequence[int], control: Control | None) -> None:
        F = self.checkpoint.config.intermediate_size
        fresh = [layer for layer in layers if not writer.has_layer(layer)]
        uncontrolled = [layer for layer in layers if control is not None and not writer.has_control(layer)]
        self.total = len(fresh) * F + sum(control.rows for _ in uncontrolled if control is not None)
        for layer in _read_ahead(self.checkpoint, layers, self.settings.site):
            begun = time.perf_counter()
            length = layer.length(self.settings.site)
            if layer.number in fresh:
                columns = self.decode(layer.rows, length, layer.number)
                columns |= {"read_write": layer.read_write, "norm_up": layer.norm_up}
                columns |= {"norm_gate": layer.norm_gate, "norm_down": layer.norm_down}
                record = {"weights_sha256": layer.sha256, **_counts(columns["flags"]), "seconds": time.perf_counter() - begun}
                writer.write_layer(layer.number, columns, record)
            if layer.number in uncontrolled and control is not None:
                usable = np.isfinite(length) & (length > 0)
                drawn = rows_lib.control_rows(layer.rows, usable, control.rows, control.kind, (control.seed, layer.number))
                columns = self.decode(drawn, np.linalg.norm(drawn, axis=1), layer.number)
                blank = np.zeros(len(drawn), np.float32)
                columns |= dict.fromkeys(("read_write", "norm_up", "norm_gate", "norm_down"), blank)
                columns[f"norm_{self.settings.site}"] = np.linalg.norm(drawn, axis=1)
                writer.write_control(layer.number, columns, _counts(columns["flags"]))
            log.info("layer %d: decoded and written in %.1f s", layer.number, time.perf_counter() - begun)

    def decode(self, rows: np.ndarray, length: np.ndarray, layer: int) -> dict[str, np.ndarray]:
        """The pole columns of a layer file for ``rows [N, D]`` of the given lengths ``[N]``."""
        parts, waiting = [], None
        for start in range(0, len(rows), self.rows_per_call):
            part = slice(start, min(start + self.rows_per_call, len(rows)))
            launched = self._launch(rows[part], length[part], layer, padded=len(rows) > self.rows_per_call)
            if waiting is not None:
                parts.append(self._collect(*waiting, layer))
            waiting = launched
        if waiting is not None:
            parts.append(self._collect(*waiting, layer))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _launch(
        self, rows: np.ndarray, length: np.ndarray, layer: int, *, padded: bool
    ) -> tuple[Decoded, np.ndarray, np.ndarray]:
        """Starts the decode of rows; an accelerator runs it meanwhile. Arrays, flags [n] and lengths of directions [n]."""
        nonfinite, zero = ~np.isfinite(length), length == 0
        rows = np.where((nonfinite | zero)[:, None], rows.dtype.type(0), rows)
        w = directions(self.checkpoint, self.head, self.settings, rows, layer)
        flags = np.where(nonfinite, NONFINITE, 0) | np.where(zero, DEGENERATE, 0)
        lengths = np.linalg.norm(w, axis=1)
        if padded:  # one shape, one compilation
            w = np.concatenate([w, np.zeros((self.rows_per_call - len(w), w.shape[1]), np.float32)])
        return decode(w, self.vocabulary, k=min(max(self.k, COHERENCE_K), self.allowed)), flags.astype(np.uint8), lengths

    def _collect(self, decoded: Decoded, flags: np.ndarray, lengths: np.ndarray, layer: int) -> dict[str, np.ndarray]:
        columns = self._columns(jax.tree.map(lambda x: np.array(x)[: len(flags)], decoded), flags, lengths)
        self.done += len(flags)
        if self.progress is not None:
            self.progress(Progress(self.done, self.total, layer))
        return columns

    def _columns(self, decoded: Decoded, flags: np.ndarray, length: np.ndarray) -> dict[str, np.ndarray]:
        ids, logits = decoded.ids, decoded.logits
        both = {name: np.stack([getattr(decoded, name)] * 2, 1) for name in ("mean", "std", "skew", "kurtosis")}
        for name in ("mean", "skew"):  # odd moments change sign with the pole
            both[name] *= np.array([1, -1], np.float32)
        margin = logits[..., 0] - logits[..., 1] if logits.shape[-1] > 1 else np.zeros_like(decoded.lse)
        std = both["std"]
        columns = {
            "lse": decoded.lse,
            "p1": np.exp(logits[..., 0] - decoded.lse),
            "margin": margin,
            "group_mass": decoded.group_mass,
            "entropy": decoded.entropy,
            **both,
            "zmax_sigma": np.divide(logits[..., 0] - both["mean"], std, out=np.zeros_like(std), where=std > 0),
            "coherence": decoded.coherence,
        }
        top, second = ids[..., 0], ids[..., min(1, ids.shape[-1] - 1)]
        D = self.checkpoint.config.hidden_size
        rounding = ROUNDING["float32"] + (0 if self.settings.dtype == "float32" else ROUNDING[self.settings.dtype] / np.sqrt(D))
        # Four standard deviations of the difference of two dot products whose terms are rounded independently.
        error = 4 * rounding * length[:, None] * np.hypot(self.lengths[top], self.lengths[second])
        out_flags = np.stack([flags, flags], 1)
        out_flags |= np.where(margin <= error, AMBIGUOUS, 0).astype(np.uint8)
        out_flags |= np.where(self.repeated[top], DUPLICATE, 0).astype(np.uint8)
        unlabelled = flags != 0
        out_flags[unlabelled] = flags[unlabelled, None]
        for values in columns.values():
            values[unlabelled] = 0
        return {
            "ids": np.where(unlabelled[:, None, None], NO_TOKEN, ids[..., : self.k]),
            "logits": np.where(unlabelled[:, None, None], np.float32(0), logits[..., : self.k]),
            **columns,
            "flags": out_flags,
        }


def directions(checkpoint: Checkpoint, head: head_lib.Head, settings: Settings, rows: np.ndarray, layer: int) -> np.ndarray:
    """[N, D] float32: what the settings make of ``rows`` before they meet the head."""
    gain = checkpoint.read(f"model.layers.{layer}.post_attention_layernorm.weight") if settings.fold_input_norm else None
    w = rows_lib.directions(rows, settings.norm, eps=head.eps, final_gain=head.gain, input_gain=gain)
    if settings.score == "cosine":
        w /= np.maximum(np.linalg.norm(w, axis=1, keepdims=True), np.float32(1e-30))
    return w


def agreement(atlas: Atlas, checkpoint: Checkpoint, head: head_lib.Head, settings: Settings) -> dict[str, Any]:
    """Share of a fixed random sample of rows whose top token in the map is that of a float32 decode in NumPy."""
    F = atlas.num_neurons
    allowed = atlas.tokens.allowed
    rng = np.random.default_rng(0)
    total = len(atlas.layers) * F
    sample = np.sort(rng.choice(total, min(AGREEMENT_ROWS, total), replace=False))
    w, tops = [], []
    for position, layer in enumerate(atlas.layers):
        chosen = sample[(sample >= position * F) & (sample < (position + 1) * F)] - position * F
        top = atlas.column("ids")[position, chosen, 0, 0]
        chosen, top = chosen[top != NO_TOKEN], top[top != NO_TOKEN]
        if len(chosen):
            w.append(directions(checkpoint, head, settings, _read_rows(checkpoint, layer, settings.site, chosen), layer))
            tops.append(top)
    if not w:
        return {"rows": 0, "top1": None}
    rows, mapped = np.concatenate(w), np.concatenate(tops)
    best = np.full(len(rows), -np.inf, np.float32)
    top = np.zeros(len(rows), np.int64)
    for start in range(0, len(allowed), step := max(1, head_lib.BLOCK_BYTES // (4 * rows.shape[1]))):
        block = checkpoint.read(head.name, (slice(start, min(start + step, len(allowed))),)).astype(np.float32)
        if settings.score == "cosine":
            block /= np.maximum(head.length[start : start + step, None], np.float32(1e-30))
        ok = allowed[start : start + step]
        z = np.where(ok, rows @ np.where(ok[:, None], block, 0).T, -np.inf)
        at = z.argmax(1)
        value = z[np.arange(len(z)), at]
        top, best = np.where(value > best, at + start, top), np.maximum(best, value)
    return {"rows": len(rows), "top1": float((top == mapped).mean())}


def _read_rows(checkpoint: Checkpoint, layer: int, site: Site, chosen: np.ndarray) -> np.ndarray:
    name = rows_lib.tensor_name(layer, site)
    if site != "down":
        return np.concatenate([checkpoint.read(name, (slice(j, j + 1),)) for j in chosen.tolist()])
    D = checkpoint.tensors[name].shape[0]
    blocks = [checkpoint.read(name, (slice(d, min(d + 256, D)),))[:, chosen] for d in range(0, D, 256)]
    return np.ascontiguousarray(np.concatenate(blocks).T)


def _read_ahead(checkpoint: Checkpoint, layers: Sequence[int], site: Site) -> Iterator[Layer]:
    """The layers in order; while one is used, the next is read."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="read-layer")
    try:
        future = pool.submit(rows_lib.read_layer, checkpoint, layers[0], site)
        for following in [*layers[1:], None]:
            layer = future.result()
            if following is not None:
                future = pool.submit(rows_lib.read_layer, checkpoint, following, site)
            yield layer
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _rows_per_call() -> int:
    if jax.default_backend() != "cpu":
        return ROWS_PER_CALL
    from interp import decode_cpu
    from jaxllm.simd import cores

    return decode_cpu.ROWS * cores()


def _check_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    chosen = list(range(count)) if layers is None else sorted(set(layers))
    wrong = [layer for layer in chosen if not 0 <= layer < count]
    if wrong or not chosen:
        raise UserError(f"layers {wrong or '(none)'}: the model has layers 0 to {count - 1}")
    return chosen


def _counts(flags: np.ndarray) -> dict[str, int]:
    """How many neurons carry each flag, at either pole."""
    return {name: int(((flags & bit) != 0).any(1).sum()) for name, bit in FLAGS.items()}


def _json_hash(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode())


def _device(mesh: jax.sharding.Mesh | None) -> dict[str, Any]:
    devices = list(mesh.devices.flat) if mesh is not None else jax.devices()[:1]
    return {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}


def _versions() -> dict[str, str]:
    import jaxlib
    import pyarrow

    return {
        "jaxllm": importlib.metadata.version("jaxllm"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "pyarrow": pyarrow.__version__,
    }

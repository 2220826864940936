"""The text on which a neuron's natural values are measured, and their statistics: the units ``3sd`` and ``max`` of a clamp.

``calibration.txt`` is English of many kinds, written for this purpose: stories, letters, recipes, news, science, code, lists.
"""

from collections.abc import Iterable, Sequence
from importlib import resources

import flax.struct
import jax
import numpy as np

from interp import tally, windows
from interp.acts import check, record
from interp.windows import LENGTH, Windows, shape_for
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params
from jaxllm.tokenizer import Tokenizer

BATCH = 4  # windows of a call; the text that ships is some twenty


@flax.struct.dataclass
class Natural:
    """Statistics of m neurons' values over a text; every array is ``[m]`` float32, in the order asked for."""

    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray


def calibration_text() -> str:
    """The text that ships with the project, about 3,900 words."""
    return resources.files("interp").joinpath("calibration.txt").read_text(encoding="utf-8")


def natural(
    params: Params,
    cfg: Config,
    tokenizer: Tokenizer,
    neurons: Sequence[tuple[int, int]],
    site: str = "up",
    text: Iterable[str] | None = None,
    *,
    mesh: jax.sharding.Mesh | None = None,
) -> Natural:
    """Statistics of some neurons' values at a site, over every token of a text but the first.

    Args:
      neurons: (layer, neuron) pairs, any number; a pair may come twice.
      site: as of `interp.acts.activations`.
      text: in pieces of any size, or a string; the calibration text by default.
    Raises:
      UserError: no such neuron or site, a text of less than two tokens, or no finite value of a neuron.
    """
    if not neurons:
        return Natural(*[np.zeros(0, np.float32)] * 4)
    check(cfg, neurons, site)
    pieces = [calibration_text()] if text is None else [text] if isinstance(text, str) else text
    shape = shape_for(min(LENGTH, cfg.max_position_embeddings), BATCH)
    batches = Windows(tokenizer, shape).batches(windows.encode(tokenizer, pieces))
    total = tally.moments(np.zeros((0, len(neurons)), np.float32))
    for batch, values in record(params, cfg, batches, neurons, site, mesh=mesh):
        total = tally.merge(total, tally.moments(values[batch.counted]))
    if not total.count.all():
        layer, neuron = neurons[int(np.argmin(total.count))]
        raise UserError(f"L{layer}/N{neuron}: no finite value on the text; it needs at least two tokens")
    return Natural(total.mean.astype(np.float32), total.std.astype(np.float32), total.min, total.max)

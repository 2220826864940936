"""What the adapters share: a scorer made from plain settings, and targets as datasets hold them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.errors import UserError
from jaxllm.frames import PRESETS, Resize
from rewards import registry
from rewards.score import Scored, Scorer

MAX_LABEL = 1 << 16  # characters of a target that is JSON text
BOX_KEYS = ("target", "bbox")
SIZE_KEYS = ("image_wh", "resized_wh")


@dataclasses.dataclass(frozen=True)
class Target:
    """What one answer is compared with."""

    box: tuple[float, ...]  # x1, y1, x2, y2
    image_wh: tuple[float, ...] | None = None  # width and height of the picture's file
    resized_wh: tuple[float, ...] | None = None  # and of what the model saw


def make_scorer(
    reward: str = "gui_g2",
    *,
    dialect: str = "bracket",
    policy: str = "first",
    frame: str | None = None,
    target_frame: str = "orig",
    resize: str | Resize | None = None,
    **options: Any,
) -> Scorer:
    """A scorer from settings that a configuration file can hold.

    Args:
      reward: a name of `rewards.names`.
      dialect: how the model writes, a name of `rewards.parse.DIALECTS`.
      policy: which of several answers in a text counts.
      frame: what the model's numbers count (`jaxllm.frames.FRAMES`); the dialect's when left out.
      target_frame: what the targets' numbers count.
      resize: how pictures were resized for the model: a name of `jaxllm.frames.PRESETS`, or the bounds themselves.
      options: settings of the reward.

    Raises:
      UserError: an unknown name or option, a reward of groups or one that needs more than boxes.
    """
    if isinstance(resize, str):
        if resize not in PRESETS:
            raise UserError(f"resize {resize!r} is unknown; there are {', '.join(PRESETS)}")
        resize = PRESETS[resize]
    kernel = registry.get(reward, **options)
    if kernel.grouped or kernel.required:
        needs = "a group of answers at once" if kernel.grouped else ", ".join(kernel.required)
        raise UserError(f"{reward} needs {needs}, which a trainer's reward function does not give")
    return Scorer(kernel, dialect, policy, frame=frame, target_frame=target_frame, resize=resize)


def score(scorer: Scorer, texts: Sequence[str], targets: Sequence[Target]) -> Scored:
    """Rewards N answers. Raises UserError when the frames need a size that a target lacks."""
    sizes = {}
    for name, argument in (("image_wh", "size_wh"), ("resized_wh", "resized_wh")):
        values = [getattr(target, name) for target in targets]
        if values and None not in values:
            sizes[argument] = np.array(values)
    boxes = np.array([target.box for target in targets], np.float32).reshape(-1, 4)
    return scorer(list(texts), boxes, **sizes)


def target_of(value: Any, where: str, extra: Mapping[str, Any] | None = None) -> Target:
    """A target as a dataset holds it: four numbers, a mapping with ``target`` or ``bbox``, or either as JSON text.

    Sizes may stand in the mapping, or in ``extra``, as ``image_wh`` and ``resized_wh``, or as ``width`` and ``height``.

    Raises:
      UserError: it is none of that; ``where`` says which one.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if len(value) <= MAX_LABEL else None
        except (ValueError, RecursionError):
            value = None
    fields: dict[str, Any] = {key: item for key, item in (extra or {}).items() if item is not None}
    if isinstance(value, Mapping):
        fields |= {key: item for key, item in value.items() if item is not None}
        value = next((value[key] for key in BOX_KEYS if key in value), None)
    if "image_wh" not in fields and "width" in fields and "height" in fields:
        fields["image_wh"] = (fields["width"], fields["height"])
    image_wh, resized_wh = (_numbers(fields[key], 2, f"{where}, {key}") if key in fields else None for key in SIZE_KEYS)
    return Target(_numbers(value, 4, where), image_wh, resized_wh)


def _numbers(value: Any, count: int, where: str) -> tuple[float, ...]:
    try:
        numbers = np.asarray(value, np.float64)
        good = numbers.shape == (count,) and np.isfinite(numbers).all()
    except (TypeError, ValueError):
        good = False
    if not good:
        form = "x1, y1, x2, y2" if count == 4 else "width, height"
        raise UserError(f"{where}: {count} finite numbers {form} are expected, not {str(value)[:100]}")
    return tuple(numbers.tolist())


def text_of(completion: Any, where: str) -> str:
    """A completion as text: a string, or the last message of a chat, whose content may be a list of parts."""
    if isinstance(completion, str):
        return completion
    content = None
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], Mapping):
        content = completion[-1].get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if content is None:
        content = "" if completion == [] else content
    if not isinstance(content, str):
        raise UserError(f"{where}: a completion must be text or a list of chat messages, not {str(completion)[:100]}")
    return content

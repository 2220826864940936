"""Reward functions for TRL's trainers (GRPO, RLOO): called with completions and the dataset's columns, they return floats.

>>> reward = reward_function("gui_g2", dialect="qwen25", frame="orig")
>>> reward(prompts=["Where is Save?"], completions=['{"bbox_2d": [100, 100, 200, 150]}'], target=[[100, 100, 200, 150]])
[2.0]

Give it to the trainer as ``reward_funcs=[reward]``. Completions may be strings or chat messages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxllm.errors import UserError
from rewards.adapters.common import make_scorer, score, target_of, text_of


def reward_function(
    reward: str = "gui_g2", *, target: str = "target", part: str = "reward", **settings: Any
) -> Callable[..., list[float | None]]:
    """A function as TRL calls it: ``(prompts, completions, **columns) -> list of floats``, one for each completion.

    Rows of the column ``target`` are boxes, or mappings or JSON text with a box and sizes (see `target_of`); the columns
    ``image_wh``, ``resized_wh``, ``width`` and ``height`` are read where a size is needed. A row whose target is None gets
    None, which TRL leaves out: one dataset may hold several tasks.

    Args:
      reward: a name of `rewards.names`.
      target: the column of the box that was asked for.
      part: which part of the reward to return; the name in TRL's logs is the reward's, and this, if it is not ``reward``.
      settings: of `rewards.adapters.common.make_scorer`.

    Raises:
      UserError: an unknown name or option, at once; a missing column or a target that is none, when it is called.
    """
    scorer = make_scorer(reward, **settings)
    if part not in scorer.reward.parts:
        raise UserError(f"{reward} has no part {part}; its parts are {', '.join(scorer.reward.parts)}")

    def rewards(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        if target not in columns:
            known = ", ".join(sorted(columns)) or "none"
            raise UserError(f"the dataset has no column {target!r} for the target box; its columns are {known}")
        asked = columns[target]
        rows = [row for row in range(len(completions)) if asked[row] is not None]
        sizes = {name: columns[name] for name in ("image_wh", "resized_wh", "width", "height") if columns.get(name) is not None}
        targets = [
            target_of(asked[row], f"{target} of row {row}", {name: column[row] for name, column in sizes.items()})
            for row in rows
        ]
        texts = [text_of(completions[row], f"completion {row}") for row in rows]
        found = np.asarray(getattr(score(scorer, texts, targets).parts, part), np.float64).tolist()
        out: list[float | None] = [None] * len(completions)
        for row, value in zip(rows, found, strict=True):
            out[row] = value
        return out

    rewards.__name__ = reward if part == "reward" else f"{reward}_{part}"
    return rewards

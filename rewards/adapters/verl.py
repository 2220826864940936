"""Reward functions for verl, named in its configuration by this file's path:

    custom_reward_function.path=<this file> custom_reward_function.name=compute_score
    +custom_reward_function.reward_kwargs.dialect=qwen25 +custom_reward_function.reward_kwargs.resize=qwen25

>>> compute_score("gui", "[100, 100, 200, 150]", [100, 100, 200, 150], frame="orig")
2.0
>>> compute_score_batched(["gui"] * 2, ["[100, 100, 200, 150]", "?"], [[100, 100, 200, 150]] * 2, frame="orig")
[2.0, 0.0]

The batched one is for ``reward_model.reward_manager=batch``, and much the faster.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rewards.adapters.common import make_scorer, score, target_of


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    parts: bool = False,
    **settings: Any,
) -> Any:
    """The reward of one answer.

    Args:
      data_source: verl's name of the dataset; not used.
      solution_str: what the model wrote.
      ground_truth: the target box, see `rewards.adapters.common.target_of`.
      extra_info: may hold ``image_wh`` or ``width`` and ``height``, and ``resized_wh``.
      parts: return a dict with ``score`` and every part of the reward, which verl's naive manager logs.
      settings: of `rewards.adapters.common.make_scorer`.

    Raises:
      UserError: a target that is none, an unknown setting, a size that the frames need.
    """
    return compute_score_batched([data_source], [solution_str], [ground_truth], [extra_info], parts=parts, **settings)[0]


def compute_score_batched(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
    *,
    parts: bool = False,
    **settings: Any,
) -> list[Any]:
    """The rewards of N answers at once; as `compute_score`, with a list for each argument."""
    extras = [None] * len(solution_strs) if extra_infos is None else extra_infos
    targets = [
        target_of(truth, f"ground truth of sample {i}", extra)
        for i, (truth, extra) in enumerate(zip(ground_truths, extras, strict=True))
    ]
    scored = score(make_scorer(**settings), solution_strs, targets).parts
    rewards = np.asarray(scored.reward, np.float64).tolist()
    if not parts:
        return rewards
    columns = {name: np.asarray(values).tolist() for name, values in zip(scored._fields, scored, strict=True)}
    return [{"score": reward} | {name: column[i] for name, column in columns.items()} for i, reward in enumerate(rewards)]

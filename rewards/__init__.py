"""Rewards for GUI grounding: Gaussian point and coverage rewards and their rivals, as array kernels.

reward = rewards.get("gui_g2")                       # names() lists them all
parts = reward(pred_box, gt_box, kind=parsed.kind)   # NumPy or JAX arrays [..., 4]; a NamedTuple of parts [...]
advantages = rewards.group_advantages(parts.reward)  # [..., G]

Texts become arrays in `rewards.parse`, and rewards through a `Scorer`. Nothing here imports a model, or JAX unless it is given
JAX arrays.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewards.advantages import group_advantages
    from rewards.batches import in_buckets
    from rewards.gaussian import GuiG2, GuiG2Options, gui_g2, point_coverage
    from rewards.registry import Reward, get, names
    from rewards.score import Scorer

__all__ = [
    "GuiG2",
    "GuiG2Options",
    "Reward",
    "Scorer",
    "get",
    "group_advantages",
    "gui_g2",
    "in_buckets",
    "names",
    "point_coverage",
]

_HOMES = {"group_advantages": "advantages", "in_buckets": "batches", "Scorer": "score"}
_HOMES |= dict.fromkeys(("Reward", "get", "names"), "registry")
_HOMES |= dict.fromkeys(("GuiG2", "GuiG2Options", "gui_g2", "point_coverage"), "gaussian")


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

"""Rewards of a group of answers to one prompt, relative to the group."""

from typing import Any

from jaxllm.errors import UserError
from rewards.namespace import array_namespace, as_floats, require_choice

SCALES = ("std", "none")
BASELINES = ("mean", "others")


def group_advantages(
    rewards: Any, *, axis: int = -1, eps: float = 1e-4, scale: str = "std", baseline: str = "mean", mask: Any = None
) -> Any:
    """A_i = (R_i - mean) / (std + eps) over the group, with the unbiased std (GRPO as GUI-G² uses it, arXiv 2507.15846).

    A non-finite reward is left out, as if it were masked: one NaN would otherwise poison its whole group. Members left out
    get 0, groups of one and groups of equal rewards get exact zeros.

    Args:
      rewards: [..., G, ...], the group along ``axis``.
      eps: added to the std.
      scale: "std", or "none" for R - mean alone (GUI-G1).
      baseline: "mean" of the group, or "others": the mean of the other members (leave one out, as in InfiGUI-G1).
      mask: bool, broadcasts against ``rewards``; False leaves a member out.
    Returns:
      The advantages, in the shape of ``rewards``, float32 or float64.
    Raises:
      UserError: an unknown scale or baseline, or rewards without a group axis.
    """
    require_choice("scale", scale, SCALES)
    require_choice("baseline", baseline, BASELINES)
    xp = array_namespace(rewards, mask)
    (rewards,) = as_floats(xp, rewards)
    if rewards.ndim == 0:
        raise UserError("rewards is a single number; advantages need a group axis")
    used = xp.isfinite(rewards)
    if mask is not None:
        used = used & xp.asarray(mask).astype(bool)
    values = xp.where(used, rewards, 0)
    count = used.sum(axis, keepdims=True).astype(values.dtype)
    total = values.sum(axis, keepdims=True)
    mean = total / xp.maximum(count, 1)
    centred = xp.where(used, values - mean, 0)
    # Equal rewards: their mean may miss them by a rounding, which a small std would blow up.
    highest = xp.where(used, rewards, -xp.inf).max(axis, keepdims=True)
    lowest = xp.where(used, rewards, xp.inf).min(axis, keepdims=True)
    differ = used & (highest > lowest)
    advantages = centred
    if baseline == "others":
        advantages = values - (total - values) / xp.maximum(count - 1, 1)
    if scale == "std":
        variance = (centred**2).sum(axis, keepdims=True) / xp.maximum(count - 1, 1)
        advantages = advantages / (xp.sqrt(xp.where(variance > 0, variance, 1)) + eps)
    return xp.where(differ, advantages, 0)

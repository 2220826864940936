"""Spaces of Gymnasium: what actions of them look like as JSON, and what observations of them look like as arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.api import ActionSpec, Argument, Json
from jaxllm.errors import UserError

NUMBERS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)


def require_known(space: Any) -> None:
    """Raises UserError for a space that is not made of numbers and text."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            require_known(part)
    elif not isinstance(space, (*NUMBERS, spaces.Discrete, spaces.Text)):
        raise UserError(f"the space {space} is neither numbers nor text, nor made of such; wrap the environment in one that is")


def act(space: Any) -> ActionSpec:
    """The action ``act(value)`` of an action space. Raises UserError like `require_known`.

    Its bounds are the widest of the space, where it is one array.
    """
    require_known(space)
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        argument = Argument("value", "int", low=first, high=first + int(space.n) - 1)
    elif isinstance(space, spaces.Text):
        argument = Argument("value", "text")
    elif isinstance(space, NUMBERS):
        lows, highs = _bounds(space)
        low, high = (bound.item() if np.isfinite(bound) else None for bound in (lows.min(), highs.max()))
        argument = Argument("value", "json", low=low, high=high, shape=tuple(space.shape))
    else:
        argument = Argument("value", "json")
    return ActionSpec("act", (argument,), f"a value of {space}"[:200])


def _bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)


def in_space(value: Json, space: Any) -> tuple[Any] | None:
    """A JSON value as the space has it, in a tuple; None where it lies outside or has another shape or type."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            return None
        named = {name: in_space(value[name], part) for name, part in space.spaces.items()}
        return None if None in named.values() else ({name: part[0] for name, part in named.items() if part},)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            return None
        listed = [in_space(one, part) for one, part in zip(value, space.spaces, strict=True)]
        return None if None in listed else (tuple(part[0] for part in listed if part),)
    if isinstance(space, spaces.Discrete):
        sound = isinstance(value, int) and not isinstance(value, bool) and space.start <= value < space.start + space.n
        return (space.dtype.type(value),) if sound else None
    if isinstance(space, spaces.Text):
        return (value,) if isinstance(value, str) and space.contains(value) else None
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return None
    if array.dtype.kind not in ("iuf" if space.dtype.kind == "f" else "iu") or array.shape != space.shape:
        return None
    low, high = _bounds(space)
    return (array.astype(space.dtype),) if (array >= low).all() and (array <= high).all() else None


def parts(found: Any, space: Any, name: str = "") -> Iterator[tuple[str, np.ndarray | str]]:
    """The arrays (copies) and texts of an observation, by name: those of a dictionary are "board", "agent.row"; alone, "".

    Raises ValueError for an array of another shape than its space's.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from parts(found[key], part, f"{name}.{key}" if name else str(key))
    elif isinstance(space, spaces.Text):
        yield name, str(found)
    else:
        array = np.array(found, space.dtype)
        if array.shape != space.shape:
            raise ValueError(f"an observation {name} of shape {array.shape}; its space is {space}")
        yield name, array

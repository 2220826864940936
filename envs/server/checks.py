"""What an environment returned, before it goes to a learner: rewards are finite numbers, observations keep their form."""

import sys
from typing import Any

import numpy as np

from envs.api import Obs

Shapes = dict[str, tuple[Any, Any]]  # name of an array -> dtype and shape
_LARGEST = sys.float_info.max


class BadObservationError(Exception):
    """What an environment returned is not what an environment returns."""


def reward(value: Any) -> float:
    """A reward as a float. Raises BadObservationError for what is no finite number."""
    if type(value) is not float:
        if not isinstance(value, (int, float, np.number)):
            raise BadObservationError(f"a reward is a finite number, not {type(value).__name__}")
        value = float(value)
    if not -_LARGEST <= value <= _LARGEST:
        raise BadObservationError(f"a reward of {value}")
    return value


def arrays(obs: Obs, first: Shapes | None) -> Shapes | None:
    """Types and shapes of an observation's arrays, which are those of the first observation where there was one with arrays.

    Raises BadObservationError for what must not reach a learner.
    """
    if not isinstance(obs, Obs):
        raise BadObservationError(f"an observation is an envs.Obs, not {type(obs).__name__}")
    if obs.text is not None and not isinstance(obs.text, str):
        raise BadObservationError(f"an observation's text is {type(obs.text).__name__}")
    if obs.screenshot is not None and not isinstance(obs.screenshot, bytes):
        raise BadObservationError(
            f"an observation's screenshot is {type(obs.screenshot).__name__}; it holds the bytes of a file"
        )
    if not obs.arrays:
        if first:
            raise BadObservationError(f"an observation without {', '.join(first)}")
        return first
    shapes: Shapes = {}
    for name, array in obs.arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise BadObservationError(f"{name} is no array of numbers")
        if array.dtype.kind in "fc" and np.isnan(array).any():
            raise BadObservationError(f"{name} holds NaN")
        shapes[name] = (array.dtype, array.shape)
    if first is not None and shapes != first:
        raise BadObservationError(f"arrays of {_shown(shapes)}, where the first observation had {_shown(first)}")
    return shapes


def _shown(shapes: Shapes) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in shapes.items()) or "none"

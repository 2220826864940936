"""Which array library an input belongs to: the kernels are written once, against that library's names."""

import math
import sys
from typing import Any

import numpy as np

from jaxllm.errors import UserError


def array_namespace(*values: Any) -> Any:
    """``jax.numpy`` when any value is a JAX array or tracer, else ``numpy``. Never imports JAX: its arrays mean it is there."""
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(value, jax.Array) for value in values):
        return jax.numpy
    return np


def is_number(value: Any) -> bool:
    """Whether a parameter is a plain number, whose value may be looked at; a tracer or an array is none."""
    return isinstance(value, int | float | np.integer | np.floating)


def as_floats(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays in one float type: float64 when any of them has it, else float32, whatever they come in."""
    converted = [xp.asarray(array) for array in arrays]
    wide = any(array.dtype == np.float64 for array in converted)
    dtype = np.float64 if wide else np.float32
    return [array if array.dtype == dtype else array.astype(dtype) for array in converted]


def columns(array: Any, width: int, name: str) -> tuple[Any, ...]:
    """The ``width`` arrays [...] along the last axis of ``array`` [..., width]. Raises UserError for another shape."""
    if array.ndim == 0 or array.shape[-1] != width:
        raise UserError(f"{name} has shape {list(array.shape)}; its last axis must hold {width} numbers")
    return tuple(array[..., i] for i in range(width))


def broadcast_shape(named: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The common leading shape. Raises UserError that names every shape when there is none."""
    try:
        return np.broadcast_shapes(*named.values())
    except ValueError:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in named.items())
        raise UserError(f"the leading axes do not broadcast against each other: {shapes}") from None


def require_number(name: str, value: Any, low: float, *, above: bool = False, high: float = math.inf) -> None:
    """Raises UserError when a plain number is outside ``low`` to ``high``; arrays and tracers pass unseen."""
    if is_number(value) and not ((value > low if above else value >= low) and value <= high and math.isfinite(value)):
        bound = f"{'above' if above else 'at least'} {low:g}" + ("" if high == math.inf else f" and at most {high:g}")
        raise UserError(f"{name} is {value}; it must be a finite number {bound}")


def require_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises UserError when ``value`` is none of ``choices``."""
    if value not in choices:
        raise UserError(f"{name} is {value!r}; choose one of {', '.join(map(repr, choices))}")

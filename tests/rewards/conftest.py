"""Arrays of both libraries and float types, for facts that hold in all four."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rewards
from rewards.gaussian import gui_g2

KINDS = [(np, "float32"), (np, "float64"), (jnp, "float32"), (jnp, "float64")]


@pytest.fixture(params=KINDS, ids=[f"{'numpy' if xp is np else 'jax'}-{dtype}" for xp, dtype in KINDS])
def array(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes arrays of one library and float type."""
    xp, dtype = request.param
    with jax.enable_x64(dtype == "float64"):
        yield lambda values: xp.asarray(np.asarray(values, dtype))


jitted_gui_g2 = jax.jit(gui_g2, static_argnames="options")


@pytest.fixture
def kernel(array: Any) -> Any:
    """`gui_g2`, jitted for JAX arrays."""
    return jitted_gui_g2 if isinstance(array(0), jax.Array) else gui_g2


@pytest.fixture
def get(array: Any) -> Any:
    """`rewards.get`, its rewards jitted for JAX arrays: a program each instead of one for every operation."""
    jitted = isinstance(array(0), jax.Array)
    return lambda name, **options: jax.jit(rewards.get(name, **options)) if jitted else rewards.get(name, **options)

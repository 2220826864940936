"""Reading the MLP's inner values of chosen neurons during a forward pass."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Neurons:
    """Which m neurons to read. Both arrays are traced: other neurons compile nothing anew."""

    layer: jax.Array  # [m] int32
    neuron: jax.Array  # [m] int32, its row in the up-projection of that layer


@flax.struct.dataclass
class Recorded:
    """What m neurons held at each token, each ``[B, T, m]`` float32, after clamping; zero for a layer that was not run."""

    gate_pre: jax.Array  # the gate's projection
    up: jax.Array  # the up-projection
    product: jax.Array  # silu(gate_pre) * up, which the down-projection reads


def blank(neurons: Neurons, B: int, T: int) -> Recorded:
    """The record before the first layer."""
    zeros = jnp.zeros((B, T, *jnp.shape(neurons.layer)), jnp.float32)
    return Recorded(zeros, zeros, zeros)


def fill(recorded: Recorded, neurons: Neurons, layer: Any, gate_pre: jax.Array, up: jax.Array, product: jax.Array) -> Recorded:
    """``recorded`` with the values of the neurons in ``layer``, out of the layer's arrays ``[B, T, F]``."""
    here = jnp.asarray(neurons.layer) == layer

    def read(held: jax.Array, values: jax.Array) -> jax.Array:
        chosen = jnp.take(values, neurons.neuron, axis=-1, mode="clip").astype(jnp.float32)
        return jnp.where(here, chosen, held)

    def read_all(recorded: Recorded, *values: jax.Array) -> Recorded:
        return Recorded(*map(read, (recorded.gate_pre, recorded.up, recorded.product), values))

    # Reading in every layer, for neurons of one, made a pass on CPU a quarter slower.
    return jax.lax.cond(jnp.any(here), read_all, lambda recorded, *_: recorded, recorded, gate_pre, up, product)

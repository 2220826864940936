"""Where a training state lives: weights, moments and whatever else has their shapes, by the one table of `jaxllm.sharding`."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jax.tree_util import DictKey

from jaxllm import params, sharding
from jaxllm.config import Config


def placements(tree: Any, cfg: Config, mesh: Mesh | None) -> Any:
    """The placement of each leaf: that of the parameter whose path ends it, and whole on every device where there is none.

    Args:
      tree: any tree with stacked parameters, critics or moments of either in it.
      mesh: None for the default device.
    """
    specs = params.table(cfg, stacked=True)

    def place(path: tuple[Any, ...], leaf: Any) -> Any:
        if mesh is None:
            return SingleDeviceSharding(jax.devices()[0])
        keys = tuple(key.key for key in path if isinstance(key, DictKey))
        spec = specs.get(keys[1:] if keys[:1] == ("trunk",) else keys)
        if spec is None or spec.shape != leaf.shape:
            return NamedSharding(mesh, PartitionSpec())
        # As the compiler writes it, so that what comes out of a step equals what went in and nothing is compiled twice.
        axes = [axis if axis and mesh.shape[axis] > 1 else None for axis in sharding.spec_for(spec.axes, spec.shape, mesh, cfg)]
        while axes and axes[-1] is None:
            axes.pop()
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree_util.tree_map_with_path(place, tree)


def put(tree: Any, cfg: Config, mesh: Mesh | None) -> Any:
    """The tree in its place. What is there already stays; the rest is moved, and the first step finds what later ones find."""
    return jax.device_put(tree, placements(tree, cfg, mesh))


def keep(tree: Any, cfg: Config, mesh: Mesh | None) -> Any:
    """Tells the compiler that what it computes goes where its predecessor was, so that donated memory is used again."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, placements(tree, cfg, mesh))


def rows(mesh: Mesh | None) -> int:
    """Devices that the rows of a batch are split over."""
    return 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]

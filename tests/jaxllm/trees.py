"""Parameters as other programs see them."""

import functools
import operator

import numpy as np

from jaxllm import params
from jaxllm.config import Config


def by_name(tree: params.Params, cfg: Config) -> dict[str, np.ndarray]:
    """The leaves of an unstacked tree under their Hugging Face names."""
    return {params.hf_name(path): np.asarray(functools.reduce(operator.getitem, path, tree)) for path in params.table(cfg)}

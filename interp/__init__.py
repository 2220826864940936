"""Reads the neurons of a language model: which words each one stands for, and how to steer by them.

atlas = map_model(open_checkpoint(folder), "maps/mine")      # or Atlas("maps/mine"), when it is there already
rank(atlas).top(20)                                          # the most specialised neurons
find(atlas, parse_query(" dog", atlas.tokens.data, atlas.tokens.group).ids)
show(atlas, 12, 345)
activations(params, cfg, tokenizer, [(12, 345)], Path("notes.txt"))    # what the neuron does on a text
make_clamp(cfg, resolve([parse_clamp("L12/N345=-30")]))      # hold it at a value: an argument of generation
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.acts import activations
    from interp.atlas import Atlas
    from interp.calibration import natural
    from interp.clamp import parse_clamp, resolve
    from interp.query import find, neighbours, show
    from interp.ranking import rank
    from interp.run import Control, Settings, map_model
    from interp.tokens import parse_query

__all__ = [
    "Atlas",
    "Control",
    "Settings",
    "activations",
    "find",
    "map_model",
    "natural",
    "neighbours",
    "parse_clamp",
    "parse_query",
    "rank",
    "resolve",
    "show",
]

_HOMES = {"Atlas": "atlas", "parse_query": "tokens", "rank": "ranking", "activations": "acts", "natural": "calibration"}
_HOMES |= dict.fromkeys(("parse_clamp", "resolve"), "clamp")
_HOMES |= dict.fromkeys(("find", "neighbours", "show"), "query") | dict.fromkeys(("Control", "Settings", "map_model"), "run")


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: searching a map needs no JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

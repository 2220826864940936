"""Commands on the map of neurons: build one, search it, look at one neuron."""

from typing import Any

COMMANDS: dict[str, type[Any]] = {}

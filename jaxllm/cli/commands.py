"""Every command by its name. A module is listed here once; its ``COMMANDS`` says what it offers.

A command is a frozen dataclass: its fields become arguments, the text below each field the help, and the first line of
the docstring the line in ``jaxllm --help``. ``run`` does the work and imports what it needs inside, so that the listing
stays fast. A name may have two words, as in "envs list"; ``jaxllm envs`` lists those that share the first. The modules
themselves import nothing heavier than the standard library and ``tyro``.
"""

import importlib
from typing import Any, Protocol

GROUPS = {
    "The map of neurons": "jaxllm.cli.map",
    "In the browser": "jaxllm.cli.explore",
    "Two models": "jaxllm.cli.compare",
    "Clamps": "jaxllm.cli.steer",
    "Activations": "jaxllm.cli.acts",
    "Rewards": "jaxllm.cli.rewards",
    "Maps of rewards": "jaxllm.cli.reward_map",
    "Environments": "jaxllm.cli.envs",
    "Episodes": "jaxllm.cli.episodes",
    "Step servers": "jaxllm.cli.servers",
    "Training": "jaxllm.cli.train",
    "Text": "jaxllm.cli.text",
    "Files": "jaxllm.cli.files",
}


class Command(Protocol):
    """What the dispatcher needs of a command: arguments are already its fields."""

    def run(self) -> None:
        """Do the work; results go to stdout, all else to stderr. A user's mistake raises ``UserError``."""


def grouped() -> dict[str, dict[str, type[Any]]]:
    """The commands of each group, in the order of the listing: title -> name -> dataclass."""
    return {title: importlib.import_module(module).COMMANDS for title, module in GROUPS.items()}


def summary(command: type[Any]) -> str:
    """The first line of a command's docstring, without its full stop."""
    return (command.__doc__ or "").strip().split("\n", 1)[0].rstrip(".")

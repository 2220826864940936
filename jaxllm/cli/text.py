"""Commands on text: generation."""

from typing import Any

COMMANDS: dict[str, type[Any]] = {}

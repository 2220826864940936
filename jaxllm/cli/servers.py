"""Commands on step servers."""

from typing import Any

COMMANDS: dict[str, type[Any]] = {}

"""Commands on files: what a checkpoint holds, and conversion."""

from typing import Any

COMMANDS: dict[str, type[Any]] = {}

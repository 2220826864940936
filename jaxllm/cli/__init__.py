"""The command line. One file per group of commands; each command imports what it needs, and only when it runs."""

from jaxllm.cli.main import main

__all__ = ["main"]

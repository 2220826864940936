"""What is set once, before a command runs: the compilation cache, quiet native logs, and logging to stderr."""

import logging
import os

PACKAGES = ("jaxllm", "interp", "rewards", "rl", "envs")


def version() -> str:
    """The installed version of the distribution."""
    from importlib.metadata import version as installed

    return installed("jaxllm")


def prepare(verbose: bool = False) -> None:
    """Set up the process for one command; call it before JAX is imported."""
    configure_jax(verbose)
    _configure_logging(verbose)


def configure_jax(verbose: bool = False) -> None:
    """Keep compiled programs in the user's cache directory, and native code quiet.

    Works through environment variables, so that JAX need not be imported here; a value that the user has set wins.
    """
    from jaxllm.hub import cache_dir

    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # The loader of cached CPU programs reports compiler flags as missing machine features, as errors.
        "TF_CPP_MIN_LOG_LEVEL": "1" if verbose else "3",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _configure_logging(verbose: bool) -> None:
    from rich.logging import RichHandler

    from jaxllm.cli import console

    handler = RichHandler(console=console.stderr(), show_path=False, rich_tracebacks=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", datefmt="[%X]", handlers=[handler], force=True)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO if verbose else logging.WARNING)
    # A machine without an accelerator is an ordinary machine.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.INFO if verbose else logging.ERROR)

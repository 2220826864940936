"""Where the browser is on this machine, and what to install where there is none."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from jaxllm.errors import UserError

REMEDY = (
    "no Chromium found: install one (Debian: apt-get install chromium-headless-shell; elsewhere: python -m playwright install "
    "--with-deps chromium-headless-shell), or name its file in CHROMIUM_HEADLESS_SHELL or CHROMIUM"
)
_VARIABLES = ("CHROMIUM_HEADLESS_SHELL", "CHROMIUM")
_COMMANDS = (
    "chromium-headless-shell",
    "headless_shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
_BINARIES = ("/usr/lib/chromium", "/usr/lib/chromium-browser")  # of distributions whose command is a script that starts it
_PLAYWRIGHT = (
    "chromium_headless_shell-*/chrome-*/headless_shell",
    "chromium_headless_shell-*/chrome-*/chrome-headless-shell",
    "chromium-*/chrome-*/chrome",
)


def find() -> Path:
    """The browser's executable: the headless shell where there is one, else a full Chromium.

    ``CHROMIUM_HEADLESS_SHELL`` and ``CHROMIUM`` in the environment name one and come first. Raises UserError without any.
    """
    for variable in _VARIABLES:
        if named := os.environ.get(variable):
            if (path := shutil.which(named)) is None:
                raise UserError(f"{variable}={named}: no such program; name a Chromium's executable, or unset it")
            return _binary(Path(path))
    for command in _COMMANDS:
        if path := shutil.which(command):
            return _binary(Path(path))
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    for pattern in _PLAYWRIGHT:
        if found := sorted(cache.glob(pattern)):
            return found[-1]
    raise UserError(REMEDY)


def missing() -> str | None:
    """What this machine lacks for the browser, with the remedy; None if there is one."""
    try:
        find()
    except UserError as error:
        return str(error)
    return None


def is_headless_shell(executable: Path) -> bool:
    """Whether this is the headless shell, which has begin-frame control and needs no ``--headless``."""
    return "headless" in executable.name


@functools.cache
def version(executable: Path) -> str:
    """What the executable says of itself, as "Chromium 156.0.8078.114". Raises UserError where it can't be run."""
    try:
        done = subprocess.run(
            [executable, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{executable}: can't be run ({error}); {REMEDY}") from None
    return done.stdout.strip()


def _binary(path: Path) -> Path:
    """The program itself, where the command is a distribution's script beside which it lies."""
    with path.open("rb") as file:
        if file.read(2) != b"#!":
            return path.resolve()
    return next((found for folder in _BINARIES if os.access(found := Path(folder, path.name), os.X_OK)), path)

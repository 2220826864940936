"""The browser of the explorer's tests: finds one, or installs one where that is allowed (``make browser``)."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ADVICE = (
    "no Chromium found: install one (Debian: apt-get install chromium; elsewhere: python -m playwright install --with-deps "
    "chromium-headless-shell), or name its file in the environment variable CHROMIUM"
)
SECONDS = 300  # that an installation may take


def find() -> str | None:
    """The file to run: what CHROMIUM names, else the system's browser, else one that Playwright has fetched."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if Path(named).is_file() else None
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    fetched = [*cache.glob("chromium*/*/chrome-headless-shell"), *cache.glob("chromium*/*/headless_shell")]
    return str(max(fetched)) if fetched else None


def install() -> str | None:
    """Installs a browser by the means that this machine has; returns its file, or None."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    playwright = [sys.executable, "-m", "playwright", "install", *(["--with-deps"] if root else []), "chromium-headless-shell"]
    debian = [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]]
    attempts = [[playwright]]
    if root and _distribution() == "debian" and shutil.which("apt-get"):
        attempts.insert(0, debian)
    for commands in attempts:
        for command in commands:
            print("browser:", " ".join(command), flush=True)
            try:
                subprocess.run(command, timeout=SECONDS, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
            except (OSError, subprocess.TimeoutExpired) as error:
                print("browser:", error)
        if (found := find()) is not None:
            return found
    return None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


if __name__ == "__main__":
    print("browser:", find() or install() or ADVICE)

"""What the tests need of the system: a Chromium, its headless shell, bubblewrap. ``make system`` installs what is missing."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ADVICE = (
    "no Chromium found: install one (Debian: apt-get install chromium; elsewhere: python -m playwright install --with-deps "
    "chromium-headless-shell), or name its file in the environment variable CHROMIUM"
)
SECONDS = 300  # that an installation may take


def find() -> str | None:
    """The browser of the explorer's tests: what CHROMIUM names, else the system's, else one that Playwright has fetched."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if Path(named).is_file() else None
    return next((found for name in NAMES if (found := shutil.which(name))), None) or _fetched()


def find_shell() -> str | None:
    """The headless shell of the environments' tests."""
    return shutil.which("chromium-headless-shell") or _fetched()


def find_bubblewrap() -> str | None:
    """The sandbox of the environments' tests."""
    return shutil.which("bwrap")


# What is needed -> how it is found, Debian's package, Playwright's name for it.
NEEDS: dict[str, tuple[Callable[[], str | None], str, str | None]] = {
    "browser": (find, "chromium", "chromium-headless-shell"),
    "headless shell": (find_shell, "chromium-headless-shell", "chromium-headless-shell"),
    "sandbox": (find_bubblewrap, "bubblewrap", None),
}


def _fetched() -> str | None:
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    fetched = [*cache.glob("chromium*/*/chrome-headless-shell"), *cache.glob("chromium*/*/headless_shell")]
    return str(max(fetched)) if fetched else None


def install() -> None:
    """Installs what is missing by the means that this machine has: apt as root, else Playwright for browsers."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    if root and shutil.which("apt-get"):
        # Ubuntu's chromium is a snap, which containers can't run.
        debian = _distribution() == "debian"
        packages = [package for find, package, fetched in NEEDS.values() if not find() and (debian or not fetched)]
        if packages:
            _run(["apt-get", "update", "-qq"])
            _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages])
    browsers = {fetched for find, _, fetched in NEEDS.values() if fetched and not find()}
    for name in browsers:
        _run([sys.executable, "-m", "playwright", "install", *(["--with-deps"] if root else []), name])


def _run(command: list[str]) -> None:
    print("system:", " ".join(command), flush=True)
    try:
        subprocess.run(command, timeout=SECONDS, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    except (OSError, subprocess.TimeoutExpired) as error:
        print("system:", error)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


if __name__ == "__main__":
    if not all(find() for find, *_ in NEEDS.values()):
        install()
    for need, (search, package, _) in NEEDS.items():
        print(f"{need}: {search() or f'missing; install {package} (Debian), or see jaxllm envs doctor'}")

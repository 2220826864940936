"""The browser inside bubblewrap: no network, and of the file system only what it needs."""

import functools
import shutil
import subprocess
from pathlib import Path

_SYSTEM = ("/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/var/cache/fontconfig", "/opt")
_SHARED_MEMORY = 1 << 30  # bytes of the private /tmp, where Chromium keeps its shared memory


def command(readable: dict[Path, Path], writable: dict[Path, Path]) -> list[str]:
    """The arguments in front of a command that is to see only the system's programs and these folders.

    Args:
      readable: folder -> where it appears inside.
      writable: likewise.
    """
    arguments = [
        *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"),
        *(
            "--cap-drop",
            "ALL",
            "--die-with-parent",
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin:/bin",
            "--setenv",
            "HOME",
            "/tmp",
        ),
        *("--setenv", "LANG", "C.UTF-8", "--setenv", "TZ", "UTC", "--ro-bind", "/usr", "/usr"),
    ]
    for name in ("bin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for system in _SYSTEM:
        arguments += ["--ro-bind-try", system, system]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/tmp"]
    for option, folders in (("--ro-bind", readable), ("--bind", writable)):
        for source, target in folders.items():
            arguments += [option, str(source), str(target)]
    return [*arguments, "--chdir", "/", "--"]


@functools.cache
def works() -> bool:
    """Whether bubblewrap is here and may make its namespaces: tried once."""
    if shutil.which("bwrap") is None:
        return False
    try:
        done = subprocess.run(
            [*command({}, {}), "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0

"""Starting a browser with one page: its folder, its sandbox, its process, and the way it is driven."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envs.browser import confine, profile
from envs.browser.clock import Clock, FrameClock, TimerClock
from envs.browser.driver import Settings
from envs.browser.errors import CrashedError
from envs.browser.find import find, is_headless_shell, version
from envs.browser.flags import flags
from envs.browser.network import Reach
from envs.browser.pipe import Pipe
from jaxllm.errors import UserError

_START = 60.0  # seconds for a browser to answer at all, on a busy machine
_PROBES = (2.0, 10.0)  # seconds for the first frame; a machine that is busy at the first try gets a second


class Launched:
    """A running browser with one page.

    Attributes:
      backend: "beginframe" or "screenshot".
      target: the page's id.
    """

    def __init__(self, settings: Settings, begin_frame: bool):
        executable = find()
        profile.sweep()
        self.closed = False
        self.backend = "beginframe" if begin_frame else "screenshot"
        self._folder = profile.make()
        (self._folder / "profile").mkdir()
        arguments = [
            str(executable),
            *flags(
                executable,
                self._folder / "profile",
                settings.size_wh,
                begin_frame=begin_frame,
                no_sandbox=confine.works() or os.geteuid() == 0,
            ),
        ]
        if confine.works():
            arguments = [*sandbox(settings, executable, self._folder), *arguments]
        environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        environment |= {"HOME": str(self._folder), "LANG": "C.UTF-8", "TZ": "UTC"}
        try:
            self.pipe = Pipe(arguments, environment)
        except OSError as error:
            profile.remove(self._folder)
            raise UserError(f"{executable}: can't be started: {error.strerror}") from None
        try:
            profile.remember_group(self._folder, self.pipe.pid)
            self.target = self._make_page(settings, begin_frame)
        except BaseException:
            self.kill()
            raise
        kind = FrameClock if begin_frame else TimerClock
        self.clock: Clock = kind(self.pipe, settings.patience, settings.slice_ms)

    def main_pid(self) -> int:
        """The browser's main process, below the shell and the sandbox that started it."""
        for pid in tree(self.pipe.pid):
            if is_main(pid, self._folder / "profile"):
                return pid
        raise CrashedError("the browser has ended")

    def memory(self) -> int:
        """Bytes of memory of all processes, with shared pages counted in parts (PSS)."""
        return sum(memory(pid) for pid in tree(self.pipe.pid))

    def close(self) -> None:
        """Ends the browser and deletes its folder."""
        self._end(self.pipe.close)

    def kill(self) -> None:
        """Likewise, for one that does not answer."""
        self._end(self.pipe.kill)

    def _end(self, end: Any) -> None:
        if not self.closed:
            self.closed = True
            end()
            profile.remove(self._folder)

    def _make_page(self, settings: Settings, begin_frame: bool) -> str:
        width, height = settings.size_wh
        pipe = self.pipe

        def call(method: str, **parameters: Any) -> dict[str, Any]:
            return pipe.call(method, _START, browser=True, **parameters)

        try:
            others = [info["targetId"] for info in call("Target.getTargets")["targetInfos"] if info["type"] == "page"]
            options = {"width": width, "height": height} if is_headless_shell(find()) else {}
            if begin_frame:
                options["enableBeginFrameControl"] = True
            target = call("Target.createTarget", url="about:blank", **options)["targetId"]
            pipe.session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for other in others:
                call("Target.closeTarget", targetId=other)
            behaviour = {"behavior": "deny"}
            if settings.downloads is not None:
                behaviour = {"behavior": "allow", "downloadPath": str(settings.downloads)}
            call("Browser.setDownloadBehavior", eventsEnabled=True, **behaviour)
            if not options:
                pipe.call(
                    "Emulation.setDeviceMetricsOverride", _START, width=width, height=height, deviceScaleFactor=1, mobile=False
                )
        except TimeoutError as error:
            raise CrashedError(f"the browser did not answer {error} within {_START:g} s") from None
        return target


def launch(settings: Settings) -> Launched:
    """Starts a browser, in the way that the settings name or that works here. Raises UserError, CrashedError."""
    if settings.backend == "screenshot":
        return Launched(settings, begin_frame=False)
    executable = find()
    if _has_begin_frame.get(executable, is_headless_shell(executable)):
        for seconds in _PROBES:
            launched = Launched(settings, begin_frame=True)
            assert isinstance(launched.clock, FrameClock)
            if launched.clock.probe(seconds):
                _has_begin_frame[executable] = True
                return launched
            launched.kill()
        _has_begin_frame[executable] = False
    if settings.backend == "beginframe":
        raise UserError(f"{executable} ({version(executable)}) has no begin-frame control; install the chromium-headless-shell")
    return Launched(settings, begin_frame=False)


_has_begin_frame: dict[Path, bool] = {}  # what the probe found in this process


def capabilities() -> dict[str, Any]:
    """What the browser of this machine can do. Starts one. Raises UserError without any.

    Keys: ``path``, ``version``; ``begin_frame``: whether pages stand still entirely between steps; ``sandboxed``: whether the
    browser runs in bubblewrap, without network and files.
    """
    executable = find()
    settings = Settings((64, 64), None, None, Reach(), 50.0, "auto", 8.0)
    launched = launch(settings)
    launched.close()
    return {
        "path": str(executable),
        "version": version(executable),
        "begin_frame": launched.backend == "beginframe",
        "sandboxed": confine.works(),
    }


def sandbox(settings: Settings, executable: Path, folder: Path) -> list[str]:
    """The arguments in front of the browser's. Programs of the system are visible anyway; a browser elsewhere is added, and the
    folder of pages at both its names."""
    readable: dict[Path, Path] = {}
    if not executable.is_relative_to("/usr"):
        readable[executable.parent] = executable.parent
    writable = {folder: folder}
    if settings.files is not None:
        readable[settings.files] = settings.files
        readable[settings.files.resolve()] = settings.files.resolve()
    if settings.downloads is not None:
        writable[settings.downloads] = settings.downloads
    return confine.command(readable, writable)


def tree(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text(encoding="ascii").split()
        ]
    except OSError:
        return
    for child in children:
        yield from tree(child)


def is_main(pid: int, profile_folder: Path) -> bool:
    """Whether this is the main process of the browser with this profile, and neither its helper nor what started it."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return False
    program = command[0].rpartition(b"/")[2]
    return (
        f"--user-data-dir={profile_folder}".encode() in command
        and program not in (b"sh", b"bwrap")
        and not any(argument.startswith(b"--type=") for argument in command)
    )


def memory(pid: int) -> int:
    """Bytes of a process's memory, with shared pages counted in parts (PSS)."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        return 0
    return 0

"""The page's time, which moves only when it is told to: timers and dates by virtual time, drawing by frames.

Virtual time stops dates and timers, but not animations and frame callbacks; those stand still only where frames come from
the driver. `FrameClock` has both and stops the page entirely. `TimerClock`, for browsers without begin-frame control, has the
first.
"""

import base64
import time
from collections.abc import Callable
from typing import Any, Protocol

from envs.browser.errors import CrashedError, HungError
from envs.browser.pipe import Pipe, RefusedError

EPOCH = 1767225600  # 2026-01-01 00:00 UTC, in seconds: what a page takes for now when the browser opens
FORMATS = {
    "png": {"format": "png", "optimizeForSpeed": True},
    "jpeg": {"format": "jpeg", "quality": 80, "optimizeForSpeed": True},
}
_NUDGE = 0.002  # ms by which a frame that only moves a call along is later than the one before
_SHOT = 0.5  # ms after the last slice's end: the time of its screenshot, whatever calls were moved along before
_MOMENT = 1.0  # s in which a call may answer without another frame: how many there are must not depend on the machine's load
_FRAME = 17.0  # ms of page time
_FRAME_TRIES = 60  # of those that a screenshot may take where frames are not the driver's
_LOAD_SLICE = 5.0  # ms of virtual time granted at once while a page loads
_LOAD_SLICES = 4  # of which a load takes a multiple, so that a slice more or less makes no difference
_STARVED = 10_000  # tasks that may run without time moving on, after which it is pushed: endless chains of zero delays
_TERMINATED = 2.0  # seconds for a script to end once it is told to


class Clock(Protocol):
    """How the page's time moves and how it is drawn."""

    granted: float  # ms of virtual time so far
    freezes: bool  # whether animations and frame callbacks stand still between steps too

    hangs: int  # how often the page's script was stopped because nothing answered

    def start(self) -> None:
        """Takes over the time of the page."""

    def begin(self) -> None:
        """Draws a page that has loaded for the first time."""

    def stamp(self) -> float:
        """Now in the page's time, as input events have it, in seconds since 1970 of the real clock."""

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Lets the browser work, without page time, until something holds. Raises HungError, CrashedError."""

    def complete(self, numbers: list[int], what: str) -> None:
        """Lets the browser work off calls, such as input, that wait for frames. Raises HungError, CrashedError."""

    def advance(self, ms: float) -> None:
        """Lets ``ms`` of page time pass. Raises HungError, CrashedError."""

    def settle(self, loaded: Callable[[], bool], what: str) -> None:
        """Lets as much page time pass as a page takes to load. Raises HungError, CrashedError."""

    def screenshot(self, form: str) -> bytes:
        """The page as an image file. Raises HungError, CrashedError."""


class TimerClock:
    """Virtual time alone.

    Args:
      pipe: to the browser.
      patience: seconds without an answer after which the page's script is stopped, the first time; then the page is given up.
      slice_ms: page time between two frames.
    """

    freezes = False

    def __init__(self, pipe: Pipe, patience: float, slice_ms: float):
        self.granted = 0.0
        self.hangs = 0
        self._pipe = pipe
        self._patience = patience
        self._slice = slice_ms
        self._expired = True
        pipe.handlers["Emulation.virtualTimeBudgetExpired"] = self._expire

    def start(self) -> None:
        """See `Clock`."""
        self._set_policy(policy="pause")

    def begin(self) -> None:
        """Frames come by themselves."""

    def stamp(self) -> float:
        """See `Clock`."""
        return time.time()

    def until(self, done: Callable[[], bool], what: str) -> None:
        """See `Clock`."""
        if self._patiently(done, self._patience):
            return
        self.hangs += 1
        if self.hangs == 1:
            self._pipe.post("Runtime.terminateExecution")
            if self._patiently(done, _TERMINATED + self._patience / 4):
                return
        raise HungError(f"{what}: no answer in {self._patience:g} s")

    def complete(self, numbers: list[int], what: str) -> None:
        """See `Clock`."""
        self.until(lambda: all(map(self._pipe.arrived, numbers)), what)
        for number in numbers:
            self._pipe.reply(number)

    def advance(self, ms: float) -> None:
        """See `Clock`."""
        left = ms
        while left > 1e-9:
            step = min(self._slice, left)
            self._grant(step)
            left -= step

    def settle(self, loaded: Callable[[], bool], what: str) -> None:
        """See `Clock`."""
        end = time.monotonic() + 2 * self._patience
        slices = 0
        while not loaded() or slices % _LOAD_SLICES or not slices:
            self._grant(_LOAD_SLICE, drawn=slices >= _LOAD_SLICES)
            slices += 1
            if time.monotonic() > end:
                raise HungError(f"{what}: not loaded in {2 * self._patience:g} s")

    def screenshot(self, form: str) -> bytes:
        """See `Clock`."""
        number = self._pipe.send("Page.captureScreenshot", **FORMATS[form])
        for _ in range(_FRAME_TRIES):  # under stopped time the frames that it waits for do not come
            if self._pipe.arrived(number):
                break
            self._grant(_FRAME)
        self.until(lambda: self._pipe.arrived(number), "a screenshot")
        return base64.b64decode(self._pipe.reply(number)["data"])

    def _patiently(self, done: Callable[[], bool], patience: float) -> bool:
        return self._pipe.wait(done, patience)

    def _expire(self, _: dict[str, Any]) -> None:
        self._expired = True

    def _grant(self, ms: float, drawn: bool = True) -> None:
        """Lets ``ms`` pass at once, with a frame at its end if ``drawn``."""
        self._expired = False
        self._set_policy(policy="pauseIfNetworkFetchesPending", budget=ms)
        if not self._patiently(lambda: self._expired, self._patience / 2):
            # Time waits for a request that does not end: go on without it.
            self._set_policy(policy="advance", budget=ms)
            self.until(lambda: self._expired, f"{ms:g} ms of the page's time")
        self.granted += ms

    def _set_policy(self, **parameters: Any) -> None:
        if "budget" in parameters:
            parameters["maxVirtualTimeTaskStarvationCount"] = _STARVED
        number = self._pipe.send("Emulation.setVirtualTimePolicy", initialVirtualTime=EPOCH, **parameters)
        self.until(lambda: self._pipe.arrived(number), "the page's clock")
        self._base = self._pipe.reply(number)["virtualTimeTicksBase"]


class FrameClock(TimerClock):
    """Virtual time, and frames that are drawn when they are asked for.

    A slice of time first lets its timers run and then draws one frame, at the slice's end: the order is always the same.
    """

    freezes = True

    def __init__(self, pipe: Pipe, patience: float, slice_ms: float):
        super().__init__(pipe, patience, slice_ms)
        self._tick = time.monotonic() * 1000 + 50  # the last frame's time, in ms of the browser's monotonic clock
        self._due = self._tick  # the virtual time on that clock
        self._origin = time.time() - time.monotonic()
        self._flight = 0  # the call of the frame that has not come back; there is one at a time
        self._drawn: dict[str, Any] = {}  # the reply to the last frame
        self._image: tuple[str, bytes] | None = None

    def probe(self, timeout: float) -> bool:
        """Whether the browser draws a frame when asked."""
        try:
            self._pipe.call("HeadlessExperimental.beginFrame", timeout, frameTimeTicks=self._tick, noDisplayUpdates=True)
        except (TimeoutError, RefusedError):
            return False
        return True

    def start(self) -> None:
        """See `Clock`."""
        self._set_policy(policy="pause")
        self._due = max(self._tick, self._base)

    def begin(self) -> None:
        """See `Clock`."""
        self._draw(self._due, 1.0)

    def stamp(self) -> float:
        """See `Clock`."""
        return self._due / 1000 + self._origin

    def screenshot(self, form: str) -> bytes:
        """See `Clock`."""
        self._draw(self._due + _SHOT, 1.0, screenshot=FORMATS[form])
        if data := self._drawn.get("screenshotData"):
            self._image = form, base64.b64decode(data)
        elif self._image is None or self._image[0] != form:
            raise CrashedError("the browser drew a frame without an image")
        return self._image[1]

    def complete(self, numbers: list[int], what: str) -> None:
        """See `Clock`."""
        barrier = self._pipe.send("Runtime.evaluate", expression="0")
        self.until(lambda: self._pipe.arrived(barrier), what)
        self._pipe.reply(barrier)  # by now the page has the input, and one frame is enough for it
        self._draw(self._tick, 1.0)
        super().complete(numbers, what)

    def _grant(self, ms: float, drawn: bool = True) -> None:
        base = self._base
        super()._grant(ms)
        # A page in another process has a clock of its own: frames go on from there, but never back.
        self._due = (self._due if self._base == base else max(self._tick, self._base)) + ms
        if drawn:  # a page's first frame, at which its animations start, comes when it has loaded, if that goes fast
            self._draw(self._due, ms)

    def _patiently(self, done: Callable[[], bool], patience: float) -> bool:
        """Calls such as input and loading go on only while frames come; they get them where a moment's wait is not enough."""
        end = time.monotonic() + patience

        def settled() -> bool:
            self._land()
            return done()

        while not self._pipe.wait(settled, min(_MOMENT, end - time.monotonic())):
            if time.monotonic() > end:
                return False
            if not self._flight:
                self._send_frame(self._tick, 1.0)
        return True

    def _draw(self, at: float, interval: float, **parameters: Any) -> None:
        """A frame at a time, waited for."""
        self.until(lambda: not self._flight, "a frame")
        self._send_frame(at, interval, **parameters)
        self.until(lambda: not self._flight, "a frame")

    def _send_frame(self, at: float, interval: float, **parameters: Any) -> None:
        # Whole microseconds, as the browser has them: two frames of the same time stop it for good.
        self._tick = round(max(self._tick + _NUDGE, at), 3)
        self._flight = self._pipe.send(
            "HeadlessExperimental.beginFrame", frameTimeTicks=self._tick + 0.0005, interval=interval, **parameters
        )

    def _land(self) -> None:
        """Takes the frame in flight, if it has come back."""
        if self._flight and self._pipe.arrived(self._flight):
            number, self._flight = self._flight, 0
            self._drawn = self._pipe.reply(number)

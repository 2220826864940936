"""Ctrl-C in the middle of anything, native code included.

Python raises ``KeyboardInterrupt`` only once the main thread is back in Python code; a compilation or a long device
computation can hold it for a minute. And what it raises in a callback of the garbage collector or a ``__del__`` is printed and
lost. A watcher thread learns of the signal through the wakeup file descriptor, leaves time for the ordinary way out, signals
again what was lost, and otherwise ends the process with the same exit code.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

EXIT_CODE = 130  # 128 + SIGINT, as a shell reports it
GRACE_SECONDS = 2.0  # how long native code may keep the main thread after Ctrl-C
CLEANUP_SECONDS = 10.0  # how long the way out may take once the main thread knows

_LOST = b"\0"  # in the pipe beside the numbers of signals

_raised = threading.Event()  # the main thread has seen the signal


def requested() -> bool:
    """True once Ctrl-C has reached the main thread."""
    return _raised.is_set()


def install() -> None:
    """Handle SIGINT from now on; does nothing outside the main thread, or where SIGINT is already handled or ignored.

    The second Ctrl-C ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _handle)
    others = sys.unraisablehook

    def hook(lost: "UnraisableHookArgs") -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            os.write(writer, _LOST)
        else:
            others(lost)

    sys.unraisablehook = hook
    threading.Thread(target=_watch, args=(reader,), name="interrupt-watcher", daemon=True).start()


def leave() -> NoReturn:
    """End the interrupted process now: the interpreter's own way out would wait for computations still on the device."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(EXIT_CODE)


def _handle(number: int, frame: FrameType | None) -> None:
    _raised.set()
    raise KeyboardInterrupt


def _watch(reader: int) -> None:
    os.read(reader, 1)
    while _raised.wait(GRACE_SECONDS):
        ready, _, _ = select.select([reader], [], [], CLEANUP_SECONDS)
        if not ready or os.read(reader, 1) != _LOST:
            break
        _raised.clear()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        os.read(reader, 1)  # the number of that signal
    with contextlib.suppress(OSError):
        os.write(2, b"\njaxllm: interrupted\n")
    os._exit(EXIT_CODE)

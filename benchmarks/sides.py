"""Sides of a benchmark: one call and what it took; and a peer in a process of its own.

Two frameworks in one process may disturb each other: with PyTorch loaded our sampling was seen to keep one core busy instead of
two, and to take twice as long; why is not known.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


class Run(NamedTuple):
    """One call."""

    wall: float  # seconds of the clock
    processor: float  # seconds of all threads of the process that made it
    value: Any = None


Side = Callable[[], Run]


def timed(f: Callable[[], Any]) -> Run:
    """Makes a call."""
    wall, processor = time.perf_counter(), time.process_time()
    value = f()
    return Run(time.perf_counter() - wall, time.process_time() - processor, value)


@contextlib.contextmanager
def peer(make: Callable[..., dict[str, Callable[[], Any]]], *arguments: Any) -> Iterator[dict[str, Side]]:
    """The calls that ``make(*arguments)`` returns, made in a process of its own, which ends with the context.

    Values are pickled on their way here. No sides where `make` finds no peer: it raises ImportError.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, make, arguments), daemon=True)
    process.start()
    there.close()

    def call(name: str) -> Run:
        here.send(name)
        return here.recv()

    try:
        yield {name: lambda name=name: call(name) for name in here.recv()}  # type: ignore[misc]
    finally:
        here.close()
        process.join()


def _serve(end: Connection, make: Callable[..., dict[str, Callable[[], Any]]], arguments: tuple[Any, ...]) -> None:
    try:
        sides = make(*arguments)
    except ImportError:
        sides = {}
    end.send(list(sides))
    with contextlib.suppress(EOFError):
        while True:
            end.send(timed(sides[end.recv()]))

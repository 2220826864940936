"""How long the stages of a command took: fetch, convert, compile, map ...

Whoever does the work names its stage with ``stage``; whoever wants to know opens ``collect`` around it. Without a
collector a stage costs nothing.
"""

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

COMPILE = "compile"  # measured by JAX itself: lowering, and compiling or reading the compiled program from the cache

_COMPILE_EVENTS = ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration")
_times: ContextVar[dict[str, float] | None] = ContextVar("times", default=None)


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Counts the wall time of the block, in seconds, as stage ``name`` of the collector around it, if there is one.

    Stages and compilation inside the block are taken off: each second belongs to one stage.
    """
    times = _times.get()
    start, counted = time.perf_counter(), sum((times or {}).values())
    try:
        yield
    finally:
        if times is not None:
            elapsed = time.perf_counter() - start - (sum(times.values()) - counted)
            times[name] = times.get(name, 0.0) + elapsed


@contextlib.contextmanager
def collect() -> Iterator[dict[str, float]]:
    """Yields the dict of stage -> seconds that the stages inside fill, ``compile`` among them when JAX compiles."""
    import jax.monitoring

    times: dict[str, float] = {}

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event in _COMPILE_EVENTS:
            times[COMPILE] = times.get(COMPILE, 0.0) + duration_secs

    token = _times.set(times)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield times
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
        _times.reset(token)


def split(times: dict[str, float]) -> str:
    """One line for people, in the order in which the stages ended: ``fetch 3.1 s, convert 2.0 s, map 40.2 s``."""
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())

"""What compiled CPU loops share: Numba set up for wide vectors, a cache that is never stale, threads, a float32's bits."""

import functools
import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba import extending, types

# Numba halves the vectors of CPUs that are slow at wide ones at other work, and takes some new CPUs for older ones.
config: Any = numba.config
config.CPU_NAME = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
config.CPU_FEATURES = config.CPU_FEATURES or f"{llvmlite.binding.get_host_cpu_features().flatten()},-prefer-256-bit"

inline = numba.njit(inline="always")
intrinsic: Any = extending.intrinsic


def loops(*parts: ModuleType, **options: Any) -> Callable[[Callable[..., None]], Any]:
    """A decorator that compiles loops which run without the GIL and are kept on disk; ``options`` are those of `numba.njit`.

    Numba trusts what is on disk by the date of the loop's own file alone. Here its name tells the sources of the modules
    ``parts`` as well, which are compiled into it.
    """
    files = [Path(str(part.__file__)) for part in (sys.modules[__name__], *parts)]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def compile(function: Callable[..., None]) -> Any:
        function.__qualname__ = f"{function.__name__}_{digest}"
        return numba.njit(nogil=True, cache=True, **options)(function)

    return compile


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def threads() -> ThreadPoolExecutor:
    """One for each core. Loops of `loops` run in them at the same time; such a loop must not wait for another."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="loops")


@intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """The float32 of an int32's bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of(typing: Any, x: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate

"""What a step server is told when it starts, as plain JSON."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.server import auth, wire
from jaxllm.errors import UserError

HEAVY = 16  # processes for heavy sessions, by default
RESTARTS, WINDOW = 5, 300.0  # restarts of a worker within so many seconds


def checked(
    patterns: Sequence[str],
    *,
    workers: int | None = None,
    bind: str | None = None,
    heavy: int = HEAVY,
    max_sessions: int = 256,
    lease: float = 600.0,
    deadlines: Mapping[str, float] | None = None,
    encrypt: bool | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    metrics_port: int | None = None,
    restarts: int = RESTARTS,
    window: float = WINDOW,
    check_memory: bool = False,
) -> dict[str, Any]:
    """Settings of a server as plain JSON, checked. Raises UserError."""
    if isinstance(patterns, str) or not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise UserError(f"a server needs the names of what it may make, such as ['games/*'], not {patterns!r}")
    workers = min(os.cpu_count() or 1, 8) if workers is None else workers
    for what, number in (("workers", workers), ("heavy", heavy), ("max_sessions", max_sessions), ("lease", lease)):
        if number <= 0:
            raise UserError(f"{what} is a number above 0, not {number}")
    if wrong := set(deadlines or {}) - set(wire.OPS):
        raise UserError(f"there is a deadline for {', '.join(sorted(wrong))}; operations are {', '.join(wire.OPS)}")
    if bind is not None:
        encrypt = (not auth.is_local(bind)) if encrypt is None else encrypt
        auth.check_bind(bind, "always", encrypt)
    return {
        "patterns": list(patterns),
        "workers": workers,
        "bind": bind,
        "heavy": heavy,
        "max_sessions": max_sessions,
        "lease": lease,
        "deadlines": dict(deadlines or {}),
        "encrypt": bool(encrypt),
        "token": token,
        "token_file": None if token_file is None else str(token_file),
        "metrics_port": metrics_port,
        "restarts": restarts,
        "window": window,
        "check_memory": check_memory,
    }

"""A key for a state: equal states have equal digests on any host."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest(state: Mapping[str, Any]) -> str:
    """SHA-256 in hexadecimal over the canonical JSON of a state: sorted keys, no blanks, shortest floats.

    Raises ValueError for NaN and infinity, TypeError for what JSON does not have.
    """
    text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def session_seed(run_seed: int, task: str, attempt: int = 0) -> int:
    """The seed of one episode, in [0, 2**31): the same for any worker and any order of episodes."""
    data = json.dumps([run_seed, task, attempt]).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big") >> 1

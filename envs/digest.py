"""A key for a state: equal states have equal digests on any host."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from envs.api import Task
from jaxllm.errors import UserError


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


def task_seed(task: Task, seed: int) -> int:
    """The seed that a task names in its data, else the one given. Raises UserError where it is no whole number."""
    named = task.data.get("seed", seed)
    if not isinstance(named, int) or isinstance(named, bool):
        raise UserError(f"task {task.id!r}: its seed is {named!r}; it must be a whole number")
    return named

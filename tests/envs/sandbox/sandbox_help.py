"""What tests of the sandbox look at."""

import time
from pathlib import Path


def wait_until(condition, deadline=30.0):
    """Polls until a condition holds; fails after the deadline, in seconds."""
    until = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.01)


def alive(pid):
    """Whether a process runs; zombies do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

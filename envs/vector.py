"""Many environments at once: `send` actions, `recv` what is ready."""

from typing import Any


def make_vec(name: str, num_envs: int, batch_size: int | None = None, **options: Any) -> Any:
    """See `Vector`."""
    raise NotImplementedError

"""One at a time: what takes the model waits in a short queue, and leaves it when nobody waits for the answer any more."""

import asyncio
from types import TracebackType

MAX_WAITING = 4


class BusyError(Exception):
    """The queue is full."""


class Turns:
    """An async context manager around what only one request may do at a time. Raises `BusyError` when the queue is full."""

    def __init__(self, waiting: int = MAX_WAITING):
        self._lock, self._most, self._count = asyncio.Lock(), waiting, 0

    @property
    def full(self) -> bool:
        """Whether another one would be turned away."""
        return self._count > self._most

    @property
    def count(self) -> int:
        """Requests that have or await their turn."""
        return self._count

    async def __aenter__(self) -> None:
        if self.full:
            raise BusyError
        self._count += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._count -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        self._count -= 1

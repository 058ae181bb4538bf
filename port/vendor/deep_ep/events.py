"""The event a buffer returns: something that is under way, and what it gives once the stream has waited for it."""

from __future__ import annotations

from typing import Generic, TypeVar

from port.collectives.transport import Pending

T = TypeVar("T")


class Event(Generic[T]):
    """An exchange under way. There is one stream here, so waiting for it means that the host waits.

    Args:
        pending: makes the result.
    """

    def __init__(self, pending: Pending[T]) -> None:
        self._pending = pending

    def current_stream_wait(self) -> T:
        """Return the result; later calls return the same one."""
        return self._pending.wait()

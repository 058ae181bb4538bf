"""Who holds which block: a first-in-first-out list of free ids with reference counts.

Id 0 is reserved for padding rows and never handed out. Freed ids go to the end of the list; nothing is cleared, because
lengths and slot maps bound every read.
"""

from collections import deque
from collections.abc import Iterable

from port.errors import PortError


class BlockManager:
    """Hands out ids from 1 up to the size of a pool. State slots use it too, one slot per sequence."""

    def __init__(self, total: int) -> None:
        self._free: deque[int] = deque(range(1, total))
        self._references: dict[int, int] = {}
        self.total = total

    @property
    def free_count(self) -> int:
        """Ids that can be handed out now."""
        return len(self._free)

    @property
    def in_use(self) -> tuple[int, ...]:
        """Ids held by someone, ascending."""
        return tuple(sorted(self._references))

    def allocate(self, count: int) -> tuple[int, ...]:
        """Return `count` ids, each with one reference.

        Raises:
            PortError: fewer free ids than asked for; none is taken.
        """
        if count > len(self._free):
            raise PortError(
                f"cache pool: expected {count} free ids; found {len(self._free)} of {self.total - 1}. "
                "Release sequences, or make the cache larger."
            )
        ids = tuple(self._free.popleft() for _ in range(count))
        self._references.update(dict.fromkeys(ids, 1))
        return ids

    def pin(self, ids: Iterable[int]) -> None:
        """Add a reference to each id, which must be in use."""
        for block in ids:
            self._references[block] += 1

    def free(self, ids: Iterable[int]) -> None:
        """Take a reference from each id, last first; an id without any goes to the end of the free list."""
        for block in reversed(tuple(ids)):
            self._references[block] -= 1
            if self._references[block] == 0:
                del self._references[block]
                self._free.append(block)

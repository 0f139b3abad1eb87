"""Best fit with complete coalescing over one arena. Pure: offsets and sizes, no memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

UNIT: Final = 4096
"""Bytes; every block starts at and fills multiples of it."""


def rounded(nbytes: int) -> int:
    """The size of the block that holds `nbytes`: at least one unit, so that an empty tensor has a place too."""
    return -(-max(nbytes, 1) // UNIT) * UNIT


class Allocator:
    """Live blocks never overlap; two free extents never touch; used + free = capacity.

    Alloc and free take time logarithmic in the number of free extents (their list is moved, not searched).
    """

    def __init__(self, capacity: int) -> None:
        """`capacity` in bytes, a multiple of the unit."""
        if capacity <= 0 or capacity % UNIT:
            raise ValueError(f"capacity {capacity} is no positive multiple of {UNIT}")
        self.capacity: Final = capacity
        self.used = 0
        self._live: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = [(capacity, 0)]  # (size, start)
        self._size_at: dict[int, int] = {0: capacity}
        self._start_of_end: dict[int, int] = {capacity: 0}

    @property
    def largest(self) -> int:
        """Bytes of the largest free extent."""
        return self._by_size[-1][0] if self._by_size else 0

    def alloc(self, nbytes: int) -> int | None:
        """Offset of a block of `rounded(nbytes)` bytes, or None if no free extent is large enough."""
        size = rounded(nbytes)
        index = bisect_left(self._by_size, (size, 0))
        if index == len(self._by_size):
            return None
        extent, start = self._by_size[index]
        self._remove(start, extent)
        if extent > size:
            self._insert(start + size, extent - size)
        self._live[start] = size
        self.used += size
        return start

    def free(self, offset: int) -> int:
        """Gives the block at `offset` back and returns its size. Raises KeyError if none is live there."""
        freed = size = self._live.pop(offset)
        self.used -= freed
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        before = self._start_of_end.get(offset)
        if before is not None:
            extent = self._size_at[before]
            self._remove(before, extent)
            offset, size = before, size + extent
        self._insert(offset, size)
        return freed

    def extents(self) -> list[tuple[int, int]]:
        """Free extents as (start, size), by start."""
        return sorted(self._size_at.items())

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_of_end[start + size] = start

    def _remove(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._size_at[start]
        del self._start_of_end[start + size]

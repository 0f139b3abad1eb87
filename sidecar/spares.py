"""Blocks granted ahead, so that most puts of a small size that comes again cost no round trip."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sidecar.messages import Space

AHEAD: Final = 3
"""Blocks asked for beyond the one that is needed now."""
REMEMBERED: Final = 8
"""Sizes."""
LARGEST: Final = 1 << 20
"""Bytes. A larger copy outlasts the round trip, and is faster into the block that just came free: that is cached."""
SHARE: Final = 8
"""Spares take at most 1/SHARE of the memory of a producer."""


class Spares:
    """Only for sizes that were asked for before."""

    def __init__(self) -> None:
        self._spares: dict[int, list[Space]] = {}
        self._recent: OrderedDict[int, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._spares)

    def take(self, size: int) -> Space | None:
        spaces = self._spares.get(size)
        if spaces is None:
            return None
        space = spaces.pop()
        if not spaces:
            del self._spares[size]
        return space

    def wanted(self, size: int, owned: int) -> int:
        """Number of blocks to ask for, where one of `size` is needed and `owned` bytes of arenas are there."""
        seen = size in self._recent
        self._recent[size] = None
        self._recent.move_to_end(size)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        if not seen or size > LARGEST:
            return 1
        held = sum(space.size for spaces in self._spares.values() for space in spaces)
        return 1 + max(0, min(AHEAD, (owned // SHARE - held) // size))

    def keep(self, spaces: tuple[Space, ...]) -> None:
        for space in spaces:
            self._spares.setdefault(space.size, []).append(space)

    def give_back(self) -> list[Space]:
        """All of them, because there is no room for something else."""
        spaces = [space for spaces in self._spares.values() for space in spaces]
        self._spares.clear()
        return spaces

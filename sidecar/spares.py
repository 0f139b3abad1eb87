"""Blocks granted ahead, so that most puts of a size that comes again cost no round trip."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from sidecar.messages import Space

AHEAD: Final = 3
"""Blocks asked for beyond the one that is needed now."""
REMEMBERED: Final = 8
"""Sizes."""
LARGEST: Final = 256 << 10
"""Bytes of the largest blocks that are asked for ahead; of a larger size only those come ahead that come free again."""
SHARE: Final = 8
"""What was asked for ahead takes at most 1/SHARE of the memory of a producer."""


class Wish(NamedTuple):
    """So many blocks now; and, with `again`, each of this size when it comes free."""

    blocks: int
    again: bool


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

    def wish(self, size: int, owned: int) -> Wish:
        """What to ask for, where a block of `size` is needed and `owned` bytes of arenas are there."""
        recurs = size in self._recent
        self._recent[size] = None
        self._recent.move_to_end(size)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        if not recurs or size > LARGEST:
            return Wish(1, again=recurs)
        held = sum(space.size for spaces in self._spares.values() for space in spaces if space.size <= LARGEST)
        return Wish(1 + max(0, min(AHEAD, (owned // SHARE - held) // size)), again=False)

    def keep(self, spaces: Iterable[Space]) -> None:
        for space in spaces:
            self._spares.setdefault(space.size, []).append(space)

    def give_back(self) -> list[Space]:
        """All of them, because there is no room for something else."""
        spaces = [space for spaces in self._spares.values() for space in spaces]
        self._spares.clear()
        return spaces

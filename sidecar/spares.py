"""Blocks granted ahead, so that a put of a size that comes again costs no round trip."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sidecar.messages import Granted

MAX_SPARES: Final = 4
REMEMBERED: Final = 8
SHARE: Final = 8
"""Spares take at most 1/SHARE of the memory of a producer."""


class Spares:
    """At most one per size, only for sizes that were put before."""

    def __init__(self) -> None:
        self._spares: dict[int, Granted] = {}
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._asked: set[int] = set()

    def take(self, size: int) -> Granted | None:
        return self._spares.pop(size, None)

    def wanted(self, size: int, owned: int) -> bool:
        """Whether to ask for a spare of `size` after a put of that size; `owned` bytes of arenas."""
        seen = size in self._recent
        self._recent[size] = None
        self._recent.move_to_end(size)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        held = [*self._spares, *self._asked]
        if not seen or size in held or len(held) >= MAX_SPARES or (sum(held) + size) * SHARE > owned:
            return False
        self._asked.add(size)
        return True

    def answered(self, size: int, granted: Granted | None) -> None:
        self._asked.discard(size)
        if granted is not None:
            self._spares[size] = granted

    def give_back(self) -> list[Granted]:
        """All of them, because there is no room for something else."""
        spares = list(self._spares.values())
        self._spares.clear()
        return spares

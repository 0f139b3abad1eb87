"""The arenas of all producers within one budget: which exist, where there is room, which may go."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar import arena
from sidecar.allocator import UNIT, Allocator, rounded
from sidecar.blocks import Place

SMALLEST: Final = 1 << 20
"""Bytes of the smallest arena, where budget and limit allow it."""


class Room(NamedTuple):
    """Memory for one block."""

    place: Place
    size: int


class Freed(NamedTuple):
    """What a released block leaves: `size` bytes of room for `peer`, or nothing but the arena that is gone with it."""

    peer: int
    size: int
    gone: Held | None


@dataclass(slots=True)
class Held:
    """One arena. Open once its producer mapped it and it is sealed; orphaned when its producer is gone."""

    id: int
    peer: int
    size: int
    kept: bool  # lives as long as its producer; others go when they are empty and somebody else needs the bytes
    descriptor: int = -1
    allocator: Allocator | None = None
    orphaned: bool = False


class Pool:
    """Never gives out more than `total` bytes; arenas are populated before use, so they cannot fail later."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.assigned = 0  # bytes of all arenas, those in the making included
        self._ids = itertools.count(1)
        self._held: dict[int, Held] = {}

    @property
    def arenas(self) -> int:
        return len(self._held)

    @property
    def free(self) -> int:
        """Bytes that blocks can still get: of no arena yet, of arenas in the making, and within usable ones."""
        making = sum(held.size for held in self._held.values() if held.allocator is None)
        return self.total - self.assigned + making + sum(a.capacity - a.used for a in self._usable())

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor that some producer could get now."""
        return max(self.total - self.assigned, *(a.largest for a in self._usable()), 0)

    def of(self, peer: int) -> list[Held]:
        return [held for held in self._held.values() if held.peer == peer]

    def get(self, number: int) -> Held | None:
        return self._held.get(number)

    def plan(self, peer: int, nbytes: int, quota: int, limit: int) -> int:
        """Size of the arena to make for a block of `nbytes`, or 0 if budget or `limit` do not allow one."""
        left = min(self.total - self.assigned, limit - self.owned(peer))
        least = rounded(nbytes)
        usual = min(max(rounded(quota), SMALLEST), left // UNIT * UNIT)
        return max(least, usual) if least <= left else 0

    def begin(self, peer: int, size: int) -> Held:
        """Reserves the bytes of an arena that is about to be made."""
        held = Held(next(self._ids), peer, size, kept=not self.of(peer))
        self._held[held.id] = held
        self.assigned += size
        return held

    def open(self, held: Held) -> None:
        """Its producer mapped the arena: seals it and gives out its memory from now on. Raises OSError."""
        descriptor, held.descriptor = held.descriptor, -1
        held.descriptor = arena.seal(descriptor)
        held.allocator = Allocator(held.size)

    def alloc(self, peer: int, nbytes: int, *, kept: bool = False) -> Room | None:
        """Room in the oldest arena of `peer` that has some, so that younger ones drain. `kept`: in none of those."""
        for held in self.of(peer):
            if held.allocator is not None and (held.kept or not kept):
                offset = held.allocator.alloc(nbytes)
                if offset is not None:
                    return Room(Place(held.id, offset), rounded(nbytes))
        return None

    def release(self, place: Place) -> Freed:
        """A block is free, and with the last one the arena of a dead producer is gone."""
        held = self._held[place.arena]
        assert held.allocator is not None
        size = held.allocator.free(place.offset)
        over = held.orphaned and not held.allocator.used
        return Freed(held.peer, size, self._remove(held) if over else None)

    def numbers(self, peer: int) -> set[int]:
        """The arenas of `peer`."""
        return {held.id for held in self.of(peer)}

    def removable(self) -> set[int]:
        """Arenas that go when they are empty: of dead producers, and those that others had only for a peak."""
        return {held.id for held in self._held.values() if held.orphaned or not held.kept}

    def owned(self, peer: int) -> int:
        """Bytes of all arenas of `peer`."""
        return sum(held.size for held in self.of(peer))

    def orphan(self, peer: int) -> list[Held]:
        """The producer is gone: its arenas stay only for their live blocks. Returns those that are gone at once."""
        gone = []
        for held in self.of(peer):
            held.orphaned = True
            if held.allocator is None or not held.allocator.used:
                gone.append(self._remove(held))
        return gone

    def reclaim(self) -> list[Held]:
        """Removes the empty arenas that their producers had only for a peak."""
        return [
            self._remove(held)
            for held in list(self._held.values())
            if not held.kept and held.allocator is not None and not held.allocator.used
        ]

    def discard(self, held: Held) -> None:
        """Gives up an arena that could not be made, mapped or sealed."""
        if held.id in self._held:
            self._remove(held)

    def close(self) -> None:
        for held in list(self._held.values()):
            self._remove(held)

    def _usable(self) -> list[Allocator]:
        return [h.allocator for h in self._held.values() if h.allocator is not None and not h.orphaned]

    def _remove(self, held: Held) -> Held:
        del self._held[held.id]
        self.assigned -= held.size
        if held.descriptor >= 0:
            os.close(held.descriptor)
            held.descriptor = -1
        return held

"""What components made of the same inputs before (issue 5): one more owner of blocks, and one flight for each key.

    unknown --ask--> in flight --keep--> kept --evict, expiry--> unknown
                       \\--pass_on, death of who makes it--> in flight by the next who waits, or unknown

Who asks for a key that is kept shares its tensors: they are committed for the asker too, so nothing that the cache does
later can hurt a request. Who asks for one in flight waits. Pure: no clock, no memory, no socket.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidecar.allocator import rounded
from sidecar.blocks import LONGEST, Book, Place
from sidecar.errors import Gone
from sidecar.messages import Owner, Tensor

NOBODY: Final = 0
"""The connection that the blocks of the cache belong to: connections count from 1."""
REQUEST: Final = "cache"
"""The request of those blocks; their node is the key."""


class Turn(NamedTuple):
    """Somebody who asks: a connection, the number of its request, and for whom the tensors shall be, until when."""

    peer: int
    request: int
    owner: Owner
    expires: float  # Unix seconds


class Found(NamedTuple):
    """What a key stands for: what was said of it, and the tensors, committed for who asked."""

    payload: bytes
    tensors: tuple[Tensor, ...]


class Answer(NamedTuple):
    """`found` None: it is the turn of who asked to make it."""

    turn: Turn
    key: str
    found: Found | None


@dataclass(slots=True)
class _Entry:
    payload: bytes
    tensors: tuple[Tensor, ...]  # as the cache owns them

    @property
    def nbytes(self) -> int:
        return sum(rounded(tensor.nbytes) for tensor in self.tensors)


@dataclass(slots=True)
class _Flight:
    peer: int
    waiting: deque[Turn] = field(default_factory=deque)


class Cache:
    """Dies with the daemon, as the tensors do. At most `limit` bytes; what was not asked for the longest goes first."""

    def __init__(self, book: Book, limit: int) -> None:
        self._book, self._limit = book, limit
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._freed: list[Place] = []
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def idle_bytes(self) -> int:
        """Of entries whose tensors no request owns: what evictions would free."""
        entries = self._entries.values()
        return sum(rounded(t.nbytes) for entry in entries for t in entry.tensors if self._book.owners(t) == 1)

    def ask(self, turn: Turn, key: str, now: float) -> Answer | None:
        """None: it waits for who makes it."""
        found = self._found(turn, key, now)
        if found is None and key in self._flights:
            self._flights[key].waiting.append(turn)
            return None
        if found is None:
            self._flights[key] = _Flight(turn.peer)
        return Answer(turn, key, found)

    def keep(self, key: str, payload: bytes, tensors: tuple[Tensor, ...], now: float) -> list[Answer]:
        """It is made: answers all who wait. If the tensors went meanwhile, the next who waits shall make it."""
        flight = self._flights.pop(key, None)
        if key not in self._entries:
            owner = Owner(REQUEST, key, 0, "")
            try:
                mine = tuple(self._book.share(NOBODY, tensor, owner, now + LONGEST, now) for tensor in tensors)
            except Gone:
                self._freed += self._book.release(REQUEST, key, 0)
                return self._next(key, flight)
            entry = self._entries[key] = _Entry(payload, mine)
            self.nbytes += entry.nbytes
        answers = (
            [Answer(turn, key, self._found(turn, key, now)) for turn in flight.waiting] if flight is not None else []
        )
        while self.nbytes > self._limit:
            self._drop(next(iter(self._entries)))
        return answers

    def pass_on(self, peer: int, key: str) -> list[Answer]:
        """Who makes it does not: the next who waits shall. Nothing if it was not the turn of `peer`."""
        flight = self._flights.get(key)
        if flight is None or flight.peer != peer:
            return []
        del self._flights[key]
        return self._next(key, flight)

    def withdraw(self, peer: int, request: int) -> bool:
        """Whether somebody waited under that number, and now does not."""
        for flight in self._flights.values():
            for turn in flight.waiting:
                if (turn.peer, turn.request) == (peer, request):
                    flight.waiting.remove(turn)
                    return True
        return False

    def close(self, peer: int) -> list[Answer]:
        """The connection is over: it waits for nothing, and what it was making is the turn of others."""
        answers = []
        for flight in self._flights.values():
            flight.waiting = deque(turn for turn in flight.waiting if turn.peer != peer)
        for key in [key for key, flight in self._flights.items() if flight.peer == peer]:
            answers += self.pass_on(peer, key)
        return answers

    def evict(self, arenas: Collection[int]) -> bool:
        """Drops the oldest entry that lies in one of `arenas`; False: there is none."""
        for key, entry in self._entries.items():
            if any(tensor.arena in arenas for tensor in entry.tensors):
                self._drop(key)
                return True
        return False

    def freed(self) -> list[Place]:
        """The memory that came free since this was asked last, by whatever was done."""
        freed, self._freed = self._freed, []
        return freed

    def _found(self, turn: Turn, key: str, now: float) -> Found | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            shared = [self._book.share(turn.peer, tensor, turn.owner, turn.expires, now) for tensor in entry.tensors]
        except Gone:  # it has expired
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return Found(entry.payload, tuple(shared))

    def _next(self, key: str, flight: _Flight | None) -> list[Answer]:
        if flight is None or not flight.waiting:
            return []
        turn = flight.waiting.popleft()
        self._flights[key] = _Flight(turn.peer, flight.waiting)
        return [Answer(turn, key, None)]

    def _drop(self, key: str) -> None:
        self.nbytes -= self._entries.pop(key).nbytes
        self._freed += self._book.release(REQUEST, key, 0)

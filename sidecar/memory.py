"""Gives memory to producers: at once, in order of arrival, or not before the deadline; makes and forgets arenas."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sidecar import arena
from sidecar.allocator import rounded
from sidecar.blocks import Book, Place
from sidecar.cache import Cache
from sidecar.errors import Denied, TooBig
from sidecar.messages import PUSHED, Arena, Failed, Forget, Grant, Granted, Mapped, Space
from sidecar.peer import Peer
from sidecar.pool import Freed, Held, Pool, Room

log = logging.getLogger(__name__)

MAX_WAITERS: Final = 65536
MAX_COUNT: Final = 16
MAX_WAIT: Final = 1e6
"""Seconds."""
SIZES: Final = 8
"""Of blocks that go back to one producer when they come free; those it asked for last."""
FEW: Final = 3
"""Granted blocks of one size below which a free one goes back unasked."""
SHARE: Final = 2
"""No block goes back unasked that leaves less than 1 - 1/SHARE of the producer's memory for other sizes."""


@dataclass(slots=True)
class _Waiter:
    peer: Peer
    request: Grant
    timer: asyncio.TimerHandle


class Memory:
    """Every wait ends at its deadline with Full. A producer that is first in its own queue may get another arena."""

    def __init__(self, book: Book, cache: Cache, total: int, peers: dict[int, Peer]) -> None:
        """`peers`: all connections, kept up to date by the daemon."""
        self.pool = Pool(total)
        self._book, self._cache = book, cache
        self._peers = peers
        self._waiters: dict[tuple[int, int], _Waiter] = {}  # (peer, request), in order of arrival
        self._loop = asyncio.get_running_loop()
        self._maker = ThreadPoolExecutor(1, "arena")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiters(self) -> int:
        return len(self._waiters)

    def grant(self, peer: Peer, request: Grant) -> None:
        """Answers Granted or Failed(full), now or within `request.wait` seconds. Raises Denied, TooBig."""
        if request.nbytes < 0 or not 0 <= request.wait <= MAX_WAIT or not 0 < request.count <= MAX_COUNT:
            raise Denied("size, wait or count out of bounds")
        if request.nbytes > peer.limit:
            raise TooBig(f"{request.nbytes} bytes, this client may hold {peer.limit}")
        if request.again:
            peer.remember(rounded(request.nbytes), SIZES)
        key = (peer.key, request.id)
        if key in self._waiters:
            raise Denied("a request of this number waits already")
        first = all(waiting != peer.key for waiting, _ in self._waiters)
        if first and (self._give(peer, request) or (request.wait > 0 and self._make_room(peer, request))):
            return
        if request.wait == 0 or len(self._waiters) >= MAX_WAITERS:
            self._refuse(peer, request.id)
            return
        timer = self._loop.call_later(request.wait, self._too_late, key)
        self._waiters[key] = _Waiter(peer, request, timer)
        if first:
            self.grow(peer, request.nbytes)

    def withdraw(self, peer: Peer, number: int) -> None:
        """Nobody waits for that request any more; nothing happens if it was answered."""
        waiter = self._waiters.pop((peer.key, number), None)
        if waiter is not None:
            waiter.timer.cancel()
            self._serve()

    def aborted(self, places: list[Place]) -> None:
        """Blocks came free that their producer did not want: serves who waits."""
        self._free(places)

    def freed(self, places: list[Place]) -> None:
        """Blocks came free after use: serves who waits, and gives them back to producers that always need such."""
        for freed in self._free(places):
            peer = self._peers.get(freed.peer)
            if peer is not None and freed.size in peer.again:
                self._give_again(peer, freed.size)

    def hung_up(self, peer: Peer) -> None:
        """The connection is over: it waits for nothing more, and its arenas stay only for their live blocks."""
        for key in [key for key in self._waiters if key[0] == peer.key]:
            self._waiters.pop(key).timer.cancel()
        self._forget(self.pool.orphan(peer.key))
        self.freed(self._book.close(peer.key))
        self._serve()

    def grow(self, peer: Peer, nbytes: int) -> None:
        """Begins to make another arena, unless one is in the making or the budget allows none."""
        if peer.growing or peer.closed:
            return
        size = self.pool.plan(peer.key, nbytes, peer.quota, peer.limit)
        if not size:
            self._forget(self.pool.reclaim())
            size = self.pool.plan(peer.key, nbytes, peer.quota, peer.limit)
        if size:
            peer.growing = True
            task = self._loop.create_task(self._make(peer, self.pool.begin(peer.key, size)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def mapped(self, peer: Peer, request: Mapped) -> None:
        """The producer has the arena: seals it and gives out its memory. Raises Denied."""
        held = self.pool.get(request.arena)
        if held is None or held.peer != peer.key or held.allocator is not None or held.descriptor < 0:
            raise Denied(f"arena {request.arena} was not offered to this connection")
        peer.growing = False
        try:
            self.pool.open(held)
        except OSError as error:
            log.error("arena %d cannot be sealed: %s", held.id, error)
            self.pool.discard(held)
            self._forget([held])
        self._serve()

    async def close(self) -> None:
        for waiter in self._waiters.values():
            waiter.timer.cancel()
        self._waiters.clear()
        await asyncio.gather(*self._tasks)
        self._maker.shutdown()
        self.pool.close()

    def _free(self, places: list[Place]) -> list[Freed]:
        freed = [self.pool.release(place) for place in places]
        self._forget([entry.gone for entry in freed if entry.gone is not None])
        if places and self._waiters:
            self._serve()
        return freed

    def _make_room(self, peer: Peer, request: Grant) -> bool:
        """The cache gives way where no further arena may be made: what lies in the way of `peer` goes first."""
        for arenas in (self.pool.numbers(peer.key), self.pool.removable()):
            while not self.pool.plan(peer.key, request.nbytes, peer.quota, peer.limit):
                if not self._cache.evict(arenas):
                    break
                self._free(self._cache.freed())
                if self._give(peer, request):
                    return True
        return False

    def _give_again(self, peer: Peer, size: int) -> None:
        granted = self._book.granted(peer.key)
        held = sum(size * count for size, count in granted.items())
        if peer.closed or granted[size] >= FEW or held + size > self.pool.owned(peer.key) // SHARE:
            return
        if any(waiting == peer.key for waiting, _ in self._waiters):
            return
        room = self.pool.alloc(peer.key, size, kept=True)
        if room is not None:
            self._grant(peer, PUSHED, [room])

    def _grant(self, peer: Peer, number: int, rooms: list[Room]) -> None:
        spaces = [Space(self._book.grant(peer.key, room.place, room.size), *room.place, room.size) for room in rooms]
        peer.send(Granted(number, tuple(spaces)))

    def _give(self, peer: Peer, request: Grant) -> bool:
        rooms: list[Room] = []
        while len(rooms) < request.count and (room := self.pool.alloc(peer.key, request.nbytes)) is not None:
            rooms.append(room)
        if rooms:
            self._grant(peer, request.id, rooms)
        return bool(rooms)

    def _serve(self) -> None:
        stuck: set[int] = set()
        for key, waiter in list(self._waiters.items()):
            if key[0] in stuck:
                continue
            if self._give(waiter.peer, waiter.request):
                del self._waiters[key]
                waiter.timer.cancel()
            else:
                stuck.add(key[0])
                self.grow(waiter.peer, waiter.request.nbytes)

    def _too_late(self, key: tuple[int, int]) -> None:
        waiter = self._waiters.pop(key)
        self._refuse(waiter.peer, key[1])
        self._serve()

    def _refuse(self, peer: Peer, number: int) -> None:
        used = self._book.granted_bytes + self._book.committed_bytes
        peer.send(Failed(number, "full", f"no room in time: {used} bytes in use of {self.pool.total}"))

    def _forget(self, gone: list[Held]) -> None:
        # pages go back to the system with their last mapping, so everybody has to unmap
        for held in gone:
            for peer in self._peers.values():
                if held.id in peer.arenas or held.peer == peer.key:
                    peer.arenas.discard(held.id)
                    peer.send(Forget(PUSHED, held.id))

    async def _make(self, peer: Peer, held: Held) -> None:
        try:
            descriptor = await self._loop.run_in_executor(self._maker, arena.create, held.size)
        except OSError as error:
            log.error("no memory for an arena of %d bytes: %s", held.size, error)
            self.pool.discard(held)
            peer.growing = False
            return
        if self.pool.get(held.id) is not held:
            os.close(descriptor)  # the client hung up meanwhile
            return
        held.descriptor = descriptor
        peer.send(Arena(PUSHED, held.id, held.size), descriptor)

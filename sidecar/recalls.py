"""Who asks the cache: answers at once, when another has made it, or at the deadline; gives way when memory is short."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sidecar.cache import Answer, Cache, Turn
from sidecar.errors import Denied
from sidecar.memory import MAX_WAIT, Memory
from sidecar.messages import Failed, PassOn, Recall, Recalled, Remember
from sidecar.peer import Peer

MAX_KEY: Final = 128
MAX_WAITERS: Final = 65536


class Recalls:
    """Every wait ends at its deadline with Timeout. A client that dies or passes on lets the next one make it."""

    def __init__(self, cache: Cache, memory: Memory, peers: dict[int, Peer]) -> None:
        """`peers`: all connections, kept up to date by the daemon."""
        self._cache, self._memory, self._peers = cache, memory, peers
        self._timers: dict[tuple[int, int], asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()

    def recall(self, peer: Peer, request: Recall) -> None:
        """Answers Recalled or Failed(timeout), now or within `request.wait` seconds. Raises Denied."""
        if not 0 < len(request.key) <= MAX_KEY or not 0 <= request.wait <= MAX_WAIT or not request.expires > 0:
            raise Denied("key, wait or expiry out of bounds")
        waits = (peer.key, request.id)
        if waits in self._timers or len(self._timers) >= MAX_WAITERS:
            raise Denied("a request of this number waits already, or too many do")
        turn = Turn(peer.key, request.id, request.owner, request.expires)
        answer = self._cache.ask(turn, request.key, time.time())
        if answer is None:
            self._timers[waits] = self._loop.call_later(request.wait, self._too_late, peer, request.id)
        else:
            self._send([answer])
        self._memory.freed(self._cache.freed())  # an entry that had expired

    def remember(self, peer: Peer, request: Remember) -> None:
        """Raises Denied."""
        if not 0 < len(request.key) <= MAX_KEY:
            raise Denied("key out of bounds")
        self._send(self._cache.keep(request.key, request.payload, request.tensors, time.time()))
        self._memory.freed(self._cache.freed())

    def pass_on(self, peer: Peer, request: PassOn) -> None:
        self._send(self._cache.pass_on(peer.key, request.key))

    def withdraw(self, peer: Peer, number: int) -> None:
        """Nobody waits for that request any more."""
        timer = self._timers.pop((peer.key, number), None)
        if timer is not None:
            timer.cancel()
            self._cache.withdraw(peer.key, number)

    def hung_up(self, peer: Peer) -> None:
        for waits in [waits for waits in self._timers if waits[0] == peer.key]:
            self._timers.pop(waits).cancel()
        self._send(self._cache.close(peer.key))

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _send(self, answers: list[Answer]) -> None:
        for turn, key, found in answers:
            timer = self._timers.pop((turn.peer, turn.request), None)
            if timer is not None:
                timer.cancel()
            reply = Recalled(
                turn.request, key, None if found is None else found.payload, found.tensors if found else ()
            )
            self._peers[turn.peer].send(reply)

    def _too_late(self, peer: Peer, number: int) -> None:
        del self._timers[(peer.key, number)]
        self._cache.withdraw(peer.key, number)
        peer.send(Failed(number, "timeout", "what another one makes was not there in time"))

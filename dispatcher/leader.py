"""A soft leader: one dispatcher pulls, the others stand by. For speed only; two at once are slower, never wrong."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Struct

from broker.connection import Broker, Subscription
from broker.errors import BrokerError
from broker.requests import STATUS, Message, send
from broker.subjects import DISPATCH_BEAT, dispatcher_at

log = logging.getLogger(__name__)

BEAT: Final = 0.3
"""Seconds between beats, and between the moments at which two standbys of neighbouring rank take over."""
LOOK: Final = 0.1
"""Seconds between two looks of a standby whether the active one is still connected."""
MISSED: Final = 2
"""Looks in a row that find nobody, until the active one counts as dead."""
SILENCE: Final = 1.5
"""Seconds without an active dispatcher until the first standby takes over."""
HELLO: Final = 2 * BEAT
"""Seconds in which a new dispatcher listens who else is there."""
PEER_TTL: Final = 2.0
"""Seconds without a beat until a peer no longer counts for the rank."""


class _Beat(Struct, frozen=True):
    id: str
    active: bool
    leaving: bool = False


_decoder = msgspec.msgpack.Decoder(_Beat)


class SoftLeader:
    """Every dispatcher beats. Active: who hears no active one for long enough, the lower id first; who is active and
    hears an active one with a lower id stands by again. The server knows at once that a process died, and says so to
    a standby that looks. Knows nothing that a crash could lose.
    """

    def __init__(self, broker: Broker, become: Callable[[bool], Awaitable[None]]) -> None:
        """`become(active)` is awaited at each change; it must be quick."""
        self.id = secrets.token_hex(8)
        self.active = False
        self._broker, self._become = broker, become
        self._peers: dict[str, float] = {}  # id -> when last heard, monotonic
        self._quiet_since = 0.0  # no active one was heard since, monotonic
        self._patience = HELLO
        self._yield = False
        self._followed = ""  # id of the active one
        self._missed = 0  # looks for it
        self._beat_at = 0.0  # monotonic
        self._subscriptions: list[Subscription] = []
        self._remove: Callable[[], None] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        self._quiet_since = time.monotonic()
        self._remove = self._broker.on_reconnect(self._reconnected)
        inbox = self._broker.nc.new_inbox()
        for subject, callback in (
            (DISPATCH_BEAT, self._heard),
            (dispatcher_at(self.id), self._looked_at),
            (inbox, self._told),
        ):
            self._subscriptions.append(await self._broker.subscribe_core(subject, callback))
        while True:
            await self._decide()
            if time.monotonic() >= self._beat_at:
                self._beat_at = time.monotonic() + BEAT
                await self._beat()
            if self._followed and not self.active and self._broker.connected:
                await send(self._broker.nc, dispatcher_at(self._followed), b"", reply=inbox)
            await asyncio.sleep(LOOK)

    async def resign(self) -> None:
        """Stands by for good, and says so: the next one takes over without waiting for silence."""
        if self._remove is not None:
            self._remove()
        for subscription in self._subscriptions:
            await subscription.close()
        if self.active:
            await self._change(False)
            await self._beat(leaving=True)

    async def _decide(self) -> None:
        if self.active:
            if self._yield:
                await self._change(False)
        elif self._broker.connected:
            now = time.monotonic()
            self._peers = {peer: at for peer, at in self._peers.items() if now - at < PEER_TTL}
            rank = sum(peer < self.id for peer in self._peers)
            if now - self._quiet_since > self._patience + BEAT * rank:
                await self._change(True)
        self._yield = False

    async def _change(self, active: bool) -> None:
        log.info("dispatcher %s is %s", self.id, "active" if active else "standing by")
        self.active, self._patience, self._quiet_since = active, SILENCE, time.monotonic()
        self._beat_at = 0.0
        await self._become(active)

    async def _beat(self, leaving: bool = False) -> None:
        try:
            beat = _Beat(self.id, self.active, leaving)
            await self._broker.publish_core(DISPATCH_BEAT, msgspec.msgpack.encode(beat))
        except BrokerError as error:
            log.info("no beat: %s", type(error).__name__)

    async def _heard(self, message: Message) -> None:
        try:
            beat = _decoder.decode(message.data)
        except msgspec.MsgspecError:
            return  # a dispatcher of another release: at worst both are active
        if beat.id == self.id:
            return
        self._peers[beat.id] = time.monotonic()
        if beat.leaving:
            del self._peers[beat.id]
            self._patience = 0.0
        elif beat.active:
            self._quiet_since, self._patience = time.monotonic(), SILENCE
            self._followed, self._missed = beat.id, 0
            self._yield = self._yield or beat.id < self.id

    async def _reconnected(self) -> None:
        """Nobody can have been heard during the outage, and not everybody is back yet."""
        self._quiet_since, self._followed = time.monotonic(), ""

    async def _looked_at(self, _: Message) -> None:
        """That somebody listens is all that was asked."""

    async def _told(self, message: Message) -> None:
        if not (message.headers or {}).get(STATUS):
            return
        self._missed += 1
        if self._missed >= MISSED:
            self._peers.pop(self._followed, None)
            self._followed, self._patience = "", 0.0

"""The sidecar's business with NATS: -NAK for the dead, release hints in, free share out. Optional, for ever retried."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from broker.connection import Broker
from broker.errors import BrokerError
from broker.requests import Message
from broker.subjects import SIDECAR_SHARE, release_hint
from sidecar.messages import decode_releases, encode

if TYPE_CHECKING:
    from sidecar.daemon import Daemon

log = logging.getLogger(__name__)

STALE: Final = 30.0
"""Seconds after which the server has redelivered an item by itself, so that its -NAK is dropped."""
LOST: Final = (BrokerError, OSError, RuntimeError)
"""RuntimeError: the NATS client writes to a transport that uvloop has closed. No outage of NATS may end the daemon."""
MAX_NAKS: Final = 65536
NAK: Final = b'-NAK {"delay": 50000000}'
"""After 50 ms: by then the server has seen that the connection of the dead is closed, and gives it nothing more."""
SHARE_EVERY: Final = 1.0
"""Seconds."""


class Uplink:
    """A -NAK is sent within milliseconds, or once NATS is back, or dropped when it is stale."""

    def __init__(self) -> None:
        self._naks: deque[tuple[str, float]] = deque(maxlen=MAX_NAKS)  # reply subject, stale at (monotonic)
        self._wake = asyncio.Event()

    def nak(self, reply: str) -> None:
        """Hands the item behind `reply` back, as soon as NATS is there."""
        self._naks.append((reply, time.monotonic() + STALE))
        self._wake.set()

    async def run(self, daemon: Daemon, name: str) -> None:
        """Until cancelled."""
        while True:
            broker = await self._connect(name)
            try:
                try:
                    await self._serve(broker, daemon)
                finally:
                    await broker.close()
            except LOST as error:
                log.warning("NATS: %s; connecting again", type(error).__name__)

    async def _serve(self, broker: Broker, daemon: Daemon) -> None:
        async def released(message: Message) -> None:
            try:
                daemon.release(decode_releases(message.data))
            except msgspec.MsgspecError as error:
                log.warning("malformed release hint: %s", error)

        async def back() -> None:
            self._wake.set()

        broker.on_reconnect(back)
        await broker.subscribe_core(release_hint(daemon.host), released)
        share_at = 0.0
        while not broker.nc.is_closed:
            await self._flush(broker)
            if broker.connected and time.monotonic() >= share_at:
                share_at = time.monotonic() + SHARE_EVERY
                await broker.publish_core(SIDECAR_SHARE, encode(daemon.share()))
            await self._nap(share_at - time.monotonic() if broker.connected else SHARE_EVERY)

    async def _connect(self, name: str) -> Broker:
        delay, told = 0.1, False
        while True:
            try:
                return await Broker.from_env(name)
            except LOST as error:
                if not told:
                    log.warning("no NATS yet (%s): local clients are served, last wills wait", type(error).__name__)
                told = True
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, 2.0)

    async def _flush(self, broker: Broker) -> None:
        while self._naks and broker.connected:
            reply, stale_at = self._naks[0]
            if time.monotonic() < stale_at:
                await broker.publish_core(reply, NAK)
            self._naks.popleft()

    async def _nap(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

"""A lock in the registry: one holder at a time, freed by the bucket's TTL when the holder is gone."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Final

from broker.connection import Broker
from broker.errors import BrokerError, Conflict
from broker.registry import Registry
from broker.streams import HEARTBEAT_TTL
from broker.subjects import LOCKS

log = logging.getLogger(__name__)

RENEW: Final = HEARTBEAT_TTL / 5
"""Seconds between two renewals, and between two tries to get the lock."""
TRUST: Final = HEARTBEAT_TTL / 2
"""Seconds after a renewal in which the holder acts: well before anybody else can get the lock."""


class Lock:
    """Survives nothing: the bucket forgets a dead holder within its TTL (10 s), a closed one at once.

    A holder that was stopped for longer than TRUST no longer believes that it holds, until it has renewed.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        self._registry = Registry(broker, LOCKS, timeout=RENEW)
        self._name, self._id = name, secrets.token_hex(8)
        self._revision = 0
        self._count = 0
        self._until = 0.0  # monotonic

    @property
    def held(self) -> bool:
        return time.monotonic() < self._until

    async def run(self) -> None:
        """Gets, keeps and regains the lock, until cancelled."""
        while True:
            try:
                await self._renew()
            except Conflict:
                self._revision, self._until = 0, 0.0
            except BrokerError as error:
                log.warning("lock %s not renewed: %s", self._name, type(error).__name__)
            await asyncio.sleep(RENEW)

    async def release(self) -> None:
        """The next one may have it at once."""
        held, self._until = self.held, 0.0
        if held:
            await self._registry.delete(self._name)

    async def _renew(self) -> None:
        began = time.monotonic()
        self._count += 1
        data = f"{self._id} {self._count}".encode()  # names its writer: a lost confirmation is recognised by it
        if self._revision:
            self._revision = await self._registry.update(self._name, data, self._revision)
        else:
            self._revision = await self._registry.create(self._name, data)
        self._until = began + TRUST

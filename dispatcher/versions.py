"""Versions of apps that nothing can need any more go: those that were replaced longer ago than a request lives."""

from __future__ import annotations

import logging
import time
from typing import Final

import msgspec

from broker.connection import Broker
from broker.errors import Conflict
from broker.lifetimes import FACT_GRACE
from broker.registry import Entry, Registry
from broker.subjects import APPS
from cornstalk.messages import LONGEST_DEADLINE, encode
from cornstalk.records import AppRecord
from dispatcher.registered import decoded

log = logging.getLogger(__name__)

EVERY: Final = 60.0
"""Seconds between two rounds."""
JUST_DEPLOYED: Final = 60.0
"""Seconds in which a gateway that writes a version has written the name after it, or has given up."""
KEPT: Final = LONGEST_DEADLINE + FACT_GRACE
"""Seconds after which no fact is left of what began on a version when it was replaced or its app was removed."""


class Versions:
    """Marks the versions that new requests do not get, and removes those that were marked longer ago than KEPT.

    Stateless but for its pace: the marks stand in the records. A version that a gateway deploys again at the same time
    stays: what was read is written or removed only if it is still there.
    """

    def __init__(self, broker: Broker) -> None:
        self._apps = Registry(broker, APPS)
        self._next = 0.0  # monotonic

    async def round(self) -> None:
        """One round, if it is time for it. Raises BrokerError."""
        if time.monotonic() < self._next:
            return
        entries = await self._apps.entries()
        records = {key: decoded(AppRecord, key, entry.data) for key, entry in entries.items()}
        for key, record in records.items():
            name, _, version = key.partition(".")
            current = records.get(name)
            if version and record is not None and (current is not None or name not in records):
                await self._look(key, entries[key], record, current is not None and current.version == version)
        self._next = time.monotonic() + EVERY

    async def _look(self, key: str, entry: Entry, record: AppRecord, is_current: bool) -> None:
        now = time.time()
        if is_current:
            retired_at = 0.0
        elif now - record.deployed_at > JUST_DEPLOYED:
            retired_at = record.retired_at or now
        else:
            return
        if retired_at and now - retired_at > KEPT:
            await self._apps.delete(key, entry.revision)
            log.info("version %s of app %s is gone: nothing can run on it any more", record.version, record.name)
        elif retired_at != record.retired_at:
            try:
                await self._apps.update(
                    key, encode(msgspec.structs.replace(record, retired_at=retired_at)), entry.revision
                )
            except Conflict:
                log.info("version %s of app %s was deployed again", record.version, record.name)

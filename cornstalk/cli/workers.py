"""Workers follow the registry: as many processes of each component as its record asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from broker.errors import BrokerError
from cornstalk.cli.process import Kept
from cornstalk.records import ComponentRecord

log = logging.getLogger("cornstalk.up")

POLL_EVERY: Final = 0.25
DRAIN: Final = 30.0
"""Seconds that a worker's running items get to end."""

Read = Callable[[], Awaitable[Mapping[str, ComponentRecord]]]


class Workers:
    """The worker processes of this host. A registry that cannot be read changes nothing."""

    def __init__(
        self, read: Read, spawn: Callable[[str, int], Kept], replicas: int | None, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when one has left."""
        self._read, self._spawn, self._replicas, self._changed = read, spawn, replicas, changed
        self._kept: dict[tuple[str, int], Kept] = {}
        self._leaving: dict[asyncio.Task[None], Kept] = {}

    @property
    def kept(self) -> list[Kept]:
        """Those that run, and those that drain."""
        return [*self._kept.values(), *self._leaving.values()]

    async def follow(self) -> None:
        """Until cancelled."""
        readable = True
        while True:
            try:
                records = await self._read()
            except BrokerError as error:
                if readable:
                    log.warning("the registry of components cannot be read: %s", type(error).__name__)
                readable = False
            else:
                readable = True
                self.reconcile(records)
            await asyncio.sleep(POLL_EVERY)

    def reconcile(self, records: Mapping[str, ComponentRecord]) -> None:
        """Starts what is missing, drains what is too much."""
        wanted = {(id, index) for id, record in records.items() for index in range(self._wanted(record))}
        for key in wanted - self._kept.keys():
            kept = self._spawn(*key)
            kept.start()
            self._kept[key] = kept
        for key in self._kept.keys() - wanted:
            kept = self._kept.pop(key)
            task = asyncio.get_running_loop().create_task(kept.stop(DRAIN))
            self._leaving[task] = kept
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        del self._leaving[task]
        self._changed()

    def _wanted(self, record: ComponentRecord) -> int:
        if record.state != "active":
            return 0
        return record.replicas if self._replicas is None else self._replicas

    async def stop(self, grace: float) -> None:
        """Ends them all, side by side."""
        await asyncio.gather(*(kept.stop(grace) for kept in self.kept))

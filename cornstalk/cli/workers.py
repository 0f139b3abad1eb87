"""Workers follow the registry: as many processes of each component as its record asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Final

from broker.errors import BrokerError
from cornstalk.cli.process import Kept
from cornstalk.records import ComponentRecord

log = logging.getLogger("cornstalk.up")

POLL_EVERY: Final = 0.25
DRAIN: Final = 30.0
"""Seconds that running items get to end when the tree stops."""
SCALE_IN_DRAIN: Final = 600.0
"""Seconds that a worker which is not needed any more gets for what runs in it. It takes nothing new meanwhile."""

Read = Callable[[], Awaitable[Mapping[str, ComponentRecord]]]
Busy = Callable[[], Awaitable[Mapping[int, int]]]
"""How many items run in each worker process of this host, by pid, as its last heartbeat said."""

Key = tuple[str, int]


class Workers:
    """The worker processes of this host. A registry that cannot be read changes nothing."""

    def __init__(
        self,
        read: Read,
        busy: Busy,
        spawn: Callable[[str, int], Kept],
        replicas: int | None,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when one has left."""
        self._read, self._busy, self._spawn, self._replicas, self._changed = read, busy, spawn, replicas, changed
        self._kept: dict[Key, Kept] = {}
        self._leaving: dict[Key, Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def kept(self) -> list[Kept]:
        """Those that run, and those that drain."""
        return [*self._kept.values(), *self._leaving.values()]

    async def follow(self) -> None:
        """Until cancelled."""
        readable = True
        while True:
            try:
                await self.reconcile(await self._read())
                readable = True
            except BrokerError as error:
                if readable:
                    log.warning("the registry of components cannot be read: %s", type(error).__name__)
                readable = False
            await asyncio.sleep(POLL_EVERY)

    async def reconcile(self, records: Mapping[str, ComponentRecord]) -> None:
        """Starts what is missing, drains what is too much: of each component, those in which least runs."""
        components = {id for id, _ in self._kept}
        for id in sorted(components | records.keys()):
            there = [key for key in self._kept if key[0] == id]
            missing = self._wanted(records.get(id)) - len(there)
            for _ in range(missing):
                self._start(id)
            if missing < 0:
                busy = await self._busy() if len(there) + missing else {}
                there.sort(key=lambda key: (busy.get(self._kept[key].running.pid, 0), -key[1]))
                for key in there[:-missing]:
                    self._drain(key)

    def _wanted(self, record: ComponentRecord | None) -> int:
        if record is None or record.state != "active":
            return 0
        return record.replicas if self._replicas is None else self._replicas

    def _start(self, component: str) -> None:
        """Under the lowest number that is free: one that drains still writes its log."""
        key = next(key for i in count() if (key := (component, i)) not in self._kept and key not in self._leaving)
        kept = self._spawn(*key)
        kept.start()
        self._kept[key] = kept

    def _drain(self, key: Key) -> None:
        kept = self._leaving[key] = self._kept.pop(key)
        log.info("%s drains", kept.process.name)
        task = asyncio.get_running_loop().create_task(self._leave(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, key: Key) -> None:
        await self._leaving[key].stop(SCALE_IN_DRAIN)
        del self._leaving[key]
        self._changed()

    async def stop(self, grace: float) -> None:
        """Ends them all, side by side."""
        await asyncio.gather(*(kept.stop(grace) for kept in self.kept))

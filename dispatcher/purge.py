"""Removes finished requests from RUNS and CHUNKS once nobody may resume them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from broker.connection import Broker
from broker.errors import BrokerError
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE
from broker.reads import last_stored
from broker.subjects import BATCH, USAGE, batch_result, usage
from cornstalk.messages import Accepted
from dispatcher.releases import Releases
from dispatcher.timers import Timers

log = logging.getLogger(__name__)

PAUSE: Final = 0.002
"""Seconds between two purges, so that at most 500 a second are asked of the server."""
AGAIN: Final = 5.0
"""Seconds until a purge that failed is tried again."""
ROW_GRACE: Final = 2.0
"""Seconds after which the request of a batch row is purged."""
LOOK_AGAIN: Final = 2.0
"""Seconds until it is looked again whether all is stored that must outlive the request."""


class Purger:
    """Purges each finished request after `grace` seconds, or its own resume grace if that is longer.

    Its tensors are released once more then: the first release was a hint that may have been lost, and an attempt that
    came late may have committed after it. What is stored after the purge, by a process that was stopped meanwhile, is
    purged in its turn. `run.<r>.end` stays as tombstone until its TTL. The list is memory only, rebuilt from the stored
    ends when a dispatcher becomes active (recovery.py); what is never purged goes by TTL.

    Not before its usage is stored, though nobody may have been there to handle its end; nor, if it ran a batch row,
    before its result is. Such a request is purged soon then: nobody resumes it, and there may be thousands of them.
    """

    def __init__(self, broker: Broker, facts: Facts, grace: float, releases: Releases) -> None:
        self._broker, self._facts, self._grace, self._releases = broker, facts, grace, releases
        self._timers = Timers()
        self._awaited: dict[str, tuple[tuple[tuple[str, str], ...], float]] = {}
        """By request: what must be stored of it, (stream, subject), and until when that may come."""

    def add(self, request: str, accepted: Accepted | None, finished: float | None = None) -> None:
        """`finished`: when its end was stored, Unix seconds; now by default."""
        if request in self._timers:
            return
        at = time.time() if finished is None else finished
        self._timers.add(request, at + self._grace_of(accepted))
        if accepted is not None:
            awaited = [(USAGE, usage(accepted.app, request))]
            if accepted.row is not None:
                awaited.append((BATCH, batch_result(accepted.row.job, accepted.row.row)))
            self._awaited[request] = (tuple(awaited), accepted.deadline + FACT_GRACE)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            request = await self._timers.due()
            self._releases.whole(request)
            try:
                await self._purge(request)
            except BrokerError as error:
                log.warning("request %s not purged yet: %s", request, type(error).__name__)
                self._timers.add(request, time.time() + AGAIN)
            await asyncio.sleep(PAUSE)

    def _grace_of(self, accepted: Accepted | None) -> float:
        if accepted is None:
            return self._grace
        return min(self._grace, ROW_GRACE) if accepted.row is not None else max(self._grace, accepted.resume_grace)

    async def _purge(self, request: str) -> None:
        awaited, until = self._awaited.get(request, ((), 0.0))
        for stream, subject in awaited:
            if time.time() < until and await last_stored(self._broker, stream, subject) is None:
                self._timers.add(request, time.time() + LOOK_AGAIN)
                return
        await self._facts.purge(request)
        self._awaited.pop(request, None)

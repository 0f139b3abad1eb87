"""Ends requests `expired` at their deadline, whoever else has died."""

from __future__ import annotations

import logging
import time
from typing import Final

from broker.errors import BrokerError
from broker.facts import Facts
from broker.subjects import accepted
from cornstalk.messages import Error, Finish
from dispatcher.publisher import Publisher
from dispatcher.timers import Timers

log = logging.getLogger(__name__)

AGAIN: Final = 1.0
"""Seconds until an end that could not be stored is tried again."""

EXPIRED: Final = Finish(status="expired", error=Error(code="expired", message="the deadline passed", retryable=True))


class Deadlines:
    """A heap of deadlines, rebuilt from the stored `accepted` facts when a dispatcher becomes active (recovery.py).

    Any number of dispatchers may hold the same deadline: the end is put-if-absent, also before the first graph.
    """

    def __init__(self, facts: Facts, publisher: Publisher) -> None:
        self._facts, self._publisher = facts, publisher
        self._timers = Timers()

    def add(self, request: str, deadline: float) -> None:
        self._timers.add(request, deadline)

    def drop(self, request: str) -> None:
        """The request has ended."""
        self._timers.drop(request)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            request = await self._timers.due()
            try:
                await self._expire(request)
            except BrokerError as error:
                log.warning("request %s not ended yet: %s", request, type(error).__name__)
                self._timers.add(request, time.time() + AGAIN)

    async def _expire(self, request: str) -> None:
        """A request that another dispatcher saw end may be purged, with its tombstone gone: that one is left alone."""
        if await self._facts.last(accepted(request)) is not None:
            await self._publisher.finish(request, EXPIRED, time.time())

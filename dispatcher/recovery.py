"""What the timers of a dispatcher must hold, read from the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from broker.connection import Broker
from broker.errors import BrokerError
from broker.facts import Facts
from broker.reads import pages
from broker.subjects import ALL_FINISHES, RUNS, parse_run
from cornstalk.messages import Accepted, Malformed, NewerVersion, decode
from dispatcher.deadlines import Deadlines
from dispatcher.purge import Purger

log = logging.getLogger(__name__)

EVERY: Final = 60.0
"""Seconds between two looks of the active dispatcher: what another one took up and dropped is found again."""
AGAIN: Final = 1.0
"""Seconds until a look that failed is repeated."""


class Recovery:
    """Rebuilds deadlines and purges by paged reads of `run.*.accepted` and `run.*.end`. Holds nothing itself."""

    def __init__(self, broker: Broker, facts: Facts, deadlines: Deadlines, purger: Purger) -> None:
        self._broker, self._facts = broker, facts
        self._deadlines, self._purger = deadlines, purger
        self._active, self._changed = asyncio.Event(), asyncio.Event()

    def activate(self, active: bool) -> None:
        """Whether this dispatcher is the active one: it looks at once, then each EVERY seconds."""
        if active:
            self._active.set()
        else:
            self._active.clear()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._active.wait()
            self._changed.clear()
            try:
                await self.look()
                pause = EVERY
            except BrokerError as error:
                log.warning("deadlines not read yet: %s", type(error).__name__)
                pause = AGAIN
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Not past the end of this active time: the next one begins with a look."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def look(self) -> None:
        """One look. Ends are read after the accepted facts, so a request that ends meanwhile is seen as ended."""
        open_: dict[str, Accepted] = {}
        async for stored in self._facts.accepted():
            request = parse_run(stored.subject).request
            try:
                fact = decode(Accepted, stored.data)
            except (Malformed, NewerVersion):
                continue  # its own delivery deals with it
            open_[request] = msgspec.structs.replace(fact, input={})
        async for stored in pages(self._broker, RUNS, ALL_FINISHES):
            request = parse_run(stored.subject).request
            if (ended := open_.pop(request, None)) is not None:
                self._deadlines.drop(request)
                self._purger.add(request, ended, stored.time)
        for request, accepted in open_.items():
            self._deadlines.add(request, accepted.deadline)

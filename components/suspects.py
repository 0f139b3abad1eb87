"""Redelivered items: look first, and count starts, not deliveries (design rule 6, notes/dispatch.md section 5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Final

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import PayloadTooLarge, QueueFull, StorageFull
from broker.facts import Facts
from broker.lifetimes import fact_ttl
from broker.pull import Delivery
from broker.subjects import accepted as accepted_subject
from broker.subjects import attempt as try_subject
from broker.subjects import attempts, dead_letter, finish
from broker.subjects import end as end_subject
from components.streams import reads_streams
from cornstalk.messages import DeadLetter, Error, Try, WorkItem, encode

log = logging.getLogger(__name__)

MARKS: Final = 3
"""Starts that a suspect may survive nobody; one more delivery condemns it."""


class Suspects:
    """A crash takes all items of a worker with it. Only the one that starts again and again is poison.

    The marks are stored facts and survive every crash; the lock that runs suspects one at a time need not.
    """

    def __init__(self, broker: Broker, facts: Facts) -> None:
        self._broker, self._facts = broker, facts
        self._alone = asyncio.Lock()

    async def is_over(self, item: WorkItem) -> bool:
        """Has this generation, or the whole request, ended already?"""
        over = False
        for subject in (end_subject(item.request, item.node, item.gen), finish(item.request)):
            over = over or await self._facts.last(subject) is not None
        crash_at("worker.looked")
        return over

    @asynccontextmanager
    async def alone(self, item: WorkItem, attempt: str) -> AsyncIterator[bool]:
        """One suspect at a time, with a mark stored before its start. False = condemned: it has MARKS of them.

        An item that reads streams does not wait for its turn: what it reads may be a suspect behind it.
        """
        async with nullcontext() if reads_streams(item) else self._alone:
            if await self._facts.count(attempts(item.request, item.node, item.gen)) >= MARKS:
                yield False
                return
            crash_at("worker.counted")
            subject = try_subject(item.request, item.node, item.gen, attempt)
            await self._facts.put(
                subject,
                encode(Try(node=item.node, gen=item.gen, attempt=attempt)),
                deadline=item.deadline,
                unless=finish(item.request),
                ttl=fact_ttl(item.deadline),
            )
            try:
                yield True
            except Exception:
                await self._facts.forget(subject)  # handed back alive: a start that killed nobody does not count
                raise

    async def bury(self, item: WorkItem, reason: str, error: Error, delivery: Delivery) -> None:
        """Stores the dead letter, once. Where there is no room for it the failure is told all the same, by its End."""
        accepted = await self._facts.last(accepted_subject(item.request))
        letter = DeadLetter(
            item=delivery.data,
            error=error,
            attempts=delivery.delivered,
            accepted=b"" if accepted is None else accepted.data,
        )
        subject = dead_letter(item.component, reason, item.request, item.node, item.gen)
        try:
            await self._broker.publish_stored(subject, encode(letter), deadline=item.deadline, msg_id=subject)
            log.warning("dead letter: %s", subject)
        except (QueueFull, StorageFull, PayloadTooLarge) as error:
            log.error("no room for the dead letter %s: %s", subject, type(error).__name__)
        crash_at("worker.buried")

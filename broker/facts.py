"""The facts of requests in RUNS: put if absent, read at once, watched as a wake-up, purged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Self

from msgspec import Struct

from broker import subjects
from broker.absent import REPEAT, Put, put_if_absent
from broker.connection import Broker, Subscription
from broker.errors import ReadTimeout
from broker.reads import Stored, TooManySubjects, last_stored, multi_last, pages, stored_at
from broker.requests import Message
from broker.subjects import RUNS

__all__ = ["Facts", "Log", "Put", "Stored", "Watch"]


class Log(Struct, frozen=True):
    """A prefix of a request's facts, ascending by sequence: all that were stored up to `upto` and not purged."""

    messages: list[Stored]
    upto: int


class Facts:
    """All access to RUNS. Stateless but for its connection, which its owner closes: any number, in any process."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def put(
        self,
        subject: str,
        data: bytes,
        *,
        deadline: float,
        mine: Callable[[bytes], bool] | None = None,
        unless: str | None = None,
        ttl: float,
        headers: dict[str, str] | None = None,
        patient: bool = True,
    ) -> Put:
        """Stores a fact if its subject has none; else says which one is there. Exactly one writer wins, for ever.

        A put that was stored but not confirmed is recognised as won: equal bytes, or `mine(stored)`. When the subject
        turns out empty again it is tried again, unless a message is stored at `unless` (run.<r>.end): RequestEnded.
        While RUNS is full it is tried again to the deadline, for what is stored is work that is done (rule 9); who is
        not `patient` gets QueueFull or StorageFull at once. `deadline` in Unix seconds, `ttl` in seconds. Raises also
        what `Broker.publish_stored` raises, but no Conflict.
        """
        return await put_if_absent(
            self._broker,
            RUNS,
            subject,
            data,
            deadline=deadline,
            mine=mine,
            unless=unless,
            ttl=ttl,
            headers=headers,
            patient=patient,
        )

    async def last(self, subject: str) -> Stored | None:
        """The newest fact of a subject or filter, never stale. Raises ReadTimeout."""
        return await last_stored(self._broker, RUNS, subject)

    async def read(self, request: str, *, containing: int = 0, timeout: float = 2.0) -> Log:
        """The facts of a request: a prefix that reaches to sequence `containing` at least.

        Repeated until it does, so that a lagging replica is never believed. Raises ReadTimeout.
        """
        end = time.monotonic() + timeout
        while True:
            log = await self._read_once(request, end - time.monotonic())
            if log.upto >= containing or await self._is_gone(request, containing):
                return log
            if time.monotonic() + REPEAT >= end:
                raise ReadTimeout(f"no read reached sequence {containing} in time")
            await asyncio.sleep(REPEAT)

    async def read_after(self, request: str, seq: int, *, timeout: float = 2.0) -> list[Stored]:
        """The facts of a request after sequence `seq`, ascending, all that the leader has now. Raises ReadTimeout."""
        filter_subject = subjects.facts_of(request)
        newest = await self.last(filter_subject)
        if newest is None or newest.seq <= seq:
            return []
        if not seq:
            return (await self.read(request, containing=newest.seq, timeout=timeout)).messages
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            found = [s async for s in pages(self._broker, RUNS, filter_subject, start=seq + 1, timeout=left)]
            if (found and found[-1].seq >= newest.seq) or await self._is_gone(request, newest.seq):
                return found
            if time.monotonic() + REPEAT >= end:
                raise ReadTimeout(f"no read reached sequence {newest.seq} in time")
            await asyncio.sleep(REPEAT)

    async def count(self, filter_subject: str) -> int:
        """How many subjects that match hold a fact, as the leader sees it. Raises ReadTimeout."""
        info = await self._broker.api(f"STREAM.INFO.{RUNS}", {"subjects_filter": filter_subject})
        return len(info["state"].get("subjects") or {})

    def watch(self, request: str, wake: Callable[[], None]) -> Watch:
        """A wake-up for whatever is stored of a request: `async with facts.watch(...)`."""
        return Watch(self._broker, subjects.seen(subjects.facts_of(request)), wake)

    async def forget(self, subject: str) -> None:
        """Removes what is stored at one subject. Only for marks, which nobody folds. Raises ReadTimeout."""
        await self._broker.api(f"STREAM.PURGE.{RUNS}", {"filter": subject})

    async def purge(self, request: str) -> None:
        """Removes a finished request but its `end` (the tombstone) and `cancel`. Idempotent. Raises ReadTimeout.

        Its `accepted` goes last: by that a purge which ended half way is found again.
        """
        await self._broker.api(f"STREAM.PURGE.{subjects.CHUNKS}", {"filter": subjects.chunks_of(request)})
        for filter_subject in subjects.purgeable(request):
            await self._broker.api(f"STREAM.PURGE.{RUNS}", {"filter": filter_subject})

    async def accepted(self) -> AsyncIterator[Stored]:
        """The `accepted` of every request that is stored, oldest first. Raises ReadTimeout."""
        async for stored in pages(self._broker, RUNS, subjects.ALL_ACCEPTED):
            yield stored

    async def _read_once(self, request: str, timeout: float) -> Log:
        filter_subject = subjects.facts_of(request)
        try:
            messages, upto = await multi_last(self._broker, RUNS, filter_subject, timeout=timeout)
        except TooManySubjects:
            messages = [message async for message in pages(self._broker, RUNS, filter_subject, timeout=timeout)]
            upto = messages[-1].seq if messages else 0
        return Log(messages, upto)

    async def _is_gone(self, request: str, seq: int) -> bool:
        """Whether the leader no longer has this fact of the request: then no read will ever contain it."""
        stored = await stored_at(self._broker, RUNS, seq)
        return stored is None or not stored.subject.startswith(f"run.{request}.")


class Watch:
    """Calls `wake` when something may have been stored: at each republished message, after a loss, a reconnect.

    A wake-up without guarantee: whoever is woken reads. `wake` must be quick and must not raise.
    """

    def __init__(self, broker: Broker, subject: str, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._subject = subject
        self._wake = wake
        self._subscription: Subscription | None = None
        self._remove: Callable[[], None] | None = None

    async def start(self) -> Self:
        """From here nothing is stored unnoticed while the connection holds; what is stored already must be read."""
        self._remove = self._broker.on_reconnect(self._on_reconnect)
        self._subscription = await self._broker.subscribe_core(self._subject, self._on_message, on_lost=self._wake)
        return self

    async def close(self) -> None:
        """Idempotent."""
        if self._remove is not None:
            self._remove()
        if self._subscription is not None:
            await self._subscription.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _on_message(self, message: Message) -> None:
        self._wake()

    async def _on_reconnect(self) -> None:
        self._wake()

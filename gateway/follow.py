"""The facts of one request as they are stored, folded into a State."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from broker.connection import Broker, Subscription
from broker.errors import BrokerError
from broker.facts import Facts
from broker.requests import Message
from broker.subjects import facts_of, parse_run, seen
from cornstalk.graph import State
from cornstalk.loops import forever
from cornstalk.messages import FACTS, Fact, Malformed, decode

log = logging.getLogger(__name__)

READ_EVERY: Final = 60.0
"""Seconds between reads of the log beside the republished messages. One server loses none without a word: whoever
listens is told that the connection broke, or that its own queue was full. With 300 requests under way, a read of each
every 5 s took a seventh of what their chunks cost.
"""
READ_AGAIN: Final = 5.0
"""The same after a read that failed, and in a cluster, whose leader may die between storing a message and saying so."""


def _nothing() -> None:
    """Before `start` there is nothing to undo."""


class Following:
    """Keeps `state` up to date from republished facts, and from reads after outages, drops, and now and then.

    What is folded was stored, so it is true; what is missing comes with the next read. Soft: a crash loses nothing.
    """

    def __init__(self, broker: Broker, facts: Facts, request: str) -> None:
        self._broker, self._facts, self.request = broker, facts, request
        self.state = State()
        self._read_to = 0  # nothing up to this sequence is unknown
        self._heard: set[int] = set()  # folded, after that sequence
        self._changed = asyncio.Event()
        self._behind = asyncio.Event()
        self._whole = asyncio.Event()
        self._whole.set()
        self._subscription: Subscription | None = None
        self._reader: asyncio.Task[None] | None = None
        self._forget_reconnect: Callable[[], None] = _nothing

    async def start(self) -> Self:
        """Listens; call `read` to learn what was stored before."""
        subject = seen(facts_of(self.request))
        self._subscription = await self._broker.subscribe_core(subject, self._hear, on_lost=self._lost)
        self._forget_reconnect = self._broker.on_reconnect(self._reconnected)
        self._reader = asyncio.create_task(forever(self._catch_up, "the facts of a request"))
        return self

    async def close(self) -> None:
        self._forget_reconnect()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
        if self._subscription is not None:
            await self._subscription.close()

    def add(self, fact: Fact, seq: int) -> None:
        """Folds a stored fact."""
        self._heard.add(seq)
        self.state.add(fact, seq)
        self._changed.set()

    async def read(self) -> None:
        """Folds all that is stored and was not folded before. Raises ReadTimeout."""
        for stored in await self._facts.read_after(self.request, self._read_to):
            if stored.seq > self._read_to and stored.seq not in self._heard:
                self._fold(stored.subject, stored.data, stored.seq)
            self._read_to = max(self._read_to, stored.seq)
        self._heard = {seq for seq in self._heard if seq > self._read_to}

    async def changed(self) -> None:
        """Returns when something was folded since the last return."""
        await self._changed.wait()
        self._changed.clear()

    async def gap_free(self) -> None:
        """Returns when `state` holds a prefix of the log: nothing that came before its newest fact is missing."""
        await self._whole.wait()

    def _lost(self) -> None:
        self._whole.clear()
        self._behind.set()

    async def _hear(self, message: Message) -> None:
        if parse_run(message.subject).kind != "try":
            self._fold(message.subject, message.data, int((message.headers or {})["Nats-Sequence"]))

    def _fold(self, subject: str, data: bytes, seq: int) -> None:
        try:
            self.add(decode(FACTS[parse_run(subject).kind], data), seq)
        except Malformed as error:  # the dispatcher ends the request for it, and that fact is to be heard
            log.warning("request %s: %s", self.request, error)

    async def _reconnected(self) -> None:
        self._lost()

    async def _catch_up(self) -> None:
        patience = READ_EVERY if self._whole.is_set() and not self._broker.clustered else READ_AGAIN
        with suppress(TimeoutError):
            await asyncio.wait_for(self._behind.wait(), patience)
        self._behind.clear()
        try:
            await self.read()
            if not self._behind.is_set():
                self._whole.set()
        except BrokerError as error:
            log.info("request %s: %s; reading again", self.request, type(error).__name__)

"""Work that nobody wants any more is stopped: its request has ended or is cancelled, or it was a guess."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from broker.connection import Broker, Subscription
from broker.facts import Facts, Stored
from broker.requests import Message
from broker.subjects import ALL_CANCEL_HINTS, parse_run
from broker.subjects import cancel as cancel_subject
from broker.subjects import finish as finish_subject
from components.call import ItemCall
from components.engine import Engine
from cornstalk.graph import State
from cornstalk.messages import FACTS, Malformed, NewerVersion, decode

REMEMBERED: Final = 10_000
"""Requests whose cancel hint is remembered for items still queued; older ones are found by the stored fact."""
STOP_GRACE: Final = 0.25
"""Seconds beyond its longest step that an engine has to notice a cancel."""


class Cancels:
    """Turns cancel hints into cancelled calls, after a look at the stored fact. A lost hint costs only work."""

    def __init__(self, broker: Broker, facts: Facts, engine: Engine) -> None:
        self._broker, self._facts, self._engine = broker, facts, engine
        self._calls: dict[str, set[ItemCall]] = {}
        self._hinted: OrderedDict[str, None] = OrderedDict()
        self._since = math.inf  # Unix seconds from which on hints are heard
        self._subscription: Subscription | None = None
        self._remove: Callable[[], None] | None = None

    async def start(self) -> None:
        self._subscription = await self._broker.subscribe_core(ALL_CANCEL_HINTS, self._hint)
        self._remove = self._broker.on_reconnect(self._look_again)
        self._since = time.time()

    async def close(self) -> None:
        if self._remove is not None:
            self._remove()
        if self._subscription is not None:
            await self._subscription.close()

    async def ended(self, request: str, asked: float) -> bool:
        """Is the request cancelled or ended, as stored? Asks only for requests that a hint named, or may have named
        before this worker listened: those whose item was published then (`asked`, Unix seconds).
        """
        return (request in self._hinted or asked < self._since) and await self._stored(request)

    @asynccontextmanager
    async def watch(self, call: ItemCall) -> AsyncIterator[None]:
        """Cancels `call` by hint, or with reason "expired" at its deadline."""
        loop = asyncio.get_running_loop()
        self._calls.setdefault(call.request, set()).add(call)
        timer = loop.call_later(max(0.0, call.deadline - time.time()), self._cancel, call, "expired")
        try:
            if call.request in self._hinted:  # since the look before this attempt
                await self._look(call.request)
            yield
        finally:
            timer.cancel()
            calls = self._calls[call.request]
            calls.discard(call)
            if not calls:
                del self._calls[call.request]

    async def _hint(self, message: Message) -> None:
        request = message.subject.rpartition(".")[2]
        self._hinted[request] = None
        if len(self._hinted) > REMEMBERED:
            self._hinted.popitem(last=False)
        await self._look(request)

    async def _look_again(self) -> None:
        """Hints that came during an outage were not heard."""
        self._since = time.time()
        for request in list(self._calls):
            await self._look(request)

    async def _look(self, request: str) -> None:
        """Cancels what the stored facts say is not wanted any more."""
        if request not in self._calls:
            return
        state = _folded((await self._facts.read(request)).messages)
        over = state.cancel is not None or state.finish is not None
        for call in list(self._calls.get(request, ())):
            if over or state.given_up(call.node):
                self._cancel(call, "cancelled")

    def _cancel(self, call: ItemCall, reason: str) -> None:
        call.cancel(reason, STOP_GRACE + self._engine.stats().get("longest_step_s", 0.0))

    async def _stored(self, request: str) -> bool:
        for subject in (finish_subject(request), cancel_subject(request)):
            if await self._facts.last(subject) is not None:
                return True
        return False


def _folded(facts: Iterable[Stored]) -> State:
    state = State()
    for stored in facts:
        with suppress(Malformed, NewerVersion):  # not for this worker to say; what it can read is true all the same
            state.add(decode(FACTS[parse_run(stored.subject).kind], stored.data))
    return state

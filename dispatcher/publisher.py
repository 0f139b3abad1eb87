"""Stores what decide() named: work items with their Msg-Id, ends put-if-absent, all side by side."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from broker.absent import put_if_absent
from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import BrokerError, DeadlineExceeded, Disconnected, NoStream, PayloadTooLarge, RequestEnded
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE, fact_ttl
from broker.subjects import QUEUE_HINT, TRACEPARENT, USAGE
from broker.subjects import end as end_subject
from broker.subjects import finish as finish_subject
from broker.subjects import usage as usage_subject
from broker.work import publish_item
from cornstalk.graph import DISPATCHER, Decision, State
from cornstalk.messages import Accepted, End, Error, Finish, WorkItem, encode
from cornstalk.usage import RequestUsage
from dispatcher.queued import Queued

log = logging.getLogger(__name__)
tracer = trace.get_tracer("cornstalk.dispatcher")

ATTEMPT: Final = 1.0
"""Seconds that one try may take: a queue that is full, missing or silent must not keep a trigger in the credits."""
QUEUE_WAIT: Final = 0.8
"""Seconds of them until a queue that is missing is asked for."""
SIDE_BY_SIDE: Final = 256
"""Publishes under way in this process."""
PUT_GRACE: Final = 10.0
"""Seconds past a request's deadline in which its ends are still stored."""


_propagator = TraceContextTextMapPropagator()


def _context(item: WorkItem) -> Context | None:
    return _propagator.extract({TRACEPARENT: item.trace}) if item.trace else None


class Publisher:
    """Stateless: publishing twice, or from two dispatchers, is harmless."""

    def __init__(self, broker: Broker, facts: Facts, queued: Queued) -> None:
        self._broker, self._facts, self._queued = broker, facts, queued
        self._room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def publish(self, accepted: Accepted, state: State, decisions: Sequence[Decision]) -> list[Decision]:
        """What could not be stored now and should be tried again: its queue is full, missing, or NATS is away.

        `state` may go on meanwhile: an item that nobody wants by the time it is stored leaves its queue again.
        """
        if len(decisions) == 1:
            stored = [await self._try(accepted, state, decisions[0])]
        else:
            stored = await asyncio.gather(*(self._try(accepted, state, d) for d in decisions))
        return [d for d, done in zip(decisions, stored, strict=True) if not done]

    async def _try(self, accepted: Accepted, state: State, decision: Decision) -> bool:
        try:
            async with self._room:
                async with asyncio.timeout(ATTEMPT):
                    await self._store(accepted, state, decision)
        except NoStream:
            await self._ask_for_queue(accepted)
            return time.time() > accepted.deadline
        except DeadlineExceeded:
            return time.time() > accepted.deadline  # then the request ends `expired`
        except (BrokerError, TimeoutError) as error:
            log.info("%s of %s not stored yet: %s", type(decision).__name__, accepted.request, type(error).__name__)
            return False
        crash_at("dispatcher.half")
        return True

    async def _store(self, accepted: Accepted, state: State, decision: Decision) -> None:
        match decision:
            case WorkItem():
                with tracer.start_as_current_span("dispatch", context=_context(decision)):
                    await self._store_item(accepted, state, decision)
            case End():
                await self._store_end(accepted, decision)
            case Finish():
                await self.finish(accepted.request, decision, accepted.deadline)

    async def _store_item(self, accepted: Accepted, state: State, item: WorkItem) -> None:
        try:
            seq = await publish_item(self._broker, item, within=QUEUE_WAIT)
            self._queued.note(item.request, item.node, item.gen, item.component, seq)
            if state.finish is not None or state.given_up(item.node):  # who handled that did not know of this item
                self._queued.remove(item.request, {item.node})
        except PayloadTooLarge as error:
            cause = Error(code="item_too_large", message=str(error), component=item.component, node=item.node)
            end = End(node=item.node, gen=item.gen, attempt=DISPATCHER, outcome="failed", error=cause)
            await self._store_end(accepted, end)

    async def _ask_for_queue(self, accepted: Accepted) -> None:
        """The app was removed, or replaced, while the request was on its way in; or somebody has deleted the queue."""
        with suppress(Disconnected):  # whoever tries again asks again
            await self._broker.publish_core(QUEUE_HINT, f"{accepted.app}.{accepted.app_version}".encode())

    async def _store_end(self, accepted: Accepted, end: End) -> None:
        try:
            await self._facts.put(
                end_subject(accepted.request, end.node, end.gen),
                encode(end),
                deadline=accepted.deadline + PUT_GRACE,
                unless=finish_subject(accepted.request),
                ttl=fact_ttl(accepted.deadline),
                patient=False,
            )
        except RequestEnded:
            pass  # nobody needs the node any more

    async def usage(self, record: RequestUsage) -> None:
        """Stores what a request used, if nobody has. Raises BrokerError: then its trigger comes again."""
        await put_if_absent(
            self._broker,
            USAGE,
            usage_subject(record.app, record.request),
            encode(record),
            deadline=time.time() + ATTEMPT,
        )

    async def finish(self, request: str, finish: Finish, deadline: float) -> None:
        """Ends a request, if nobody has. `deadline` is the request's. Raises BrokerError."""
        end_by = max(deadline, time.time()) + PUT_GRACE
        await self._facts.put(finish_subject(request), encode(finish), deadline=end_by, ttl=FACT_GRACE, patient=False)

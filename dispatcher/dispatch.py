"""The dispatcher's loop: a stored fact comes in, what it makes ready goes out, then it is acked."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import Disconnected
from broker.facts import Facts
from broker.pull import Delivery, PullLoop
from broker.subjects import DISPATCH, RUNS, cancel_hint, parse_run
from cornstalk.graph import State, decide, releasable, unwanted
from cornstalk.messages import FACTS, Accepted, Fact, Finish, Malformed, NewerVersion, decode
from cornstalk.usage import usage_of
from dispatcher.deadletter import DeadLetters
from dispatcher.deadlines import Deadlines
from dispatcher.held import Held
from dispatcher.publisher import Publisher
from dispatcher.purge import Purger
from dispatcher.queued import Queued
from dispatcher.releases import Releases
from dispatcher.state import StateCache

log = logging.getLogger(__name__)

CREDITS: Final = 256
NEWER: Final = 5.0
"""Seconds until a fact of a newer release is offered again, to a dispatcher that may be newer as well."""


class Dispatcher:
    """Holds no authority: whatever it forgets in a crash is read again, and what it did not ack is redelivered.

    Any number may run at once; each decision is the same whoever takes it, and storing it twice is harmless.
    """

    def __init__(
        self,
        broker: Broker,
        facts: Facts,
        publisher: Publisher,
        deadlines: Deadlines,
        purger: Purger,
        releases: Releases,
        queued: Queued,
    ) -> None:
        self._broker, self._publisher = broker, publisher
        self._deadlines, self._purger, self._releases, self._queued = deadlines, purger, releases, queued
        self._cache = StateCache(facts)
        self._held = Held(publisher)
        self._dead_letters = DeadLetters(broker, publisher)
        self.pulls = PullLoop(broker, RUNS, DISPATCH, self.handle, credits=CREDITS)

    async def handle(self, delivery: Delivery) -> None:
        """One delivery. The cache follows the deliveries as they arrive: before the first await."""
        try:
            key = parse_run(delivery.subject)
            fact: Fact = decode(FACTS[key.kind], delivery.data)
        except NewerVersion as error:
            log.warning("handed back: %s", error)
            self._cache.skip(key.request, delivery)
            return await delivery.nak(NEWER)
        except (Malformed, ValueError) as error:
            self._cache.skip("", delivery)
            return await self._dead_letters.bury(delivery, error)
        self._cache.fold(key.request, fact, delivery)
        crash_at("dispatcher.received")
        state = await self._cache.whole(key.request, delivery)
        crash_at("dispatcher.read")
        decisions = decide(state, fact)
        crash_at("dispatcher.decided")
        if decisions and state.accepted is not None:
            rest = await self._publisher.publish(state.accepted, state, decisions)
            crash_at("dispatcher.published")
            if rest:
                await self._held.keep(delivery, state.accepted, state, rest)
                return await self._after(key.request, state, fact)
        if isinstance(fact, Finish) and state.accepted is not None:
            await self._publisher.usage(usage_of(state))
            crash_at("dispatcher.counted")
        await delivery.ack()
        crash_at("dispatcher.acked")
        await self._after(key.request, state, fact)

    async def _after(self, request: str, state: State, fact: Fact) -> None:
        """What need not be done before the ack: hints, and timers that are rebuilt from the log."""
        self._releases.add(request, state, releasable(state, fact))
        if isinstance(fact, Accepted) and state.finish is None:
            self._deadlines.add(request, fact.deadline)
        elif state.finish is not None:
            self._deadlines.drop(request)
            self._purger.add(request, state.accepted)  # again for a fact that came after the purge
        if gone := unwanted(state, fact):
            self._queued.remove(request, gone)
            with suppress(Disconnected):  # then work that nobody needs goes on to its end
                await self._broker.publish_core(cancel_hint(request))
        if isinstance(fact, Finish):
            self._queued.forget(request)
            self._cache.finished(request)

    async def close(self, timeout: float) -> None:
        """Stops pulling and ends what is under way; the rest is redelivered."""
        await self.pulls.stop()
        await self.pulls.join(timeout)
        await self._held.close()
        await self._queued.close()

"""The worker loop: one for all kinds of components (design section 6).

    pull -> last will -> slot -> attempt -> End -> ack

The ack is the last line of the main path. A crash before it means that the item is delivered again: by the sidecar's
-NAK within milliseconds, or by ack_wait. What an attempt stored before (chunks, First, End) is found by the next one.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from broker.connection import Broker, Subscription
from broker.crash import crash_at
from broker.errors import BrokerError, DeadlineExceeded, RequestEnded, Superseded
from broker.facts import Facts
from broker.lifetimes import fact_ttl
from broker.pull import Delivery, PullLoop
from broker.subjects import LANES, finish, work_stream, worker_died
from broker.subjects import end as end_subject
from components.attempt import Attempt, HandBack, Parts
from components.cancels import Cancels
from components.engine import Engine
from components.keeper import Keeper
from components.slots import Draining, Slots
from components.stalls import Stalls
from components.streams import Stalled
from components.suspects import Suspects
from cornstalk.messages import End, Lane, Malformed, NewerVersion, WorkItem, decode, encode
from cornstalk.task import UnitTask
from sidecar.client import SidecarClient
from sidecar.errors import SidecarDown
from sidecar.messages import Owner

log = logging.getLogger(__name__)

LIFE: Final = "life"
"""The last will of a worker for itself: another one looks for items that were on their way to it."""
STALLED_DELAY: Final = 1.0
"""Seconds before a reader that gave up its slot is delivered again."""
SIDECAR_WAIT: Final = 5.0
"""Seconds that an item waits for a sidecar that is away, most often to be started again, before it is handed back."""
SIDECAR_DELAY: Final = 1.0
"""Seconds before it is delivered again then, maybe to a worker of another host."""
BROKER_DELAY: Final = 1.0
"""Seconds before an item is delivered again around whose attempt NATS could not be used."""
NEWER_DELAY: Final = 5.0
"""Seconds before an item written by a newer release is offered again, to a worker that can read it."""


@dataclass(frozen=True)
class Identity:
    """Who this worker is, as End and heartbeat say it."""

    component: str
    worker: str


class Worker:
    """Competes for the items of one component. Holds no state that a crash could lose."""

    def __init__(
        self,
        me: Identity,
        task: UnitTask,
        engine: Engine,
        broker: Broker,
        sidecar: SidecarClient,
        ack_wait: float = 15.0,
    ) -> None:
        self.me, self.engine, self.broker, self.sidecar = me, engine, broker, sidecar
        self.facts = Facts(broker)
        self.slots = Slots(engine.slots)
        self.keeper = Keeper(every=ack_wait / 3)
        self.cancels = Cancels(broker, self.facts, engine)
        self.suspects = Suspects(broker, self.facts)
        self.pulls: dict[Lane, PullLoop] = {
            lane: PullLoop(broker, work_stream(me.component), lane, self.handle, credits=self._credits(lane))
            for lane in LANES
        }
        self.stalls = Stalls(self.slots, self.pulls)
        self._siblings: Subscription | None = None
        self._parts = Parts(
            me.worker, task, engine, broker, self.facts, sidecar, self.cancels, self.suspects, self.stalls
        )

    def _credits(self, lane: Lane) -> int:
        return self.engine.slots if lane == "interactive" else max(1, self.engine.slots - 1)

    async def start(self) -> None:
        await self.cancels.start()
        died = worker_died(self.me.component)
        self._siblings = await self.broker.subscribe_core(died, self._sibling_died)
        await self.sidecar.will(LIFE, died)
        for pull in self.pulls.values():
            await pull.start()

    async def drain(self, within: float) -> None:
        """Stops pulling, hands back what has not started and lets running items end.

        What is left after `within` seconds is handed back by the will.
        """
        for pull in self.pulls.values():
            await pull.stop()
        self.slots.close()
        await self.stalls.close()
        for pull in self.pulls.values():
            await pull.join(within)
        await self.sidecar.will_done(LIFE)
        if self._siblings is not None:
            await self._siblings.close()
        await self.cancels.close()
        await self.keeper.close()

    async def _sibling_died(self, _: object) -> None:
        for pull in self.pulls.values():
            pull.orphans.look()

    @property
    def running(self) -> int:
        return sum(self.slots.running.values())

    async def handle(self, delivery: Delivery) -> None:
        """One delivery, to its ack, nak or termination. A bad item harms no other."""
        claimed = time.time()
        crash_at("worker.claimed")
        try:
            item = decode(WorkItem, delivery.data)
        except NewerVersion as error:
            log.warning("handed back: %s", error)
            await delivery.nak(NEWER_DELAY)
            return
        except Malformed as error:
            log.error("terminated: %s", error)
            await delivery.term("malformed")
            return
        will = f"{item.request}:{item.node}:{item.gen}"
        async with self.keeper.hold(delivery):
            await self.sidecar.will(will, delivery.reply)
            crash_at("worker.willed")
            try:
                await self._in_slot(item, delivery, claimed)
            except HandBack as back:
                crash_at("worker.returning")
                await delivery.nak(back.delay)
            except Superseded:
                log.info("another attempt went on with %s", will)
            except (DeadlineExceeded, RequestEnded):
                await delivery.ack()
            except BrokerError as error:
                log.warning("handed back: %s around %s", type(error).__name__, will)
                await delivery.nak(BROKER_DELAY)
            finally:
                await self.sidecar.will_done(will)

    async def _in_slot(self, item: WorkItem, delivery: Delivery, claimed: float) -> None:
        """Who gave the slot back takes one again: a reader when its stream goes on, others when the sidecar is back."""
        fresh = delivery.delivered == 1
        while True:
            try:
                async with self.slots.take(item.lane):
                    crash_at("worker.taken")
                    return await self.process(item, delivery, claimed, fresh)
            except Draining as error:
                raise HandBack(0.0) from error
            except Stalled as stalled:
                log.info("parked: %s:%s reads a stream that does not go on", item.request, item.node)
                if not await self.stalls.park(
                    item, stalled.stream, lambda: self.cancels.ended(item.request, delivery.time)
                ):
                    raise HandBack(STALLED_DELAY) from stalled
            except SidecarDown as error:
                log.info("waiting: %s:%s needs the sidecar", item.request, item.node)
                if not await self.sidecar.wait_connected(SIDECAR_WAIT):
                    raise HandBack(SIDECAR_DELAY) from error
                crash_at("worker.rejoined")
            fresh = False

    async def process(self, item: WorkItem, delivery: Delivery, claimed: float, fresh: bool) -> None:
        """(redelivered? look, suspect) -> attempt -> End -> ack."""
        attempt = Attempt(self._parts, item, delivery, claimed, fresh)
        if delivery.delivered == 1:
            cancelled = await self.cancels.ended(item.request, delivery.time)
            end = attempt.end("cancelled") if cancelled else await attempt.run()
        elif await self.suspects.is_over(item):
            await delivery.ack()
            return
        else:
            async with self.suspects.alone(item, attempt.id) as innocent:
                crash_at("worker.marked")
                end = await (attempt.run() if innocent else attempt.condemned())
        crash_at("worker.ended")
        await self.store(item, end)
        await delivery.ack()  # last: a crash before it redelivers an item that has its End, which is looked at first
        crash_at("worker.acked")

    async def store(self, item: WorkItem, end: End) -> None:
        """Puts the End if absent. Who lost the fence drops only its own blocks."""
        owner = Owner(item.request, item.node, item.gen, end.attempt)
        try:
            put = await self.facts.put(
                end_subject(item.request, item.node, item.gen),
                encode(end),
                deadline=item.deadline + 5.0,
                mine=lambda stored: decode(End, stored).attempt == end.attempt,
                unless=finish(item.request),
                ttl=fact_ttl(item.deadline),
            )
        except RequestEnded:
            await self.sidecar.drop(owner)  # its release may have been before these blocks were committed
            raise
        crash_at("worker.stored")
        if not put.won:
            await self.sidecar.drop(owner)

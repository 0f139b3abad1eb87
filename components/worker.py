"""The worker loop: one for all kinds of components (design section 6).

    pull -> last will -> lease inputs -> run -> commit outputs -> End -> give leases back -> ack

The ack is the last line of the main path. A crash before it means that the item is delivered again: by the sidecar's
-NAK within milliseconds, or by ack_wait. What an attempt stored before (chunks, First, End) is found by the next one.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from opentelemetry import trace

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import BrokerError, DeadlineExceeded, PayloadTooLarge, RequestEnded, Superseded
from broker.facts import Facts
from broker.lifetimes import fact_ttl
from broker.pull import Delivery, PullLoop
from broker.subjects import LANES, finish, work_stream
from broker.subjects import end as end_subject
from components.call import ItemCall
from components.cancels import Cancels
from components.engine import Cancelled, Engine
from components.inputs import Inputs, InputsLost
from components.keeper import Keeper
from components.outputs import Outputs
from components.slots import Draining, Slots
from components.stalls import Stalls
from components.streams import ProducerLost, Stalled, reads_streams
from components.suspects import Suspects
from cornstalk.errors import CornstalkError, EngineError
from cornstalk.messages import (
    End,
    Error,
    Lane,
    Malformed,
    NewerVersion,
    Outcome,
    Times,
    Usage,
    WorkItem,
    decode,
    encode,
)
from cornstalk.task import UnitTask
from cornstalk.traces import where
from sidecar.client import SidecarClient
from sidecar.errors import Full, SidecarDown, SidecarError, Timeout, TooBig
from sidecar.messages import Owner

log = logging.getLogger(__name__)
tracer = trace.get_tracer("cornstalk.worker")

RETRY_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before an item whose error may pass is delivered again; the last one repeats until the deadline."""
TRANSIENT_TRIES: Final = 6
"""Deliveries after which an engine's passing error is taken for a lasting one."""
STALLED_DELAY: Final = 1.0
"""Seconds before a reader that gave up its slot is delivered again."""
NEWER_DELAY: Final = 5.0
"""Seconds before an item written by a newer release is offered again, to a worker that can read it."""


class HandBack(Exception):
    """Raised when this attempt ends without an outcome and another one should follow after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"handed back for {delay} s")
        self.delay = delay


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
        self.me, self.task, self.engine, self.broker, self.sidecar = me, task, engine, broker, sidecar
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

    def _credits(self, lane: Lane) -> int:
        return self.engine.slots if lane == "interactive" else max(1, self.engine.slots - 1)

    async def start(self) -> None:
        await self.facts.start()
        await self.cancels.start()
        for pull in self.pulls.values():
            await pull.start()

    async def drain(self, within: float) -> None:
        """Stops pulling, hands back what has not started and lets running items end.

        What is left after `within` seconds is handed back by the will.
        """
        self.slots.close()
        await self.stalls.close()
        for pull in self.pulls.values():
            await pull.stop()
        for pull in self.pulls.values():
            await pull.join(within)
        await self.cancels.close()
        await self.keeper.close()
        await self.facts.close()

    @property
    def running(self) -> int:
        return sum(self.slots.running.values())

    async def handle(self, delivery: Delivery) -> None:
        """One delivery, to its ack, nak or termination. Raises nothing: a bad item harms no other."""
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
            finally:
                await self.sidecar.will_done(will)

    async def _in_slot(self, item: WorkItem, delivery: Delivery, claimed: float) -> None:
        """A reader that gave its slot up for another item takes one again when its stream goes on."""
        while True:
            try:
                async with self.slots.take(item.lane):
                    crash_at("worker.taken")
                    return await self.process(item, delivery, claimed)
            except Draining as error:
                raise HandBack(0.0) from error
            except Stalled as stalled:
                log.info("parked: %s:%s reads a stream that does not go on", item.request, item.node)
                if not await self.stalls.park(
                    item, stalled.stream, lambda: self.cancels.ended(item.request, delivery.time)
                ):
                    raise HandBack(STALLED_DELAY) from stalled

    async def process(self, item: WorkItem, delivery: Delivery, claimed: float) -> None:
        """pull -> (redelivered? look, suspect) -> attempt -> End -> ack."""
        attempt = secrets.token_hex(8)
        if delivery.delivered == 1:
            if await self.cancels.ended(item.request, delivery.time):
                end = self._end(item, attempt, "cancelled")
            else:
                end = await self.attempt(item, attempt, delivery, claimed)
        elif await self.suspects.is_over(item):
            crash_at("worker.looked")
            await delivery.ack()
            return
        else:
            async with self.suspects.alone(item, attempt) as innocent:
                crash_at("worker.marked")
                if innocent:
                    end = await self.attempt(item, attempt, delivery, claimed)
                else:
                    end = await self._condemn(item, attempt, delivery)
        crash_at("worker.ended")
        await self.store(item, end)
        await delivery.ack()  # last: a crash before it redelivers an item that has its End, which is looked at first
        crash_at("worker.acked")

    async def attempt(self, item: WorkItem, attempt: str, delivery: Delivery, claimed: float) -> End:
        """Runs the item once and says how it ended. Raises HandBack, Superseded, RequestEnded, DeadlineExceeded."""
        times: dict[str, float] = {"published": delivery.time, "claimed": claimed}
        end = await self._tried(item, attempt, delivery, times)
        if end.outcome == "done":
            return end
        return msgspec.structs.replace(end, times=Times(**times, ended=time.time()))

    async def _tried(self, item: WorkItem, attempt: str, delivery: Delivery, times: dict[str, float]) -> End:
        outputs = Outputs(self.broker, self.facts, self.sidecar, self.task, item, attempt)
        crash_at("worker.starting")
        if times["claimed"] >= item.deadline:
            return self._end(item, attempt, "expired")
        try:
            with tracer.start_as_current_span("run", attributes={"node": item.node, "component": item.component}):
                return await self._run(item, attempt, outputs, delivery, times)
        except InputsLost as lost:
            return self._end(item, attempt, "lost", vanished=lost.vanished)
        except ProducerLost as lost:
            return self._end(item, attempt, "lost", vanished=((lost.node, lost.gen),))
        except Cancelled as gone:
            return self._end(item, attempt, "expired" if gone.reason == "expired" else "cancelled")
        except TooBig as error:
            return await self._failed(item, attempt, Error(code="too_big", message=str(error)), delivery)
        except (Full, SidecarDown, Timeout) as error:
            raise self._again(delivery, error) from error
        except EngineError as error:
            if error.transient and delivery.delivered < TRANSIENT_TRIES:
                raise self._again(delivery, error) from error
            return await self._failed(item, attempt, error.to_message(), delivery)
        except (CornstalkError, SidecarError) as error:
            return await self._failed(item, attempt, Error(code="task_failed", message=str(error)), delivery)
        except (Superseded, DeadlineExceeded, RequestEnded, Stalled):
            raise
        except PayloadTooLarge as error:
            return await self._failed(item, attempt, Error(code="too_large", message=str(error)), delivery)
        except BrokerError as error:
            raise self._again(delivery, error) from error
        except Exception as error:  # an engine's bug must not end its neighbours: it becomes this item's failure
            log.error("the engine of %s raised on %s:%s: %s", item.component, item.request, item.node, where(error))
            message = f"{type(error).__name__} in the engine of {item.component}; see the log of {self.me.worker}"
            return await self._failed(item, attempt, Error(code="engine_raised", message=message), delivery)
        finally:
            await outputs.close()

    async def _run(
        self, item: WorkItem, attempt: str, outputs: Outputs, delivery: Delivery, times: dict[str, float]
    ) -> End:
        async with Inputs(self.broker, self.facts, self.sidecar, self.stalls, self.task, item) as inputs:
            crash_at("worker.leased")
            await outputs.open(first=delivery.delivered == 1 and not reads_streams(item))
            crash_at("worker.opened")
            call = ItemCall(item, attempt, inputs, outputs)
            async with self.cancels.watch(call):
                times["started"] = time.time()
                values = await call.run(self.engine)
            crash_at("worker.ran")
            committed = await outputs.commit(values)
            crash_at("worker.committed")
        ended = time.time()
        usage = Usage(
            run_s=round(ended - times["started"], 6),
            tokens_in=call.tokens_in,
            tokens_out=call.tokens_out,
            tensor_bytes=outputs.tensor_bytes,
        )
        all_times = Times(**times, first=outputs.first_at, ended=ended)
        return self._end(item, attempt, "done", outputs=committed, usage=usage, times=all_times)

    async def store(self, item: WorkItem, end: End) -> None:
        """Puts the End if absent. Who lost the fence drops only its own blocks."""
        put = await self.facts.put(
            end_subject(item.request, item.node, item.gen),
            encode(end),
            deadline=item.deadline + 5.0,
            mine=lambda stored: decode(End, stored).attempt == end.attempt,
            unless=finish(item.request),
            ttl=fact_ttl(item.deadline),
        )
        crash_at("worker.stored")
        if not put.won:
            await self.sidecar.drop(Owner(item.request, item.node, item.gen, end.attempt))

    async def _failed(self, item: WorkItem, attempt: str, error: Error, delivery: Delivery) -> End:
        error = self._placed(error, item, attempt)
        await self.suspects.bury(item, "failed", error, delivery)
        return self._end(item, attempt, "failed", error=error)

    async def _condemn(self, item: WorkItem, attempt: str, delivery: Delivery) -> End:
        error = Error(code="poison", message="its worker died each time it was started", retryable=False)
        error = self._placed(error, item, attempt)
        await self.suspects.bury(item, "poison", error, delivery)
        return self._end(item, attempt, "failed", error=error)

    def _end(self, item: WorkItem, attempt: str, outcome: Outcome, error: Error | None = None, **rest: Any) -> End:
        return End(
            node=item.node, gen=item.gen, attempt=attempt, outcome=outcome, error=error, worker=self.me.worker, **rest
        )

    def _placed(self, error: Error, item: WorkItem, attempt: str) -> Error:
        return msgspec.structs.replace(error, component=item.component, node=item.node, attempt=attempt)

    def _again(self, delivery: Delivery, error: Exception) -> HandBack:
        log.info("handed back: %s", type(error).__name__)
        return HandBack(RETRY_DELAYS[min(delivery.delivered, len(RETRY_DELAYS)) - 1])

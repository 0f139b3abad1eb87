"""One attempt at one item, and how it ended.

found what equal inputs gave? -> lease inputs -> run -> commit outputs -> give leases back
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
from broker.pull import Delivery
from components.call import ItemCall
from components.cancels import Cancels
from components.engine import Cancelled, Engine
from components.inputs import Inputs, InputsLost
from components.outputs import Outputs
from components.recall import Recall, values_of
from components.stalls import Stalls
from components.streams import ProducerLost, Stalled
from components.suspects import Suspects
from cornstalk.errors import CornstalkError, EngineError
from cornstalk.messages import End, Error, Outcome, Times, Usage, WorkItem
from cornstalk.task import UnitTask
from cornstalk.traces import where
from sidecar.client import Remembered, SidecarClient
from sidecar.errors import Full, SidecarDown, SidecarError, Timeout, TooBig

log = logging.getLogger(__name__)
tracer = trace.get_tracer("cornstalk.worker")

RETRY_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before an item whose error may pass is delivered again; the last one repeats until the deadline."""
TRANSIENT_TRIES: Final = 6
"""Deliveries after which an engine's passing error is taken for a lasting one."""


class HandBack(Exception):
    """Raised when this attempt ends without an outcome and another one should follow after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"handed back for {delay} s")
        self.delay = delay


@dataclass(frozen=True)
class Parts:
    """What all attempts of one worker share."""

    worker: str
    """Its name, as End says it."""
    task: UnitTask
    engine: Engine
    broker: Broker
    facts: Facts
    sidecar: SidecarClient
    cancels: Cancels
    suspects: Suspects
    stalls: Stalls


class Attempt:
    """A start of an item, under a random id of its own. Dies with its worker: what it stored until then (chunks, First,
    a dead letter) is found by the next one, and the tensors that it committed go with the request.
    """

    def __init__(self, parts: Parts, item: WorkItem, delivery: Delivery, claimed: float, fresh: bool) -> None:
        """`claimed`: when the worker got the delivery, Unix seconds; `fresh`: no attempt at the item was before."""
        self.id = secrets.token_hex(8)
        self._parts, self._item, self._delivery, self._fresh = parts, item, delivery, fresh
        self._times: dict[str, float] = {"published": delivery.time, "claimed": claimed}

    async def run(self) -> End:
        """The End to store. Raises HandBack, Stalled, SidecarDown, Superseded, RequestEnded, DeadlineExceeded."""
        end = await self._tried()
        if end.outcome == "done":
            return end
        return msgspec.structs.replace(end, times=Times(**self._times, ended=time.time()))

    async def condemned(self) -> End:
        """The End of an item whose starts all killed their worker: this one does not start."""
        return await self._failed(Error(code="poison", message="its worker died each time it was started"), "poison")

    def end(self, outcome: Outcome, **fields: Any) -> End:
        """The End of this attempt."""
        item = self._item
        return End(node=item.node, gen=item.gen, attempt=self.id, outcome=outcome, worker=self._parts.worker, **fields)

    async def _tried(self) -> End:
        """What each error means: `lost`, `cancelled`, `expired`, `failed`, or another attempt."""
        parts, item = self._parts, self._item
        outputs = Outputs(parts.broker, parts.facts, parts.sidecar, parts.task, item, self.id)
        crash_at("worker.starting")
        if self._times["claimed"] >= item.deadline:
            return self.end("expired")
        try:
            with tracer.start_as_current_span("run", attributes={"node": item.node, "component": item.component}):
                return await self._run(outputs)
        except InputsLost as lost:
            return self.end("lost", vanished=lost.vanished)
        except ProducerLost as lost:
            return self.end("lost", vanished=((lost.node, lost.gen),))
        except Cancelled as gone:
            return self.end("expired" if gone.reason == "expired" else "cancelled")
        except TooBig as error:
            return await self._failed(Error(code="too_big", message=str(error)))
        except (Full, Timeout) as error:
            raise self._again(error) from error
        except EngineError as error:
            if error.transient and self._delivery.delivered < TRANSIENT_TRIES:
                raise self._again(error) from error
            return await self._failed(error.to_message())
        except (Superseded, DeadlineExceeded, RequestEnded, Stalled, SidecarDown):
            raise
        except (CornstalkError, SidecarError) as error:
            return await self._failed(Error(code="task_failed", message=str(error)))
        except PayloadTooLarge as error:
            return await self._failed(Error(code="too_large", message=str(error)))
        except BrokerError as error:
            raise self._again(error) from error
        except Exception as error:  # an engine's bug must not end its neighbours: it becomes this item's failure
            log.error("the engine of %s raised on %s:%s: %s", item.component, item.request, item.node, where(error))
            message = f"{type(error).__name__} in the engine of {item.component}; see the log of {parts.worker}"
            return await self._failed(Error(code="engine_raised", message=message))
        finally:
            await outputs.close()

    async def _run(self, outputs: Outputs) -> End:
        parts, item = self._parts, self._item
        async with Recall(parts.sidecar, parts.task, parts.engine, item, outputs.owner) as recall:
            found = await self._find(recall, outputs) if recall.key else None
            if found is not None:
                return await self._repeated(found, outputs)
            return await self._computed(recall, outputs)

    async def _find(self, recall: Recall, outputs: Outputs) -> Remembered | None:
        call = ItemCall(self._item, self.id, {}, outputs)
        async with self._parts.cancels.watch(call):
            found = await call.run(recall.find)
        crash_at("worker.recalled")
        return found

    async def _repeated(self, found: Remembered, outputs: Outputs) -> End:
        self._times["started"] = time.time()
        outputs.adopt(found.refs)  # first: whatever is raised from here on gives them back
        await outputs.open(first=self._fresh)
        committed = await outputs.commit(values_of(found))
        usage = Usage(cached=True, tensor_bytes=outputs.tensor_bytes)
        return self.end("done", outputs=committed, usage=usage, times=Times(**self._times, ended=time.time()))

    async def _computed(self, recall: Recall, outputs: Outputs) -> End:
        parts, item = self._parts, self._item
        async with Inputs(parts.broker, parts.facts, parts.sidecar, parts.stalls, parts.task, item) as inputs:
            crash_at("worker.leased")
            await outputs.open(first=self._fresh)
            crash_at("worker.opened")
            call = ItemCall(item, self.id, inputs, outputs)
            async with parts.cancels.watch(call):
                self._times["started"] = time.time()
                values = await call.run(parts.engine.run)
            crash_at("worker.ran")
            committed = await outputs.commit(values)
            crash_at("worker.committed")
            await recall.remember(values, outputs.tensors)
        ended = time.time()
        usage = Usage(
            run_s=round(ended - self._times["started"], 6),
            tokens_in=call.tokens_in,
            tokens_out=call.tokens_out,
            tensor_bytes=outputs.tensor_bytes,
        )
        times = Times(**self._times, first=outputs.first_at, ended=ended)
        return self.end("done", outputs=committed, usage=usage, times=times)

    async def _failed(self, error: Error, reason: str = "failed") -> End:
        """The dead letter first: who reads of the failure finds it."""
        item = self._item
        error = msgspec.structs.replace(error, component=item.component, node=item.node, attempt=self.id)
        await self._parts.suspects.bury(item, reason, error, self._delivery)
        return self.end("failed", error=error)

    def _again(self, error: Exception) -> HandBack:
        log.info("handed back: %s", type(error).__name__)
        return HandBack(RETRY_DELAYS[min(self._delivery.delivered, len(RETRY_DELAYS)) - 1])

"""Workers in the process of the test, over a real nats-server and a real sidecar; what an engine does is the test's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from broker import topology
from broker.connection import Broker
from broker.facts import Facts
from broker.server import Server
from broker.subjects import end, work_stream
from components.engine import Call
from components.worker import Identity, Worker
from cornstalk.messages import End, WorkItem, decode
from cornstalk.task import UnitTask
from sidecar.client import SidecarClient
from tests.sidecar.conftest import Sidecar
from tests.waiting import eventually

Act = Callable[[Call], Awaitable[dict[str, Any]]]


class Acting:
    """An engine that does what it is told."""

    def __init__(self, act: Act, slots: int) -> None:
        self._act, self.slots = act, slots

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    def stats(self) -> dict[str, float]:
        return {}

    async def run(self, call: Call) -> dict[str, Any]:
        return await self._act(call)


class Workshop:
    """One component, its queue, and any number of workers."""

    def __init__(self, server: Server, broker: Broker, sidecar: Sidecar, task: UnitTask) -> None:
        self.broker, self.facts, self.task = broker, Facts(broker), task
        self._server, self._sidecar = server, sidecar
        self._workers: list[Worker] = []

    async def queue(self, ack_wait: float = 15.0) -> None:
        await topology.ensure_component(self.broker, self.task.component, ack_wait=ack_wait)

    async def worker(self, act: Act, *, slots: int = 4, ack_wait: float = 15.0) -> Worker:
        """Started; `ack_wait`: what it takes for the queue's."""
        number = len(self._workers)
        broker = await Broker.connect(self._server.url, name=f"w{number}", token=self._server.token)
        sidecar = await SidecarClient.connect(self._sidecar.path, name=f"w{number}", quota=4 << 20)
        me = Identity(self.task.component, f"w{number}")
        worker = Worker(me, self.task, Acting(act, slots), broker, sidecar, ack_wait)
        self._workers.append(worker)
        await worker.start()
        return worker

    def item(self, request: str = "", **inputs: Any) -> WorkItem:
        return WorkItem(
            request=request or secrets.token_hex(16),
            node="n",
            gen=0,
            component=self.task.component,
            lane="interactive",
            tenant="t",
            deadline=time.time() + 60,
            inputs=inputs,
            outputs={name: port.kind for name, port in type(self.task).outputs.items()},
        )

    async def end(self, item: WorkItem) -> End:
        """The stored End, once there is one."""
        stored = await eventually(lambda: self.facts.last(end(item.request, item.node, item.gen)), within=15)
        assert stored is not None
        return decode(End, stored.data)

    async def deliveries(self) -> tuple[int, int]:
        """How many there were, and how many items are delivered and not answered."""
        info = await self.broker.api(f"CONSUMER.INFO.{work_stream(self.task.component)}.interactive")
        return info["delivered"]["consumer_seq"], info["num_ack_pending"]

    async def close(self) -> None:
        for worker in self._workers:
            await worker.drain(1.0)
            await worker.sidecar.close()
            await worker.broker.close()

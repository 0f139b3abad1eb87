"""What the tests of the dispatcher need: processes, requests, and a worker that answers with what it read."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from typing import Any

import msgspec

from broker import topology
from broker.connection import Broker
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE
from broker.pull import Delivery, PullLoop
from broker.reads import stored_at
from broker.server import Server
from broker.subjects import accepted, cancel, end, finish, first, graph, parse_run, work_stream
from cornstalk.graph import State, fold
from cornstalk.messages import (
    FACTS,
    Accepted,
    Cancel,
    Edge,
    End,
    Finish,
    First,
    Graph,
    Kind,
    Message,
    Node,
    Ref,
    WorkItem,
    decode,
    encode,
)
from tests.waiting import eventually

VALUE: dict[str, Kind] = {"v": "value"}


def node(token: str, *edges: Edge, component: str = "c", outputs: dict[str, Kind] = VALUE) -> Node:
    return Node(id=token, token=token, component=component, inputs={"in": list(edges)}, outputs=outputs)


def value_of(token: str) -> Edge:
    return Edge(token, "v", False)


def text(token: str, inputs: list[Any]) -> str:
    return f"{token}({','.join(map(str, inputs))})"


class Process:
    """One service process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    async def gone(self, within: float = 10.0) -> int:
        return await asyncio.wait_for(self.process.wait(), within)


class Bench:
    def __init__(self, server: Server, broker: Broker) -> None:
        self.server, self.broker, self.facts = server, broker, Facts(broker)
        self._processes: list[Process] = []
        self._workers: list[PullLoop] = []
        self.ran: list[tuple[str, str, int]] = []

    async def start(self, *arguments: str, module: str = "dispatcher", crash_at: str = "") -> Process:
        environment = os.environ | {
            "CORNSTALK_NATS_URL": self.server.url,
            "CORNSTALK_NATS_TOKEN_FILE": str(self.server.token_file),
            "CORNSTALK_LOG": "WARNING",
            "CRASH_AT": crash_at,
        }
        command = [sys.executable, "-m", module, *arguments]
        process = Process(await asyncio.create_subprocess_exec(*command, env=environment))
        self._processes.append(process)
        return process

    async def two_dispatchers(self, *arguments: str, crash_at: str = "") -> tuple[Process, Process]:
        """(active, standby); the active one crashes where it is told."""
        active = await self.start(*arguments, crash_at=crash_at)
        await self.pulled()
        return active, await self.start(*arguments)

    async def pulled(self) -> None:
        """Some dispatcher is pulling."""

        async def waiting() -> bool:
            return bool((await self.broker.api("CONSUMER.INFO.RUNS.dispatch"))["num_waiting"])

        await eventually(waiting, within=10.0)

    async def close(self) -> None:
        for worker in self._workers:
            await worker.stop()
        for process in self._processes:
            if process.code is None:
                process.kill()
                await process.gone()

    async def component(self, name: str = "c", **limits: int) -> None:
        await topology.ensure_component(self.broker, name, **limits)

    async def worker(self, component: str = "c") -> None:
        """Ends each item `done` with a text that names its inputs; counts its runs."""

        async def handle(delivery: Delivery) -> None:
            item = decode(WorkItem, delivery.data)
            self.ran.append((item.request, item.node, item.gen))
            outputs = {"v": text(item.node, item.inputs["in"])}
            await self.end(item.request, item.node, item.gen, outputs=outputs, deadline=item.deadline)
            await delivery.ack()

        loop = PullLoop(self.broker, work_stream(component), "interactive", handle, credits=8)
        self._workers.append(loop)
        await loop.start()

    async def items(self, component: str = "c") -> list[WorkItem]:
        """All items in a queue, oldest first. Nobody may be pulling them."""
        state = (await self.broker.api(f"STREAM.INFO.{work_stream(component)}"))["state"]
        stored = [
            await stored_at(self.broker, work_stream(component), seq)
            for seq in range(max(1, state["first_seq"]), state["last_seq"] + 1)
        ]
        return [decode(WorkItem, s.data) for s in stored if s is not None]

    async def sent(self, component: str = "c") -> int:
        """How many items were ever stored for a component."""
        count: int = (await self.broker.api(f"STREAM.INFO.{work_stream(component)}"))["state"]["last_seq"]
        return count

    async def until_items(self, *nodes: str, component: str = "c", within: float = 10.0) -> list[WorkItem]:
        async def there() -> list[WorkItem] | None:
            items = await self.items(component)
            return items if sorted(i.node for i in items) == sorted(nodes) else None

        found = await eventually(there, within)
        assert found is not None
        return found

    async def state(self, request: str) -> State:
        """What is stored of a request."""
        messages = (await self.facts.read(request)).messages
        return fold(decode(FACTS[parse_run(m.subject).kind], m.data) for m in messages)

    async def until_finish(self, request: str, within: float = 10.0) -> Finish:
        stored = await eventually(lambda: self.facts.last(finish(request)), within)
        assert stored is not None
        return decode(Finish, stored.data)

    async def accept(self, seconds: float = 60.0, **fields: Any) -> str:
        request = uuid.uuid4().hex
        fact = Accepted(request=request, tenant="t", app="a", app_version="1", deadline=time.time() + seconds, **fields)
        await self.put(accepted(request), fact)
        return request

    async def graph(self, request: str, *nodes: Node, index: int = 0, cuts: tuple[str, ...] = ()) -> None:
        await self.put(graph(request, index), Graph(index=index, nodes=nodes, cuts=cuts))

    async def end(
        self, request: str, token: str, gen: int = 0, *, outputs: dict[str, Any], deadline: float | None = None
    ) -> None:
        fact = End(node=token, gen=gen, attempt=uuid.uuid4().hex, outcome="done", outputs=outputs)
        await self.put(end(request, token, gen), fact)

    async def first(self, request: str, token: str, output: str) -> None:
        await self.put(first(request, token, 0, output), First(node=token, gen=0, attempt="a", output=output))

    async def cancel(self, request: str) -> None:
        await self.put(cancel(request), Cancel(reason="test"))

    async def finish(self, request: str) -> None:
        await self.put(finish(request), Finish(status="done", response=1))

    async def put(self, subject: str, fact: Message | bytes) -> None:
        data = fact if isinstance(fact, bytes) else encode(fact)
        await self.facts.put(subject, data, deadline=time.time() + 10, ttl=FACT_GRACE)

    async def acked(self) -> None:
        """All facts are handled."""

        async def none() -> bool:
            info = await self.broker.api("CONSUMER.INFO.RUNS.dispatch")
            return not info["num_pending"] and not info["num_ack_pending"]

        await eventually(none, within=10.0)


def newer(fact: Message) -> bytes:
    """The fact as a later release might write it."""
    raw: dict[str, Any] = msgspec.msgpack.decode(encode(fact))
    return msgspec.msgpack.encode(raw | {"v": 2})


def a_ref(request: str, token: str, host: str, gen: int = 0) -> Ref:
    return Ref(request, token, gen, "a", "t", 0, host, "e", 0, 0, 64, "uint8", (64,))

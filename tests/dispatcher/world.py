"""Requests as clients, drivers and workers make them, some of them with a fault, over real dispatchers that die.

Each output of a node is a text that names its inputs (tests/cornstalk/graph_world.py), so a wrong input shows. What is
stored is heard as it is republished, so that the log is whole here also when it was purged.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from broker import topology
from broker.connection import Broker
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE
from broker.pull import Delivery, PullLoop
from broker.requests import Message
from broker.subjects import ALL_FACTS, accepted, cancel, end, finish, first, graph, parse_run, seen, work_stream
from broker.work import publish_item
from cornstalk.graph import State, decide
from cornstalk.messages import (
    FACTS,
    Accepted,
    Cancel,
    End,
    Error,
    Fact,
    Finish,
    First,
    Graph,
    Malformed,
    Node,
    Ref,
    StreamRef,
    Usage,
    WorkItem,
    decode,
    encode,
    extensions,
    substitute,
)
from tests.cornstalk.graph_world import text, true_values
from tests.waiting import eventually

WITHIN: Final = 30.0
LOSSES: Final = 3
FULL, LATE, IDLE = "full", "late", "idle"
"""A queue of two items; one that is made late; one without a worker."""
KINDS: Final = ("done", "done", "done", "failed", "cancelled", "malformed", "expired")
Key = tuple[str, int]


class Request:
    """One request and what is stored of it."""

    def __init__(self, kind: str, passes: list[Graph], rnd: random.Random, idle: bool = False) -> None:
        """`idle`: a node of it waits for a worker that never comes. So it does in one that expires."""
        self.id, self.kind, self.rnd = uuid.uuid4().hex, kind, rnd
        components = rnd.choices(["c", FULL, LATE], [6, 1, 1], k=30)
        self.passes = [_placed(p, components) for p in passes]
        if idle or kind == "expired":
            never = Node(id="never", token="never", component=IDLE)
            self.passes[0] = msgspec.structs.replace(self.passes[0], nodes=(*self.passes[0].nodes, never))
        self.true = true_values(passes)
        self.log: list[tuple[int, Fact | None]] = []  # None: it does not decode
        self.state = State()
        self.lost: set[Key] = set()

    @property
    def ended(self) -> bool:
        return self.state.finish is not None

    @property
    def answered(self) -> bool:
        """Its driver has nothing more to wait for."""
        return self.stands and not self.state.open()

    @property
    def stands(self) -> bool:
        """Nothing more will come, but for the node that nobody makes."""
        return len(self.state.graphs) == len(self.passes) and set(self.state.open()) <= {"never"}

    def knows(self, results: int) -> bool:
        """Whether its driver has so many results, or all there will be."""
        return len(self.state.results()) >= results or not self.state.open()

    def __str__(self) -> str:
        facts = [f"{seq} {str(fact)[:200]}" for seq, fact in self.log]
        return "\n  ".join([f"{self.kind} {self.id}, open {self.state.open()}, lost {self.lost}", *facts])

    def hear(self, seq: int, kind: str, data: bytes) -> None:
        try:
            fact: Fact | None = decode(FACTS[kind], data)
        except Malformed:
            fact = None
        self.log.append((seq, fact))
        if fact is not None:
            self.state.add(fact, seq)


def _placed(passed: Graph, components: list[str]) -> Graph:
    nodes = (msgspec.structs.replace(n, component=components[int(n.token[1:] or 0)]) for n in passed.nodes)
    return msgspec.structs.replace(passed, nodes=tuple(nodes))


class World:
    """Survives its dispatchers: one connection, one worker a component, any number of requests."""

    def __init__(self, broker: Broker, requests: list[Request], rnd: random.Random) -> None:
        self.broker, self.facts, self.rnd = broker, Facts(broker), rnd
        self.requests = {r.id: r for r in requests}
        self.delivered: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)  # where an item was stored
        self.strike: Callable[[], None] = lambda: None  # all dispatchers die
        self.unattended = False  # there is no dispatcher
        self.calm = True  # the dispatchers live on
        self._workers: list[PullLoop] = []

    async def open(self) -> None:
        await self.broker.subscribe_core(seen(ALL_FACTS), self._hear)
        await topology.remove_component(self.broker, LATE)
        for component in ("c", IDLE):
            await topology.ensure_component(self.broker, component, ack_wait=1)
        await topology.ensure_component(self.broker, FULL, max_msgs_per_lane=2, ack_wait=1)
        await self.work("c")

    async def close(self) -> None:
        for worker in self._workers:
            await worker.stop()
            await worker.join(5)

    async def run(self) -> None:
        """All requests side by side, until each has ended."""
        async with asyncio.TaskGroup() as side_by_side:
            side_by_side.create_task(self._opened_late())
            for request in self.requests.values():
                await asyncio.sleep(self.rnd.expovariate(20))
                side_by_side.create_task(self._drive(request))
                side_by_side.create_task(self._fault(request))

    async def work(self, component: str) -> None:
        loop = PullLoop(self.broker, work_stream(component), "interactive", self._claimed, credits=16)
        self._workers.append(loop)
        await loop.start()

    async def _opened_late(self) -> None:
        """What is full gets a worker, and what is missing is made, once half of the requests have begun."""
        begun = self.requests.values()
        await eventually(lambda: sum(bool(r.state.graphs) for r in begun) * 2 >= len(begun), within=WITHIN)
        await self.work(FULL)
        await topology.ensure_component(self.broker, LATE, ack_wait=1)
        await self.work(LATE)

    async def _hear(self, message: Message) -> None:
        try:
            key = parse_run(message.subject)
        except ValueError:
            return
        if (request := self.requests.get(key.request)) is not None:
            request.hear(int((message.headers or {})["Nats-Sequence"]), key.kind, message.data)
            ends_now = request.kind == "failed" or (request.kind == "done" and request.answered)
            if ends_now and key.kind == "node-end" and not request.ended and self.rnd.random() < 0.3:
                self.strike()  # before this fact is handled; the request ends before it is handled again

    # ------------------------------------------------------------ client and driver

    async def _drive(self, r: Request) -> None:
        seconds = 1.5 if r.kind == "expired" else 60.0
        fact = Accepted(request=r.id, tenant="t", app="a", app_version="1", deadline=time.time() + seconds)
        await self._put(accepted(r.id), fact)
        for passed in r.passes:
            before = r.rnd.randint(0, sum(len(g.nodes) for g in r.state.graphs.values()))
            await eventually(lambda before=before: r.ended or r.knows(before), within=WITHIN)
            if r.ended:
                break
            await self._pass(r, passed)
        await eventually(lambda: r.ended, within=WITHIN)
        if r.rnd.random() < 0.3:  # a late attempt, maybe after the purge
            await self._put(end(r.id, "late", 0), End(node="late", gen=0, attempt="a", outcome="done"))

    async def _pass(self, r: Request, passed: Graph) -> None:
        seq = await self._put(graph(r.id, passed.index), passed)
        await eventually(lambda: bool(r.log) and r.log[-1][0] >= seq, within=WITHIN)
        for item in decide(r.state, passed):
            if isinstance(item, WorkItem) and item.component == "c" and r.rnd.random() < 0.5:
                await publish_item(self.broker, item)  # as a driver does, that dies now and then

    async def _fault(self, r: Request) -> None:
        """What ends the request: what its kind says, at some moment; else that it is answered."""
        if r.kind in ("cancelled", "malformed"):
            at = r.rnd.randint(1, 10)
            await eventually(lambda: len(r.log) >= at or r.stands, within=WITHIN)
        match r.kind:
            case "cancelled":
                await self._put(cancel(r.id), Cancel(reason="test"))
            case "malformed":
                bad = r.rnd.choice([graph(r.id, 9), end(r.id, "bad", 0), first(r.id, "n0", 9, "s"), f"run.{r.id}.odd"])
                await self._put(bad, b"\xc1 no msgpack")
            case "failed":
                await eventually(lambda: self.unattended or (self.calm and r.stands), within=WITHIN)
                await self._put(finish(r.id), Finish(status="failed", error=Error(code="e", message="m")))
            case "done":
                await eventually(lambda: r.answered, within=WITHIN)
                await self._put(finish(r.id), Finish(status="done", response=1))

    async def _put(self, subject: str, fact: Fact | bytes) -> int:
        data = fact if isinstance(fact, bytes) else encode(fact)
        return (await self.facts.put(subject, data, deadline=time.time() + 10, ttl=FACT_GRACE)).seq

    # ------------------------------------------------------------ worker

    async def _claimed(self, delivery: Delivery) -> None:
        item = decode(WorkItem, delivery.data)
        r = self.requests.get(item.request)
        if r is None:  # of a world that has ended: who published it was overtaken by another dispatcher
            return await delivery.ack()
        self.delivered[item.request, item.node, item.gen].add(delivery.stream_seq)
        if r.ended or (item.node, item.gen) in r.state.ends:
            return await delivery.ack()
        outcome = None if self.rnd.random() < 0.05 else await self._run(r, item)
        if outcome is None:  # it died, or waits
            return await delivery.nak(0.02)
        await self._put(end(r.id, item.node, item.gen), outcome)
        if self.rnd.random() < 0.05:
            return await delivery.nak(0.02)
        await delivery.ack()

    async def _run(self, r: Request, item: WorkItem) -> End | None:
        """None: not yet, for a stream that it makes or reads has only begun."""
        made = End(node=item.node, gen=item.gen, attempt=uuid.uuid4().hex, outcome="done", usage=Usage(tokens_out=1))
        sources = [(s.node, s.gen) for s in extensions(item.inputs) if isinstance(s, StreamRef)]
        tensors = [(t.node, t.gen) for t in extensions(item.inputs) if isinstance(t, Ref)]
        if tensors and len(r.lost) < LOSSES and self.rnd.random() < 0.1:
            r.lost.add(self.rnd.choice(tensors))
        ends = [r.state.ends.get(source) for source in sources]
        gone = [t for t in tensors if t in r.lost] + [(e.node, e.gen) for e in ends if e and e.outcome != "done"]
        if gone:
            return msgspec.structs.replace(made, outcome="lost", vanished=tuple(gone))
        if item.node in r.state.cuts and self.rnd.random() < 0.5:
            return msgspec.structs.replace(made, outcome="cancelled")
        if "s" in item.outputs and not r.state.begun(item.node, "s"):
            await self._put(
                first(r.id, item.node, item.gen, "s"), First(node=item.node, gen=item.gen, attempt="a", output="s")
            )
            return None
        return None if None in ends else msgspec.structs.replace(made, outputs=self._outputs(r, item))

    @staticmethod
    def _outputs(r: Request, item: WorkItem) -> dict[str, Any]:
        inputs: Sequence[str] = substitute(item.inputs, lambda x: r.true[x.node, x.output])["in"][0]
        outputs: dict[str, Any] = {}
        for name, kind in item.outputs.items():
            content = text(item.node, inputs, name)
            assert content == r.true[item.node, name], "a node read wrong inputs"
            ref = Ref(r.id, item.node, item.gen, "a", name, 0, "h", "e", 0, 0, 1, "uint8", (1,))
            outputs[name] = {"value": content, "tensor": ref, "stream": 1}[kind]
        return outputs

"""Drivers that die at any of their awaits, and others that adopt: one answer, that of ordinary Python, no item twice.

Real server, dispatcher, driver and journal; the workers are the null engines as one function. CORNSTALK_SOAK=long takes
many more programs, and each await of one.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from broker import topology
from broker.chunks import ChunkWriter
from broker.connection import Broker
from broker.facts import Facts
from broker.pull import Delivery, PullLoop
from broker.server import Server
from broker.subjects import accepted, chunk, end, finish, first, work_stream
from cornstalk.errors import EngineError
from cornstalk.messages import (
    Accepted,
    End,
    Error,
    Finish,
    First,
    Ref,
    StreamRef,
    WorkItem,
    decode,
    encode,
    extensions,
    substitute,
)
from gateway.drive import Driver
from gateway.follow import Following
from gateway.journal import Journal
from gateway.values import Values
from tests.dispatcher.test_world import dispatcher
from tests.e2e.statements import Statement, programs
from tests.e2e.test_random_programs import TEXTS, app, engine, plain
from tests.mortal import Life

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
EXAMPLES: Final = 300 if LONG else 8
AT_ONCE: Final = 6
LIVES: Final = 6
"""Of drivers of one request, at most; the last one lives on."""
STEPS: Final = 80
"""How often the tasks of a driver go on until it dies, at most."""
STRIDE: Final = 1 if LONG else 4
TTL: Final = 600.0
WITHIN: Final = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


class Site:
    """What surrounds the drivers, and lives on."""

    def __init__(self, server: Server, broker: Broker) -> None:
        self.server, self.broker, self.facts = server, broker, Facts(broker)
        self.stored: defaultdict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)  # items: (gen, sequence)
        self._tensors: dict[Ref, Any] = {}
        self._workers: list[PullLoop] = []

    async def open(self) -> None:
        await topology.ensure_core(self.broker)
        for component in app.components():
            await topology.ensure_component(self.broker, component)
            loop = PullLoop(self.broker, work_stream(component), "interactive", self._claimed, credits=8)
            self._workers.append(loop)
            await loop.start()

    async def close(self) -> None:
        for worker in self._workers:
            await worker.stop()
            await worker.join(5)

    # ------------------------------------------------------------ worker

    async def _claimed(self, delivery: Delivery) -> None:
        item = decode(WorkItem, delivery.data)
        self.stored[item.request, item.node].add((item.gen, delivery.stream_seq))
        inputs = await self._inputs(item)
        if inputs is None:
            return await delivery.nak(0.02)
        made = End(node=item.node, gen=item.gen, attempt=uuid.uuid4().hex, outcome="done")
        try:
            outputs = await self._outputs(item, made.attempt, inputs)
            made = msgspec.structs.replace(made, outputs=outputs)
        except (EngineError, ZeroDivisionError, TypeError) as error:  # as the program wants
            why = Error(code="engine_raised", message=type(error).__name__, component=item.component)
            made = msgspec.structs.replace(made, outcome="failed", error=why)
        await self._put(end(item.request, item.node, item.gen), made)
        await delivery.ack()

    async def _inputs(self, item: WorkItem) -> dict[str, Any] | None:
        """None while a stream that it reads has not ended."""
        read: dict[Any, Any] = {}
        for ref in [x for x in extensions(item.inputs) if isinstance(x, StreamRef)]:
            stored = await self.facts.last(end(ref.request, ref.node, ref.gen))
            if stored is None:
                return None
            read[ref] = await Values(self.broker, ref.request).stream(decode(End, stored.data), ref.output)
        inputs = substitute(item.inputs, lambda x: read[x] if isinstance(x, StreamRef) else self._tensors[x])
        return {**type(app.components()[item.component]).defaults, **inputs}

    async def _outputs(self, item: WorkItem, attempt: str, inputs: dict[str, Any]) -> dict[str, Any]:
        made = engine(app.components()[item.component], inputs)
        outputs: dict[str, Any] = {}
        for name, kind in item.outputs.items():
            if kind == "stream":
                subject = chunk(item.request, item.node, item.gen, name)
                writer = await ChunkWriter.open(self.broker, subject, attempt, ttl=TTL, deadline=time.time() + 10)
                for piece in made[name]:
                    await writer.append(piece)
                fact = First(node=item.node, gen=item.gen, attempt=attempt, output=name)
                await self._put(first(item.request, item.node, item.gen, name), fact)
                outputs[name] = writer.n
            elif kind == "tensor":
                n = made[name].nbytes
                ref = Ref(item.request, item.node, item.gen, attempt, name, 0, "h", "e", 0, 0, n, "uint8", (n,))
                self._tensors[ref], outputs[name] = made[name], ref
            elif name == "digest" and not isinstance(made[name], str):
                raise TypeError(name)
            else:
                outputs[name] = made[name]
        return outputs

    async def _put(self, subject: str, fact: Any) -> None:
        await self.facts.put(subject, encode(fact), deadline=time.time() + 10, ttl=TTL)

    # ------------------------------------------------------------ requests

    async def accept(self, program: list[Statement], text: str) -> Accepted:
        fact = Accepted(
            request=uuid.uuid4().hex,
            tenant="t",
            app=app.name,
            app_version=app.version,
            deadline=time.time() + 60,
            accepted_at=time.time(),
            input={"text": text, "program": program},
        )
        await self._put(accepted(fact.request), fact)
        return fact

    async def driven(self, fact: Accepted, lives: list[int | None], together: bool = False) -> list[Finish]:
        """What each driver that came to an end said; the last one did. `together`: two of them at any time."""
        said: list[Finish] = []
        at_once = asyncio.Semaphore(2 if together else 1)

        async def one(dies_at: int | None) -> None:
            async with at_once:
                await self._drive(fact, dies_at, said)

        await asyncio.gather(*(one(dies_at) for dies_at in lives))
        return said

    async def _drive(self, fact: Accepted, dies_at: int | None, said: list[Finish]) -> None:
        life = Life(self.server, "driver", dies_at)
        try:
            said.append(await asyncio.wait_for(life.start(lambda broker: drive(broker, fact)), WITHIN))
        except asyncio.CancelledError:
            if not life.dead:
                raise
        life.end()
        await life.gone()

    async def answer(self, fact: Accepted) -> Any:
        """As a client gets it."""
        stored = await self.facts.last(finish(fact.request))
        assert stored is not None
        told = decode(Finish, stored.data)
        if told.status == "failed":
            assert told.error is not None
            return "app_failed" if told.error.code == "app_failed" else "a call failed"
        assert told.status == "done"
        response = dict(told.response)
        if isinstance(ref := response["text"], StreamRef):
            made = await self.facts.last(end(ref.request, ref.node, ref.gen))
            assert made is not None
            response["text"] = await Values(self.broker, ref.request).stream(decode(End, made.data), ref.output)
        return response


async def drive(broker: Broker, fact: Accepted) -> Finish:
    """As a gateway that has accepted or adopts a request."""
    facts = Facts(broker)
    following = await Following(broker, facts, fact.request).start()
    await following.read()
    if following.state.finish is not None:
        return following.state.finish
    journal = Journal(broker, facts, following, fact, app.components(), {})
    return await Driver(broker, app, journal, app.request(fact.input)).run()


@asynccontextmanager
async def site_of(server: Server) -> AsyncIterator[Site]:
    broker = await Broker.connect(server.url, name="site", token=server.token)
    site = Site(server, broker)
    life = Life(server, "dispatcher")
    try:
        await site.open()
        life.start(lambda broker: dispatcher(broker, grace=60.0))
        yield site
    finally:
        life.end()
        await life.gone()
        await site.close()
        await broker.close()


async def check(site: Site, fact: Accepted, said: list[Finish], program: list[Statement], text: str) -> None:
    stored = await site.facts.last(finish(fact.request))
    assert stored is not None
    assert said
    assert all(one == decode(Finish, stored.data) for one in said)
    assert await site.answer(fact) == await asyncio.to_thread(plain, app, program, text), program
    for (request, node), places in site.stored.items():
        assert request != fact.request or len(places) == 1, f"{node} was sent more than once: {places}"


@seed(7)
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(programs(), TEXTS), min_size=AT_ONCE, max_size=AT_ONCE), st.integers(0, 2**32))
async def test_drivers_that_die_answer_what_python_answers(
    server: Server, batch: list[tuple[list[Statement], str]], number: int
) -> None:
    rnd = random.Random(number)

    async def one(site: Site, program: list[Statement], text: str, rnd: random.Random) -> None:
        fact = await site.accept(program, text)
        lives: list[int | None] = [rnd.randint(1, STEPS) for _ in range(rnd.randint(1, LIVES - 1))]
        said = await site.driven(fact, [*lives, None], together=rnd.random() < 0.3)
        await check(site, fact, said, program, text)

    async with site_of(server) as site:
        await asyncio.gather(*(one(site, *each, random.Random(rnd.random())) for each in batch))


PROGRAM: Final[list[Statement]] = [
    ["call", "s0", ["var", "s"], [], [], 0],
    ["if", ["low", ["var", "s0"]], [["tensor", "t0", "a", [], 0]], [["stream", "w0", "b", [], 3, 0]]],
    ["fan", "l0", ["var", "s0"], 3],
    ["fan_in", "s1", "l0", []],
    ["try", [["risky", "s2", ["var", "s1"], "raise", True]], [["set", "s2", "failed"]]],
    ["stream", "w1", ["var", "s1"], [], 3, 0],
    ["echo", "w2", "w1", 0],
]


async def test_a_driver_that_dies_at_any_await_is_adopted(server: Server) -> None:
    async with site_of(server) as site:
        whole = Life(server, "driver")
        fact = await site.accept(PROGRAM, "abc")
        await whole.start(lambda broker: drive(broker, fact))
        whole.end()
        await whole.gone()
        for at in range(1, whole.steps, STRIDE):
            fact = await site.accept(PROGRAM, "abc")
            await check(site, fact, await site.driven(fact, [at, None]), PROGRAM, "abc")
        print(f"{whole.steps} awaits")

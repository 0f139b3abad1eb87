"""Dispatchers that die at any of their awaits, over a real server, against what decide() says of each stored log.

CORNSTALK_SOAK=long takes many more worlds.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from broker import topology
from broker.connection import Broker
from broker.facts import Facts
from broker.reads import pages
from broker.server import Server
from broker.subjects import ALL_USAGE, DISPATCH, DLQ, RUNS, USAGE, parse_run
from cornstalk.graph import State, decide
from cornstalk.messages import Finish, Graph, WorkItem, decode
from cornstalk.usage import RequestUsage
from dispatcher.deadlines import Deadlines
from dispatcher.dispatch import Dispatcher
from dispatcher.publisher import Publisher
from dispatcher.purge import Purger
from dispatcher.queued import Queued
from dispatcher.recovery import Recovery
from dispatcher.releases import Releases
from tests.cornstalk.graph_world import fans, programs
from tests.dispatcher.world import IDLE, KINDS, WITHIN, Request, World
from tests.mortal import Life
from tests.waiting import eventually

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
WORLDS: Final = 100 if LONG else 5
REQUESTS: Final = 21
GRACE: Final = 0.3
"""Seconds until a finished request is purged."""
ACK_WAIT: Final = 1.2
"""Seconds until another dispatcher gets what a dead one held."""
DEATHS: Final = 10
STEPS: Final = 40, 300
"""How often the tasks of a dispatcher go on until it dies, at most: some die with the first facts they get."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


async def dispatcher(broker: Broker, grace: float = GRACE) -> None:
    """What `python -m dispatcher` runs when it is the active one; here they are all active."""
    facts, queued, releases = Facts(broker), Queued(broker), Releases(broker)
    publisher = Publisher(broker, facts, queued)
    deadlines, purger = Deadlines(facts, publisher), Purger(broker, facts, grace, releases)
    recovery = Recovery(broker, facts, deadlines, purger)
    recovery.activate(True)
    await releases.start()
    await Dispatcher(broker, facts, publisher, deadlines, purger, releases, queued).pulls.start()
    await asyncio.gather(deadlines.run(), purger.run(), recovery.run())


class Dispatchers:
    """As many as are wanted. Who dies is followed by another one; now and then all die at once, and there is none."""

    def __init__(self, server: Server, rnd: random.Random) -> None:
        self._server, self._rnd = server, rnd
        self._lives: list[Life] = []
        self._most = rnd.choice((1, 2))
        self.deaths = 0

    def begin(self, *, mortal: bool = False) -> None:
        life = Life(self._server, "dispatcher", self._rnd.randint(3, self._rnd.choice(STEPS)) if mortal else None)
        self._lives.append(life)
        life.start(dispatcher)

    async def succeed(self, world: World) -> None:
        """One or two of them, until cancelled. In the end they live on."""
        while True:
            if dead := [life for life in self._lives if life.dead]:
                world.unattended = len(dead) == len(self._lives)
                await self.end(dead)
                if world.unattended:
                    await asyncio.sleep(self._rnd.choice((0, 1.5 * ACK_WAIT)))
            world.unattended, world.calm = False, self.deaths >= DEATHS
            while len(self._lives) < self._most:
                self.begin(mortal=not world.calm)
            await asyncio.sleep(0.01)

    def strike(self) -> None:
        """All of them die at this moment."""
        if self.deaths < DEATHS:
            for life in self._lives:
                life.end()

    async def end(self, lives: Sequence[Life] | None = None) -> None:
        """These, or all."""
        for life in list(self._lives if lives is None else lives):
            life.end()
            await life.gone()
            self._lives.remove(life)
            self.deaths += 1


@asynccontextmanager
async def world_of(server: Server, requests: list[Request], rnd: random.Random) -> AsyncIterator[World]:
    broker = await Broker.connect(server.url, name="world", token=server.token)
    await topology.ensure_core(broker)
    consumer = {
        "durable_name": DISPATCH,
        "ack_policy": "explicit",
        "ack_wait": int(ACK_WAIT * 1e9),
        "max_ack_pending": 4096,
    }
    await broker.api(f"CONSUMER.DURABLE.CREATE.{RUNS}.{DISPATCH}", {"stream_name": RUNS, "config": consumer})
    world = World(broker, requests, rnd)
    try:
        await world.open()
        yield world
    finally:
        await world.close()
        await broker.close()


@seed(7)
@settings(max_examples=WORLDS, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(programs() | fans(), min_size=REQUESTS, max_size=REQUESTS), st.integers(0, 2**32))
async def test_dispatchers_that_die_do_what_the_log_says(
    server: Server, graphs: list[list[Graph]], number: int
) -> None:
    rnd = random.Random(number)
    kinds = [KINDS[i % len(KINDS)] for i in range(REQUESTS)]
    requests = [Request(kind, passes, random.Random(rnd.random())) for kind, passes in zip(kinds, graphs, strict=True)]
    dispatchers = Dispatchers(server, rnd)
    async with world_of(server, requests, rnd) as world:
        try:
            async with asyncio.TaskGroup() as both:
                world.strike = dispatchers.strike
                succeeding = both.create_task(dispatchers.succeed(world))
                await world.run()
                succeeding.cancel()
            await dispatchers.end()
            dispatchers.begin()
            await world.work(IDLE)
            await quiet(world)
            await check(world)
        except BaseException:
            print(*(r for r in requests if not r.ended), sep="\n")
            raise
        finally:
            await dispatchers.end()
    print(f"{dispatchers.deaths} deaths")


async def test_of_requests_that_ended_nothing_is_left_in_a_queue_that_nobody_serves(server: Server) -> None:
    """One dispatcher knows all that it queued, also what it was about to queue when the end came."""
    kinds = ("expired", "failed", "cancelled", "malformed")
    requests = [Request(kinds[i % 4], [Graph(index=0)], random.Random(i), idle=True) for i in range(80)]
    dispatchers = Dispatchers(server, random.Random(0))
    dispatchers.begin()
    try:
        async with world_of(server, requests, random.Random(0)) as world:
            await world.run()
            await quiet(world)
            await check(world)
    finally:
        await dispatchers.end()


async def quiet(world: World) -> None:
    """Every fact is handled, every item is gone, every request is purged."""

    async def done() -> bool:
        info = await world.broker.api(f"CONSUMER.INFO.{RUNS}.{DISPATCH}")
        loads = [await topology.backlog(world.broker, c) for c in await topology.components(world.broker)]
        left = {parse_run(s.subject).request async for s in world.facts.accepted()}
        return not (
            info["num_pending"]
            or info["num_ack_pending"]
            or any((*load.pending.values(), *load.in_flight.values()) != (0, 0, 0, 0) for load in loads)
            or left & world.requests.keys()
        )

    await eventually(done, within=WITHIN, every=0.05)


async def check(world: World) -> None:
    records: dict[str, list[RequestUsage]] = {}
    async for stored in pages(world.broker, USAGE, ALL_USAGE):
        record = decode(RequestUsage, stored.data)
        records.setdefault(record.request, []).append(record)
    for request in world.requests.values():
        check_end(request)
        check_items(request, world)
        check_usage(request, records.get(request.id, []))
    letters = Counter([s.subject.split(".")[3] async for s in pages(world.broker, DLQ, "dlq.>")])
    for request in world.requests.values():
        assert letters[request.id] == (request.kind == "malformed")


def check_end(request: Request) -> None:
    (finish,) = [fact for _, fact in request.log if isinstance(fact, Finish)]
    if request.kind == "malformed":
        assert finish.status == "failed"
        assert finish.error is not None
        assert finish.error.code == "malformed"
    else:
        assert finish.status == request.kind
    if request.kind == "done":
        assert request.answered


def check_items(request: Request, world: World) -> None:
    """Each item once, and only what decide() says of a fact and a prefix of the log that holds it."""
    may: set[tuple[str, int]] = set()
    state, seen = State(), []
    for seq, fact in request.log:
        if fact is None:
            continue
        state.add(fact, seq)
        seen.append(fact)
        may |= {(d.node, d.gen) for f in seen for d in decide(state, f) if isinstance(d, WorkItem)}
    sent = {(node, gen): places for (r, node, gen), places in world.delivered.items() if r == request.id}
    assert sent.keys() <= may
    assert all(len(places) == 1 for places in sent.values()), f"stored twice: {sent}"


def check_usage(request: Request, records: list[RequestUsage]) -> None:
    """One record: each node that was done by the end, and maybe what was done until the end was handled."""
    (record,) = records
    counted = [(node.node, node.gen) for node in record.nodes]
    assert len(set(counted)) == len(counted)
    finish = request.log.index(next(entry for entry in request.log if isinstance(entry[1], Finish)))
    before, after = State(), State()
    for at, (seq, fact) in enumerate(request.log):
        if fact is not None:
            after.add(fact, seq)
            if at <= finish:
                before.add(fact, seq)
    assert {key for key in done(before) if key[0] not in after.cuts} <= set(counted) <= done(after), (
        f"{request.kind} {request.id}"
    )


def done(state: State) -> set[tuple[str, int]]:
    return {(n.token, e.gen) for n in state.log_nodes() if (e := state.first_done(n.token)) is not None}

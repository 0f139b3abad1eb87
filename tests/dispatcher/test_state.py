"""The cache of states: what it calls whole is whole, whatever others took, whatever it forgot, however reads lag."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.connection import Broker
from broker.facts import Facts, Log, Stored
from broker.pull import Delivery
from broker.subjects import accepted, end, finish
from broker.subjects import graph as graph_subject
from cornstalk.graph import State
from cornstalk.messages import Accepted, End, Fact, Finish, Graph, NewerVersion, encode
from dispatcher import state as module
from dispatcher.state import StateCache
from tests.dispatcher.harness import newer, node


@dataclass
class Arrival:
    """A message as the consumer delivers it."""

    subject: str
    data: bytes
    reply: str
    headers: dict[str, str] = field(default_factory=dict)


class Model:
    """The log of several requests, one consumer that several caches share, and reads that lag."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.log: list[tuple[str, Fact]] = []
        self.delivered = 0  # first deliveries
        self.count = 0  # consumer sequence
        self.again: list[int] = []

    def store(self, request: str, fact: Fact) -> None:
        self.log.append((request, fact))

    def deliver(self) -> tuple[str, Fact, Delivery] | None:
        """The next delivery: a new one, or one again."""
        if self.again and self.rnd.random() < 0.3:
            seq, times = self.again.pop(), 2
        elif self.delivered < len(self.log):
            self.delivered += 1
            seq, times = self.delivered, 1
            if self.rnd.random() < 0.2:
                self.again.append(seq)
        else:
            return None
        self.count += 1
        request, fact = self.log[seq - 1]
        reply = f"$JS.ACK.RUNS.dispatch.{times}.{seq}.{self.count}.0.0"
        arrival: Any = Arrival("run.x.end", encode(fact), reply)
        return request, fact, Delivery(None, arrival)  # type: ignore[arg-type]

    async def read(self, request: str, *, containing: int = 0) -> Log:
        """A prefix that holds what it must, taken now, handed over later."""
        upto = self.rnd.randint(containing, len(self.log))
        messages = [
            Stored(subject_of(r, fact), seq, encode(fact), 0.0)
            for seq, (r, fact) in enumerate(self.log[:upto], 1)
            if r == request
        ]
        for _ in range(self.rnd.randint(0, 5)):
            await asyncio.sleep(0)
        return Log(messages, upto)


def subject_of(request: str, fact: Fact) -> str:
    match fact:
        case End():
            return end(request, fact.node, fact.gen)
        case Finish():
            return finish(request)
    return accepted(request)


async def play(seed: int, caches: int) -> None:
    """Most deliveries come to the first cache; those that arrive together may have changed places. Requests end, and
    some of their nodes end later.
    """
    rnd = random.Random(seed)
    model = Model(rnd)
    each = [StateCache(model) for _ in range(caches)]  # type: ignore[arg-type]
    tasks: list[asyncio.Task[None]] = []

    async def handle(cache: StateCache, request: str, fact: Fact, delivery: Delivery) -> None:
        if rnd.random() < 0.03:
            return cache.skip(request, delivery)
        cache.fold(request, fact, delivery)
        state = await cache.whole(request, delivery)
        for seq, (r, stored) in enumerate(model.log[: delivery.stream_seq], 1):
            known = state.finish or state.accepted == stored or key(stored) in state.ends
            assert r != request or known, f"{request} lacks {seq} at {delivery.stream_seq}"
        if isinstance(fact, Finish):
            cache.finished(request)

    for step in range(120):
        request = f"r{rnd.randint(0, 4) + step // 20}"
        if not any(r == request for r, _ in model.log):
            model.store(request, accepted_fact(request))
        elif rnd.random() < 0.2 and not any(r == request and isinstance(f, Finish) for r, f in model.log):
            model.store(request, Finish(status="done"))
        else:
            model.store(request, End(node=f"n{step}", gen=0, attempt="a", outcome="done"))
        together = []
        while rnd.random() < 0.6 and (delivery := model.deliver()):
            together.append(delivery)
        if rnd.random() < 0.3:
            rnd.shuffle(together)
        for delivery in together:
            which = rnd.randrange(caches) if rnd.random() < 0.2 else 0
            tasks.append(asyncio.create_task(handle(each[which], *delivery)))
        if rnd.random() < 0.7:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    if caches == 1 and module.MAX_REQUESTS > 2:
        assert each[0].reads < len(tasks) / 2


def key(fact: Fact) -> tuple[str, int]:
    return (fact.node, fact.gen) if isinstance(fact, End) else ("", 0)


def accepted_fact(request: str) -> Accepted:
    return Accepted(request=request, tenant="t", app="a", app_version="1", deadline=1.0)


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([2, 8192]))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_called_whole_lacks_nothing(seed: int, caches: int, room: int) -> None:
    before = module.MAX_REQUESTS, module.ENDED
    module.MAX_REQUESTS, module.ENDED = room, room // 2  # type: ignore[misc]
    try:
        asyncio.run(play(seed, caches))
    finally:
        module.MAX_REQUESTS, module.ENDED = before  # type: ignore[misc]


def delivery(seq: int, count: int, delivered: int = 1) -> Delivery:
    message: Any = Arrival("run.x.end", b"", f"$JS.ACK.RUNS.dispatch.{delivered}.{seq}.{count}.0.0")
    return Delivery(None, message)  # type: ignore[arg-type]


async def store(facts: Facts, subject: str, fact: Fact | bytes) -> int:
    data = fact if isinstance(fact, bytes) else encode(fact)
    return (await facts.put(subject, data, deadline=2e9, ttl=100)).seq


DONE = End(node="a", gen=0, attempt="x", outcome="done")


async def test_an_unbroken_run_needs_no_read_and_a_gap_needs_one(broker: Broker) -> None:
    facts = Facts(broker)
    cache = StateCache(facts)
    first = await store(facts, accepted("r"), accepted_fact("r"))
    await store(facts, end("r", "b", 0), DONE)
    last = await store(facts, end("r", "a", 0), DONE)
    cache.fold("r", accepted_fact("r"), delivery(first, 1))
    await cache.whole("r", delivery(first, 1))
    assert cache.reads == 0
    cache.fold("r", DONE, delivery(last, 3))  # number 2 went to another dispatcher
    state = await cache.whole("r", delivery(last, 3))
    assert state.done("a") == DONE
    assert cache.reads == 1
    cache.fold("r", DONE, delivery(last, 4, delivered=2))
    await cache.whole("r", delivery(last, 4, delivered=2))
    assert cache.reads == 2  # what came between may have gone elsewhere as well
    new = await store(facts, finish("r"), Finish(status="done"))
    cache.fold("r", Finish(status="done"), delivery(new, 5))
    await cache.whole("r", delivery(new, 5))
    assert cache.reads == 2


async def test_deliveries_that_changed_places_need_no_read(broker: Broker) -> None:
    cache = StateCache(Facts(broker))
    cache.fold("r1", accepted_fact("r1"), delivery(1, 1))

    async def handle(request: str, got: Delivery) -> None:
        cache.fold(request, accepted_fact(request), got)
        await cache.whole(request, got)

    await asyncio.gather(*(handle(f"r{n}", delivery(n, n)) for n in (3, 5, 7, 2, 4, 6)))
    assert cache.reads == 0


async def test_a_consumer_that_was_made_anew_breaks_the_run(broker: Broker) -> None:
    facts = Facts(broker)
    cache = StateCache(facts)
    for n in (1, 2, 3):
        await store(facts, accepted(f"r{n}"), accepted_fact(f"r{n}"))
        cache.fold(f"r{n}", accepted_fact(f"r{n}"), delivery(n, n))
        await cache.whole(f"r{n}", delivery(n, n))
    cache.fold("r3", accepted_fact("r3"), delivery(3, 2))  # 1 and whatever else went to another dispatcher
    await store(facts, end("r1", "a", 0), DONE)
    await cache.whole("r1", delivery(4, 3))
    assert cache.reads == 1


async def test_only_the_frame_of_a_finished_request_is_kept(broker: Broker) -> None:
    cache = StateCache(Facts(broker))
    graph = Graph(index=0, nodes=(node("a"),))
    states: list[State] = []
    log: list[Fact] = [accepted_fact("r"), graph, Finish(status="done"), graph]
    for seq, stored in enumerate(log, 1):
        cache.fold("r", stored, delivery(seq, seq))
        states.append(await cache.whole("r", delivery(seq, seq)))
        if isinstance(stored, Finish):
            cache.finished("r")
    assert states[2].nodes
    assert states[3].finish == Finish(status="done")
    assert states[3].accepted == accepted_fact("r")
    assert states[3] is not states[2]


async def test_finished_requests_are_forgotten_but_the_last_ones_and_those_that_run(broker: Broker) -> None:
    cache = StateCache(Facts(broker))
    cache.fold("running", accepted_fact("running"), delivery(1, 1))
    for n in range(module.ENDED + 10):
        facts_of: list[Fact] = [accepted_fact(f"r{n}"), Finish(status="done")]
        for k, fact in enumerate(facts_of):
            got = delivery(2 + 2 * n + k, 2 + 2 * n + k)
            cache.fold(f"r{n}", fact, got)
            await cache.whole(f"r{n}", got)
        cache.finished(f"r{n}")
        cache.finished(f"r{n}")  # its end came again
    assert len(cache._entries) <= module.ENDED + 1
    assert cache._nbytes <= module.SLIM * module.ENDED + 1000
    late = 4 + 2 * n
    cache.fold("running", DONE, delivery(late, late))
    await cache.whole("running", delivery(late, late))
    assert cache.reads == 0


async def test_the_end_of_a_request_is_handled_with_its_nodes_though_an_older_fact_was_read_with_it(
    broker: Broker,
) -> None:
    facts = Facts(broker)
    cache = StateCache(facts)
    await store(facts, accepted("r"), accepted_fact("r"))
    graph = Graph(index=0, nodes=(node("a"),))
    older = await store(facts, graph_subject("r", 0), graph)
    last = await store(facts, finish("r"), Finish(status="done"))
    cache.fold("r", graph, delivery(older, 9, delivered=2))  # its first dispatcher died
    assert (await cache.whole("r", delivery(older, 9, delivered=2))).finish is not None
    cache.fold("r", Finish(status="done"), delivery(last, 10))
    assert (await cache.whole("r", delivery(last, 10))).nodes


async def test_a_newer_fact_in_the_log_is_not_judged_and_a_malformed_one_is_left_out(broker: Broker) -> None:
    facts = Facts(broker)
    cache = StateCache(facts)
    await store(facts, accepted("r"), accepted_fact("r"))
    bad = await store(facts, end("r", "a", 0), b"\xc1")
    assert (await cache.read("r", bad)).accepted == accepted_fact("r")
    new = await store(facts, finish("r"), newer(Finish(status="done")))
    with pytest.raises(NewerVersion):
        await cache.read("r", new)

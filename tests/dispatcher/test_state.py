"""The cache of states: what it calls whole is whole, whatever others took, whatever it forgot, however reads lag."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.facts import Facts, Log, Stored
from broker.pull import Delivery
from broker.subjects import accepted, end, finish
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
            Stored(end(r, fact.node, fact.gen) if isinstance(fact, End) else accepted(r), seq, encode(fact), 0.0)
            for seq, (r, fact) in enumerate(self.log[:upto], 1)
            if r == request
        ]
        for _ in range(self.rnd.randint(0, 5)):
            await asyncio.sleep(0)
        return Log(messages, upto)


async def play(seed: int, caches: int) -> None:
    rnd = random.Random(seed)
    model = Model(rnd)
    each: list[StateCache] = [StateCache(model) for _ in range(caches)]  # type: ignore[arg-type]
    waiting: set[asyncio.Task[None]] = set()

    def check(state: Any, request: str, delivery: Delivery) -> None:
        for seq, (r, fact) in enumerate(model.log[: delivery.stream_seq], 1):
            if r != request:
                continue
            known = state.finish or (state.accepted == fact if isinstance(fact, Accepted) else None)
            assert known or (fact.node, fact.gen) in state.ends, f"{request} lacks {seq} at {delivery.stream_seq}"  # type: ignore[union-attr]

    async def handle(cache: StateCache, request: str, delivery: Delivery) -> None:
        check(await cache.read(request, delivery.stream_seq), request, delivery)

    for step in range(120):
        request = f"r{rnd.randint(0, 4)}"
        if not any(r == request for r, _ in model.log):
            model.store(request, Accepted(request=request, tenant="t", app="a", app_version="1", deadline=1.0))
        else:
            model.store(request, End(node=f"n{step}", gen=0, attempt="a", outcome="done"))
        while rnd.random() < 0.6 and (delivery := model.deliver()):
            which = rnd.randrange(caches) if rnd.random() < 0.2 else 0
            request, fact, got = delivery
            each[which].follow(got)
            state = each[which].fold(request, fact, got)
            if rnd.random() < 0.05:
                each[which].forget(request)
            if state is not None:
                check(state, request, got)
            else:
                waiting.add(task := asyncio.create_task(handle(each[which], request, got)))
                task.add_done_callback(waiting.discard)
        if rnd.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*waiting)


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([2, 8192]))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_called_whole_lacks_nothing(seed: int, caches: int, room: int) -> None:
    before = module.MAX_REQUESTS
    module.MAX_REQUESTS = room  # type: ignore[misc]
    try:
        asyncio.run(play(seed, caches))
    finally:
        module.MAX_REQUESTS = before  # type: ignore[misc]


def arrival(request: str, fact: Fact, seq: int, count: int, delivered: int = 1) -> tuple[str, Fact, Delivery]:
    reply = f"$JS.ACK.RUNS.dispatch.{delivered}.{seq}.{count}.0.0"
    message: Any = Arrival("run.x.end", encode(fact), reply)
    return request, fact, Delivery(None, message)  # type: ignore[arg-type]


def fact(request: str) -> Accepted:
    return Accepted(request=request, tenant="t", app="a", app_version="1", deadline=1.0)


async def test_an_unbroken_run_needs_no_read_and_a_gap_needs_one(broker: Any) -> None:
    facts = Facts(broker)
    cache = StateCache(facts)
    put = await facts.put(accepted("r"), encode(fact("r")), deadline=2e9, ttl=100)
    done = End(node="a", gen=0, attempt="x", outcome="done")
    await facts.put(end("r", "b", 0), encode(done), deadline=2e9, ttl=100)
    later = await facts.put(end("r", "a", 0), encode(done), deadline=2e9, ttl=100)
    request, first, delivery = arrival("r", fact("r"), put.seq, 1)
    cache.follow(delivery)
    assert cache.fold(request, first, delivery) is not None
    request, second, delivery = arrival("r", done, later.seq, 3)  # number 2 went to another dispatcher
    cache.follow(delivery)
    assert cache.fold(request, second, delivery) is None
    state = await cache.read("r", later.seq)
    assert state.done("a") == done
    assert cache.reads == 1
    request, again, delivery = arrival("r", done, later.seq, 4, delivered=2)
    cache.follow(delivery)
    assert cache.fold(request, again, delivery) is state


async def test_a_consumer_that_was_made_anew_breaks_the_run() -> None:
    cache = StateCache(None)  # type: ignore[arg-type]
    for seq in range(1, 4):
        request, stored, delivery = arrival(f"r{seq}", fact(f"r{seq}"), seq, seq)
        cache.follow(delivery)
        assert cache.fold(request, stored, delivery) is not None
    done = End(node="a", gen=0, attempt="x", outcome="done")
    request, stored, delivery = arrival("r1", done, 3, 4)  # looks like the next one, but its fact is an old one
    cache.follow(delivery)
    assert cache.fold(request, stored, delivery) is None


async def test_only_the_frame_of_a_finished_request_is_kept(broker: Any) -> None:
    cache = StateCache(Facts(broker))
    graph = Graph(index=0, nodes=(node("a"),))
    states = []
    for seq, stored in enumerate([fact("r"), graph, Finish(status="done"), graph], 1):
        request, added, delivery = arrival("r", stored, seq, seq)
        cache.follow(delivery)
        states.append(cache.fold(request, added, delivery))
    whole, late = states[2], states[3]
    assert whole is not None
    assert whole.nodes
    assert late is not None
    assert late.finish == Finish(status="done")
    assert late is not whole


async def test_a_newer_fact_in_the_log_is_not_judged_and_a_malformed_one_is_left_out(broker: Any) -> None:
    facts = Facts(broker)
    cache = StateCache(facts)
    await facts.put(accepted("r"), encode(fact("r")), deadline=2e9, ttl=100)
    bad = await facts.put(end("r", "a", 0), b"\xc1", deadline=2e9, ttl=100)
    assert (await cache.read("r", bad.seq)).accepted == fact("r")
    put = await facts.put(finish("r"), newer(Finish(status="done")), deadline=2e9, ttl=100)
    with pytest.raises(NewerVersion):
        await cache.read("r", put.seq)

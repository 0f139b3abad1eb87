"""Put-if-absent (rule 1), reads that contain the trigger (rule 2), purge and tombstone (rule 8)."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from broker import subjects
from broker.connection import Broker
from broker.errors import BrokerError, Conflict, DeadlineExceeded, ReadTimeout, RequestEnded
from broker.facts import Facts
from broker.server import Server
from tests.broker.proxy import Proxy
from tests.waiting import eventually


def soon(seconds: float = 5.0) -> float:
    return time.time() + seconds


@pytest.fixture
def facts(shared_broker: Broker) -> Facts:
    return Facts(shared_broker)


async def test_one_of_fifty_writers_wins(facts: Facts, request_id: str) -> None:
    end = subjects.end(request_id, "n", 0)
    puts = await asyncio.gather(*(facts.put(end, b"%d" % n, deadline=soon(), ttl=600) for n in range(50)))
    (winner,) = [n for n, put in enumerate(puts) if put.won]
    assert {put.data for put in puts} == {b"%d" % winner}
    assert len({put.seq for put in puts}) == 1
    stored = await facts.last(end)
    assert stored is not None
    assert (stored.data, stored.seq) == (b"%d" % winner, puts[0].seq)


async def test_own_retry_is_recognised_as_won(facts: Facts, request_id: str) -> None:
    """A PubAck was lost: the same put comes again, or one that differs in what was measured."""
    end = subjects.end(request_id, "n", 0)
    first = await facts.put(end, b"me:1", deadline=soon(), ttl=600)
    again = await facts.put(end, b"me:1", deadline=soon(), ttl=600)
    assert (again.won, again.seq) == (True, first.seq)
    mine = await facts.put(end, b"me:2", deadline=soon(), ttl=600, mine=lambda data: data.startswith(b"me:"))
    assert (mine.won, mine.data) == (True, b"me:1")
    other = await facts.put(end, b"you:1", deadline=soon(), ttl=600, mine=lambda data: data.startswith(b"you:"))
    assert (other.won, other.data, other.seq) == (False, b"me:1", first.seq)


async def test_lost_pub_ack_is_recognised(broker: Broker, nats_server: Server) -> None:
    """The server stores, and the connection breaks before its answer arrives."""
    async with Proxy(nats_server.url) as proxy:
        mine = await Broker.connect(proxy.url, name="mine", token=nats_server.token)
        proxy.muted = True
        putting = asyncio.create_task(Facts(mine).put("run.a.end", b"me", deadline=soon(10), ttl=600))
        stored = await eventually(lambda: Facts(broker).last("run.a.end"))
        assert not putting.done()
        proxy.cut()
        put = await putting
        assert (put.won, put.seq) == (True, stored.seq)
        await mine.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_the_fence_holds_across_a_restart(broker: Broker, nats_server: Server, how: signal.Signals) -> None:
    facts = Facts(broker)
    await facts.put("run.a.end", b"1", deadline=soon(), ttl=600)
    nats_server.stop() if how is signal.SIGTERM else nats_server.kill()
    nats_server.start()
    put = await facts.put("run.a.end", b"2", deadline=soon(10), ttl=600)
    assert (put.won, put.data) == (False, b"1")


async def test_outage_past_the_deadline(broker: Broker, nats_server: Server) -> None:
    facts = Facts(broker)
    nats_server.kill()
    with pytest.raises(DeadlineExceeded):
        await facts.put("run.a.end", b"1", deadline=soon(0.3), ttl=600)
    with pytest.raises(ReadTimeout):
        await facts.read("a", timeout=0.2)


async def test_a_purge_that_ends_half_way_leaves_what_it_is_found_by(broker: Broker, request_id: str) -> None:
    facts = Facts(broker)
    await facts.put(subjects.accepted(request_id), b"a", deadline=soon(), ttl=600)
    await broker.api(f"STREAM.DELETE.{subjects.CHUNKS}")
    with pytest.raises(BrokerError):
        await facts.purge(request_id)
    assert [subjects.parse_run(s.subject).request async for s in facts.accepted()] == [request_id]


async def test_purge_leaves_the_tombstone_which_still_refuses(facts: Facts, request_id: str) -> None:
    put = lambda subject: facts.put(subject, subject.encode(), deadline=soon(), ttl=600)  # noqa: E731
    gone = [subjects.accepted(request_id), subjects.graph(request_id, 0), subjects.end(request_id, "n", 0)]
    kept = [subjects.cancel(request_id), subjects.finish(request_id)]
    for subject in gone + kept:
        await put(subject)
    chunk = subjects.chunk(request_id, "n", 0, "text")
    await facts._broker.publish_stored(chunk, b"", deadline=soon())
    await facts.purge(request_id)
    await facts.purge(request_id)
    assert [message.subject for message in (await facts.read(request_id)).messages] == kept
    again = await facts.put(subjects.finish(request_id), b"another end", deadline=soon(), ttl=600)
    assert (again.won, again.data) == (False, kept[1].encode())
    late = await put(subjects.end(request_id, "n", 0))
    assert late.won  # a purged subject is open again: why the tombstone is needed


async def test_unless_the_request_has_ended(facts: Facts, request_id: str) -> None:
    """A subject that refuses and then is empty was purged: tried again only while the request lives."""
    end, finish = subjects.end(request_id, "n", 0), subjects.finish(request_id)
    broker = _EmptyAfterRefusal(facts._broker)
    asking = Facts(broker)  # type: ignore[arg-type]
    assert (await asking.put(end, b"x", deadline=soon(), ttl=600, unless=finish)).won
    await facts.put(finish, b"done", deadline=soon(), ttl=600)
    await facts.purge(request_id)
    broker.refuse = True
    with pytest.raises(RequestEnded):
        await asking.put(end, b"x", deadline=soon(), ttl=600, unless=finish)


class _EmptyAfterRefusal:
    """A broker that refuses the first write, as a replicated stream does while another write is in flight (10164)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.refuse = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    async def publish_stored(self, subject: str, data: bytes, **rest: object) -> object:
        if self.refuse:
            self.refuse = False
            raise Conflict(10164, "wrong last sequence")
        return await self._broker.publish_stored(subject, data, **rest)  # type: ignore[arg-type]


async def test_read_is_in_stored_order_with_headers_and_times(facts: Facts, request_id: str) -> None:
    wanted = [subjects.accepted(request_id), subjects.graph(request_id, 0), subjects.first(request_id, "n", 0, "text")]
    before = time.time()
    for subject in wanted:
        await facts.put(subject, subject.encode(), deadline=soon(), ttl=600, headers={"traceparent": "00-ab"})
    await facts.put(subjects.accepted(request_id + "x"), b"", deadline=soon(), ttl=600)
    log = await facts.read(request_id)
    assert [message.subject for message in log.messages] == wanted
    assert [message.data for message in log.messages] == [subject.encode() for subject in wanted]
    assert sorted(message.seq for message in log.messages) == [message.seq for message in log.messages]
    assert log.messages[0].headers["traceparent"] == "00-ab"
    assert all(before - 1 < message.time < time.time() + 1 for message in log.messages)
    assert log.upto > log.messages[-1].seq
    assert (await facts.read("nobody")).messages == []


async def test_read_waits_for_the_trigger(facts: Facts, request_id: str) -> None:
    upto = (await facts.put(subjects.accepted(request_id), b"1", deadline=soon(), ttl=600)).seq
    log = await facts.read(request_id, containing=upto)
    assert log.messages[-1].seq == upto

    reading = asyncio.create_task(facts.read(request_id, containing=upto + 1, timeout=1))
    await facts.put(subjects.graph(request_id, 0), b"2", deadline=soon(), ttl=600)
    assert [message.data for message in (await reading).messages] == [b"1", b"2"]


async def test_read_of_a_purged_trigger_returns_what_is_left(facts: Facts, request_id: str) -> None:
    put = await facts.put(subjects.accepted(request_id), b"1", deadline=soon(), ttl=600)
    await facts.purge(request_id)
    assert (await facts.read(request_id, containing=put.seq)).messages == []


async def test_read_above_the_servers_limit_is_paged(facts: Facts, request_id: str) -> None:
    """One answer spans at most 1,024 subjects; above, the server says 413 and nothing else."""
    puts = [facts.put(subjects.end(request_id, f"n{n}", 0), b"%d" % n, deadline=soon(), ttl=600) for n in range(1100)]
    await asyncio.gather(*puts)
    log = await facts.read(request_id)
    assert {message.data for message in log.messages} == {b"%d" % n for n in range(1100)}
    assert [message.seq for message in log.messages] == sorted(message.seq for message in log.messages)
    assert log.upto == log.messages[-1].seq


async def test_many_reads_at_once_do_not_mix(facts: Facts, request_id: str) -> None:
    for n in range(30):
        await facts.put(subjects.accepted(f"{request_id}{n}"), b"%d" % n, deadline=soon(), ttl=600)
    logs = await asyncio.gather(*(facts.read(f"{request_id}{n}") for n in range(30)))
    assert [[message.data for message in log.messages] for log in logs] == [[b"%d" % n] for n in range(30)]


async def test_count_of_try_marks(facts: Facts, request_id: str) -> None:
    marks = subjects.attempts(request_id, "n", 0)
    assert await facts.count(marks) == 0
    for attempt in ("a", "b"):
        await facts.put(subjects.attempt(request_id, "n", 0, attempt), b"", deadline=soon(), ttl=600)
    await facts.put(subjects.attempt(request_id, "n", 1, "c"), b"", deadline=soon(), ttl=600)
    assert await facts.count(marks) == 2


async def test_watch_wakes_for_stored_facts_only(facts: Facts, request_id: str) -> None:
    """Losers of the fence are never seen: what is republished was stored."""
    wakes = 0

    def wake() -> None:
        nonlocal wakes
        wakes += 1

    async with facts.watch(request_id, wake):
        for _ in range(3):
            await facts.put(subjects.cancel(request_id), os.urandom(4), deadline=soon(), ttl=600)
        await facts.put(subjects.accepted(request_id + "x"), b"", deadline=soon(), ttl=600)
        await eventually(lambda: wakes == 1)
    await facts.put(subjects.finish(request_id), b"", deadline=soon(), ttl=600)
    await facts._broker.nc.flush()
    assert wakes == 1


async def test_watch_wakes_after_a_restart(broker: Broker, nats_server: Server) -> None:
    woken = asyncio.Event()
    async with Facts(broker).watch("a", woken.set):
        nats_server.kill()
        await asyncio.wait_for(woken.wait(), 5)
        woken.clear()
        nats_server.start()
        await asyncio.wait_for(woken.wait(), 5)
        woken.clear()
        await Facts(broker).put("run.a.cancel", b"", deadline=soon(), ttl=600)
        await asyncio.wait_for(woken.wait(), 5)


async def test_accepted_lists_every_request(broker: Broker) -> None:
    facts = Facts(broker)
    await asyncio.gather(
        *(facts.put(subjects.accepted(f"r{n}"), b"%d" % n, deadline=soon(), ttl=600) for n in range(300)),
        *(facts.put(subjects.cancel(f"r{n}"), b"", deadline=soon(), ttl=600) for n in range(300)),
    )
    found = [stored async for stored in facts.accepted()]
    assert {stored.data for stored in found} == {b"%d" % n for n in range(300)}
    assert len(found) == 300


async def test_ttl_ends_a_fact_and_opens_its_subject(facts: Facts, request_id: str) -> None:
    subject = subjects.cancel(request_id)
    await facts.put(subject, b"1", deadline=soon(), ttl=0.2)  # whole seconds: 1
    await eventually(lambda: _gone(facts, subject), within=4)
    assert (await facts.put(subject, b"2", deadline=soon(), ttl=600)).won


async def _gone(facts: Facts, subject: str) -> bool:
    return await facts.last(subject) is None

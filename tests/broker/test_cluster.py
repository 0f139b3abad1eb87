"""Put-if-absent on a replicated stream, which refuses in words that one server alone never uses (rule 1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker import topology
from broker.chunks import ChunkReader, ChunkWriter, RequestChunks
from broker.connection import Broker
from broker.errors import BrokerError
from broker.facts import Facts
from broker.reads import direct_last
from broker.subjects import RUNS, UPLOADS, chunk, upload
from tests.broker.cluster import Cluster
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUBJECTS = 60
WRITERS = 9


def soon(seconds: float = 20.0) -> float:
    return time.time() + seconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Broker]]:
    """One connection to each server; each stream has three replicas."""
    path: Path = tmp_path_factory.mktemp("cluster")
    async with Cluster(path) as cluster:

        async def made() -> bool:
            try:
                await topology.ensure_core(cluster.brokers[0], copies=3)
            except BrokerError:
                return False  # the servers have just met
            return True

        await eventually(made, within=40)
        yield cluster.brokers


async def test_one_of_nine_writers_on_three_servers_wins(brokers: list[Broker]) -> None:
    """A write in flight is refused with 10164, and is not stored yet: it is looked at through the leader, and again."""
    writers = [Facts(brokers[n % 3]) for n in range(WRITERS)]
    puts = [
        [w.put(f"run.race{s}.end", b"%d" % n, deadline=soon(), ttl=600) for n, w in enumerate(writers)]
        for s in range(SUBJECTS)
    ]
    for race in await asyncio.gather(*(asyncio.gather(*race) for race in puts)):
        (winner,) = [n for n, put in enumerate(race) if put.won]
        assert {(put.seq, put.data) for put in race} == {(race[winner].seq, b"%d" % winner)}


async def test_what_is_confirmed_is_seen_at_once_on_every_server(brokers: list[Broker]) -> None:
    """Replicas lag behind: of so many direct reads some would find nothing. `last` asks the leader."""
    for n in range(1000):
        subject = f"run.seen{n}.cancel"
        await Facts(brokers[n % 3]).put(subject, b"x" * 2000, deadline=soon(), ttl=600)
        assert all(await asyncio.gather(*(Facts(broker).last(subject) for broker in brokers)))


async def test_the_fence_holds_while_the_leader_changes(brokers: list[Broker]) -> None:
    """It changes again each time that some races were run: before, between and after, wherever in them."""
    done = asyncio.Event()
    raced = changes = 0

    async def step_down() -> None:
        nonlocal changes
        while not done.is_set():
            before = raced
            try:
                await brokers[0].api(f"STREAM.LEADER.STEPDOWN.{RUNS}")
                changes += 1
            except BrokerError:
                pass  # there is no leader just now
            await eventually(lambda at=before: done.is_set() or raced >= at + 5, within=30)

    async def race(subject: int) -> None:
        nonlocal raced
        puts = (
            Facts(broker).put(f"run.stepdown{subject}.end", b"%d" % n, deadline=soon(), ttl=600)
            for n, broker in enumerate(brokers)
        )
        found = await asyncio.gather(*puts)
        assert sum(put.won for put in found) == 1
        assert len({(put.seq, put.data) for put in found}) == 1
        raced += 1

    stepping = asyncio.create_task(step_down())
    try:
        async with asyncio.timeout(120):  # a busy machine takes longer from one leader to the next
            while raced < SUBJECTS or changes < 3:
                await asyncio.gather(*(race(s) for s in range(raced, raced + 10)))
    finally:
        done.set()
        await stepping


async def test_one_msg_id_from_many_at_once_is_one_message(brokers: list[Broker]) -> None:
    """While the first copy is in process the others are refused with 10158: not stored by anybody yet."""
    for n in range(30):
        stored = await asyncio.gather(
            *(b.publish_stored(f"run.twice{n}.cancel", b"x", deadline=soon(), msg_id=f"id{n}") for b in brokers * 3)
        )
        assert sum(not one.duplicate for one in stored) == 1
        assert len({one.seq for one in stored}) == 1


async def test_who_catches_up_misses_nothing_that_was_confirmed(brokers: list[Broker]) -> None:
    """What comes later is heard; what a lagging replica had left out would be a gap before it."""
    for n in range(300):
        writer, request, seq = Facts(brokers[n % 3]), f"caught{n}", 0
        for index in range(2):
            subject = f"run.{request}.graph.{index}"
            await writer.put(subject, b"x" * 20_000, deadline=soon(), ttl=600)
            found = await asyncio.gather(*(Facts(broker).read_after(request, seq) for broker in brokers))
            assert [[stored.subject for stored in one] for one in found] == [[subject]] * 3
            seq = found[0][-1].seq


async def test_who_reads_to_the_end_is_told_all_that_was_confirmed(brokers: list[Broker]) -> None:
    """A replica that lags behind ends its answer early: the leader says whether that is the end."""

    async def one(n: int) -> None:
        subject = chunk(f"end{n}", "n", 0, "s")
        writer = await ChunkWriter.open(brokers[n % 3], subject, "a", ttl=600, deadline=soon(), fresh=True)
        for _ in range(3):
            await writer.append("x" * 2000)
        readers = [RequestChunks(broker, f"end{n}") for broker in brokers]
        for reader in readers:
            reader.finish()
            assert [stored.chunk.n async for stored in reader] == [0, 1, 2]
            await reader.close()
        short = ChunkReader(brokers[(n + 1) % 3], subject)
        await short.set_total(3)
        assert [stored.chunk.n async for stored in short] == [0, 1, 2]
        await short.close()

    for start in range(0, 200, 20):
        await asyncio.gather(*(one(n) for n in range(start, start + 20)))


async def test_what_never_changes_is_found_on_every_server_once_it_is_confirmed(brokers: list[Broker]) -> None:
    """Parts of uploads: who finds none says that they have expired."""
    for n in range(300):
        subject = upload(f"{n}", 0)
        await brokers[n % 3].publish_stored(subject, b"x" * 20_000, deadline=soon())
        assert all(await asyncio.gather(*(direct_last(b, UPLOADS, subject, timeout=5) for b in brokers)))


async def test_who_joins_late_misses_nothing_that_was_confirmed(brokers: list[Broker]) -> None:
    """What a lagging replica leaves out is not heard either, once a later piece of another output was."""

    async def one(n: int) -> None:
        request = f"join{n}"
        a, b = [
            await ChunkWriter.open(
                brokers[n % 3], chunk(request, node, 0, "s"), "a", ttl=600, deadline=soon(), fresh=True
            )
            for node in "ab"
        ]
        stored = [await a.append("x" * 2000), await b.append("x" * 2000)]
        readers = [RequestChunks(broker, request) for broker in brokers]
        found = [asyncio.create_task(_first(reader, 4)) for reader in readers]
        stored += [await a.append("x"), await b.append("x")]
        assert await asyncio.gather(*found) == [stored] * 3
        for reader in readers:
            await reader.close()

    for start in range(0, 400, 20):
        await asyncio.gather(*(one(n) for n in range(start, start + 20)))


async def _first(reader: RequestChunks, count: int) -> list[int]:
    async with asyncio.timeout(20):
        return [found.seq for _ in range(count) if (found := await reader.next()) is not None]

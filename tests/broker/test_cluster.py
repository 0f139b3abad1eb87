"""Put-if-absent on a replicated stream, which refuses in words that one server alone never uses (rule 1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker import topology
from broker.connection import Broker
from broker.errors import BrokerError
from broker.facts import Facts
from broker.subjects import CHUNKS, RUNS
from tests.broker.cluster import Cluster
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUBJECTS = 60
WRITERS = 9


def soon(seconds: float = 20.0) -> float:
    return time.time() + seconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Broker]]:
    """One connection to each server; RUNS and CHUNKS have three replicas."""
    path: Path = tmp_path_factory.mktemp("cluster")
    async with Cluster(path) as cluster:
        for name, subject in ((RUNS, "run.>"), (CHUNKS, "chunk.>")):
            config = topology._log(name, subject, 64 << 20) | {"num_replicas": 3}

            async def made(name: str = name, config: topology.Config = config) -> bool:
                try:
                    await cluster.brokers[0].api(f"STREAM.CREATE.{name}", config)
                except BrokerError:
                    return False  # the servers have just met
                return True

            await eventually(made, within=20)
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
    done = asyncio.Event()

    async def step_down() -> None:
        while not done.is_set():
            try:
                await brokers[0].api(f"STREAM.LEADER.STEPDOWN.{RUNS}")
            except BrokerError:
                pass  # there is no leader just now
            await asyncio.sleep(0.3)

    async def race(subject: int) -> None:
        puts = (
            Facts(broker).put(f"run.stepdown{subject}.end", b"%d" % n, deadline=soon(), ttl=600)
            for n, broker in enumerate(brokers)
        )
        found = await asyncio.gather(*puts)
        assert sum(put.won for put in found) == 1
        assert len({(put.seq, put.data) for put in found}) == 1

    stepping = asyncio.create_task(step_down())
    try:
        for start in range(0, SUBJECTS, 10):
            await asyncio.gather(*(race(s) for s in range(start, start + 10)))
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

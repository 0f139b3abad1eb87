"""Random SIGKILLs of producers and readers, seeded: no byte leaks, and every read is whole or a typed error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.connection import Broker
from broker.server import Server
from broker.subjects import release_hint
from cornstalk.messages import Ref, encode
from sidecar.messages import Release, encode_releases
from tests.sidecar.actors import Actor, Refused, checksum, pattern
from tests.sidecar.conftest import MIB, Connect, Sidecar, running

KILLS = 40


@pytest.fixture
def sidecar(directory: Path, nats_server: Server) -> Iterator[Sidecar]:
    yield from running(directory, nats_server)


class Soak:
    """Two producers and two readers; each time one is killed another takes its place."""

    def __init__(self, actor: Callable[..., Actor], seed: int) -> None:
        self.rng = random.Random(seed)
        self.actor = actor
        self.producers = [actor(quota=6 * MIB) for _ in range(2)]
        self.readers = [actor(quota=0) for _ in range(2)]
        self.refs: list[tuple[Ref, int]] = []  # with the seed of the bytes
        self.requests: list[str] = []
        self.reads = self.gone = self.kills = 0

    async def turn(self, number: int) -> None:
        who = self.rng.randrange(2)
        owner, size = (f"q{number}", "n", 0, f"a{number}"), self.rng.choice([100, 5000, 200_000, MIB])
        self.requests.append(owner[0])
        if self.rng.random() < 0.25:
            self.producers[who].begin("put", owner, 0, number, size, 0.2)
            await self.kill(self.producers, who, 6 * MIB)
            return
        try:
            self.refs.append((await self.producers[who].call("put", owner, 0, number, size, 0.05), number))
        except Refused as refused:
            assert refused.kind == "Full", refused  # noqa: PT017
        await self.read(who)
        if self.refs and self.rng.random() < 0.2:
            self.readers[who].begin("get", encode(self.refs[-1][0]), True)
            await self.kill(self.readers, who, 0)

    async def read(self, who: int) -> None:
        for ref, seed in self.rng.sample(self.refs, min(3, len(self.refs))):
            try:
                result = await self.readers[who].call("get", encode(ref), self.rng.random() < 0.3)
            except Refused as refused:
                assert refused.kind == "Gone", refused  # noqa: PT017
                self.gone += 1
            else:
                assert result == checksum(pattern(seed, ref.nbytes)), "wrong bytes"
                self.reads += 1

    async def kill(self, group: list[Actor], who: int, quota: int) -> None:
        await asyncio.sleep(self.rng.random() * 0.003)  # the moment of death is what is random here
        group[who].kill()
        group[who] = self.actor(quota=quota)
        self.kills += 1


async def test_random_kills_leak_nothing_and_every_read_is_right(
    broker: Broker, connect: Connect, actor: Callable[..., Actor], settled: Any
) -> None:
    client = await connect(quota=0)
    soak = Soak(actor, seed=20261129)
    number = 0
    while soak.kills < KILLS:
        number += 1
        await soak.turn(number)
        if number % 10 == 0:
            await release(broker, soak.requests[-20:-10])
    assert soak.reads > 30
    assert soak.gone > 0
    for process in (*soak.producers, *soak.readers):
        process.kill()
    await settled(client, leases=0, granted_bytes=0, waiters=0, connections=1)
    await release(broker, soak.requests)
    await settled(client, blocks=0, committed_bytes=0, arenas=0, arena_bytes=0)


async def release(broker: Broker, requests: list[str]) -> None:
    await broker.publish_core(release_hint("here"), encode_releases(Release(request) for request in requests))

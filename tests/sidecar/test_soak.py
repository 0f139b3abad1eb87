"""Random SIGKILLs of producers, readers and the daemon: no byte leaks, and every read is whole or a typed error.

CORNSTALK_SOAK=long (`make soak`) is the same for 1,000 kills. CORNSTALK_SEED repeats a run's choice of victims.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.connection import Broker
from broker.server import Server
from broker.subjects import release_hint
from cornstalk.messages import Ref, encode
from sidecar.client import SidecarClient
from sidecar.messages import Release, encode_releases
from tests.shm import held, shared_files
from tests.sidecar.actors import Actor, Refused, checksum, pattern
from tests.sidecar.conftest import MIB, Connect, Sidecar, running
from tests.waiting import eventually

LONG: Final = os.environ.get("CORNSTALK_SOAK") == "long"
KILLS: Final = 1000 if LONG else 30
SIZES: Final = (100, 5000, 200_000, MIB)
QUOTA: Final = {"producer": 6 * MIB, "reader": 0}
FRESH: Final = 12
"""Refs of which readers choose, most of them not released yet."""


@pytest.fixture
def sidecar(directory: Path, nats_server: Server) -> Iterator[Sidecar]:
    yield from running(directory, nats_server)


class Soak:
    """Two producers, two readers and a daemon; who is killed has a successor before the next turn."""

    def __init__(self, sidecar: Sidecar, actor: Callable[..., Actor], seed: int) -> None:
        self.rng = random.Random(seed)
        self.sidecar, self.actor = sidecar, actor
        self.actors = {(kind, n): actor(quota=QUOTA[kind]) for kind in QUOTA for n in range(2)}
        self.refs: list[tuple[Ref, int]] = []  # with the seed of the bytes
        self.requests: list[str] = []
        self.kills = dict.fromkeys(("producer", "reader", "daemon"), 0)
        self.reads = self.held = 0
        self.refused: dict[str, int] = {}

    async def turn(self, number: int) -> None:
        """A put and reads begin, some of all die at a random moment, what is left must be right or refused."""
        putting, reading = ("producer", self.rng.randrange(2)), ("reader", self.rng.randrange(2))
        self.requests.append(f"q{number}")
        self.actors[putting].begin("put", (f"q{number}", "n", 0, "a"), 0, number, self.rng.choice(SIZES), 0.05)
        wanted = self.rng.sample(self.refs[-FRESH:], min(3, len(self.refs)))
        for ref, _ in wanted:
            self.actors[reading].begin("get", encode(ref), self.rng.random() < 0.3)
        dead = await self.strike(putting, reading)
        if putting not in dead:
            ref = await self.answer(putting, {"Full", "SidecarDown"})
            if ref is not None:
                self.refs.append((ref, number))
        if reading not in dead:
            for ref, seed in wanted:
                result = await self.answer(reading, {"Gone", "StaleEpoch", "SidecarDown"})
                assert result in (None, checksum(pattern(seed, ref.nbytes))), "wrong bytes"
                if result is None:
                    self.refs.remove((ref, seed))
                else:
                    self.reads += 1
        await self.revive(dead)
        if self.rng.random() < 0.3:
            await self.forget(("reader", self.rng.randrange(2)))

    async def strike(self, *busy: tuple[str, int]) -> list[tuple[str, int]]:
        if self.rng.random() < 0.5:
            return []
        victims = [*busy, ("daemon", 0)] if self.rng.random() < 0.4 else [*busy]
        dead = self.rng.sample(victims, self.rng.randint(1, len(victims)))
        for victim in dead:
            await asyncio.sleep(self.rng.random() * 0.003)  # the moment of death is what is random here
            self.kills[victim[0]] += 1
            if victim in self.actors:
                self.actors[victim].kill()
            else:
                self.sidecar.end(signal.SIGKILL)
        if ("daemon", 0) in dead:
            await asyncio.to_thread(self.sidecar.start)  # before any answer: who has just begun waits for a daemon
        return dead

    async def revive(self, dead: list[tuple[str, int]]) -> None:
        for name in dead:
            if name in self.actors:
                self.actors[name] = self.actor(quota=QUOTA[name[0]])
        if ("daemon", 0) in dead:
            for one in self.actors.values():
                await eventually(lambda one=one: one.call("connected", within=60.0), within=60.0)  # type: ignore[misc]

    async def forget(self, name: tuple[str, int]) -> None:
        """What was held, also of an earlier daemon, must be as it was."""
        self.held += await self.actors[name].call("forget", within=60.0)

    async def answer(self, name: tuple[str, int], expected: set[str]) -> Any:
        try:
            return await self.actors[name].answer(within=60.0)
        except Refused as refused:
            if refused.kind not in expected:
                raise
            self.refused[refused.kind] = self.refused.get(refused.kind, 0) + 1
            return None


async def test_random_kills_leak_nothing_and_every_read_is_right(
    broker: Broker, connect: Connect, actor: Callable[..., Actor], sidecar: Sidecar
) -> None:
    seed = int(os.environ.get("CORNSTALK_SEED", secrets.randbelow(10**6)))
    print(f"seed {seed}")
    client = await connect(quota=0)
    soak = Soak(sidecar, actor, seed)
    number = 0
    while sum(soak.kills.values()) < KILLS or not all((*soak.kills.values(), soak.reads, soak.held)):
        number += 1
        await soak.turn(number)
        if number % 5 == 0:
            await release(broker, soak.requests[-15:-5])
    print(f"{soak.kills} killed, {soak.reads} reads right, {soak.held} held to the end, refused {soak.refused}")
    for one in soak.actors.values():
        one.kill()
    await eventually(lambda: client.connected)
    await eventually(lambda: empty(broker, client, soak.requests), within=10.0)
    assert memory_of(sidecar.pid) == memory_of(os.getpid()) == []
    assert shared_files([sidecar.pid, os.getpid()]) == set()


async def empty(broker: Broker, client: SidecarClient, requests: list[str]) -> bool:
    """Nothing is left once all is released (a daemon hears that as soon as it has found NATS)."""
    await release(broker, requests)
    stats = await client.stats()
    left = stats.leases, stats.granted_bytes, stats.waiters, stats.blocks, stats.committed_bytes, stats.arena_bytes
    return left == (0,) * 6 and stats.connections == 1


def memory_of(pid: int) -> list[str]:
    """The arenas that a process holds open or has mapped."""
    return [name for name in held(pid) if "cornstalk-arena" in name]


async def release(broker: Broker, requests: list[str]) -> None:
    await broker.publish_core(release_hint("here"), encode_releases(Release(request) for request in requests))

"""The sidecar's business with a real nats-server: last wills, release hints, its share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import numpy as np
import pytest

from broker.connection import Broker
from broker.server import Server
from broker.subjects import SIDECAR_SHARE, release_hint
from sidecar.client import SidecarClient
from sidecar.messages import Owner, Release, Share, decode_releases, encode_releases
from sidecar.uplink import NAK
from tests.sidecar.actors import Actor
from tests.sidecar.conftest import MIB, OWNER, Connect, Sidecar, running
from tests.waiting import eventually

Spawn = Callable[..., Actor]


@pytest.fixture
def sidecar(directory: Path, nats_server: Server) -> Iterator[Sidecar]:
    yield from running(directory, nats_server)


@pytest.fixture
async def heard(nats_server: Server) -> AsyncIterator[list[tuple[str, bytes, float]]]:
    """What was published on reply.>, and when it came."""
    broker = await Broker.connect(nats_server.url, name="listener", token=nats_server.token)
    messages: list[tuple[str, bytes, float]] = []

    async def hear(message: Any) -> None:
        messages.append((message.subject, message.data, time.monotonic()))

    await broker.subscribe_core("reply.>", hear)
    await broker.nc.flush()
    yield messages
    await broker.close()


async def shares(broker: Broker, sidecar: Sidecar) -> list[Share]:
    """Filled as they come. The first one proves that the sidecar has found NATS."""
    received: list[Share] = []

    async def hear(message: Any) -> None:
        received.append(msgspec.msgpack.decode(message.data, type=Share))

    await broker.subscribe_core(SIDECAR_SHARE, hear)
    await eventually(lambda: received, within=5.0)
    return received


async def test_the_items_of_a_killed_worker_are_handed_back(
    broker: Broker, sidecar: Sidecar, actor: Spawn, heard: list[tuple[str, bytes, float]]
) -> None:
    await shares(broker, sidecar)
    worker = actor(quota=0)
    for number in range(3):
        await worker.call("will", f"item{number}", f"reply.{number}")
    await worker.call("will_done", "item1")
    killed = time.monotonic()
    worker.kill()
    await eventually(lambda: len(heard) == 2)
    assert sorted((subject, data) for subject, data, _ in heard) == [("reply.0", NAK), ("reply.2", NAK)]
    assert max(at for _, _, at in heard) - killed < 0.5


async def test_a_worker_that_ends_well_has_no_last_will(
    broker: Broker, sidecar: Sidecar, heard: list[tuple[str, bytes, float]], connect: Connect
) -> None:
    await shares(broker, sidecar)
    client = await connect(quota=0)
    await client.will("item", "reply.item")
    await client.will_done("item")
    await client.close()
    await asyncio.sleep(0.1)
    assert heard == []


async def test_wills_outlive_the_daemon_and_an_outage_of_nats(
    broker: Broker, sidecar: Sidecar, actor: Spawn, nats_server: Server, connect: Connect, settled: Any
) -> None:
    # a stream, for nobody else is sure to listen when the sidecar is the first to be back
    await broker.js.add_stream(name="REPLIES", subjects=["reply.item"])
    await shares(broker, sidecar)
    worker = actor(quota=0)
    await worker.call("will", "item", "reply.item")
    sidecar.end(9)
    sidecar.start()
    client = await connect(quota=0)
    await settled(client, wills=1)  # announced again
    nats_server.kill()
    worker.kill()
    await settled(client, wills=0)
    nats_server.start()

    async def naks() -> list[bytes]:
        try:
            return [(await broker.js.get_last_msg("REPLIES", "reply.item")).data]
        except (nats.errors.Error, OSError):
            return []

    assert await eventually(naks, within=8.0) == [NAK]


async def test_local_clients_are_served_while_nats_is_away(nats_server: Server, connect: Connect) -> None:
    nats_server.kill()
    client = await connect()
    ref = await client.put_copy(OWNER, "out", 0, np.arange(4), expires=time.time() + 60, wait=2.0)
    with await client.get(ref) as lease:
        assert lease.array.tolist() == [0, 1, 2, 3]


async def test_blocks_that_a_client_was_given_ahead_count_as_free(
    broker: Broker, sidecar: Sidecar, connect: Connect, settled: Any
) -> None:
    client = await connect(quota=8 << 20)
    received = await shares(broker, sidecar)
    for index in range(2):
        await client.put_copy(OWNER, "out", index, np.ones(1 << 20, np.uint8), expires=time.time() + 60, wait=2.0)
    await client.drop(OWNER)
    await settled(client, blocks=0)
    assert (await client.stats()).granted_bytes > 0
    received.clear()
    await eventually(lambda: received and received[-1].free == received[-1].total, within=5.0)


async def test_release_hints_free_generations_and_requests(
    broker: Broker, sidecar: Sidecar, connect: Connect, settled: Any
) -> None:
    await shares(broker, sidecar)
    client = await connect(quota=4 * MIB)
    for request, node, gen in (("r", "n", 0), ("r", "n", 1), ("r", "m", 0), ("other", "n", 0)):
        owner = Owner(request, node, gen, "a")
        await client.put_copy(owner, "out", 0, np.ones(5), expires=time.time() + 60, wait=2.0)

    async def hint(*releases: Release) -> None:
        await broker.publish_core(release_hint("here"), encode_releases(releases))

    await broker.publish_core(release_hint("here"), b"nonsense")
    await broker.publish_core(release_hint("elsewhere"), encode_releases([Release("r")]))
    await hint(Release("r", "n", 1), Release("unknown"))
    await settled(client, blocks=3)
    await hint(Release("r"))
    await settled(client, blocks=1)
    await hint(Release("other"))
    await settled(client, blocks=0, committed_bytes=0)


async def test_the_share_follows_what_is_in_use(broker: Broker, sidecar: Sidecar, connect: Connect) -> None:
    received = await shares(broker, sidecar)
    assert received[-1] == Share("here", 64 * MIB, 64 * MIB, 64 * MIB)
    client: SidecarClient = await connect(quota=16 * MIB)
    await client.put_copy(OWNER, "out", 0, np.ones(10 * MIB, np.uint8), expires=time.time() + 60, wait=2.0)
    await eventually(lambda: received[-1] == Share("here", 54 * MIB, 64 * MIB, 48 * MIB), within=3.0)


def test_release_hints_are_plain_lists() -> None:
    """Other dispatchers may write them without this code: [request] or [request, node, generation]."""
    data = msgspec.msgpack.encode([["r"], ["r", "n", 3]])
    assert decode_releases(data) == [Release("r"), Release("r", "n", 3)]
    for wrong in ([["r", "n"]], [["r", "n", "3"]], [["r", "n", 3, 4]], {"r": 1}, ["r"]):
        with pytest.raises(msgspec.MsgspecError):
            decode_releases(msgspec.msgpack.encode(wrong))

"""SIGKILL of producers, readers and the daemon itself: nothing leaks, nothing is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cornstalk.messages import decode_value, encode
from sidecar import messages
from sidecar.client import SidecarClient
from sidecar.errors import Full, Gone, SidecarDown, SidecarError, StaleEpoch
from tests.shm import shared_files
from tests.sidecar.actors import Actor, checksum, pattern
from tests.sidecar.conftest import MIB, OWNER, Connect, Sidecar, stopped
from tests.waiting import eventually

RAW_OWNER = ("r", "n", 0, "a")
Spawn = Callable[..., Actor]


def soon() -> float:
    return time.time() + 60


async def test_a_producer_killed_while_it_writes_leaves_nothing(connect: Connect, actor: Spawn, settled: Any) -> None:
    client, producer = await connect(quota=0), actor()
    await producer.call("write", RAW_OWNER, 3 * MIB)
    assert (await client.stats()).granted_bytes == 3 * MIB
    producer.kill()
    await settled(client, within=1.0, granted_bytes=0, arenas=0, arena_bytes=0, connections=1)


async def test_a_producer_killed_after_its_commit_is_still_served(connect: Connect, actor: Spawn, settled: Any) -> None:
    client, producer = await connect(quota=0), actor()
    ref = await producer.call("put", RAW_OWNER, 0, 42, 2 * MIB, 2.0)
    await producer.call("write", RAW_OWNER, MIB)
    producer.kill()
    await settled(client, granted_bytes=0, committed_bytes=2 * MIB, connections=1, arenas=1)
    for _ in range(2):
        lease = await client.get(ref)
        assert checksum(lease.array) == checksum(pattern(42, 2 * MIB))
        lease.release()


async def test_the_arena_of_a_dead_producer_goes_with_its_last_block(
    connect: Connect, actor: Spawn, settled: Any, sidecar: Sidecar
) -> None:
    client, producer = await connect(quota=0), actor()
    data = pattern(1, 1000)
    ref = await producer.call("put", RAW_OWNER, 0, 1, 1000, 2.0)
    lease = await client.get(ref)
    producer.kill()
    await settled(client, connections=1, arenas=1)
    assert np.array_equal(lease.array, data)
    lease.release()
    assert "cornstalk-arena" in maps()
    await settled(client, leases=0)
    # only the expiry (or the dispatcher) may free it: nobody here can drop what another process made
    await client.drop(OWNER)
    assert (await client.stats()).blocks == 1


async def test_a_killed_reader_loses_its_leases_and_others_keep_theirs(
    connect: Connect, actor: Spawn, settled: Any
) -> None:
    producer, readers = await connect(quota=4 * MIB), [actor(quota=0) for _ in range(3)]
    ref = await producer.put_copy(OWNER, "out", 0, pattern(5, MIB), expires=soon(), wait=2.0)
    for reader in readers:
        assert await reader.call("get", encode(ref), True) == checksum(pattern(5, MIB))
    await producer.drop(OWNER)
    await settled(producer, leases=3, blocks=1)
    for left in (2, 1, 0):
        readers[left].kill()
        await settled(producer, within=1.0, leases=left, blocks=min(left, 1))
    await settled(producer, committed_bytes=0, granted_bytes=0)


async def test_a_second_read_needs_no_daemon_and_keeps_its_memory(
    connect: Connect, sidecar: Sidecar, settled: Any
) -> None:
    producer, reader = await connect(quota=4 * MIB), await connect(quota=0)
    await warmed(producer, reader, settled)
    with stopped(sidecar):
        ref = await producer.put_copy(OWNER, "out", 1, pattern(6, 1000), expires=soon(), wait=2.0)
        lease = await reader.get(ref)
        assert np.array_equal(lease.array, pattern(6, 1000))
    assert (await producer.stats()).leases == 1
    await producer.drop(OWNER)
    await settled(producer, blocks=1)
    with pytest.raises(Gone):
        await reader.get(ref)
    await overwritten(producer)
    assert np.array_equal(lease.array, pattern(6, 1000)), "memory that is read was given out again"
    lease.release()
    await settled(producer, leases=0, blocks=0, committed_bytes=0)


async def test_a_producer_killed_after_a_commit_that_no_daemon_has_seen_is_still_served(
    connect: Connect, actor: Spawn, sidecar: Sidecar, settled: Any
) -> None:
    reader, producer = await connect(quota=0), actor()
    for index in range(2):  # the second size comes with spares
        (await reader.get(await producer.call("put", RAW_OWNER, index, 1, 1000, 2.0))).release()
    with stopped(sidecar):
        ref = await producer.call("put", RAW_OWNER, 2, 8, 1000, 2.0)
        lease = await reader.get(ref)
        producer.kill()
        assert np.array_equal(lease.array, pattern(8, 1000))
    await settled(reader, connections=1, blocks=3)
    assert np.array_equal(lease.array, pattern(8, 1000))
    lease.release()
    (await reader.get(ref)).release()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_commit_of_which_the_daemon_was_not_told_is_served(
    connect: Connect, actor: Spawn, tmp_path: Path, killed: bool
) -> None:
    """By a producer whose event loop has not turned since: the commit lies in its ledger."""
    producer, told = actor(), tmp_path / "ref"
    await producer.call("put", RAW_OWNER, 0, 1, 1000, 2.0)
    producer.begin("put_and_stand_still", 1, 8, 1000, str(told))
    await eventually(told.exists)
    if killed:
        producer.kill()
    for _ in range(2):
        reader = await connect(quota=0)  # who has not had the arena asks the daemon
        with await reader.get(decode_value(told.read_bytes())) as lease:
            assert np.array_equal(lease.array, pattern(8, 1000))


async def test_a_reader_killed_with_a_pin_gives_the_memory_back(connect: Connect, actor: Spawn, settled: Any) -> None:
    producer, readers = await connect(quota=4 * MIB), [actor(quota=0) for _ in range(2)]
    first, second = [
        await producer.put_copy(OWNER, "out", n, pattern(n, MIB), expires=soon(), wait=2.0) for n in range(2)
    ]
    for reader in readers:
        await reader.call("get", encode(first), False)
        assert await reader.call("get", encode(second), True) == checksum(pattern(1, MIB))
    await settled(producer, leases=2)
    readers[0].kill()  # before the release
    await settled(producer, leases=1, connections=2)
    await producer.drop(OWNER)
    await settled(producer, blocks=1)
    readers[1].kill()  # after it
    await settled(producer, within=1.0, leases=0, blocks=0, committed_bytes=0)


async def warmed(producer: SidecarClient, reader: SidecarClient, settled: Any) -> None:
    """The reader has the arena, and the producer spare blocks of 1000 bytes."""
    for index in range(2):
        ref = await producer.put_copy(OWNER, "out", index, pattern(1, 1000), expires=soon(), wait=2.0)
        (await reader.get(ref)).release()
    await producer.drop(OWNER)
    ref = await producer.put_copy(OWNER, "out", 0, pattern(1, 1000), expires=soon(), wait=2.0)
    (await reader.get(ref)).release()
    await producer.drop(OWNER)
    await settled(producer, leases=0, blocks=0)  # a lease ends when the loop of its reader turns


async def overwritten(producer: SidecarClient) -> None:
    """All memory that the producer can get was written."""
    for index in range(1024):
        try:
            await producer.put_copy(OWNER, "more", index, np.zeros(4096, np.uint8), expires=soon(), wait=0.0)
        except Full:
            break
    else:
        raise AssertionError("the arena was not filled")
    await producer.drop(OWNER)


async def test_a_process_killed_in_the_line_is_passed_over(connect: Connect, actor: Spawn, settled: Any) -> None:
    client = await connect(quota=0)
    waiting = actor(quota=4 * MIB)
    await waiting.call("put", RAW_OWNER, 0, 1, 3 * MIB, 2.0)
    waiting.begin("put", RAW_OWNER, 1, 1, 2 * MIB, 30.0)
    await settled(client, waiters=1)
    waiting.kill()
    await settled(client, within=1.0, waiters=0, connections=1, granted_bytes=0)


async def test_room_of_a_dead_producer_serves_who_waits_for_the_budget(
    connect: Connect, actor: Spawn, settled: Any
) -> None:
    hog = actor(quota=60 * MIB)
    await hog.call("write", RAW_OWNER, 50 * MIB)
    client = await connect(quota=0, limit=64 * MIB)
    with pytest.raises(Full):
        await client.put_copy(OWNER, "out", 0, np.ones(30 * MIB, np.uint8), expires=soon(), wait=0.1)
    putting = asyncio.create_task(
        client.put_copy(OWNER, "out", 0, np.ones(30 * MIB, np.uint8), expires=soon(), wait=5.0)
    )
    await settled(client, waiters=1)
    hog.kill()
    with await client.get(await putting) as lease:
        assert lease.array.sum() == 30 * MIB


async def test_a_killed_daemon_leaves_views_valid_and_old_refs_fail_typed(
    connect: Connect, sidecar: Sidecar, settled: Any
) -> None:
    client = await connect(quota=4 * MIB)
    data = pattern(9, MIB)
    ref = await client.put_copy(OWNER, "out", 0, data, expires=soon(), wait=2.0)
    lease = await client.get(ref)
    torn = client.put(OWNER, "out", 1, 10, "uint8", expires=soon(), wait=2.0)
    block = await torn.__aenter__()
    assert shared_files([sidecar.pid, os.getpid()]) == set(), "a daemon that is killed could leave them behind"
    sidecar.end(signal.SIGKILL)

    await eventually(lambda: not client.connected)
    block.array[:] = 3
    with pytest.raises(SidecarDown):
        await torn.__aexit__(None, None, None)
    with pytest.raises(SidecarDown):
        await client.get(ref)
    with pytest.raises(SidecarDown):
        await client.put_copy(OWNER, "out", 0, data, expires=soon(), wait=2.0)
    assert np.array_equal(lease.array, data)

    sidecar.start()
    await eventually(lambda: client.connected)
    with pytest.raises(StaleEpoch):
        await client.get(ref)
    again = await client.put_copy(OWNER, "out", 0, data, expires=soon(), wait=2.0)
    with pytest.raises(Gone):
        await client.get(again.replace(offset=again.offset + 4096))
    with await client.get(again) as other:
        assert np.array_equal(other.array, data)
    assert np.array_equal(lease.array, data), "the old view must outlive any number of daemons"
    assert maps().count("cornstalk-arena") > 0
    lease.release()
    del lease, block, torn, other
    await settled(client, leases=0)


async def test_a_client_that_a_sidecar_of_another_release_refused_asks_again(
    connect: Connect, sidecar: Sidecar
) -> None:
    client = await connect(quota=MIB)
    sidecar.end(signal.SIGKILL)
    sidecar.path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(sidecar.path))
        other.listen()
        other.settimeout(10.0)
        connection, _ = await asyncio.to_thread(other.accept)
        with connection:
            hello = msgspec.msgpack.decode(connection.recv(messages.MAX_MESSAGE))
            connection.send(messages.encode(messages.Failed(hello[1], "denied", "another version")))
            await asyncio.to_thread(connection.recv, 1)  # it hangs up
    sidecar.path.unlink()
    assert not client.connected
    sidecar.start()
    await eventually(lambda: client.connected, within=10.0)
    await client.put_copy(OWNER, "out", 0, pattern(1, 100), expires=soon(), wait=2.0)


async def test_waits_end_when_the_daemon_dies(connect: Connect, sidecar: Sidecar, settled: Any) -> None:
    client = await connect(quota=4 * MIB)
    await client.put_copy(OWNER, "out", 0, pattern(1, 3 * MIB), expires=soon(), wait=2.0)
    waiting = asyncio.create_task(client.put_copy(OWNER, "out", 1, pattern(1, 2 * MIB), expires=soon(), wait=30.0))
    await settled(client, waiters=1)
    sidecar.end(signal.SIGKILL)
    with pytest.raises(SidecarDown):
        await asyncio.wait_for(waiting, 2.0)


async def test_a_daemon_that_hangs_is_a_timeout(connect: Connect, sidecar: Sidecar) -> None:
    client = await connect(quota=0)
    os.kill(sidecar.pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(SidecarError):
        await client.stats(wait=0.2)
    assert time.monotonic() - started < 0.5
    os.kill(sidecar.pid, signal.SIGCONT)
    await client.stats()


def maps() -> str:
    with open("/proc/self/maps") as lines:
        return lines.read()

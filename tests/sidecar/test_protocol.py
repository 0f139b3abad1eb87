"""The daemon against clients that do not keep to the protocol."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sidecar import messages
from tests.sidecar.conftest import MIB, OWNER, Connect, Sidecar, running, stopped


@pytest.fixture(scope="module")
def sidecar(directory: Path) -> Iterator[Sidecar]:
    """One for all tests of this module, which leave nothing in it."""
    yield from running(directory)


class Raw:
    """A connection without a client library."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(5.0)
        self.socket.connect(str(sidecar.path))
        self.ledger: socket.socket | None = None

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, bytes) else messages.encode(message))

    def flood(self, requests: int) -> None:
        for number in range(requests):
            self.send(messages.GetStats(number + 2))

    def receive(self) -> Any:
        data, descriptors, _, _ = socket.recv_fds(self.socket, messages.MAX_MESSAGE, 3)
        reply = messages.decode_reply(data)
        if isinstance(reply, messages.Welcome):
            self.ledger = socket.socket(fileno=descriptors.pop())
        for descriptor in descriptors:
            socket.close(descriptor)
        return reply

    def close(self) -> None:
        self.socket.close()
        if self.ledger is not None:
            self.ledger.close()

    def hello(self, quota: int = MIB) -> messages.Welcome:
        self.send(messages.Hello(1, messages.VERSION, "raw", quota, MIB))
        welcome = self.receive()
        assert isinstance(welcome, messages.Welcome)
        return welcome


@pytest.fixture
def raw(sidecar: Sidecar) -> Iterator[Raw]:
    raw = Raw(sidecar)
    yield raw
    raw.close()


TENSOR = messages.Tensor("r", "n", 0, "a", "out", 0, "here", "epoch", 1, 0, 4, "float32", (1,))
GOOD = msgspec.msgpack.decode(messages.encode(messages.Get(7, TENSOR, 1.0)))


def changed(index: int, value: Any) -> bytes:
    tensor = list(GOOD[2])
    tensor[index] = value
    return msgspec.msgpack.encode([GOOD[0], GOOD[1], tensor, GOOD[3]])


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"x",
        msgspec.msgpack.encode({"op": "get"}),
        msgspec.msgpack.encode(["nonsense", 7]),
        msgspec.msgpack.encode(["get", 7]),
        msgspec.msgpack.encode([*GOOD, "more"]),
        changed(0, None),
        changed(2, "0"),
        changed(9, True),
        changed(9, 1.5),
        changed(12, [1, "2"]),
        changed(12, {"0": 1}),
        changed(12, [True]),
        messages.encode(messages.Grant(7, -1, 1.0, 1, False)),
        messages.encode(messages.Grant(7, 1, float("nan"), 1, False)),
        messages.encode(messages.Grant(7, 1, -1.0, 1, False)),
        messages.encode(messages.Grant(7, 1, 1.0, 0, False)),
        messages.encode(messages.Hello(7, messages.VERSION, "twice", 0, 0)),
        messages.encode(messages.Will("item", "a reply >")),
        messages.encode(messages.Mapped(99)),
        messages.encode(messages.EndLease(99)),
        messages.encode(messages.Abort(99)),
    ],
)
def test_malformed_messages_are_refused_and_the_daemon_lives(raw: Raw, data: bytes) -> None:
    raw.hello(quota=0)
    raw.send(data)
    reply = raw.receive()
    assert isinstance(reply, messages.Failed)
    assert reply.code == "denied"
    raw.send(messages.GetStats(2))
    stats = raw.receive()
    assert isinstance(stats, messages.Stats)
    assert stats.refused > 0


def test_nothing_is_answered_before_hello(raw: Raw) -> None:
    raw.send(messages.GetStats(2))
    assert raw.receive().code == "denied"


@pytest.mark.parametrize("version", [messages.VERSION - 1, messages.VERSION + 1])
def test_a_client_of_another_protocol_is_told(raw: Raw, version: int) -> None:
    raw.send(messages.Hello(1, version, "other", 0, 0))
    assert f"version {version}" in raw.receive().message


def test_an_oversized_datagram_is_refused(raw: Raw) -> None:
    raw.hello(quota=0)
    raw.send(messages.encode(messages.Will("i" * 20000, "reply")))
    assert raw.receive().code == "denied"


async def test_foreign_blocks_and_leases_are_out_of_reach(raw: Raw, connect: Connect) -> None:
    client = await connect()
    owner = messages.Owner("r", "n", 0, "a")
    expires = time.time() + 60
    async with client.put(owner, "out", 0, 4, "uint8", expires=expires, wait=2.0) as open_block:
        block, tensor = open_block._block, open_block._tensor
        raw.hello(quota=0)
        for message in (messages.Commit(block, tensor, expires, False), messages.Abort(block), messages.Mapped(1)):
            raw.send(message)
            assert (await asyncio.to_thread(raw.receive)).code == "denied"
        open_block.array[:] = 5
    lease = await client.get(open_block.ref)
    raw.send(messages.Drop(owner))
    for number in range(10):
        raw.send(messages.EndLease(number))
        assert (await asyncio.to_thread(raw.receive)).code == "denied"
    stats = await client.stats()
    assert (stats.blocks, stats.leases) == (1, 1)
    assert lease.array.tolist() == [5] * 4


@pytest.mark.parametrize("count", [-1, 1, 2, 1 << 62])
def test_what_is_no_commit_is_refused_in_a_ledger(raw: Raw, count: int) -> None:
    raw.hello(quota=0)
    assert raw.ledger is not None
    raw.ledger.send(messages.encode(messages.Heed(1 << 40)))
    raw.send(messages.Heed(count))
    raw.send(messages.GetStats(2))
    if count > 0:
        assert raw.receive().code == "denied"
    assert isinstance(raw.receive(), messages.Stats)


async def test_commits_in_a_ledger_keep_their_place_among_other_messages(sidecar: Sidecar, connect: Connect) -> None:
    client = await connect()
    await client.put_copy(OWNER, "out", 0, np.ones(9), expires=time.time() + 60, wait=2.0)
    await client.put_copy(OWNER, "out", 1, np.ones(9), expires=time.time() + 60, wait=2.0)  # with spares for the next
    with stopped(sidecar):
        for index in (2, 3):
            await client.put_copy(OWNER, "out", index, np.ones(9), expires=time.time() + 60, wait=0.0)
        await client.drop(OWNER)
        kept = await client.put_copy(OWNER, "out", 4, np.ones(9), expires=time.time() + 60, wait=0.0)
    assert (await client.stats()).blocks == 1
    (await client.get(kept)).release()
    await client.drop(OWNER)


async def test_a_full_ledger_loses_no_commit(sidecar: Sidecar, connect: Connect) -> None:
    client = await connect()
    refused = (await client.stats()).refused
    commits = [messages.encode(messages.Commit(1 << 40, TENSOR, 0.0, False)) for _ in range(1200)]
    with stopped(sidecar):
        told = [client.live().commit(commit) for commit in commits]
    assert told[0], "it has room for some"
    assert not told[-1], "its own and that of the socket are less than this"
    assert (await client.stats()).refused == refused + len(commits)


async def test_a_client_that_takes_no_answers_stops_only_itself(raw: Raw, connect: Connect, settled: Any) -> None:
    raw.hello(quota=0)
    raw.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        raw.flood(100_000)
    client = await connect()
    await client.stats()
    raw.socket.close()
    await settled(client, connections=1)

"""Stream outputs: fenced writers, takeovers, and readers that miss nothing (rule 5)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from broker import subjects
from broker.chunks import ChunkReader, ChunkWriter, RequestChunks, StoredChunk
from broker.connection import Broker
from broker.errors import DeadlineExceeded, PayloadTooLarge, RequestEnded, Superseded
from broker.facts import Facts
from broker.server import Server
from broker.tail import LOOK_AGAIN
from cornstalk.messages import Chunk
from tests.broker.proxy import Proxy
from tests.waiting import eventually


def soon(seconds: float = 10.0) -> float:
    return time.time() + seconds


def text_of(request: str, node: str = "n", output: str = "text") -> str:
    return subjects.chunk(request, node, 0, output)


async def write(broker: Broker, subject: str, attempt: str = "a") -> ChunkWriter:
    return await ChunkWriter.open(broker, subject, attempt, ttl=600, deadline=soon())


async def collect(chunks: ChunkReader | RequestChunks) -> list[StoredChunk]:
    async with chunks:
        return [chunk async for chunk in chunks]


async def stored(broker: Broker, subject: str) -> list[tuple[str, int, Any]]:
    """(attempt, n, payload) of all chunks; payload "takeover" for those."""
    reader = ChunkReader(broker, subject)
    reader._tail.finish()
    found = [item.chunk for item in await collect(reader)]
    return [(chunk.attempt, chunk.n, "takeover" if chunk.takeover else chunk.payload) for chunk in found]


def payloads(chunks: list[Chunk]) -> list[Any]:
    return [chunk.payload for chunk in chunks]


async def test_chunks_of_one_attempt(shared_broker: Broker, request_id: str) -> None:
    writer = await write(shared_broker, text_of(request_id))
    assert (writer.prior, writer.n) == ([], 0)
    sequences = [await writer.append(payload) for payload in ("he", b"\x00", [1, 2], "")]
    assert sequences == sorted(sequences)
    assert await stored(shared_broker, text_of(request_id)) == [
        ("a", 0, "he"),
        ("a", 1, b"\x00"),
        ("a", 2, [1, 2]),
        ("a", 3, ""),
    ]


async def test_a_new_attempt_takes_over_and_the_zombie_is_superseded(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    zombie = await write(shared_broker, subject, "a")
    await zombie.append("one")
    await zombie.append("two")
    heir = await write(shared_broker, subject, "b")
    assert payloads(heir.prior) == ["one", "two"]
    for _ in range(2):
        with pytest.raises(Superseded):
            await zombie.append("three")
    await heir.append("three")
    with pytest.raises(Superseded):
        await zombie.append("four")
    third = await write(shared_broker, subject, "c")
    assert payloads(third.prior) == ["one", "two", "three"]
    await third.append("four")
    assert await stored(shared_broker, subject) == [
        ("a", 0, "one"),
        ("a", 1, "two"),
        ("b", 2, "takeover"),
        ("b", 2, "three"),
        ("c", 3, "takeover"),
        ("c", 3, "four"),
    ]


async def test_two_attempts_that_begin_at_once_never_interleave(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    first = await write(shared_broker, subject, "0")
    await first.append(0)

    async def attempt(name: str) -> bool:
        try:
            writer = await write(shared_broker, subject, name)
            while writer.n < 20:
                await writer.append(writer.n)
        except Superseded:
            return False
        return True

    finished = await asyncio.gather(*(attempt(name) for name in "abcd"))
    assert any(finished)
    chunks = await stored(shared_broker, subject)
    assert [payload for _, _, payload in chunks if payload != "takeover"] == list(range(20))
    newest = ""
    done: set[str] = set()
    for name, _, payload in chunks:
        if name != newest:
            assert name not in done
            assert payload == "takeover" or name == "0"
            done.add(newest)
            newest = name


async def test_a_first_attempt_may_skip_the_look(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    fresh = await ChunkWriter.open(shared_broker, subject, "a", ttl=600, deadline=soon(), fresh=True)
    await fresh.append("one")
    blind = await ChunkWriter.open(shared_broker, subject, "b", ttl=600, deadline=soon(), fresh=True)
    with pytest.raises(Superseded):
        await blind.append("one")


async def test_a_sealed_output_takes_nothing_more(shared_broker: Broker, request_id: str) -> None:
    """Neither from a writer that has begun, nor from one that has stored nothing yet."""
    begun, fresh = text_of(request_id, "begun"), text_of(request_id, "fresh")
    zombie = await write(shared_broker, begun, "a")
    await zombie.append("one")
    late = await write(shared_broker, fresh, "a")
    for subject, there in ((begun, ["one"]), (fresh, [])):
        sealed = await ChunkWriter.seal(shared_broker, subject, "b", ttl=60, deadline=soon())
        assert payloads(sealed) == there
    for writer in (zombie, late):
        with pytest.raises(Superseded):
            await writer.append("more")


async def test_the_same_attempt_opens_again_without_a_takeover(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    await (await write(shared_broker, subject)).append("one")
    again = await write(shared_broker, subject)
    assert payloads(again.prior) == ["one"]
    await again.append("two")
    assert await stored(shared_broker, subject) == [("a", 0, "one"), ("a", 1, "two")]


async def test_appends_at_once_keep_their_order(shared_broker: Broker, request_id: str) -> None:
    writer = await write(shared_broker, text_of(request_id))
    await asyncio.gather(*(writer.append(n) for n in range(30)))
    assert [payload for _, _, payload in await stored(shared_broker, text_of(request_id))] == list(range(30))


async def test_lost_pub_ack_is_recognised(broker: Broker, nats_server: Server) -> None:
    async with Proxy(nats_server.url) as proxy:
        mine = await Broker.connect(proxy.url, name="mine", token=nats_server.token)
        writer = await write(mine, text_of("r"))
        await writer.append("one")
        proxy.muted = True
        appending = asyncio.create_task(writer.append("two"))
        await eventually(lambda: _count(broker, 2))
        proxy.cut()
        await appending
        await writer.append("three")
        assert [payload for _, _, payload in await stored(broker, text_of("r"))] == ["one", "two", "three"]
        await mine.close()


async def _count(broker: Broker, n: int) -> bool:
    return bool((await broker.api("STREAM.INFO.CHUNKS"))["state"]["messages"] == n)


async def test_purge_under_a_writer_ends_it(shared_broker: Broker, request_id: str) -> None:
    writer = await write(shared_broker, text_of(request_id))
    await writer.append("one")
    await Facts(shared_broker).purge(request_id)
    with pytest.raises(RequestEnded):
        await writer.append("two")


async def test_chunks_expire_together(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    writer = await ChunkWriter.open(shared_broker, subject, "a", ttl=1, deadline=soon())
    await writer.append("one")
    await writer.append("two")
    await eventually(lambda: _none(shared_broker, subject), within=4)
    with pytest.raises(RequestEnded):
        await writer.append("three")


async def _none(broker: Broker, subject: str) -> bool:
    return await stored(broker, subject) == []


async def test_limits_of_an_append(shared_broker: Broker, request_id: str) -> None:
    with pytest.raises(PayloadTooLarge):
        await (await write(shared_broker, text_of(request_id))).append(b"x" * (1 << 20))
    late = await ChunkWriter.open(shared_broker, text_of(request_id), "a", ttl=600, deadline=time.time(), fresh=True)
    with pytest.raises(DeadlineExceeded):
        await late.append("late")


async def test_reader_ends_with_the_total(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    reader = ChunkReader(shared_broker, subject)
    reading = asyncio.create_task(collect(reader))
    writer = await write(shared_broker, subject)
    for n in range(5):
        await writer.append(n)
    await reader.set_total(5)
    assert [item.chunk.payload for item in await asyncio.wait_for(reading, 3)] == list(range(5))


async def test_reader_resumes_after_a_sequence(shared_broker: Broker, request_id: str) -> None:
    subject = text_of(request_id)
    writer = await write(shared_broker, subject)
    sequences = [await writer.append(n) for n in range(5)]
    for resume, rest in ((sequences[1], [2, 3, 4]), (sequences[4], [])):
        reader = ChunkReader(shared_broker, subject, after=resume)
        await reader.set_total(5)
        assert [item.chunk.payload for item in await asyncio.wait_for(collect(reader), 3)] == rest


async def test_reader_of_an_empty_or_purged_output(shared_broker: Broker, request_id: str) -> None:
    empty = ChunkReader(shared_broker, text_of(request_id))
    await empty.set_total(0)
    assert await asyncio.wait_for(collect(empty), 3) == []
    purged = ChunkReader(shared_broker, text_of(request_id))
    await purged.set_total(3)
    with pytest.raises(RequestEnded):
        await asyncio.wait_for(collect(purged), 3)


async def test_reader_ignores_what_comes_after_the_total(shared_broker: Broker, request_id: str) -> None:
    """The End of an attempt that won counts its chunks; another attempt may have gone on."""
    writer = await write(shared_broker, text_of(request_id))
    for n in range(4):
        await writer.append(n)
    reader = ChunkReader(shared_broker, text_of(request_id))
    await reader.set_total(2)
    assert [item.chunk.payload for item in await asyncio.wait_for(collect(reader), 3)] == [0, 1]


async def test_closed_reader_ends_even_while_it_waits(shared_broker: Broker, request_id: str) -> None:
    reader = ChunkReader(shared_broker, text_of(request_id))
    read: list[StoredChunk] = []

    async def follow() -> None:
        async for item in reader:
            read.append(item)

    reading = asyncio.create_task(follow())
    await (await write(shared_broker, text_of(request_id))).append("one")
    await eventually(lambda: read)
    await reader.close()
    await asyncio.wait_for(reading, 1)
    assert [item.chunk.payload for item in read] == ["one"]


async def test_a_cancelled_step_loses_nothing(shared_broker: Broker, request_id: str) -> None:
    writer = await write(shared_broker, text_of(request_id))
    async with RequestChunks(shared_broker, request_id) as chunks:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chunks), 0.05)
        await writer.append("one")
        assert (await asyncio.wait_for(anext(chunks), 3)).chunk.payload == "one"


async def test_request_chunks_are_in_stored_order_over_all_outputs(shared_broker: Broker, request_id: str) -> None:
    chunks = RequestChunks(shared_broker, request_id)
    reading = asyncio.create_task(collect(chunks))
    other = await write(shared_broker, text_of(request_id + "x"))

    async def produce(node: str) -> None:
        writer = await write(shared_broker, text_of(request_id, node))
        for n in range(40):
            await writer.append(n)
            await other.append(n)

    await asyncio.gather(*(produce(node) for node in ("n1", "n2", "n3")))
    chunks.finish()
    found = await asyncio.wait_for(reading, 5)
    assert [item.seq for item in found] == sorted({item.seq for item in found})
    for node in ("n1", "n2", "n3"):
        assert [item.chunk.payload for item in found if item.node == node] == list(range(40))
    assert {(item.gen, item.output) for item in found} == {(0, "text")}
    resumed = RequestChunks(shared_broker, request_id, after=found[49].seq)
    resumed.finish()
    assert await collect(resumed) == found[50:]


async def test_slow_reader_gets_every_chunk_once(shared_broker: Broker, request_id: str) -> None:
    """More than the live buffer holds arrives while the reader is busy."""
    subject = text_of(request_id)
    writer = await write(shared_broker, subject)
    async with RequestChunks(shared_broker, request_id) as chunks:
        await writer.append(0)
        first = await anext(chunks)
        for n in range(1, 600):
            await writer.append(n)
        assert chunks._tail._order.missing
        chunks.finish()
        rest = [item.chunk.payload async for item in chunks]
    assert [first.chunk.payload, *rest] == list(range(600))


async def test_large_chunks_for_a_slow_reader_stay_bounded(shared_broker: Broker, request_id: str) -> None:
    writer = await write(shared_broker, text_of(request_id))
    async with RequestChunks(shared_broker, request_id) as chunks:
        await writer.append(b"")
        await anext(chunks)
        for n in range(12):
            await writer.append(bytes([n]) * (500 << 10))
        assert chunks._tail._kept_bytes < 4 << 20
        chunks.finish()
        assert [item.chunk.payload[0] async for item in chunks] == list(range(12))


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_every_chunk_once_across_restarts(broker: Broker, nats_server: Server, how: str) -> None:
    chunks = RequestChunks(broker, "r")
    reading = asyncio.create_task(collect(chunks))
    producer = await Broker.connect(nats_server.url, name="producer", token=nats_server.token)
    sequences: list[int] = []

    async def produce(node: str) -> None:
        writer = await write(producer, text_of("r", node))
        for n in range(300):
            sequences.append(await writer.append(n))

    producing = asyncio.gather(*(produce(node) for node in ("n1", "n2")))
    for stored_by_then in (50, 300):
        await eventually(lambda least=stored_by_then: len(sequences) >= least, every=0.001)  # type: ignore[misc]
        getattr(nats_server, how)()
        nats_server.start()
    await producing
    chunks.finish()
    found = await asyncio.wait_for(reading, 10)
    assert [item.seq for item in found] == sorted({item.seq for item in found})
    for node in ("n1", "n2"):
        assert [item.chunk.payload for item in found if item.node == node] == list(range(300))
    await producer.close()


async def test_live_chunks_need_no_second_read(broker: Broker, nats_server: Server) -> None:
    """A healthy tail is fed by what is republished. It asks for nothing, however long it has been read."""
    producer = await Broker.connect(nats_server.url, name="producer", token=nats_server.token)
    writer = await write(producer, text_of("r"))
    chunks = RequestChunks(broker, "r")
    await writer.append(0)
    await anext(chunks)
    reading = asyncio.create_task(collect(chunks))
    asked = broker.nc.stats["out_msgs"]
    until = time.monotonic() + 2.5 * LOOK_AGAIN
    while time.monotonic() < until:
        await writer.append(writer.n)
        await asyncio.sleep(0.02)  # the reader waits meanwhile
    assert broker.nc.stats["out_msgs"] == asked
    chunks.finish()
    assert [item.chunk.payload for item in await asyncio.wait_for(reading, 3)] == list(range(1, writer.n))
    await producer.close()


async def test_a_tail_that_waits_looks_for_what_it_was_not_told(broker: Broker, nats_server: Server) -> None:
    producer = await Broker.connect(nats_server.url, name="producer", token=nats_server.token)
    writer = await write(producer, text_of("r"))
    await writer.append("one")
    async with Proxy(nats_server.url) as proxy:
        deaf = await Broker.connect(proxy.url, name="deaf", token=nats_server.token)
        async with RequestChunks(deaf, "r") as chunks:
            assert (await anext(chunks)).chunk.payload == "one"
            proxy.muted = True
            await writer.append("two")
            await eventually(lambda: proxy.swallowed)
            proxy.muted = False
            assert (await asyncio.wait_for(anext(chunks), 5)).chunk.payload == "two"
            assert deaf.connected
        await deaf.close()
    await producer.close()


async def test_patience_ends_and_nothing_is_lost_by_it(shared_broker: Broker, request_id: str) -> None:
    writer = await write(shared_broker, text_of(request_id))
    async with RequestChunks(shared_broker, request_id) as chunks:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(chunks.next(patience=0.01), 5)
        await writer.append("one")
        found = await asyncio.wait_for(chunks.next(patience=60), 3)
        assert found is not None
        assert found.chunk.payload == "one"
        chunks.finish()
        assert await asyncio.wait_for(chunks.next(), 3) is None

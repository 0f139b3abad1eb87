"""Stream inputs against a real server that goes away."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from broker.chunks import ChunkWriter
from broker.connection import Broker
from broker.errors import ReadTimeout
from broker.facts import Facts
from broker.server import Server
from broker.subjects import chunk, end
from components.streams import StreamOf
from cornstalk.messages import End, StreamRef, encode


async def _reads_time_out(facts: Facts, times: int) -> None:
    """The first read may have been answered before the server stood still."""
    async with asyncio.timeout(15):
        while times:
            try:
                await facts.last("run.nobody.end")
            except ReadTimeout:
                times -= 1


async def test_a_reader_outlives_a_server_that_is_silent(broker: Broker, nats_server: Server, request_id: str) -> None:
    """Its look for the end of the producer fails meanwhile, and is repeated."""
    facts = Facts(broker)
    deadline = time.time() + 60
    writer = await ChunkWriter.open(broker, chunk(request_id, "n", 0, "text"), "a", ttl=60, deadline=deadline)
    await writer.append("one")
    async with StreamOf(broker, facts, StreamRef(request_id, "n", 0, "text")) as stream:
        pieces = aiter(stream)
        assert await anext(pieces) == "one"
        os.kill(nats_server.pid, signal.SIGSTOP)
        try:
            await _reads_time_out(facts, 2)  # longer than one look and its answer take
        finally:
            os.kill(nats_server.pid, signal.SIGCONT)
        over = End(node="n", gen=0, attempt="a", outcome="done", outputs={"text": 1})
        await facts.put(end(request_id, "n", 0), encode(over), deadline=deadline, ttl=60)
        async with asyncio.timeout(10):
            assert [piece async for piece in pieces] == []

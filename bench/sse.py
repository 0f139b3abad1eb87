"""Streaming at the gateway: 300 clients at 20 chunks/s each, then a new client beside 2,000 slow and half-open ones.

The chunks are stored by this process in place of workers, so that what is measured is the gateway: lag from the publish
to the client's socket, CPU per chunk, memory. The floors are the lag of the same bytes over the broker alone, and the
CPU of a relay that receives the same chunks and writes as many bytes to as many sockets (`sse_floor.py`).

The gateway has one core to itself, which is the relay's in the rounds between; the server, the producer and all clients
share the others. So that these are not what is measured, clients are bare protocols that stamp what they receive before
they look at it, and the producer stamps when it publishes, which it does each millisecond: `late_ms` is how far behind
its schedule it fell at most. A second of chunks goes before those that count: until then the gateway is busy with the
beginning of 300 requests.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import psutil

from broker.facts import Facts
from broker.requests import Message
from broker.subjects import chunk, seen
from broker.subjects import end as end_subject
from broker.subjects import first as first_subject
from cornstalk.messages import Chunk, End, First, encode
from cornstalk.task import short_hash
from tests.e2e.apps import APPS
from tests.stack import Stack, free_port
from tests.waiting import eventually

STREAMS: Final = 300
RATE: Final = 20
"""Chunks a second and stream."""
SECONDS: Final = 4
SLOW: Final = 2000
TALKER: Final = short_hash(b"talker#0", 8)
VALUE: Final = short_hash(b"value#0", 8)
_ASK: Final = (
    b"POST /apps/one HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
    b'Content-Length: 12\r\n\r\n{"text":"x"}'
)


class Client(asyncio.Protocol):
    """One SSE client on a raw socket: how late each chunk came."""

    def __init__(self) -> None:
        self.request = ""
        self.lags: list[float] = []  # milliseconds
        self._rest = b""
        self._accepted = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, port: int) -> Self:
        """Its request is accepted."""
        transport, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        transport.write(_ASK)
        await client._accepted
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._rest + data
        if not self.request:
            head, whole, data = data.partition(b"\r\n\r\n")
            if not whole:
                self._rest = head
                return
            assert b" 200 " in head, head
            self.request = head.lower().partition(b"cornstalk-request: ")[2].split(b"\r\n")[0].decode()
            self._accepted.set_result(None)
        *stamps, self._rest = data.split(b"\n\n")
        self.lags += [(now - int(stamp.split(b"=", 2)[1])) / 1e6 for stamp in stamps if b"event: chunk" in stamp]

    def close(self) -> None:
        self._transport.close()


async def run(rounds: int) -> dict[str, Any]:
    """One JSON object: lag p50 and p99 in ms, CPU us per chunk, MiB, and what slow clients cost a new one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _one_core_left() as core:
        async with Stack() as stack:
            await stack.deploy(APPS / "one.py", workers=False)
            gateway = psutil.Process(stack.children["gateway0"].pid)
            relay = psutil.Process(stack.add("relay", "bench.sse_floor", str(relay_port := free_port())).pid)
            await eventually(lambda: _listens(relay), within=20)
            for thread in (*gateway.threads(), *relay.threads()):
                os.sched_setaffinity(thread.id, core)
            p50s, p99s, lates, cpus, floors, cpu_floors = [], [], [], [], [], []
            for _ in range(rounds):
                floors.append(await _floor(stack))
                lags, _, cpu = await _round(stack, relay, await _relayed(relay_port))
                cpu_floors.append(cpu / len(lags) * 1e6)
                lags, late, cpu = await _round(stack, gateway, await _streaming(stack))
                lags.sort()
                p50s.append(lags[len(lags) // 2])
                p99s.append(lags[len(lags) * 99 // 100])
                lates.append(late)
                cpus.append(cpu / len(lags) * 1e6)
            alone = await _answer_ms(stack)
            crowd = [await _half_open(stack.ports[0], index) for index in range(SLOW)]
            beside = await _answer_ms(stack)
            rss = gateway.memory_info().rss / 2**20
            for writer in crowd:
                writer.close()
    figures = {
        "streams": STREAMS,
        "lag_p50_ms": round(statistics.median(p50s), 2),
        "lag_p99_ms": round(statistics.median(p99s), 2),
        "late_ms": round(statistics.median(lates), 2),
        "gateway_cpu_us_per_chunk": round(statistics.median(cpus), 1),
        "gateway_rss_mib": round(rss, 1),
        "new_client_ms": round(alone, 2),
        f"new_client_beside_{SLOW}_ms": round(beside, 2),
    }
    floor = {
        "broker_lag_p50_ms": round(statistics.median(floors), 2),
        "relay_cpu_us_per_chunk": round(statistics.median(cpu_floors), 1),
    }
    ratio = {
        "lag_p50": round(figures["lag_p50_ms"] / floor["broker_lag_p50_ms"], 2),
        "cpu": round(statistics.median(c / f for c, f in zip(cpus, cpu_floors, strict=True)), 2),
        "beside": round(beside / alone, 2),
    }
    bar = {"lag_p99_ms": 50.0, "gateway_cpu_us_per_chunk": 60.0, "gateway_rss_mib": 200.0, "beside": 2.0}
    ok = all(figures[k] <= bar[k] for k in ("lag_p99_ms", "gateway_cpu_us_per_chunk", "gateway_rss_mib"))
    return {
        "name": "sse",
        "figures": figures,
        "floor": floor,
        "ratio": ratio,
        "bar": bar,
        "ok": ok and ratio["beside"] <= bar["beside"],
    }


@contextmanager
def _one_core_left() -> Iterator[set[int]]:
    """Keeps this process and what it starts off one core. Yields that core, or all where there is but one."""
    cores = os.sched_getaffinity(0)
    core = {max(cores)}
    os.sched_setaffinity(0, cores - core or cores)
    try:
        yield core
    finally:
        os.sched_setaffinity(0, cores)


async def _streaming(stack: Stack) -> list[Client]:
    """Clients of the gateway, whose requests have begun to answer."""
    clients = await _relayed(stack.ports[0])
    facts = Facts(stack.broker)
    await asyncio.gather(*(_begin(facts, client.request) for client in clients))
    return clients


async def _relayed(port: int) -> list[Client]:
    return [await Client.open(port) for _ in range(STREAMS)]


async def _round(stack: Stack, served_by: psutil.Process, clients: list[Client]) -> tuple[list[float], float, float]:
    """Lags in ms of every chunk, how late the producer was at most, CPU seconds of who serves while they flowed."""
    requests = [client.request for client in clients]
    await _flow(stack, requests, range(RATE))
    await eventually(lambda: all(len(c.lags) == RATE for c in clients), within=20)
    for client in clients:
        client.lags.clear()
    before = sum(served_by.cpu_times()[:2])
    late = await _flow(stack, requests, range(RATE, RATE * (1 + SECONDS)))
    await eventually(lambda: all(len(c.lags) == RATE * SECONDS for c in clients), within=20)
    cpu = sum(served_by.cpu_times()[:2]) - before
    for client in clients:
        client.close()
    return [lag for c in clients for lag in c.lags], late, cpu


async def _begin(facts: Facts, request: str) -> None:
    """What a worker stores first: the value beside the stream, and that the stream has begun."""
    deadline = time.time() + 30
    done = End(node=VALUE, gen=0, attempt="a", outcome="done", outputs={"digest": "d"})
    begun = First(node=TALKER, gen=0, attempt="a", output="text")
    await facts.put(end_subject(request, VALUE, 0), encode(done), deadline=deadline, ttl=300)
    await facts.put(first_subject(request, TALKER, 0, "text"), encode(begun), deadline=deadline, ttl=300)


async def _flow(stack: Stack, requests: list[str], numbers: range) -> float:
    """The chunks `numbers` of all streams, spread evenly over time. By how many ms the latest came after its time."""
    began = time.monotonic()
    gap = 1 / (RATE * len(requests))
    due = late = 0.0
    for n in numbers:
        for request in requests:
            early = began + due - time.monotonic()
            if early > 0:
                await asyncio.sleep(max(early, 0.001))
            late = max(late, -early)
            body = Chunk(attempt="a", n=n, payload=f"t={time.monotonic_ns()}= some words of text ")
            await stack.broker.publish_core(chunk(request, TALKER, 0, "text"), encode(body))
            due += gap
    return late * 1e3


def _listens(process: psutil.Process) -> bool:
    return any(connection.status == psutil.CONN_LISTEN for connection in process.net_connections())


async def _floor(stack: Stack) -> float:
    """Median ms from a publish to its republished copy, at the same rate, with no gateway between."""
    lags: list[float] = []

    async def hear(message: Message) -> None:
        at = message.data.index(b"t=")
        lags.append((time.monotonic_ns() - int(message.data[at + 2 : message.data.index(b"=", at + 2)])) / 1e6)

    subscription = await stack.broker.subscribe_core(seen(chunk("floor", "n", 0, "text")), hear)
    for n in range(200):
        body = Chunk(attempt="a", n=n, payload=f"t={time.monotonic_ns()}= some words of text ")
        await stack.broker.publish_core(chunk("floor", "n", 0, "text"), encode(body))
        await asyncio.sleep(0.005)
    await subscription.close()
    return statistics.median(lags)


async def _answer_ms(stack: Stack) -> float:
    """Median ms until the gateway's list of apps is there, each on a new connection."""
    took = []
    for _ in range(30):
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.ports[0])
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await reader.read()
        took.append((time.perf_counter() - began) * 1e3)
        writer.close()
    return statistics.median(took)


async def _half_open(port: int, index: int) -> asyncio.StreamWriter:
    """A client that never ends its headers, or asks for a stream and never reads."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    if index % 2:
        writer.write(b"POST /apps/one HTTP/1.1\r\nHost: x\r\n")
    else:
        writer.write(_ASK)
    return writer

"""A worker is killed while it holds items: how long until each of them is claimed by another worker.

kill -9 -> the sidecar sees the death -> its -NAK -> the next claim. Floor: an item that its holder hands back itself,
until it is delivered again. Default settings: no ack_wait could make up for a last will that was not done.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any, Final

from bench.raw import RawQueue
from broker.connection import Broker
from broker.facts import Facts
from broker.registry import Registry
from broker.subjects import WORKERS, parse_run
from cornstalk.messages import End, decode
from cornstalk.records import WorkerBeat
from sidecar.client import SidecarClient
from tests.stack import Child, Stack
from tests.waiting import eventually

APP: Final = Path(__file__).parent / "apps" / "held.py"
KILLS: Final = 8
"""Kills of one round."""
AT_ONCE: Final = 4
"""Items held at a kill, by two workers."""
SERVICE_MS: Final = 400.0
PROBES: Final = 40
"""Items handed back in one round."""
BAR_MS: Final = 1000.0
LATE: Final = 0.99


async def run(rounds: int = 5) -> dict[str, Any]:
    """One JSON object: p50 and p99 of kill -> claimed elsewhere, in ms."""
    async with Stack(gateways=1) as stack, RawQueue(stack.broker) as queue:
        (component,) = (await stack.deploy(APP))["components"]
        workers = [stack.children[f"{component}@{i}"] for i in range(stack.replicas)]
        sidecar = await SidecarClient.connect(stack.socket, name="bench", quota=0)
        took: list[float] = []
        floors: list[float] = []
        for _ in range(rounds):
            floors.append(statistics.median([await _handed_back(queue) for _ in range(PROBES)]))
            for kill in range(KILLS):
                took += await _kill(stack, workers, workers[kill % len(workers)], sidecar)
        await sidecar.close()
    took.sort()
    p50, p99 = statistics.median(took), took[min(len(took) - 1, int(len(took) * LATE))]
    floor = statistics.median(floors)
    return {
        "name": "recovery",
        "figures": {"items": len(took), "p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "max_ms": round(took[-1], 1)},
        "floor": {"handed_back_p50_ms": round(floor, 2)},
        "ratio": {"p50": round(p50 / floor, 1), "p99": round(p99 / floor, 1)},
        "bar": {"p99_ms": BAR_MS},
        "ok": p99 <= BAR_MS,
    }


async def _kill(stack: Stack, workers: list[Child], victim: Child, sidecar: SidecarClient) -> list[float]:
    """Milliseconds from the kill to the next claim, of each item that the victim held."""
    await _ready(stack.broker, workers)
    asking = [
        asyncio.create_task(stack.clients[0].post("/apps/held", json={"text": f"{i}", "service_ms": SERVICE_MS}))
        for i in range(AT_ONCE)
    ]

    async def held() -> bool:
        return (await sidecar.stats()).wills == AT_ONCE + len(workers)

    await eventually(held, within=10, every=0.002)
    killed = time.time()
    victim.kill()
    victim.wait(10)
    victim.start()
    claims = [await _claimed(stack.broker, (await answer).json()["request"]) for answer in asking]
    return [(claimed - killed) * 1000 for claimed in claims if claimed > killed]


async def _ready(broker: Broker, workers: list[Child]) -> None:
    registry = Registry(broker, WORKERS)

    async def there() -> bool:
        beats = (decode(WorkerBeat, entry.data) for entry in (await registry.entries()).values())
        return {worker.pid for worker in workers} <= {beat.pid for beat in beats if beat.ready}

    await eventually(there, within=30, every=0.02)


async def _claimed(broker: Broker, request: str) -> float:
    """When the attempt that ended the request's only node was claimed."""
    log = await Facts(broker).read(request)
    (end,) = [decode(End, s.data) for s in log.messages if parse_run(s.subject).kind == "node-end"]
    assert end.outcome == "done", end
    return end.times.claimed


async def _handed_back(queue: RawQueue) -> float:
    """Milliseconds of -NAK -> delivered again."""
    await queue.put()
    first = await queue.taken()
    began = time.perf_counter()
    await first.nak(0.0)
    second = await queue.taken()
    took = (time.perf_counter() - began) * 1000
    await second.ack()
    return took

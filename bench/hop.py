"""The hop between two nodes, and how many nodes a second go through, on real processes with the null engine.

Latency: End of one node -> the next item claimed, chains of 8, one request at a time; beside it the raw JetStream hop
(publish -> pull -> ack_sync) of the same run. Throughput: 64 chains in flight, the driver called in this process.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from bench.raw import RawQueue
from broker.connection import Broker
from broker.facts import Facts
from broker.subjects import parse_run
from cornstalk.app import App, load_app
from cornstalk.messages import End, Finish, decode
from gateway.options import read_options
from gateway.service import Service
from tests.stack import Stack

NODES: Final = 8
IN_FLIGHT: Final = 64
CHAINS: Final = 400
"""Chains of one throughput round."""
PROBES: Final = 40
"""Chains and raw hops of one latency round."""
APP: Final = Path(__file__).parent / "apps" / "chain8.py"


async def run(rounds: int) -> dict[str, Any]:
    """One JSON object: hop p50 in us and as a multiple of the raw hop, nodes/s, CPU us per node of each process."""
    async with Stack() as stack, RawQueue(stack.broker) as queue:
        await stack.deploy(APP)
        app = load_app(APP.read_text())
        service = Service(stack.broker, "")
        await _chains(service, app, 16, 4)
        hops, floors, rates, cpu = [], [], [], {}
        for _ in range(rounds):
            floors.append(statistics.median([await _raw_hop(stack.broker, queue) for _ in range(PROBES)]))
            hops.append(statistics.median(await _hops(service, app)))
            before = _cpu(stack)
            began = time.perf_counter()
            await _chains(service, app, CHAINS, IN_FLIGHT)
            rates.append(CHAINS * NODES / (time.perf_counter() - began))
            cpu = {n: round((t - before[n]) / (CHAINS * NODES) * 1e6, 1) for n, t in _cpu(stack).items()}
        rss = {name: round(p.memory_info().rss / 2**20, 1) for name, p in _processes(stack).items()}
    hop, floor, rate = statistics.median(hops), statistics.median(floors), statistics.median(rates)
    figures = {
        "hop_p50_us": round(hop, 1),
        "nodes_per_s": round(rate),
        "nodes_per_s_rounds": [round(r) for r in rates],
        "cpu_us_per_node": cpu,
        "rss_mib": rss,
    }
    ratio = {"hop": round(hop / floor, 2)}
    bar = {"hop": 3.0, "nodes_per_s": 1500}
    ok = ratio["hop"] <= bar["hop"] and rate >= bar["nodes_per_s"]
    return {
        "name": "hop",
        "figures": figures,
        "floor": {"raw_hop_p50_us": round(floor, 1)},
        "ratio": ratio,
        "bar": bar,
        "ok": ok,
    }


async def _chains(service: Service, app: App, count: int, at_once: int) -> None:
    """`count` requests, `at_once` in flight, each checked."""
    gate = asyncio.Semaphore(at_once)

    async def one(index: int) -> None:
        async with gate:
            await _request(service, app, f"question {index}")

    await asyncio.gather(*(one(i) for i in range(count)))


async def _request(service: Service, app: App, text: str) -> str:
    options = read_options(app.name, {})
    request = await service.requests.accept(app, {"text": text}, options)
    run = await service.requests.run(request)
    finish = run if isinstance(run, Finish) else await run.finished()
    assert finish.status == "done", finish
    return request


async def _hops(service: Service, app: App) -> list[float]:
    """Microseconds from the End of each node to the claim of the next one."""
    found: list[float] = []
    facts = Facts(service.broker)
    for index in range(PROBES):
        request = await _request(service, app, f"probe {index}")
        log = await facts.read(request)
        ends = [decode(End, s.data) for s in log.messages if parse_run(s.subject).kind == "node-end"]
        ends.sort(key=lambda e: e.times.ended)
        found += [(b.times.claimed - a.times.ended) * 1e6 for a, b in pairwise(ends)]
    return found


async def _raw_hop(broker: Broker, queue: RawQueue) -> float:
    """Microseconds of publish -> pull -> ack_sync."""
    began = time.perf_counter()
    publish = asyncio.create_task(queue.put())
    delivery = await queue.taken()
    await broker.nc.request(delivery.reply, b"+ACK", timeout=5)
    took = (time.perf_counter() - began) * 1e6
    await publish
    return took


def _processes(stack: Stack) -> dict[str, psutil.Process]:
    found = {name: psutil.Process(child.pid) for name, child in stack.children.items()}
    return {**found, "nats-server": psutil.Process(stack.server.pid), "driver (this process)": psutil.Process()}


def _cpu(stack: Stack) -> dict[str, float]:
    return {name: sum(p.cpu_times()[:2]) for name, p in _processes(stack).items()}

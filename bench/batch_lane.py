"""Interactive requests beside a batch job on the same four slots: what batch costs them, and what it gets.

Equal items of 100 ms. Three loads: clients that take all slots (8, each asks again at once), half of them (2), and
arrivals at random for half of the slots. Floor: the same load of the same run without a job.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from broker.connection import Broker
from broker.reads import last_stored, pages
from broker.subjects import BATCH, batch_results, batch_submit, batch_word
from cornstalk.batch import job_id
from tests.stack import Stack
from tests.waiting import eventually

APP: Final = Path(__file__).parent / "apps" / "held.py"
SERVICE_MS: Final = 100.0
SLOTS: Final = 4
SECONDS: Final = 3.0
"""Of one measurement, after WARM."""
WARM: Final = 0.5
"""Seconds before, in which slots that batch took while nobody came are given back."""
ROWS: Final = 200
"""Of a job: more than can run meanwhile."""
RATIO: Final = 1.5
SHARE: Final = 0.05
LATE: Final = 0.99


class Span(NamedTuple):
    """Of a measurement, by time.monotonic()."""

    begin: float
    end: float

    @classmethod
    def from_now(cls) -> Self:
        return cls(time.monotonic() + WARM, time.monotonic() + WARM + SECONDS)


Load = Callable[[Stack, Span, list[float]], Awaitable[None]]
"""Requests until the end of a span; the seconds of those that began in it are added to a list."""


async def run(rounds: int = 5) -> dict[str, Any]:
    """One JSON object: p99 of interactive requests with and without a job, and the job's share of what ran."""
    loads: dict[str, Load] = {"all": clients(8), "half": clients(2), "random": arrivals}
    alone: dict[str, list[float]] = {name: [] for name in loads}
    beside: dict[str, list[float]] = {name: [] for name in loads}
    rows = dict.fromkeys(loads, 0)
    async with Stack(gateways=2, replicas=1) as stack:
        await stack.deploy(APP)
        await clients(SLOTS)(stack, Span.from_now(), [])
        for _ in range(rounds):
            for name, load in loads.items():
                await load(stack, Span.from_now(), alone[name])
                async with job(stack.broker) as id:
                    began = time.time() + WARM
                    await load(stack, Span.from_now(), beside[name])
                    rows[name] += await ended_between(stack.broker, id, began, time.time())
    figures = {name: figures_of(alone[name], beside[name], rows[name]) for name in loads}
    ratios = {name: f["p99_ms"] / f["alone_p99_ms"] for name, f in figures.items()}
    return {
        "name": "batch_lane",
        "figures": figures,
        "floor": {name: round(f["alone_p99_ms"], 1) for name, f in figures.items()},
        "ratio": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "bar": {"p99": RATIO, "batch_share": SHARE},
        "ok": all(ratio <= RATIO for ratio in ratios.values())
        and all(f["batch_share"] >= SHARE for f in figures.values()),
    }


def figures_of(alone: list[float], beside: list[float], rows: int) -> dict[str, float]:
    alone.sort()
    beside.sort()
    found = {"requests": len(beside), "rows": rows, "batch_share": round(rows / (rows + len(beside)), 3)}
    for name, took in (("alone_", alone), ("", beside)):
        for quantile in (0.5, LATE):
            at = took[min(len(took) - 1, int(len(took) * quantile))]
            found[f"{name}p{quantile * 100:.0f}_ms"] = round(at * 1000, 1)
    return found


def clients(count: int) -> Load:
    """So many that ask again as soon as they are answered."""

    async def load(stack: Stack, span: Span, took: list[float]) -> None:
        async def client() -> None:
            while time.monotonic() < span.end:
                await ask(stack, span, took)

        await asyncio.gather(*(client() for _ in range(count)))

    return load


async def arrivals(stack: Stack, span: Span, took: list[float]) -> None:
    """As they come: exponential gaps, half of what the slots can serve."""
    choice, asking = random.Random(len(took)), []
    while time.monotonic() < span.end:
        asking.append(asyncio.create_task(ask(stack, span, took)))
        await asyncio.sleep(choice.expovariate(SLOTS / 2 / (SERVICE_MS / 1000)))
    await asyncio.gather(*asking)


async def ask(stack: Stack, span: Span, took: list[float]) -> None:
    began = time.monotonic()
    response = await stack.clients[0].post("/apps/held", json={"text": secrets.token_hex(4), "service_ms": SERVICE_MS})
    assert response.status_code == 200, response.text
    if began >= span.begin:
        took.append(time.monotonic() - began)


@asynccontextmanager
async def job(broker: Broker) -> AsyncIterator[str]:
    """A job that runs meanwhile, cancelled in the end."""
    key = secrets.token_hex(8)
    id = job_id("default", "held", key)
    rows = [{"text": f"{i}", "service_ms": SERVICE_MS} for i in range(ROWS)]
    body = json.dumps({"idempotency_key": key, "rows": rows}).encode()
    await broker.publish_stored(batch_submit("held"), body, deadline=time.time() + 10)

    async def runs() -> bool:
        return await ended_between(broker, id, 0, time.time()) >= 2 * SLOTS

    await eventually(runs, within=20)
    yield id
    await broker.publish_stored(batch_word(id, "cancel"), b"", deadline=time.time() + 10)

    async def over() -> bool:
        return await last_stored(broker, BATCH, batch_word(id, "summary")) is not None

    await eventually(over, within=30)


async def ended_between(broker: Broker, id: str, after: float, before: float) -> int:
    stored = [s async for s in pages(broker, BATCH, batch_results(id)) if after <= s.time < before]
    return sum(s.subject.rpartition(".")[2].isdigit() for s in stored)

"""Ten times more requests than the workers can do, for two minutes: what is refused, what grows, who waits how long.

A null engine of 200 ms with eight slots is asked 400 times a second, in an open loop: no client waits for another. Bars
(issue 4): nothing that was admitted fails; RSS of each service after 120 s is at most 1.1 x that after 20 s;
Retry-After is within a factor of two of the truth: how long from the refusal until the door opened again, in whole
seconds as the header has them. Floor: the 40 requests a second that the slots can do.

What is bounded is to have reached its bound after 20 s: a request that ended is purged after 5 s, not the usual 60
(CORNSTALK_GRACE), and some large requests come before the load, for nats-server keeps the block that it writes to, up
to 8 MB of each stream, however slowly it fills.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.stack import Stack

APP: Final = Path(__file__).parent / "apps" / "held.py"
SERVICE_S: Final = 0.2
SLOTS: Final = 8
OVER: Final = 10
SECONDS: Final = 120.0
WARM: Final = 400
"""Requests before, each with WARM_TEXT."""
WARM_TEXT: Final = "x" * 30_000
GRACE: Final = 5
EARLY: Final = 20.0
"""Seconds after which RSS is first looked at."""
DEADLINE: Final = 20.0
"""Seconds each request has: admission lets in what stands in the queue for at most half of it."""
GROWTH: Final = 1.1
FACTOR: Final = 2.0
_REQUEST: Final = (
    "POST /apps/held HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nAccept: text/event-stream\r\n"
    "Content-Type: application/json\r\nCornstalk-Deadline: {deadline}\r\nContent-Length: {length}\r\n\r\n{body}"
)
SERVICES: Final = ("gateway0", "dispatcher0", "dispatcher1", "operator", "sidecar")


@dataclass
class Seen:
    """What the clients were answered."""

    done: list[float] = field(default_factory=list)  # seconds
    failed: list[str] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)  # when, monotonic
    refused: list[tuple[float, int]] = field(default_factory=list)  # when, Retry-After

    dropped: int = 0  # connections that were not taken

    def told(self) -> list[tuple[int, int]]:
        """(Retry-After, whole seconds until the next one was let in) of each refusal."""
        opened, pairs = sorted(self.admitted), []
        for when, told in self.refused:
            at = bisect.bisect_right(opened, when)
            if at < len(opened):
                pairs.append((told, max(1, math.ceil(opened[at] - when))))
        return pairs


async def run(_rounds: int = 1) -> dict[str, Any]:
    """One round, however many are asked for: it takes two minutes."""
    async with Stack(gateways=1, env={"CORNSTALK_GRACE": str(GRACE)}) as stack:
        await stack.deploy(APP)
        await _warm(stack)
        seen = Seen()
        began = time.monotonic()
        early, late = await _load(stack, seen)
        took = time.monotonic() - began
        told = seen.told()
        if seen.failed:
            print(seen.failed[:5], stack.logs(3000), file=sys.stderr)
    growth = {name: round(late[name] / early[name], 3) for name in early}
    factors = [max(said / true, true / said) for said, true in told]
    within = sum(factor <= FACTOR for factor in factors) / len(factors)
    capacity = SLOTS / SERVICE_S
    seen.done.sort()
    ok = not seen.failed and max(growth.values()) <= GROWTH and statistics.median(factors) <= FACTOR
    return {
        "name": "overload",
        "figures": {
            "asked_per_s": OVER * capacity,
            "done": len(seen.done),
            "refused": len(seen.refused),
            "failed": len(seen.failed),
            "not_connected": seen.dropped,
            "p50_s": round(statistics.median(seen.done), 2),
            "p99_s": round(seen.done[int(len(seen.done) * 0.99)], 2),
            "retry_after_median_s": statistics.median(said for said, _ in told),
            "truth_median_s": statistics.median(true for _, true in told),
            "retry_after_off_by_median": round(statistics.median(factors), 2),
            "retry_after_within_2x": round(within, 3),
            "rss_mib_at_120_s": {name: round(late[name] / 2**20, 1) for name in late},
        },
        "floor": {"per_s": capacity},
        "ratio": {"done_per_s": round(len(seen.done) / took / capacity, 2), "rss_growth": growth},
        "bar": {"failed": 0, "rss_growth": GROWTH, "retry_after_off_by_median": FACTOR},
        "ok": ok,
    }


async def _warm(stack: Stack) -> None:
    port, seen = stack.clients[0].base_url.port, Seen()
    assert port is not None
    for at in range(0, WARM, SLOTS):
        await asyncio.gather(*(_ask(port, f"w{n} {WARM_TEXT}", seen, 0.0) for n in range(at, at + SLOTS)))
    assert len(seen.done) == WARM, seen.failed[:3]


async def _load(stack: Stack, seen: Seen) -> tuple[dict[str, int], dict[str, int]]:
    began, port = time.monotonic(), stack.clients[0].base_url.port
    assert port is not None
    asking: set[asyncio.Task[None]] = set()
    early: dict[str, int] = {}
    every, number = 1 / (OVER * SLOTS / SERVICE_S), 0
    while (now := time.monotonic() - began) < SECONDS:
        while number * every <= now:
            number += 1
            task = asyncio.create_task(_ask(port, f"o{number}", seen))
            asking.add(task)
            task.add_done_callback(asking.discard)
        if now > EARLY and not early:
            early = _rss(stack)
        await asyncio.sleep(every)
    late = _rss(stack)
    await asyncio.gather(*asking)
    return early, late


async def _ask(port: int, text: str, seen: Seen, service_s: float = SERVICE_S) -> None:
    """A connection of its own and no client library: 400 of them a second are to cost the gateway, not this process."""
    began = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        seen.dropped += 1
        return
    try:
        body = json.dumps({"text": text, "service_ms": service_s * 1000})
        writer.write(_REQUEST.format(deadline=DEADLINE, length=len(body), body=body).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status = head.split(" ", 2)[1]
        if status == "429":
            said = next(line for line in head.lower().splitlines() if line.startswith("retry-after"))
            seen.refused.append((began, int(said.split(":")[1])))
            return
        seen.admitted.append(time.monotonic())
        events = (await reader.read()).decode()
    except (ConnectionResetError, asyncio.IncompleteReadError) as error:
        seen.failed.append(repr(error))
        return
    finally:
        writer.close()
    if status == "200" and "event: end" in events:
        seen.done.append(time.monotonic() - began)
    else:
        seen.failed.append(head + events[-200:])


def _rss(stack: Stack) -> dict[str, int]:
    """Bytes of each service, and of the server."""
    pids = {name: stack.children[name].pid for name in SERVICES} | {"nats-server": stack.server.pid}
    return {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}

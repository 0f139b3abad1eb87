"""A request that nobody wants any more: how long until its engines stop, and until nothing of it is left.

Four ways: DELETE, a client that hangs up, a WebSocket that closes, a deadline. Engines stop: the cancelled End of the
last running node is stored. Gone: its items have left the queues, no last will, lease or block is held. Bars (issue
4): engines stop within 250 ms, all is gone within 1 s, and each node and request has exactly one end. Floor: DELETE
of a request that has ended, which a gateway answers from what is stored.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from websockets.asyncio.client import connect

from broker import topology
from broker.reads import pages
from broker.subjects import RUNS, facts_of, parse_run
from sidecar.client import SidecarClient
from tests.e2e.apps import APPS
from tests.faults.soak import share
from tests.faults.stored import wills_for_items
from tests.stack import Stack
from tests.waiting import eventually

CANCELS: Final = 50
"""Of each way."""
SERVICE_MS: Final = 20_000.0
DEADLINE: Final = 1.0
STOPPED_MS, GONE_MS = 250.0, 1000.0
NODES: Final = 2
"""Of the app `one`: a value and a stream."""

Times = tuple[float, float]
"""Seconds from the cancel to stopped, and to gone."""
Way = Callable[[Stack, SidecarClient, str], Awaitable[tuple[str, float]]]
"""Begins a request, cancels it once it runs; its id, and when that was (Unix seconds)."""


async def run(rounds: int = 1) -> dict[str, Any]:
    """One JSON object: p50, p99 and the longest of each way, in ms."""
    ways: dict[str, Way] = {"delete": _delete, "hang_up": _hang_up, "websocket": _websocket, "deadline": _deadline}
    took: dict[str, list[Times]] = {way: [] for way in ways}
    floor: list[float] = []
    async with Stack(gateways=2) as stack:
        await stack.deploy(APPS / "one.py")
        sidecar = await SidecarClient.connect(stack.socket, name="bench", quota=0)
        for number in range(CANCELS):
            for name, way in ways.items():
                request, at = await way(stack, sidecar, f"{name} {number}")
                took[name].append(await _over(stack, sidecar, request, at))
            began = time.perf_counter()
            await stack.clients[1].delete(f"/requests/{request}")
            floor.append(time.perf_counter() - began)
        await sidecar.close()
    worst = [max(t[part] for times in took.values() for t in times) * 1000 for part in (0, 1)]
    figures: dict[str, Any] = {name: _row(times) for name, times in took.items()}
    late = [max(figures[name][f"{part}_p99_ms"] for name in took) for part in ("stopped", "gone")]
    return {
        "name": "cancels",
        "figures": {"cancels": sum(len(times) for times in took.values()), **figures},
        "floor": {"delete_of_an_ended_request_p50_ms": round(share(floor, 0.5) * 1000, 1)},
        "ratio": {"stopped_max": round(worst[0] / STOPPED_MS, 2), "gone_max": round(worst[1] / GONE_MS, 2)},
        "bar": {"stopped_p99_ms": STOPPED_MS, "gone_p99_ms": GONE_MS, "ends_of_each_node_and_request": 1},
        "ok": late[0] <= STOPPED_MS and late[1] <= GONE_MS,
    }


def _row(times: list[Times]) -> dict[str, float]:
    row = {}
    for part, name in enumerate(("stopped", "gone")):
        for share_of, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
            row[f"{name}_{label}_ms"] = round(share([t[part] for t in times], share_of) * 1000, 1)
    return row


async def _over(stack: Stack, sidecar: SidecarClient, request: str, at: float) -> Times:
    """Raises AssertionError when a node or the request has more than one end."""

    async def ends() -> list[float]:
        return [
            s.time
            async for s in pages(stack.broker, RUNS, facts_of(request))
            if parse_run(s.subject).kind == "node-end"
        ]

    async def stopped() -> list[float]:
        found = await ends()
        return found if len(found) >= NODES else []

    async def gone() -> bool:
        stats = await sidecar.stats()
        if (stats.committed_bytes, stats.leases, wills_for_items(stack, stats)) != (0, 0, 0):
            return False
        for component in await topology.components(stack.broker):
            load = await topology.backlog(stack.broker, component)
            if any((*load.pending.values(), *load.in_flight.values())):
                return False
        return True

    last = max(await eventually(stopped, within=10, every=0.005))
    await eventually(gone, within=10, every=0.005)
    everything = time.time()

    async def finished() -> bool:
        return any([parse_run(s.subject).kind == "end" async for s in pages(stack.broker, RUNS, facts_of(request))])

    await eventually(finished, within=10)
    assert len(await ends()) == NODES
    return last - at, everything - at


async def _running(stack: Stack, sidecar: SidecarClient) -> None:
    async def held() -> bool:
        return wills_for_items(stack, await sidecar.stats()) == NODES

    await eventually(held, within=20, every=0.005)


async def _begin(stack: Stack, text: str, **headers: str) -> tuple[str, httpx.Response]:
    body = {"text": text, "service_ms": SERVICE_MS}
    asked = stack.clients[0].build_request(
        "POST", "/apps/one", json=body, headers={"Accept": "text/event-stream", **headers}
    )
    response = await stack.clients[0].send(asked, stream=True)
    return response.headers["cornstalk-request"], response


async def _delete(stack: Stack, sidecar: SidecarClient, text: str) -> tuple[str, float]:
    request, response = await _begin(stack, text)
    await _running(stack, sidecar)
    at = time.time()
    await stack.clients[1].delete(f"/requests/{request}")
    await response.aclose()
    return request, at


async def _hang_up(stack: Stack, sidecar: SidecarClient, text: str) -> tuple[str, float]:
    request, response = await _begin(stack, text)
    await _running(stack, sidecar)
    at = time.time()
    await response.aclose()
    return request, at


async def _websocket(stack: Stack, sidecar: SidecarClient, text: str) -> tuple[str, float]:
    async with connect(f"ws://127.0.0.1:{stack.ports[0]}/apps/one") as socket:
        body = {"text": text, "service_ms": SERVICE_MS}
        await socket.send(json.dumps({"type": "invoke", "id": "x", "input": body}))
        accepted = json.loads(await socket.recv())
        await _running(stack, sidecar)
        at = time.time()
    return str(accepted["request"]), at


async def _deadline(stack: Stack, sidecar: SidecarClient, text: str) -> tuple[str, float]:
    began = time.time()
    request, response = await _begin(stack, text, **{"Cornstalk-Deadline": str(DEADLINE)})
    await asyncio.wait_for(_running(stack, sidecar), 20)
    await response.aread()
    return request, began + DEADLINE

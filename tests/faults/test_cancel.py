"""Work that nobody wants stops, leaves its queues and gives its memory back; each node and request has one end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio

from broker import topology
from broker.subjects import work_stream
from cornstalk.messages import End
from tests.e2e.apps import APPS
from tests.faults.apps import FAULT_APPS
from tests.faults.client import ask
from tests.faults.lives import component, restart, working
from tests.faults.stored import ends, held, nothing_left, queues_empty
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

GONE = 2.0
"""Seconds until all is as if the request had never been; 1 s on a machine that does nothing else."""
SLOTS = 8
"""Of the two workers of a null component."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        for path in (APPS / "one.py", APPS / "chain.py", FAULT_APPS / "guess.py"):
            await running.deploy(path)
        yield running


async def begin(stack: Stack, app: str, text: str, **headers: str) -> tuple[str, httpx.Response]:
    """A request that would take long; its id and its open stream of events."""
    body = {"text": text, "service_ms": 20_000}
    sent = stack.clients[0].build_request(
        "POST", f"/apps/{app}", json=body, headers={"Accept": "text/event-stream", **headers}
    )
    response = await stack.clients[0].send(sent, stream=True)
    return response.headers["cornstalk-request"], response


async def delete(stack: Stack, request: str, _: httpx.Response) -> None:
    assert (await stack.clients[1].delete(f"/requests/{request}")).status_code == 202


async def leave(_: Stack, __: str, response: httpx.Response) -> None:
    await response.aclose()


@pytest.mark.parametrize("how", [delete, leave])
async def test_running_work_stops(stack: Stack, how: Callable[[Stack, str, httpx.Response], Awaitable[None]]) -> None:
    """Before the first piece: the engine's next step would be over in 20 s."""
    request, response = await begin(stack, "one", f"running {how.__name__}")
    await held(stack, 2)
    at = time.time()
    await how(stack, request, response)

    async def both_ended() -> list[End]:
        stored = await ends(stack, request)
        return stored if len(stored) == 2 else []

    stored = await eventually(both_ended, within=10)
    await nothing_left(stack, within=10)
    await response.aclose()
    assert {end.outcome for end in stored} == {"cancelled"}
    took = max(end.times.ended for end in stored) - at
    print(f"{how.__name__} to stopped: {took * 1000:.0f} ms")
    assert took < GONE
    status = (await stack.clients[1].get(f"/requests/{request}")).json()["status"]
    assert status == "cancelled"


async def test_a_deadline_stops_it(stack: Stack) -> None:
    request, response = await begin(stack, "one", "late", **{"Cornstalk-Deadline": "1.5"})
    await response.aread()

    async def both_ended() -> bool:
        return {end.outcome for end in await ends(stack, request)} <= {"cancelled", "expired"} and (
            len(await ends(stack, request)) == 2
        )

    await eventually(both_ended, within=GONE)
    await nothing_left(stack, within=GONE)


async def test_what_is_queued_leaves_while_others_run(stack: Stack) -> None:
    """Every slot is taken by requests that go on; those behind them are cancelled and count no more."""
    first = [await begin(stack, "one", f"first {i}") for i in range(SLOTS)]
    await held(stack, 2 * SLOTS)
    behind = [await begin(stack, "one", f"behind {i}") for i in range(6)]
    value = component(stack, "value")

    async def pending() -> int:
        return sum((await topology.backlog(stack.broker, value)).pending.values())

    async def all_queued() -> bool:
        return await pending() == len(behind)

    await eventually(all_queued, within=10)
    await asyncio.gather(*(delete(stack, request, response) for request, response in behind))

    async def none_queued() -> bool:
        return await pending() == 0

    await eventually(none_queued, within=GONE)
    assert [end for request, _ in first for end in await ends(stack, request)] == []
    await asyncio.gather(*(delete(stack, request, response) for request, response in first))
    await nothing_left(stack, within=10)
    for _, response in (*first, *behind):
        await response.aclose()


async def test_a_worker_that_starts_later_skips_what_was_cancelled(stack: Stack) -> None:
    """Hints are not heard by who is not there, and the dispatcher that knew the queue is dead."""
    workers = [child for name, child in stack.children.items() if "-value-" in name]
    dispatchers = [child for name, child in stack.children.items() if name.startswith("dispatcher")]
    value = component(stack, "value")
    for worker in workers:
        worker.kill()

    async def nobody_pulls() -> bool:
        info = await stack.broker.api(f"CONSUMER.INFO.{work_stream(value)}.interactive")
        return bool(info["num_waiting"] == 0)

    await eventually(nobody_pulls, within=10)
    request, response = await begin(stack, "one", "nobody there")

    async def is_queued() -> bool:
        return sum((await topology.backlog(stack.broker, value)).pending.values()) == 1

    await eventually(is_queued, within=10)
    for dispatcher in dispatchers:
        dispatcher.kill()
    await delete(stack, request, response)
    for child in (*workers, *dispatchers):
        restart(child)
    await working(stack, *workers)
    await queues_empty(stack, within=10)
    await response.aclose()
    outcomes = [end.outcome for end in await ends(stack, request) if end.worker]
    assert outcomes == ["cancelled"] * 2


async def test_a_guess_that_was_wrong_is_stopped(stack: Stack) -> None:
    answer = await ask(stack.clients, "guess", {"text": "cut"}, "cut", within=20)
    assert answer.end is not None
    assert answer.end["status"] == "done"

    async def stopped() -> bool:
        return "cancelled" in {end.outcome for end in await ends(stack, answer.request)}

    await eventually(stopped, within=GONE)
    await nothing_left(stack, within=10)

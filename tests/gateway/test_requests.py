"""A request seen from outside: while it runs, when it has ended, when it is purged; left, found again, cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.options import read_options
from tests.e2e.apps import APPS, one
from tests.gateway.sse import frames, live, told
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRACE = 5.0
"""Seconds a finished request stays readable in this stack."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2, env={"CORNSTALK_GRACE": str(GRACE)}) as running:
        await running.deploy(APPS / "one.py")
        yield running


@asynccontextmanager
async def streaming(
    client: httpx.AsyncClient, text: str, service_ms: float = 20_000, pieces: int = 2, grace: float = 0.0
) -> AsyncIterator[httpx.Response]:
    body = {"text": text, "service_ms": service_ms, "pieces": pieces}
    headers = {"Accept": "text/event-stream", "Cornstalk-Resume-Grace": str(grace)}
    async with client.stream("POST", "/apps/one", json=body, headers=headers) as response:
        yield response


async def status(client: httpx.AsyncClient, request: str) -> str:
    return str((await client.get(f"/requests/{request}")).json()["status"])


async def ends(client: httpx.AsyncClient, request: str, how: str, within: float = 5.0) -> None:
    async def ended() -> bool:
        return await status(client, request) == how

    await eventually(ended, within=within)


async def test_while_it_runs_and_after_its_end(stack: Stack) -> None:
    a, b = stack.clients
    async with streaming(a, "seen", service_ms=300) as response:
        request = response.headers["cornstalk-request"]
        body = (await b.get(f"/requests/{request}")).json()
        assert (body["request"], body["app"], body["status"]) == (request, "one", "running")
        assert "response" not in body
        await eventually(lambda: _nodes(b, request, 2), within=5)
        await response.aread()
    for client in (a, b):
        body = (await client.get(f"/requests/{request}")).json()
        assert body["status"] == "done"
        assert body["response"] == {"digest": one("seen")["digest"]}
        assert body["times"]["accepted"] < body["times"]["finished"] < time.time()
        for node in body["nodes"]:
            times = node["times"]
            assert (node["outcome"], node["gen"]) == ("done", 0)
            assert times["published"] <= times["claimed"] <= times["started"] <= times["ended"]
            assert node["worker"].startswith("local-")
            assert node["line"].startswith("app.py:") or node["line"].startswith("one.py:")


async def _nodes(client: httpx.AsyncClient, request: str, count: int) -> bool:
    return len((await client.get(f"/requests/{request}")).json()["nodes"]) == count


async def test_resume_after_everything_has_ended(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/one", json={"text": "late", "pieces": 6})
    request = answer.json()["request"]
    whole = frames((await stack.clients[1].get(f"/requests/{request}/events")).text)
    assert told(whole, "text") == one("late", 6)["text"]
    assert whole[-1]["event"] == "end"
    ids = [e["id"] for e in whole if "id" in e]
    assert len(ids) >= 1
    for i, after in enumerate(ids):
        rest = frames(
            (await stack.clients[0].get(f"/requests/{request}/events", headers={"Last-Event-ID": after})).text
        )
        assert rest == whole[i + 1 :]
    for beyond in (int(ids[-1]) + 1, 10**17):
        headers = {"Last-Event-ID": str(beyond)}
        rest = frames((await stack.clients[0].get(f"/requests/{request}/events", headers=headers)).text)
        assert rest == whole[-1:]


async def test_a_failed_request_says_the_same_to_everybody(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/one", json={"text": "bad", "fail": "raise"})
    body = answer.json()
    assert answer.status_code == 502
    shown = (await stack.clients[1].get(f"/requests/{body['request']}")).json()
    assert (shown["status"], shown["error"]) == ("failed", body["error"])
    (event,) = [
        e
        for e in frames((await stack.clients[1].get(f"/requests/{body['request']}/events")).text)
        if e["event"] == "error"
    ]
    assert event["data"] == {"request": body["request"], "status": "failed", "error": body["error"]}


async def test_cancel_is_idempotent_and_changes_no_end(stack: Stack) -> None:
    a, b = stack.clients
    async with streaming(a, "cancelled") as response:
        request = response.headers["cornstalk-request"]
        answers = await asyncio.gather(*(c.delete(f"/requests/{request}") for c in (a, b, a, b)))
        assert {r.status_code for r in answers} == {202}
        last = frames((await response.aread()).decode())[-1]
    assert (last["event"], last["data"]["status"], last["data"]["error"]["code"]) == ("error", "cancelled", "cancelled")
    again = await a.delete(f"/requests/{request}")
    assert (again.status_code, again.json()["status"]) == (202, "cancelled")
    done = (await a.post("/apps/one", json={"text": "done"})).json()
    late = await b.delete(f"/requests/{done['request']}")
    assert (late.status_code, late.json()["status"]) == (202, "done")
    assert await status(a, done["request"]) == "done"


async def test_a_json_client_hears_of_the_cancel_too(stack: Stack) -> None:
    headers = {"Idempotency-Key": "json-cancel"}
    asked = asyncio.create_task(
        stack.clients[0].post("/apps/one", json={"text": "j", "service_ms": 20_000}, headers=headers)
    )
    request = read_options("one", {"idempotency-key": "json-cancel"}).request

    async def cancelled() -> bool:
        return (await stack.clients[1].delete(f"/requests/{request}")).status_code == 202

    await eventually(cancelled, within=5)
    answer = await asked
    assert (answer.status_code, answer.json()["status"]) == (499, "cancelled")


# ------------------------------------------------------------ clients that leave


@pytest.mark.parametrize("gateway", [0, 1])
async def test_who_comes_back_within_the_grace_keeps_the_request(stack: Stack, gateway: int) -> None:
    text = f"back{gateway}"
    async with streaming(stack.clients[0], text, service_ms=150, pieces=10, grace=1.0) as response:
        request = response.headers["cornstalk-request"]
        stream = live(response)  # held: when it goes, so does the connection
        first = await anext(stream)
    headers = {"Last-Event-ID": first["id"]}
    async with stack.clients[gateway].stream("GET", f"/requests/{request}/events", headers=headers) as response:
        rest = [event async for event in live(response)]
    assert told([first, *rest], "text") == one(text, 10)["text"]
    assert rest[-1]["event"] == "end"


async def test_who_moved_before_it_was_missed_keeps_the_request(stack: Stack) -> None:
    """The old connection is noticed to be gone only after the new one was there on another gateway."""
    async with streaming(stack.clients[0], "moved", service_ms=150, pieces=14, grace=0.5) as response:
        request = response.headers["cornstalk-request"]
        stream = live(response)  # held: when it goes, so does the connection
        first = await anext(stream)
        there = asyncio.Event()
        moved = asyncio.create_task(_rest(stack.clients[1], request, first["id"], there))
        await asyncio.wait_for(there.wait(), 5)
    rest = await moved
    assert told([first, *rest], "text") == one("moved", 14)["text"]
    assert rest[-1]["event"] == "end"


async def _rest(client: httpx.AsyncClient, request: str, after: str, there: asyncio.Event) -> list[dict[str, Any]]:
    """All events from `after` on; `there` is set with the first."""
    found = []
    async with client.stream("GET", f"/requests/{request}/events", headers={"Last-Event-ID": after}) as response:
        async for event in live(response):
            found.append(event)
            there.set()
    return found


async def test_one_of_two_listeners_may_leave(stack: Stack) -> None:
    async with streaming(stack.clients[0], "two", service_ms=150, pieces=14) as response:
        request = response.headers["cornstalk-request"]
        stream = live(response)  # held: when it goes, so does the connection
        first = await anext(stream)
        here, elsewhere = asyncio.Event(), asyncio.Event()
        other = asyncio.create_task(_rest(stack.clients[0], request, "0", here))
        third = asyncio.create_task(_rest(stack.clients[1], request, first["id"], elsewhere))
        await asyncio.wait_for(asyncio.gather(here.wait(), elsewhere.wait()), 5)
    assert told(await other, "text") == one("two", 14)["text"]
    assert told([first, *(await third)], "text") == one("two", 14)["text"]


async def test_a_listener_on_another_gateway_is_enough(stack: Stack) -> None:
    """Even for a request without a grace."""
    async with streaming(stack.clients[0], "enough", service_ms=150, pieces=14) as response:
        request = response.headers["cornstalk-request"]
        stream = live(response)  # held: when it goes, so does the connection
        first = await anext(stream)
        there = asyncio.Event()
        rest = asyncio.create_task(_rest(stack.clients[1], request, first["id"], there))
        await asyncio.wait_for(there.wait(), 5)
    assert told([first, *(await rest)], "text") == one("enough", 14)["text"]


async def test_who_does_not_come_back_has_cancelled(stack: Stack) -> None:
    async with streaming(stack.clients[0], "gone", grace=0.7) as response:
        request = response.headers["cornstalk-request"]
    left = time.monotonic()
    await ends(stack.clients[1], request, "cancelled")
    assert time.monotonic() - left >= 0.6
    body = (await stack.clients[1].get(f"/requests/{request}")).json()
    assert body["error"]["message"] == "the client left"


async def test_a_json_client_that_leaves_has_cancelled(stack: Stack) -> None:
    request = read_options("one", {"idempotency-key": "json-left"}).request
    asked = asyncio.create_task(
        stack.clients[0].post(
            "/apps/one", json={"text": "j", "service_ms": 20_000}, headers={"Idempotency-Key": "json-left"}
        )
    )

    async def accepted() -> bool:
        return (await stack.clients[1].get(f"/requests/{request}")).status_code == 200

    await eventually(accepted, within=5)
    asked.cancel()
    await ends(stack.clients[1], request, "cancelled")


# ------------------------------------------------------------ silence and forgetting


async def test_pings_in_silence_and_what_is_left_after_the_purge(stack: Stack) -> None:
    """One request is silent for as long as it takes to ping; meanwhile others are purged."""
    answer = await stack.clients[0].post("/apps/one", json={"text": "purged"}, headers={"Idempotency-Key": "purged"})
    request = answer.json()["request"]
    pinged = asyncio.create_task(_first_ping(stack))
    client = stack.clients[1]

    async def purged() -> bool:
        return not (await client.get(f"/requests/{request}")).json()["nodes"]

    await eventually(purged, within=GRACE + 10)
    shown = (await client.get(f"/requests/{request}")).json()
    assert (shown["status"], shown["response"], shown["nodes"]) == ("done", {"digest": one("purged")["digest"]}, [])
    (event,) = frames((await client.get(f"/requests/{request}/events")).text)
    assert (event["event"], event["data"]["error"]["code"]) == ("error", "gone")
    assert (await client.delete(f"/requests/{request}")).json()["status"] == "done"
    again = await client.post("/apps/one", json={"text": "purged"}, headers={"Idempotency-Key": "purged"})
    assert (again.status_code, again.json()["error"]["code"]) == (410, "gone")
    assert await pinged == ": ping\n\n"


async def _first_ping(stack: Stack) -> str:
    async with streaming(stack.clients[0], "silent", service_ms=40_000) as response:
        return await anext(response.aiter_text())

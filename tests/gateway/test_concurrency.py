"""A gateway takes so many HTTP requests at once and no more: who comes then is told so, and harms nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e.apps import APPS, one
from tests.gateway.sse import live, told
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 4
SSE = {"Accept": "text/event-stream"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2, env={"CORNSTALK_CONNECTIONS": str(LIMIT)}) as running:
        await running.deploy(APPS / "one.py")
        yield running


@asynccontextmanager
async def full(client: httpx.AsyncClient, **body: Any) -> AsyncIterator[list[httpx.Response]]:
    """As many streams as it takes, each of which has begun: nothing that asks meanwhile could take the place of one."""
    async with AsyncExitStack() as streams:
        begun = [
            await streams.enter_async_context(
                client.stream("POST", "/apps/one", json={"text": f"in {n}", **body}, headers=SSE, timeout=60)
            )
            for n in range(LIMIT)
        ]
        assert [response.status_code for response in begun] == [200] * LIMIT
        yield begun


async def test_who_is_in_ends_right_and_who_comes_then_is_turned_away_at_once(stack: Stack) -> None:
    client, other = stack.clients
    async with full(client, pieces=20, service_ms=200) as begun:
        refused = await client.get("/apps")
        error = refused.json()["error"]
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert f"{LIMIT} requests under way" in error["message"]
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200
        assert (await client.delete("/requests/none")).status_code == 422, "a cancel gets through"
        assert (await other.get("/apps")).status_code == 200, "another gateway has room"
        for n, response in enumerate(begun):
            events = [event async for event in live(response)]
            assert events[-1]["event"] == "end"
            assert told(events, "text") == one(f"in {n}", 20)["text"]
    await eventually(lambda: _is_let_in(client), within=5)


async def test_a_client_that_leaves_makes_room(stack: Stack) -> None:
    client = stack.clients[0]
    async with full(client, pieces=40, service_ms=10_000):
        assert not await _is_let_in(client)
    await eventually(lambda: _is_let_in(client), within=5)


async def _is_let_in(client: httpx.AsyncClient) -> bool:
    return (await client.get("/apps")).status_code == 200

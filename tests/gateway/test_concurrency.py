"""A gateway takes so many HTTP requests at once and no more: who comes then is told so, and harms nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.e2e.apps import APPS, one
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2, env={"CORNSTALK_CONNECTIONS": str(LIMIT)}) as running:
        await running.deploy(APPS / "one.py")
        yield running


async def test_who_is_in_ends_right_and_who_comes_then_is_turned_away_at_once(stack: Stack) -> None:
    client, other = stack.clients
    body = {"pieces": 20, "service_ms": 200}
    asked = [
        asyncio.create_task(client.post("/apps/one", json={"text": f"in {n}", **body}, timeout=60))
        for n in range(LIMIT)
    ]
    refused: list[httpx.Response] = []

    async def turned_away() -> bool:
        answer = await client.get("/apps")
        refused.append(answer)
        return answer.status_code == 503

    await eventually(turned_away, within=5)
    error = refused[-1].json()["error"]
    assert (error["code"], error["retryable"], refused[-1].headers["retry-after"]) == ("unavailable", True, "1")
    assert f"{LIMIT} requests under way" in error["message"]
    for path in ("/healthz", "/readyz"):
        assert (await client.get(path)).status_code == 200
    assert (await client.delete("/requests/none")).status_code == 422, "a cancel gets through"
    assert (await other.get("/apps")).status_code == 200, "another gateway has room"
    assert not any(task.done() for task in asked)
    for n, answer in enumerate(await asyncio.gather(*asked)):
        assert answer.json()["response"] == one(f"in {n}", 20)
    await eventually(lambda: _is_let_in(client), within=5)


async def test_a_client_that_leaves_makes_room(stack: Stack) -> None:
    client = stack.clients[0]
    asked = [
        asyncio.create_task(
            client.post("/apps/one", json={"text": f"gone {n}", "pieces": 40, "service_ms": 500}, timeout=60)
        )
        for n in range(LIMIT)
    ]

    async def full() -> bool:
        return (await client.get("/apps")).status_code == 503

    await eventually(full, within=5)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await eventually(lambda: _is_let_in(client), within=5)


async def _is_let_in(client: httpx.AsyncClient) -> bool:
    return (await client.get("/apps")).status_code == 200

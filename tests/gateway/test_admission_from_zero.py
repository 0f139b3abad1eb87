"""A component without a worker, as one that was scaled to zero, lets in who comes, also when its first one starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.e2e.apps import APPS
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALONE = 6.0
"""Seconds for which nobody works: as long as a model takes to load."""
DEADLINE = 24.0
EVERY = 0.3
"""Seconds between two requests."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        yield running


async def test_waiting_for_the_first_worker_says_nothing_of_how_fast_it_will_be(stack: Stack) -> None:
    (component,) = (await stack.deploy(APPS / "wide.py", workers=False))["components"]
    began = time.monotonic()
    asked: list[asyncio.Task[httpx.Response]] = []

    def come() -> None:
        body = {"text": f"{len(asked)}", "calls": 1, "service_ms": 300}
        headers = {"Cornstalk-Deadline": str(DEADLINE)}
        asked.append(asyncio.create_task(stack.clients[0].post("/apps/wide", json=body, headers=headers)))

    async def all_answered() -> bool:
        come()
        if time.monotonic() > began + ALONE:
            stack.start_workers(component)
        return any(task.done() and task.result().status_code == 200 for task in asked)

    await eventually(all_answered, within=DEADLINE, every=EVERY)
    for _ in range(10):
        come()
        await asyncio.sleep(EVERY)
    answers = await asyncio.gather(*asked)
    assert len(answers) > ALONE / EVERY
    assert [a.text for a in answers if a.status_code != 200] == []

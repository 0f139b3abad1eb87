"""Components that share a process answer what they answer apart, also when it dies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.apps import APPS, chain
from tests.faults.client import ask, request_id
from tests.faults.lives import supervised
from tests.faults.stored import begun, queues_empty
from tests.stack import Child, Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        components = (await running.deploy(APPS / "chain.py", workers=False))["components"]
        assert len(components) > 1
        running.start_together("all", components)
        for component in components:
            await running.wait_workers(component, running.replicas)
        yield running


def processes(stack: Stack) -> list[Child]:
    return [child for name, child in stack.children.items() if name.startswith("all@")]


async def asked(stack: Stack, *texts: str) -> None:
    """AssertionError unless all are answered right."""
    body = {"pieces": 10, "service_ms": 60}
    answers = await asyncio.gather(*(ask(stack.clients, "chain", {"text": text, **body}, text) for text in texts))
    for text, answer in zip(texts, answers, strict=True):
        assert answer.response == chain(text, pieces=10)


async def test_each_process_serves_each_component(stack: Stack) -> None:
    shown = (await stack.clients[0].get("/components")).json()["components"]
    pids = {child.pid for child in processes(stack)}
    assert {frozenset(worker["pid"] for worker in component["workers"]) for component in shown} == {frozenset(pids)}
    await asked(stack, *(f"calm {n}" for n in range(4)))


async def test_one_that_is_killed_leaves_all_its_items_to_the_other(stack: Stack) -> None:
    async with supervised(stack):
        asking = asyncio.create_task(asked(stack, *(f"killed {n}" for n in range(6))))
        for stored, child in zip((1, 3), processes(stack), strict=True):
            await begun(stack, request_id("chain", "killed 0"), stored)
            child.kill()
        await asking
        await queues_empty(stack, within=20.0)


async def test_one_that_is_ended_drains_each_component(stack: Stack) -> None:
    child = processes(stack)[0]
    await eventually(lambda: child.alive)
    asking = asyncio.create_task(asked(stack, *(f"ended {n}" for n in range(6))))
    await begun(stack, request_id("chain", "ended 0"), 1)
    child.kill(signal.SIGTERM)
    await asking
    assert await asyncio.to_thread(child.wait, 20) == 0

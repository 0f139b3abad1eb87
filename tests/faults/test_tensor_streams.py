"""Streams of tensors, small in the log and large in the sidecar, while what makes, holds or reads them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cornstalk.messages import Inline, Ref, extensions
from tests.faults.apps import FAULT_APPS, rows
from tests.faults.client import ask, request_id
from tests.faults.conftest import FAST
from tests.faults.lives import component, supervised
from tests.faults.stored import chunks, ends, sidecar_stats
from tests.stack import Child, Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(env=FAST) as running:
        await running.deploy(FAULT_APPS / "rows.py")
        yield running


def workers(stack: Stack, name: str) -> list[Child]:
    return [stack.children[f"{component(stack, name)}@{i}"] for i in range(stack.replicas)]


async def answer(stack: Stack, text: str, **body: object) -> dict[str, object]:
    return (await ask(stack.clients, "rows", {"text": text, **body}, text)).response


async def made(stack: Stack, text: str, tensors: int) -> None:
    """Returns when so many large tensors stand in the log."""

    async def stored() -> bool:
        log = await chunks(stack, request_id("rows", text))
        return sum(isinstance(e, Ref) for _, chunk in log for e in extensions(chunk.payload)) >= tensors

    await eventually(stored, within=20)


async def test_the_log_holds_small_tensors_and_says_where_large_ones_are(stack: Stack) -> None:
    assert await answer(stack, "whole", service_ms=1) == rows("whole")
    found: dict[tuple[type, str], list[int]] = {}
    for stored, chunk in await chunks(stack, request_id("rows", "whole")):
        for tensor in extensions(chunk.payload):
            node = stored.subject.split(".")[2]
            found.setdefault((type(tensor), node), []).append(tensor.shape[0])  # type: ignore[attr-defined]
    assert sorted((kind.__name__, sizes) for (kind, _), sizes in found.items()) == [
        (Inline.__name__, [100] * 12),
        (Ref.__name__, [9_000] * 12),
        (Ref.__name__, [20_000] * 12),
    ]

    async def released() -> bool:
        return (await sidecar_stats(stack)).blocks == 0

    await eventually(released, within=20)


@pytest.mark.parametrize("who", ["rows", "small", "last"])
async def test_a_killed_worker_makes_no_difference(stack: Stack, who: str) -> None:
    """The next attempt goes on after what is stored: tensors of the dead one are read as if nothing had happened."""
    text = f"killed {who}"
    async with supervised(stack):
        asking = asyncio.create_task(answer(stack, text))
        await made(stack, text, 6)
        for worker in workers(stack, who):
            worker.kill()
        assert await asking == rows(text)
    assert {end.outcome for end in await ends(stack, request_id("rows", text))} == {"done"}


async def test_lost_tensors_are_made_again(stack: Stack) -> None:
    """The sidecar and the readers die: who starts to read finds nothing, and the producer runs again (lineage)."""
    text = "lost"
    async with supervised(stack):
        asking = asyncio.create_task(answer(stack, text, service_ms=100))
        await made(stack, text, 6)
        stack.children["sidecar"].kill()
        for worker in workers(stack, "small"):
            worker.kill()
        assert await asking == rows(text)
    stored = await ends(stack, request_id("rows", text))
    assert {end.outcome for end in stored} == {"done", "lost"}
    assert any(end.vanished for end in stored)

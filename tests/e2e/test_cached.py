"""What an encoder made is made once: for two apps, two workers, and whoever dies (issue 5)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from broker.reads import pages
from broker.subjects import ALL_USAGE, USAGE
from broker.topology import backlog
from cornstalk.messages import decode
from cornstalk.tasks.null import Null, NullCached
from cornstalk.usage import NodeUsage, RequestUsage
from tests.e2e.apps import APPS, looking
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
EYE, VALUE = NullCached(name="looking-eye"), Null(name="looking-mind")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        await running.deploy(APPS / "looking.py")
        same = (APPS / "looking.py").read_text().replace('App("looking"', 'App("looking_too"')
        other = running.home / "looking_too.py"
        other.write_text(same)
        await running.deploy(other)
        yield running


async def asked(stack: Stack, number: int, file: bytes, **fields: Any) -> tuple[str, bool]:
    """The id of the request, and whether it was answered right; by turns of both gateways, asking both apps."""
    body = {"file": base64.b64encode(file).decode(), "text": str(number), **fields}
    app = "looking" if number % 3 else "looking_too"
    answer = await stack.clients[number % 2].post(f"/apps/{app}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["request"], answer.json()["response"] == looking(str(number), file)


async def looks(stack: Stack, requests: list[str]) -> list[NodeUsage]:
    """What the eyes of these requests used."""

    async def found() -> list[NodeUsage]:
        records = [decode(RequestUsage, stored.data) async for stored in pages(stack.broker, USAGE, ALL_USAGE)]
        ours = [node for r in records if r.request in requests for node in r.nodes if node.component == EYE.component]
        return ours if len(ours) == len(requests) else []

    return await eventually(found, within=20.0)


async def test_equal_files_are_looked_at_once_whoever_asks(stack: Stack) -> None:
    files = [f"file {n}".encode() * 99 for n in range(4)]
    answers = await asyncio.gather(*(asked(stack, n, files[n % 4], service_ms=50) for n in range(40)))
    assert all(right for _, right in answers)
    used = await looks(stack, [request for request, _ in answers])
    assert sum(not node.usage.cached for node in used) == len(files)
    assert len({node.worker for node in used}) == 2
    again = await asyncio.gather(*(asked(stack, n, files[n % 4], service_ms=50) for n in range(8)))
    assert all(right for _, right in again)
    assert all(node.usage.cached and not node.usage.run_s for node in await looks(stack, [r for r, _ in again]))


async def test_other_inputs_are_other_looks(stack: Stack) -> None:
    first, second = await asked(stack, 1, b"one file"), await asked(stack, 2, b"one file", service_ms=1)
    used = await looks(stack, [first[0], second[0]])
    assert first[1]
    assert second[1]
    assert not any(node.usage.cached for node in used)


async def test_a_worker_that_dies_while_it_looks_passes_its_turn_on(stack: Stack) -> None:
    eyes = [child for name, child in stack.children.items() if name.startswith(EYE.component)]
    stop = asyncio.Event()
    keeping = asyncio.create_task(stack.keep_alive(stop))
    for round_ in range(3):
        file = f"killed {round_}".encode() * 50
        asking = [asyncio.create_task(asked(stack, n, file, service_ms=300)) for n in range(8)]
        await eventually(lambda: taken(stack, EYE.component, 2), within=10.0)
        eyes[round_ % 2].kill()
        answers = await asyncio.gather(*asking)
        assert all(right for _, right in answers)
        used = await looks(stack, [request for request, _ in answers])
        assert sum(not node.usage.cached for node in used) == 1
        await stack.wait_workers(EYE.component, 2)
    stop.set()
    await keeping


async def test_a_cache_that_died_with_its_sidecar_is_made_again(stack: Stack) -> None:
    file = b"of a sidecar" * 40
    assert (await asked(stack, 1, file))[1]
    asking = [asyncio.create_task(asked(stack, n, file, after_ms=400)) for n in range(6)]
    await eventually(lambda: taken(stack, VALUE.component, 2), within=10.0)  # one may be the last one's: acked last
    sidecar = stack.children["sidecar"]
    sidecar.kill()
    sidecar.start()
    assert [right for _, right in await asyncio.gather(*asking)] == [True] * 6
    request, right = await asked(stack, 2, file)
    assert right
    assert (await looks(stack, [request]))[0].usage.cached


async def taken(stack: Stack, component: str, items: int) -> bool:
    """Whether workers have so many items."""
    return sum((await backlog(stack.broker, component)).in_flight.values()) >= items
